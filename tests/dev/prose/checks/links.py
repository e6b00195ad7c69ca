"""`link`: relative links of pages lead to a file, their anchors to a heading, and paths in prose to what they name."""

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
_PATH = re.compile(r"`((?:broker|deploy|docs|proto|sdk-python|sdk-rust|tests)/[\w./-]*\w)/?`")
_LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def check(file: File, root: pathlib.Path = ROOT) -> Iterator[Offence]:
    """Finds links and paths that lead nowhere. A path counts from any folder above its file; addresses are not tried."""
    for text in file.prose:
        for path in _PATH.findall(text.raw):
            if not any((folder / path).exists() for folder in (root / file.path).parents):
                yield Offence(file.path, text.line, "link", "no such file or folder", path)
    if file.language == "markdown":
        yield from _check_links(file, root)


def _check_links(file: File, root: pathlib.Path) -> Iterator[Offence]:
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
