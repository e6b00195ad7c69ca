"""Checks a built book: links lead to files of the book, anchors to elements, and the search knows each page."""

import html.parser
import json
import pathlib
import re
import urllib.parse
from collections.abc import Iterator

# Attributes with an address, by element.
_ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}
# The index stands in a string of JavaScript.
_INDEX = re.compile(r"JSON\.parse\('(.*)'\)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# Pages without words of their own.
_NOT_SEARCHED = {"404.html", "toc.html"}


class Page(html.parser.HTMLParser):
    """The anchors and addresses of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[tuple[int, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if values.get("id"):
            self.anchors.add(values["id"])
        if address := values.get(_ADDRESSES.get(tag, "")):
            self.addresses.append((self.getpos()[0], address))


def dead_links(book: pathlib.Path) -> Iterator[str]:
    """Describes each address that leads nowhere, or out of the book. Addresses of other hosts are not tried."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(book.rglob("*.html"))}
    for path, page in pages.items():
        for line, address in page.addresses:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            # The page for a missing page is shown at any address, so its own count from the root.
            target = (path.parent / urllib.parse.unquote(parts.path)) if parts.path else path
            if parts.path.startswith("/"):
                target = book / parts.path.lstrip("/")
            target = target.resolve()
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            where = f"{path.relative_to(book)}:{line}: {address}"
            if not target.is_relative_to(book.resolve()):
                yield f"{where}: leads out of the book"
            elif not target.is_file():
                yield f"{where}: no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{where}: no such anchor"


def not_searched(book: pathlib.Path) -> Iterator[str]:
    """Describes each page that the search does not know."""
    found = list(book.glob("searchindex*.js"))
    if len(found) != 1:
        yield f"the book has {len(found)} search indexes and not one"
        return
    index = _INDEX.search(found[0].read_text(encoding="utf-8"))
    if not index:
        yield f"{found[0].name} has no index that can be read"
        return
    addresses = json.loads(_ESCAPED.sub(r"\1", index[1]))["doc_urls"]
    known = {address.partition("#")[0] for address in addresses}
    for path in sorted(book.rglob("*.html")):
        name = path.relative_to(book).as_posix()
        if name not in known and name not in _NOT_SEARCHED:
            yield f"{name}: the search does not know this page"
