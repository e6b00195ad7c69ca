import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

import pages
import rendered

_FOLDER = pathlib.Path(__file__).resolve().parents[1]


def program(name: str):
    """The module of a program, whose name has no extension."""
    loader = importlib.machinery.SourceFileLoader(name, str(_FOLDER / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Temporary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


class Links(Temporary):
    PLACES = {"docs/README.md": "README.md", "docs/guides/rust.md": "guides/rust.md", "README.md": "project/README.md"}

    def changed(self, content: str, page: str = "docs/guides/rust.md") -> str:
        return pages.with_links(content, page, self.PLACES, self.root)

    def test_pages_of_the_root_have_a_place(self):
        self.assertEqual((pages.source("../README.md"), pages.place("../README.md")), ("README.md", "project/README.md"))
        self.assertEqual((pages.source("guides/rust.md"), pages.place("guides/rust.md")), ("docs/guides/rust.md", "guides/rust.md"))

    def test_link_leads_to_the_place_of_a_page(self):
        self.assertEqual(self.changed("See [it](../../README.md#why)."), "See [it](../project/index.md#why).")
        self.assertEqual(self.changed("See [it](../README.md)."), "See [it](../index.md).")
        self.assertEqual(self.changed("[it](docs/guides/rust.md)", "README.md"), "[it](../guides/rust.md)")

    def test_link_to_a_file_beside_the_pages_stays(self):
        self.write("docs/benchmarks/latest.json")
        self.assertEqual(self.changed("[it](../benchmarks/latest.json)"), "[it](../benchmarks/latest.json)")

    def test_link_out_of_the_book_becomes_text(self):
        self.write("tests/x.rs")
        self.assertEqual(self.changed("See [`x.rs`](../../tests/x.rs), or [the\nfolder](../../tests)."), "See `x.rs`, or the\nfolder.")

    def test_code_and_addresses_stay(self):
        text = "`[a](../x)` [b](https://example.org) [c](#here)\n\n```text\n[d](../x)\n```\n\n[e](../x)\n"
        self.assertEqual(self.changed(text), text.replace("[e](../x)", "e"))


class Rendered(Temporary):
    def test_dead_links_are_found(self):
        self.write("index.html", '<h1 id="top"><a href="#top">x</a></h1> <a href="sub/a.html#b">x</a> <a href="sub/">x</a>')
        self.write("sub/a.html", '<p id="a"> <a href="../index.html#gone">x</a> <img src="no.png"> <a href="../../x.html">x</a>')
        self.assertEqual(
            [problem.split(": ", 1)[1] for problem in rendered.dead_links(self.root)],
            [
                "sub/a.html#b: no such anchor",
                "sub/: no such file",
                "../index.html#gone: no such anchor",
                "no.png: no such file",
                "../../x.html: leads out of the book",
            ],
        )

    def test_good_links_pass(self):
        self.write("index.html", '<a href="sub/a.html#a">x</a> <a href="https://example.org/x">x</a> <script src="/x.js">')
        self.write("sub/a.html", '<p id="a"> <a href="..">x</a>')
        self.write("x.js")
        self.assertEqual(list(rendered.dead_links(self.root)), [])

    def test_page_that_the_search_lacks_is_found(self):
        self.write("index.html")
        self.write("a.html")
        self.assertEqual(list(rendered.not_searched(self.root)), ["the book has 0 search indexes and not one"])
        self.write("searchindex-1.js", """window.search = JSON.parse('{"doc_urls":["index.html#it\\'s"],"x":"\\\\n"}');""")
        self.assertEqual(list(rendered.not_searched(self.root)), ["a.html: the search does not know this page"])


class Summary(Temporary):
    def test_summary_lists_every_page_once(self):
        self.write("docs/SUMMARY.md", "[a](a.md)\n[a](a.md)\n[c](c.md)\n[r](../README.md)\n")
        self.write("docs/a.md")
        self.write("docs/b/b.md")
        self.write("README.md")
        self.assertEqual(
            program("run").summary_problems(self.root / "docs"),
            ["docs/SUMMARY.md does not list b/b.md", "docs/SUMMARY.md lists a.md twice", "docs/SUMMARY.md lists c.md, which is no page"],
        )
