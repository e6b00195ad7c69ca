"""Where the pages of the repository stand in the book, and how their links lead there."""

import pathlib
import posixpath
import re
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCS = "docs"

_FENCE = re.compile(r"\s*(?:>\s*)?(`{3,}|~{3,})")
# Code in a line is found so that links in it are passed over.
_CODE_OR_LINK = re.compile(
    r"(?P<code>`+[^`]*`+)|"
    r"\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)"
)
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|#")


def source(path: str) -> str:
    """Returns the path in the repository of a page that the summary names."""
    return posixpath.normpath(posixpath.join(DOCS, path))


def place(path: str) -> str:
    """Returns the path in the book of a page that the summary names: pages of the root are in `project/`."""
    return posixpath.join("project", posixpath.basename(path)) if path.startswith("../") else path


def with_links(content: str, page: str, places: Mapping[str, str], root: pathlib.Path = ROOT) -> str:
    """Returns a page's text with links that are valid in the book. `places` has each page's place by its source."""

    def changed(found: re.Match[str]) -> str:
        target = found["target"]
        if found["code"] or _ELSEWHERE.match(target):
            return found[0]
        path, mark, anchor = target.partition("#")
        full = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if full in places:
            there = places[full]
        elif full.startswith(f"{DOCS}/") and (root / full).is_file():
            there = posixpath.relpath(full, DOCS)
        else:
            return found["text"]
        # mdBook makes `index.html` of a README, and leaves links to it as they are.
        there = re.sub(r"(^|/)README\.md$", r"\1index.md", there)
        link = posixpath.relpath(there, posixpath.dirname(places[page]) or ".")
        return f"[{found['text']}]({link}{mark}{anchor}{found['title'] or ''})"

    return "".join(part if code else _CODE_OR_LINK.sub(changed, part) for part, code in _parts(content))


def _parts(content: str) -> list[tuple[str, bool]]:
    """Splits a page into blocks of code and what is between them."""
    parts: list[tuple[list[str], bool]] = [([], False)]
    fence = ""
    for line in content.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            parts[-1][0].append(line)
            if found and found[1].startswith(fence):
                fence = ""
                parts.append(([], False))
        elif found:
            fence = found[1]
            parts.append(([line], True))
        else:
            parts[-1][0].append(line)
    return [("".join(lines), code) for lines, code in parts]
