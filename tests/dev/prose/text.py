"""Texts and their sentences: the form in which the checks see prose."""

import enum
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Stands for a character of inline code or of an address: a run of them is one word.
CODE = "\0"

_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\[\]]*)\](\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])?")
_ADDRESS = re.compile(r"<?\bhttps?://[^\s<>)]+>?")
_EMPHASIS = re.compile(r"\*+|(?<!\w)_+|_+(?!\w)")
_BREAK = re.compile(r"(?<=[.!?])[\"”')\]]*\s+(?=[\"“‘'(\[]*[A-Z\d\0])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|approx|No|St)\.|^\s*\d+\.)$")
_WORD = re.compile(r"\S*[\w\0]\S*")


class Form(enum.Enum):
    """How a text stands on its page."""

    PROSE = enum.auto()
    # A heading, or a cell of a table's first row.
    HEADING = enum.auto()
    CELL = enum.auto()
    # A string of the program. It may begin in lower case.
    MESSAGE = enum.auto()


@dataclass(frozen=True)
class Sentence:
    """One sentence: `words` has no markup, `source` is one line as the file has it."""

    line: int
    words: str
    source: str
    form: Form

    def count(self) -> int:
        """Returns the number of words; inline code is one."""
        return len(_WORD.findall(self.words))

    def asks(self) -> bool:
        """Tells a question by its mark."""
        return self.words.rstrip(" \"”')").endswith("?")


@dataclass(frozen=True)
class Text:
    """A paragraph, list item, heading, cell, comment or message; `raw` has its consecutive lines."""

    line: int
    raw: str
    form: Form = Form.PROSE

    @functools.cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences, each with the line on which it begins."""
        return tuple(self._split())

    def _split(self) -> Iterator[Sentence]:
        plain = without_markup(self.raw)
        start = 0
        for end in [*_ends(plain), len(plain)]:
            words = plain[start:end].strip()
            if words:
                begins = start + len(plain[start:end]) - len(plain[start:end].lstrip())
                source = " ".join(self.raw[begins:end].replace("**", "").split())
                yield Sentence(self.line + self.raw.count("\n", 0, begins), words, source, self.form)
            start = end


def without_markup(raw: str) -> str:
    """Blanks markup and masks inline code. The result is as long as `raw`, so that offsets stay."""
    plain = _HTML_COMMENT.sub(lambda found: _blank(found[0]), raw)
    plain = _INLINE_CODE.sub(lambda found: _mask(found[0]), plain)
    plain = _IMAGE_OR_LINK.sub(_text_of_link, plain)
    plain = _ADDRESS.sub(lambda found: CODE * len(found[0]), plain)
    return _EMPHASIS.sub(lambda found: " " * len(found[0]), plain)


def _ends(plain: str) -> Iterator[int]:
    for found in _BREAK.finditer(plain):
        if not _ABBREVIATION.search(plain[: found.start()]):
            yield found.end()


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _mask(code: str) -> str:
    # A span that goes over two lines is one word all the same; its lines are counted in `raw`.
    return CODE * len(code)


def _text_of_link(found: re.Match[str]) -> str:
    lead = found.start(1) - found.start()
    return " " * lead + found[1] + _blank(found[0][lead + len(found[1]) :])
