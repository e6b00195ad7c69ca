"""`subject`: each sentence opens with a subject that a reader can look up."""

import re
from collections.abc import Iterator

from offence import Offence
from repository import File
from text import Form, Sentence

_LEAD = r"[\s\"“‘'(\[]*"
_VAGUE = re.compile(
    _LEAD + r"(Who(?:ever|se|m)?|What(?:ever)?|Those|So (?:many|much)|(?:Some|No|Any|Every)body|Someone"
    r"|It is (?:looked|asked|told|said))\b(?!:)"
)
_ASKING = re.compile(_LEAD + r"(Who|Whose|Whom|What)\b")
# `Those bytes` and `Those two` have a noun; `Those are` and `Those that` have none.
_WITH_NOUN = re.compile(
    _LEAD + r"Those (?:(?!(?:is|was|has|does|as|us|this|its|always|sometimes|besides)\b)\w+s|two|three|four|few)\b"
)


def check(file: File) -> Iterator[Offence]:
    """Finds vague openings in comments, pages and messages."""
    for text in (*file.prose, *file.messages):
        for sentence in text.sentences:
            if found := vague_opening(sentence):
                yield Offence(file.path, sentence.line, "subject", f'"{found}" names no actor', sentence.source)


def vague_opening(sentence: Sentence) -> str | None:
    """Returns the opening words if they name no actor. Questions may ask for one, and headings too."""
    words = sentence.words
    if sentence.form is Form.MESSAGE:
        words = words[0].upper() + words[1:]
    found = _VAGUE.match(words)
    if not found or _WITH_NOUN.match(words):
        return None
    if _ASKING.match(words) and (sentence.asks() or sentence.form is Form.HEADING):
        return None
    return found[1]
