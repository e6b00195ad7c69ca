"""Reads Markdown, of pages and of comments, into texts."""

import re
from collections.abc import Iterator, Sequence

from text import Form, Text

_FENCE = re.compile(r"\s*(?:>\s*)?(`{3,}|~{3,})")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_QUOTE = re.compile(r"\s*>\s?")
_RULE = re.compile(r"\s*\|?[\s:|-]*-{3}[\s:|-]*$")
_DEFINITION = re.compile(r"\s*\[[^\]]+\]:\s")
_CELL = re.compile(r"(?:\\.|`[^`]*`|[^|\\`]|`)+")


def numbered(lines: Sequence[str], first: int = 1) -> Iterator[tuple[int, str, bool]]:
    """Yields each line with its number, and whether it belongs to a block of code."""
    fence = ""
    for number, line in enumerate(lines, first):
        found = _FENCE.match(line)
        if fence:
            yield number, line, True
            if found and found[1].startswith(fence):
                fence = ""
        else:
            yield number, line, bool(found)
            fence = found[1] if found else ""


def is_row(line: str) -> bool:
    """Tells whether the line is a row of a table."""
    return line.lstrip().startswith("|")


def texts(lines: Sequence[str], first: int = 1) -> Iterator[Text]:
    """Yields paragraphs, items, headings and cells; code is left out. `first` numbers the first line."""
    paragraph: list[str] = []
    begin = first
    for number, line, code in numbered(lines, first):
        following = lines[number - first + 1] if number - first + 1 < len(lines) else ""
        starts = _ITEM.match(line) or _HEADING.match(line)
        apart = code or not line.strip() or is_row(line) or _RULE.match(line) or _DEFINITION.match(line)
        if paragraph and (apart or starts):
            yield Text(begin, "\n".join(paragraph))
            paragraph = []
        if apart:
            if is_row(line) and not code and not _RULE.match(line):
                yield from _cells(number, line, Form.HEADING if _RULE.match(following) else Form.CELL)
        elif _HEADING.match(line):
            yield Text(number, line[starts.end() :], Form.HEADING)
        else:
            begin = begin if paragraph else number
            paragraph.append(_bare(line))
    if paragraph:
        yield Text(begin, "\n".join(paragraph))


def _bare(line: str) -> str:
    line = _QUOTE.sub("", line, count=1)
    marker = _ITEM.match(line)
    return line[marker.end() :] if marker else line


def _cells(number: int, line: str, form: Form) -> Iterator[Text]:
    for cell in _CELL.findall(line):
        if cell.strip():
            yield Text(number, cell, form)
