import unittest

import markdown
from text import Form, Text


def sentences(raw: str) -> list[str]:
    return [sentence.source for sentence in Text(1, raw).sentences]


class Sentences(unittest.TestCase):
    def test_sentences_end_at_marks(self):
        self.assertEqual(sentences("One is. Two is! `three` is? Four."), ["One is.", "Two is!", "`three` is?", "Four."])

    def test_abbreviations_and_numbers_end_nothing(self):
        self.assertEqual(len(sentences("See e.g. The page, i.e. Version 1.5 of it, No. 7")), 1)

    def test_code_is_one_word(self):
        (sentence,) = Text(1, "Run `cargo run --quiet\n-p x` - now").sentences
        self.assertEqual(sentence.count(), 3)

    def test_a_link_counts_by_its_text(self):
        (sentence,) = Text(1, "See [the long page](https://host/a%20b.html) and <https://host/x>").sentences
        self.assertEqual(sentence.count(), 6)

    def test_code_ends_no_sentence(self):
        self.assertEqual(len(sentences("Set `a. B` and go")), 1)

    def test_a_sentence_knows_its_line(self):
        lines = [sentence.line for sentence in Text(5, "One\nis. Two\nis. Three").sentences]
        self.assertEqual(lines, [5, 6, 7])


class Blocks(unittest.TestCase):
    def test_blocks_are_told_apart(self):
        page = [
            "# Title",
            "First",
            "line",
            "- item",
            "  goes on",
            "1. second",
            "",
            "```sh",
            "# Who",
            "```",
            "| Head | `a|b` |",
            "|---|---|",
            "| cell | other |",
            "[link]: https://host",
        ]
        found = [(text.line, text.raw.strip(), text.form) for text in markdown.texts(page)]
        self.assertEqual(
            found,
            [
                (1, "Title", Form.HEADING),
                (2, "First\nline", Form.PROSE),
                (4, "item\n  goes on", Form.PROSE),
                (6, "second", Form.PROSE),
                (11, "Head", Form.HEADING),
                (11, "`a|b`", Form.HEADING),
                (13, "cell", Form.CELL),
                (13, "other", Form.CELL),
            ],
        )

    def test_a_fence_ends_only_with_its_own_length(self):
        page = ["````", "```", "text", "````", "after"]
        self.assertEqual([text.raw for text in markdown.texts(page)], ["after"])


if __name__ == "__main__":
    unittest.main()
