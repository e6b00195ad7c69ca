"""The checks. Each takes a file and yields offences; `commits` takes the history."""

from collections.abc import Iterator

from checks import actors, links, methods, openings, pages, tests_named
from offence import Offence
from repository import File

OF_FILES = (
    openings.check,
    actors.check,
    pages.check_sentences,
    pages.check_width,
    links.check,
    methods.check,
    tests_named.check,
)


def check_file(file: File) -> Iterator[Offence]:
    """Runs every check on one file."""
    for check in OF_FILES:
        yield from check(file)
