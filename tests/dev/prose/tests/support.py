"""Helpers of the tests: files that exist only in memory."""

from collections.abc import Callable, Iterator

from offence import Offence
from repository import File

Check = Callable[[File], Iterator[Offence]]


def found(check: Check, content: str, language: str = "markdown", path: str = "x") -> list[tuple[int, str]]:
    """Runs a check on the content; returns the line and the text of each offence."""
    return [(offence.line, offence.text) for offence in check(File(path, language, content))]


def texts(check: Check, content: str, language: str = "markdown") -> list[str]:
    """Runs a check on the content; returns the text of each offence."""
    return [text for _, text in found(check, content, language)]
