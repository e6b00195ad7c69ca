"""`sentence` and `wide`: pages are read easily, as text and as source."""

import re
from collections.abc import Iterator

import markdown
from offence import Offence
from repository import REGISTRIES, File

WORDS_MAX = 30
COLUMNS_MAX = 120
_ONLY_A_LINK = re.compile(r"\s*(?:[-*]\s+)?(?:\[[^\]]*\](?:\([^)]*\)|:\s*\S+)|<?https?://\S+>?)[.,;]?\s*")


def check_sentences(file: File) -> Iterator[Offence]:
    """Finds long sentences on pages, and in the registries of which pages are made."""
    if file.language == "markdown":
        texts = file.prose
    elif file.path in REGISTRIES:
        texts = file.messages
    else:
        return
    for text in texts:
        for sentence in text.sentences:
            if (words := sentence.count()) > WORDS_MAX:
                message = f"{words} words, {WORDS_MAX} at most"
                yield Offence(file.path, sentence.line, "sentence", message, sentence.source)


def check_width(file: File) -> Iterator[Offence]:
    """Finds wide lines on pages. Code, tables and addresses cannot wrap."""
    if file.language != "markdown":
        return
    for number, line, code in markdown.numbered(file.lines):
        if len(line) > COLUMNS_MAX and not (code or markdown.is_row(line) or _ONLY_A_LINK.fullmatch(line)):
            yield Offence(file.path, number, "wide", f"{len(line)} columns, {COLUMNS_MAX} at most", line.strip())
