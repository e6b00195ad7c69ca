"""`test-name`: the name of a test says what happens, to whom, in few words."""

import re
from collections.abc import Iterator

from offence import Offence
from repository import File

LENGTH_MAX = 70
_VAGUE = re.compile(
    r"(?:test_)?(who(?:ever|se|m)?|what(?:ever)?|(?:no|some|any|every)body|those|it_is_(?:looked|asked|told|said))_"
)
_RUST = re.compile(
    r"#\[(?:\w+\s*::\s*)*test(?:\([^\]]*\))?\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(?:async\s+)?fn\s+(\w+)"
)
_PYTHON = re.compile(r"^[ \t]*(?:async\s+)?def\s+(test_\w+)", re.MULTILINE)
# Cases that lists register by name.
_LISTED = {
    "broker/driver/src/contract/mod.rs": re.compile(r"^ +\w+::(\w+),$", re.MULTILINE),
    "tests/gpu/e2e/mod.rs": re.compile(r'^    \("([^"]+)", ', re.MULTILINE),
}


def check(file: File) -> Iterator[Offence]:
    """Finds long and vague names of tests."""
    for line, name in _names(file):
        if len(name) > LENGTH_MAX:
            yield Offence(file.path, line, "test-name", f"{len(name)} characters, {LENGTH_MAX} at most", name)
        if found := _VAGUE.match(name.replace(" ", "_")):
            yield Offence(file.path, line, "test-name", f'"{found[1]}" names no actor', name)


def _names(file: File) -> Iterator[tuple[int, str]]:
    patterns = []
    if file.language == "rust":
        patterns.append((_RUST, file.code))
    if file.language == "python":
        patterns.append((_PYTHON, file.content))
    if file.path in _LISTED:
        patterns.append((_LISTED[file.path], file.content))
    for pattern, content in patterns:
        for found in pattern.finditer(content):
            yield content.count("\n", 0, found.start(1)) + 1, found[1]
