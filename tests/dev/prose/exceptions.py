"""Reads and writes exceptions.toml: offences that are allowed for good, and the list of those that are left to mend."""

import pathlib
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from offence import Offence

PATH = pathlib.Path(__file__).with_name("exceptions.toml")
_LISTED = "[listed]\n"

# Offences by path and check.
Counts = dict[str, Counter[str]]


class Growth(Exception):
    """The list would have more offences than before."""


@dataclass
class Exceptions:
    """The content of exceptions.toml. `head` is its text before the list, which stays as it is."""

    head: str
    base: str
    allowed: frozenset[tuple[str, str]] = frozenset()
    listed: Counts = field(default_factory=dict)

    @classmethod
    def parse(cls, content: str) -> "Exceptions":
        """Parses the file. Each allowed text needs a reason."""
        table = tomllib.loads(content)
        for entry in table.get("allow", []):
            if not entry.get("reason"):
                raise ValueError(f"no reason to allow {entry}")
        return cls(
            head=content.partition(_LISTED)[0],
            base=table["commits_after"],
            allowed=frozenset((entry["check"], entry["text"]) for entry in table.get("allow", [])),
            listed={path: Counter(counts) for path, counts in table.get("listed", {}).items()},
        )

    def render(self) -> str:
        """Returns the file: one line for each path, in order."""
        lines = [f'"{path}" = {{ {_inline(counts)} }}\n' for path, counts in sorted(self.listed.items()) if +counts]
        return self.head + _LISTED + "".join(lines)

    def sift(self, offences: Iterable[Offence]) -> list[Offence]:
        """Returns the offences that are not allowed, in order."""
        return sorted(offence for offence in offences if (offence.check, offence.text) not in self.allowed)

    def unused(self, offences: Iterable[Offence]) -> list[str]:
        """Returns the allowed texts that nothing has any more."""
        found = {(offence.check, offence.text) for offence in offences}
        return [f"{check}: {text}" for check, text in sorted(self.allowed - found)]

    def lower(self, now: Counts) -> None:
        """Lowers each count to what is left."""
        self.listed = {path: counts & now.get(path, Counter()) for path, counts in self.listed.items()}
        self.listed = {path: counts for path, counts in self.listed.items() if counts}

    def adopt(self, now: Counts, paths: Iterable[str]) -> None:
        """Lists `paths` as they are. Refuses if any total grows: text may move, offences may not be added."""
        before = total(self.listed)
        self.lower(now)
        self.listed |= {path: now[path] for path in paths if path in now}
        if grown := total(self.listed) - before:
            raise Growth(f"the list would grow by {_inline(grown)}: mend the text instead")


def counted(offences: Iterable[Offence]) -> Counts:
    """Counts offences by path and check."""
    counts: Counts = {}
    for offence in offences:
        counts.setdefault(offence.path, Counter())[offence.check] += 1
    return counts


def total(counts: Counts) -> Counter[str]:
    """Adds up the counts of all paths."""
    return sum(counts.values(), Counter())


def _inline(counts: Counter[str]) -> str:
    return ", ".join(f"{check} = {count}" for check, count in sorted(counts.items()) if count)
