"""`actor`: within a sentence, each clause names its actor."""

import re
from collections.abc import Iterator

from checks.openings import vague_opening
from offence import Offence
from repository import File
from text import Form, Sentence

_UNNAMED = re.compile(r"\b(?:(?:some|no|any|every)body|whoever)\b")
# The word before decides whether a noun carries the clause: `the client who` does, `for who` does not.
_WHO = re.compile(
    r"(?:^|[,;:(]\s+|\b(?:for|to|of|by|from|and|or|that|is|are|those|all|with|but|as|at|so|if|than|then|when|once"
    r"|against|also|only|before|after|until|on|in|about|beside)\s+)who\s+(?=(?!else\b)\w)",
    re.IGNORECASE,
)
# `an operator, who ...` has its noun before the comma.
_NOUN = re.compile(
    r"\b(?:clients?|sessions?|tenants?|operators?|owners?|process(?:es)?|users?|readers?|writers?|people|person|daemon"
    r"|driver|callers?|mappers?|importers?|waiters?|maintainers?|reviewers?|authors?|engineers?)$"
)


def check(file: File) -> Iterator[Offence]:
    """Finds clauses without an actor in comments, pages and messages."""
    for text in (*file.prose, *file.messages):
        for sentence in text.sentences:
            for found in unnamed_actors(sentence):
                yield Offence(file.path, sentence.line, "actor", f'"{found}" names no actor', sentence.source)


def unnamed_actors(sentence: Sentence) -> Iterator[str]:
    """Yields the words that stand where an actor should. The opening is left to `subject`."""
    opening = vague_opening(sentence) or ""
    for found in _UNNAMED.finditer(sentence.words):
        if found.start() > 0 or not opening:
            yield found[0]
    if sentence.asks() or sentence.form is Form.HEADING:
        return
    for found in _WHO.finditer(sentence.words):
        noun_before = found[0].startswith(",") and _NOUN.search(sentence.words[: found.start()])
        if not noun_before and (found.start() > 0 or not opening):
            yield " ".join(found[0].split()).lstrip(",;:( ")
