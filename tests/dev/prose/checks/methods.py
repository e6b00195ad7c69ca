"""`question`: a method that takes `&mut self` is named by an imperative verb."""

import re
from collections.abc import Iterator

from offence import Offence
from repository import File

_QUESTION = re.compile(r"(?:is|has|can|was|may|are|will|does|should|needs)_")
_REFERENCE = r"&\s*(?:'\w+\s+)?mut\b"
_MUTATING = re.compile(rf"\bfn\s+(\w+)\s*(?:<[^({{]*>)?\s*\(\s*(?:{_REFERENCE}\s*self\b|self\s*:\s*{_REFERENCE})")
_TRAIT_IMPLEMENTATION = re.compile(r"^[ \t]*(?:unsafe\s+)?impl\b[^;{]*?\bfor\b(?!\s*<)[^;{]*\{", re.MULTILINE)
_BRACE = re.compile(r"[{}]")
# `sessions_are_bounded` is a statement; `refuse_what_is_below` begins with its verb.
_STATE = re.compile(r"(?:(?!(?:what|who|which|if|where|that|while|until|as)_)[a-z0-9]+_)+(?:is|are|was|were|has|have)_")
_VAGUE = re.compile(r"(?:what|who|nobody|somebody|those)_")
# Verbs in the third person with which names begin; nouns of the same form, such as `answers`, are left out.
_THIRD_PERSON = frozenset(
    "is has was does goes comes begins ends leaves takes gives gets keeps stays lacks owes lodges waits wakes hears"
    " weighs rests resides reaches returns makes finds faults fails happens attaches bears passes fences loses"
    " needs lives lies learns tells asks says knows holds drops moves maps unmaps frees sends sees looks puts sets"
    " starts stops"
    " becomes allows accepts refuses grants grows shrinks adds removes settles counts records marks clears".split()
)


def check(file: File) -> Iterator[Offence]:
    """Finds questions and statements. A trait's own declaration is checked, so its implementations are not."""
    if file.language != "rust":
        return
    spans = list(_trait_implementations(file.code))
    for found in _MUTATING.finditer(file.code):
        if reads_as(found[1]) and not any(start < found.start() < end for start, end in spans):
            line = file.code.count("\n", 0, found.start()) + 1
            message = f"`&mut self` wants an imperative verb, this is a {reads_as(found[1])}"
            yield Offence(file.path, line, "question", message, found[1])


def reads_as(name: str) -> str | None:
    """Returns what the name reads as unless it may be imperative."""
    if _QUESTION.match(name):
        return "question"
    states = name.partition("_")[0] in _THIRD_PERSON or _STATE.match(name) or _VAGUE.match(name)
    return "statement" if states else None


def _trait_implementations(code: str) -> Iterator[tuple[int, int]]:
    for found in _TRAIT_IMPLEMENTATION.finditer(code):
        depth = 1
        for brace in _BRACE.finditer(code, found.end()):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                yield found.start(), brace.start()
                break
