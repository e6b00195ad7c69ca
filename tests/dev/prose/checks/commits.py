"""`commit`: the subjects of commits have one form."""

import pathlib
import re
import subprocess
from collections.abc import Iterator

from offence import Offence
from repository import git

LENGTH_MAX = 72
_AREA = r"[a-z0-9._/-]+"
_SUBJECT = re.compile(rf"{_AREA}(?:, ?{_AREA})*: \S+ \S.*")
_WIP = re.compile(r"\bwip\b", re.IGNORECASE)


class HistoryMissing(Exception):
    """The clone does not have the commits that the check needs."""


def check(root: pathlib.Path, base: str) -> Iterator[Offence]:
    """Checks each commit after `base`: the history before it stays as it is."""
    _require(root, base)
    for line in git(root, "log", "--reverse", "--format=%h%x00%P%x00%s", f"{base}..HEAD").splitlines():
        commit, parents, subject = line.split("\0")
        for message in faults(subject, len(parents.split())):
            yield Offence(commit, 1, "commit", message, subject)


def faults(subject: str, parents: int = 1) -> Iterator[str]:
    """Yields what is wrong with a commit."""
    if parents > 1:
        yield "a merge: rebase instead"
        return
    if _WIP.search(subject):
        yield "unfinished work"
    elif not _SUBJECT.fullmatch(subject):
        yield 'the form is "area: verb object"'
    if len(subject) > LENGTH_MAX:
        yield f"{len(subject)} characters, {LENGTH_MAX} at most"


def _require(root: pathlib.Path, base: str) -> None:
    if _fails(root, "cat-file", "-e", f"{base}^{{commit}}"):
        raise HistoryMissing(f"commit {base[:12]} is not in this clone: run `git fetch --unshallow` and try again")
    if _fails(root, "merge-base", "--is-ancestor", base, "HEAD"):
        raise HistoryMissing(f"commit {base[:12]} is no ancestor of HEAD: rebase this branch onto main")


def _fails(root: pathlib.Path, *arguments: str) -> bool:
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, check=False).returncode != 0
