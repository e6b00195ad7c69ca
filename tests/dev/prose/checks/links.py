"""`link`: relative links of pages lead to a file, and their anchors to a heading of it."""

import pathlib
import re
from collections import Counter
from collections.abc import Iterator

import markdown
from offence import Offence
from repository import ROOT, File

_INLINE_CODE = re.compile(r"`[^`]*`")
_TARGET = re.compile(r"\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def check(file: File, root: pathlib.Path = ROOT) -> Iterator[Offence]:
    """Finds links that lead nowhere. Addresses outside the repository are not tried."""
    if file.language != "markdown":
        return
    for number, line, code in markdown.numbered(file.lines):
        if code:
            continue
        for target in _TARGET.findall(_INLINE_CODE.sub("", line)):
            if not _ELSEWHERE.match(target) and (message := _problem(file, root, target)):
                yield Offence(file.path, number, "link", message, target)


def _problem(file: File, root: pathlib.Path, target: str) -> str:
    path, _, anchor = target.partition("#")
    full = (root / file.path).parent / path
    if path and not full.exists():
        return "no such file"
    if not anchor or (path and full.suffix != ".md"):
        return ""
    content = full.read_text(encoding="utf-8") if path else file.content
    return "" if anchor in anchors(content) else "no such heading"


def anchors(content: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for _, line, code in markdown.numbered(content.split("\n")):
        heading = None if code else _HEADING.match(line)
        if heading:
            text = _LINKED.sub(r"\1", heading[1]).replace("`", "").replace("*", "").lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found
