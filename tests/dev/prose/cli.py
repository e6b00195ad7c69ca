"""The command line of the prose check."""

import pathlib
import sys
from collections import Counter
from collections.abc import Iterable

import checks
import exceptions
from checks import commits, links
from exceptions import Counts, Exceptions
from offence import Offence
from repository import ROOT, files, generated

# A path of a file is cut to so many folders in totals.
FOLDERS_SHOWN = 2


def main(arguments: list[str], usage: str) -> int:
    """Does what the arguments say; returns the exit status."""
    try:
        listed = Exceptions.parse(exceptions.PATH.read_text(encoding="utf-8"))
    except ValueError as error:
        print(f"cannot read {exceptions.PATH.name}: {error}; see the usage in tests/dev/prose/run", file=sys.stderr)
        return 2
    match arguments:
        case []:
            return _check_all(listed)
        case ["--count"]:
            return _print_totals(listed.sift(_offences()))
        case ["--lower"]:
            listed.lower(exceptions.counted(listed.sift(_offences())))
            return _write(listed)
        case ["--adopt", _, *_]:
            return _adopt(listed, arguments[1:])
        case [first, *_] if not first.startswith("-"):
            return _check_some(listed, arguments)
        case _:
            print(usage, file=sys.stderr)
            return 2


def _offences() -> list[Offence]:
    of_files = [offence for file in files() for offence in checks.check_file(file)]
    return of_files + [offence for page in generated() for offence in links.check(page)]


def _check_all(listed: Exceptions) -> int:
    found = _offences()
    offences = listed.sift(found)
    failures = _beyond(listed.listed, offences)
    failures += [f"exceptions.toml allows what nothing says any more: {text}" for text in listed.unused(found)]
    try:
        failures += [str(offence) for offence in listed.sift(commits.check(ROOT, listed.base))]
    except commits.HistoryMissing as missing:
        failures.append(f"commit: {missing}")
    print(*failures, sep="\n", end="\n" if failures else "")
    print(f"{len(failures)} failures; {len(offences)} offences in files, the list has {_sum(listed.listed)}")
    return 1 if failures else 0


def _beyond(listed: Counts, offences: list[Offence]) -> list[str]:
    now = exceptions.counted(offences)
    failures = []
    for path in sorted(now.keys() | listed.keys()):
        for check in sorted(now.get(path, Counter()).keys() | listed.get(path, Counter()).keys()):
            have, may = now.get(path, Counter())[check], listed.get(path, Counter())[check]
            if have > may:
                failures += [str(offence) for offence in offences if (offence.path, offence.check) == (path, check)]
                failures.append(f"{path}: {check}: {have} offences, {may} are listed: mend {have - may} of these")
            elif have < may:
                failures.append(f"{path}: {check}: {have} offences, {may} are listed: run tests/dev/prose/run --lower")
    return failures


def _check_some(listed: Exceptions, paths: list[str]) -> int:
    wanted = [_relative(path) for path in paths]
    offences = [offence for offence in listed.sift(_offences()) if _within(offence.path, wanted)]
    for offence in offences:
        print(offence)
    return 1 if offences else 0


def _adopt(listed: Exceptions, paths: list[str]) -> int:
    now = exceptions.counted(listed.sift(_offences()))
    wanted = [_relative(path) for path in paths]
    try:
        listed.adopt(now, [path for path in now if _within(path, wanted)])
    except exceptions.Growth as growth:
        print(growth, file=sys.stderr)
        return 1
    return _write(listed)


def _write(listed: Exceptions) -> int:
    exceptions.PATH.write_text(listed.render(), encoding="utf-8")
    print(f"the list has {_sum(listed.listed)} offences in {len(listed.listed)} files")
    return 0


def _print_totals(offences: list[Offence]) -> int:
    by_check = Counter(offence.check for offence in offences)
    by_folder: dict[str, Counter[str]] = {}
    for offence in offences:
        folder = "/".join(offence.path.split("/")[:-1][:FOLDERS_SHOWN]) or "."
        by_folder.setdefault(folder, Counter())[offence.check] += 1
    names = sorted(by_check)
    print(f"{'':30}", *(f"{name:>9}" for name in (*names, "all")))
    for folder, counts in (*sorted(by_folder.items()), ("all", by_check)):
        print(f"{folder:30}", *(f"{counts[name]:>9}" for name in names), f"{counts.total():>9}")
    return 0


def _sum(counts: Counts) -> int:
    return exceptions.total(counts).total()


def _relative(path: str) -> str:
    full = pathlib.Path(path).resolve()
    if not full.is_relative_to(ROOT) or not full.exists():
        sys.exit(f"{path} is no file or folder of the repository")
    return str(full.relative_to(ROOT))


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(folder in (".", path) or path.startswith(folder + "/") for folder in folders)
