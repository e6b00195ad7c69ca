"""Splits source files into code, comments and string literals, and comments into texts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import markdown
from text import Form, Text

_LINE_COMMENT = r"(?P<comment>//[^\n]*)|(?P<block>/\*.*?\*/)"
_RUST = re.compile(
    _LINE_COMMENT
    + r"""|(?P<raw>\b(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes))"""
    + r"""|(?P<string>"(?:\\.|[^"\\])*")"""
    + r"""|(?P<char>'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])')""",
    re.DOTALL | re.VERBOSE,
)
_SLASHED = re.compile(_LINE_COMMENT + r"""|(?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`)""", re.DOTALL)
_HASHED = re.compile(r"""(?P<string>"(?:\\.|[^"\\\n])*"|'[^'\n]*')|(?<!\S)(?P<comment>\#[^\n]*)""", re.VERBOSE)
_PYTHON = re.compile(
    r"""(?P<raw>'''.*?'''|\"\"\".*?\"\"\")|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>\#[^\n]*)""",
    re.DOTALL | re.VERBOSE,
)
GRAMMARS = {"rust": _RUST, "slashed": _SLASHED, "hashed": _HASHED, "python": _PYTHON}

_MARKER = re.compile(r"(//[/!](?!/)|//|#+(?!!)) ?(.*)")
# Of a format string, such as `{path}`.
_PLACEHOLDER = re.compile(r"\{[^{}\s]*\}")
# A label such as `SAFETY:` before the sentence.
_LABEL = re.compile(r"[A-Z]{3,}: ")


@dataclass(frozen=True)
class Token:
    """A comment or a string literal."""

    kind: str
    value: str
    line: int
    column: int
    # Whether nothing but white space stands before it on its line.
    alone: bool


@dataclass(frozen=True)
class _Line:
    """A line comment, parted into marker and content."""

    token: Token
    marker: str
    content: str

    def continues(self, before: "_Line") -> bool:
        """Tells whether both lines are one comment."""
        return (
            before.token.alone
            and self.token.alone
            and self.token.line == before.token.line + 1
            and self.token.column == before.token.column
            and self.marker == before.marker
        )


def tokens(source: str, language: str) -> Iterator[Token]:
    """Yields comments and literals in their order."""
    line, counted, line_start = 1, 0, 0
    for found in GRAMMARS[language].finditer(source):
        start = found.start()
        newlines = source.count("\n", counted, start)
        if newlines:
            line += newlines
            line_start = source.rindex("\n", counted, start) + 1
        counted = start
        alone = not source[line_start:start].strip(" \trRbB")
        yield Token(found.lastgroup, found[0], line, start - line_start, alone)


def code_of(source: str) -> str:
    """Returns Rust source with comments and literals blanked; lines and offsets stay."""
    return _RUST.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def comments(source: str, language: str) -> Iterator[Text]:
    """Yields the texts of comments and docstrings. Neighbouring lines with the same marker are one comment."""
    group: list[_Line] = []
    for token in tokens(source, language):
        if token.kind == "comment" and (found := _MARKER.fullmatch(token.value)):
            line = _Line(token, found[1], found[2])
            if group and not line.continues(group[-1]):
                yield from _texts_of(group, language)
                group = []
            group.append(line)
        elif token.kind == "block" or token.kind == "raw" and language == "python" and token.alone:
            yield from _texts_of(group, language)
            group = []
            yield from markdown.texts([line.strip() for line in _inside(token.value).split("\n")], token.line)
    yield from _texts_of(group, language)


def literals(source: str) -> Iterator[Text]:
    """Yields the string literals of Rust source that could be prose: three words or more."""
    for token in tokens(source, "rust"):
        if token.kind == "string" and token.value.count(" ") >= 2:
            value = token.value[1:-1].replace("\\\n", " \n").replace('\\"', ' "').replace("\\n", "  ")
            yield Text(token.line, _PLACEHOLDER.sub(_as_code, value), Form.MESSAGE)


def _as_code(found: re.Match[str]) -> str:
    return "`" + "x" * (len(found[0]) - 2) + "`"


def _inside(value: str) -> str:
    if value.startswith("/*"):
        return re.sub(r"(?m)^\s*\*(?!/)", lambda found: " " * len(found[0]), value[2:-2])
    return value[3:-3]


def _label(content: str) -> str:
    found = _LABEL.match(content)
    return found[0] if found else ""


def _texts_of(group: list[_Line], language: str) -> Iterator[Text]:
    if not group:
        return
    first = group[0].token.line
    lines = [line.content.removeprefix(_label(line.content)) for line in group]
    if language == "rust":
        yield from markdown.texts(lines, first)
        return
    # Elsewhere an indented line is a usage line, and begins a text of its own.
    begin = 0
    for index in range(1, len(lines) + 1):
        if index == len(lines) or lines[index].startswith("  ") != lines[begin].startswith("  "):
            yield from markdown.texts(lines[begin:index], first + begin)
            begin = index
