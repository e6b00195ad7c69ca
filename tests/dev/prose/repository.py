"""Finds the files to check, and reads each into the form that the checks take."""

import functools
import pathlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import markdown
import source
from text import Text

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Written by programs: the sources of their words are checked instead.
GENERATED = {
    "docs/reference/errors.md",
    "docs/reference/metrics.md",
    "docs/reference/invariants.md",
    "docs/reference/cli.md",
    "docs/reference/configuration.md",
    "docs/reference/protocol.md",
}
# Rust sources whose string literals become pages of documentation.
REGISTRIES = {
    "proto/types/src/reason.rs",
    "broker/src/telemetry/attributes.rs",
    "broker/src/telemetry/metrics.rs",
    "broker/core/src/invariants/registry.rs",
    "tests/dev/errors_md.rs",
    "tests/dev/cli_md.rs",
    "tests/dev/config_md.rs",
    "tests/dev/metrics_md.rs",
    "tests/dev/protocol_md.rs",
    "tests/simulator/src/bin/invariants_md.rs",
}
SKIPPED_FOLDERS = ("tests/fuzz/corpus/", "docs/benchmarks/")

LANGUAGES = {
    ".rs": "rust",
    ".md": "markdown",
    ".py": "python",
    ".pyi": "python",
    ".proto": "slashed",
    ".go": "slashed",
    ".cu": "slashed",
    ".toml": "hashed",
    ".yaml": "hashed",
    ".yml": "hashed",
    ".sh": "hashed",
}
BY_NAME = {"Makefile": "hashed", ".gitignore": "hashed", "known_seeds.txt": "hashed", "seeds.txt": "hashed"}
BY_FOLDER = {"tests/fuzz/dict": "hashed"}


@dataclass(frozen=True)
class File:
    """One file of the repository."""

    path: str
    language: str
    content: str

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return self.content.split("\n")

    @functools.cached_property
    def prose(self) -> list[Text]:
        """Everything in the file that is written for people, but for messages."""
        if self.language == "markdown":
            return list(markdown.texts(self.lines))
        return list(source.comments(self.content, self.language))

    @functools.cached_property
    def messages(self) -> list[Text]:
        """The string literals of Rust that could be prose."""
        return list(source.literals(self.content)) if self.language == "rust" else []

    @functools.cached_property
    def code(self) -> str:
        """Rust source without comments and literals."""
        return source.code_of(self.content)


def files(root: pathlib.Path = ROOT) -> Iterator[File]:
    """Yields each file that git tracks, or would track if it were added."""
    for path in sorted(git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")):
        full = root / path
        if not path or path in GENERATED or not full.is_file() or full.is_symlink():
            continue
        if path.startswith(SKIPPED_FOLDERS) and not path.endswith(".md"):
            continue
        if language := _language(full, path):
            yield File(path, language, full.read_text(encoding="utf-8"))


def generated(root: pathlib.Path = ROOT) -> Iterator[File]:
    """Yields the generated pages. Only their links are checked: the sources of their words are checked instead."""
    for path in sorted(GENERATED):
        if (root / path).is_file():
            yield File(path, "markdown", (root / path).read_text(encoding="utf-8"))


def git(root: pathlib.Path, *arguments: str) -> str:
    """Runs git in the repository and returns its output."""
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout


def _language(full: pathlib.Path, path: str) -> str | None:
    language = LANGUAGES.get(full.suffix) or BY_NAME.get(full.name) or BY_FOLDER.get(str(pathlib.PurePath(path).parent))
    if language or full.suffix:
        return language
    with full.open("rb") as opened:
        shebang = opened.readline(100)
    if not shebang.startswith(b"#!"):
        return None
    return "python" if b"python" in shebang else "hashed"
