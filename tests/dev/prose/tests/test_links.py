import pathlib
import tempfile
import unittest

from checks import links
from repository import File


class Links(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / "docs/other.md").write_text("# Title\n\n## What `fits`?\n\n## Twice\n\n## Twice\n", encoding="utf-8")

    def found(self, content: str) -> list[tuple[str, str]]:
        offences = links.check(File("docs/page.md", "markdown", content), self.root)
        return [(offence.message, offence.text) for offence in offences]

    def test_link_to_nothing_is_found(self):
        self.assertEqual(self.found("See [it](missing.md)."), [("no such file", "missing.md")])

    def test_anchor_to_nothing_is_found(self):
        self.assertEqual(self.found("See [it](other.md#what)."), [("no such heading", "other.md#what")])
        self.assertEqual(self.found("# Here\n\nSee [it](#there)."), [("no such heading", "#there")])

    def test_path_to_nothing_is_found(self):
        self.assertEqual(self.found("See `tests/gone.rs`."), [("no such file or folder", "tests/gone.rs")])
        self.assertEqual(self.found("See `docs/other.md` and `docs/`, not `docs/*.md` or `made/x.rs`."), [])

    def test_path_in_a_comment_is_tried(self):
        offences = links.check(File("x.rs", "rust", "//! As `docs/gone.md` says.\nlet x = 1; // `docs/other.md`\n"), self.root)
        self.assertEqual([offence.text for offence in offences], ["docs/gone.md"])

    def test_good_links_pass(self):
        for target in ("other.md", "../docs/other.md", "other.md#what-fits", "other.md#twice-1", "#here", "."):
            self.assertEqual(self.found(f"# Here\n\nSee [it]({target})."), [], target)

    def test_addresses_and_code_are_left_alone(self):
        self.assertEqual(self.found("[a](https://example.org/x), `[b](missing.md)`\n\n```\n[c](missing.md)\n```\n"), [])
