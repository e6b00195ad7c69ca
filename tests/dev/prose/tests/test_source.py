import unittest

import source


def comments(content: str, language: str) -> list[tuple[int, str]]:
    return [(text.line, text.raw) for text in source.comments(content, language)]


class Comments(unittest.TestCase):
    def test_neighbouring_lines_are_one_comment(self):
        rust = "/// One\n/// two.\nfn a() {} // three\n// four\n"
        self.assertEqual(comments(rust, "rust"), [(1, "One\ntwo."), (3, "three"), (4, "four")])

    def test_markers_and_columns_part_comments(self):
        self.assertEqual(len(comments("//! One\n/// two\n// three\n    // four\n", "rust")), 4)

    def test_literals_hold_no_comments(self):
        rust = 'let a = "// no"; let b = r#"// "no"#; let c = \'"\'; let d = b\'\\\'\'; // yes\n'
        self.assertEqual(comments(rust, "rust"), [(1, "yes")])

    def test_lifetimes_begin_no_literal(self):
        self.assertEqual(comments("fn a<'a>(b: &'a str, c: &'a str) {} // it's\n", "rust"), [(1, "it's")])

    def test_examples_of_doc_comments_are_code(self):
        self.assertEqual(comments("/// One.\n/// ```\n/// // Who\n/// ```\n", "rust"), [(1, "One.")])

    def test_a_label_is_left_out(self):
        self.assertEqual(comments("// SAFETY: the pointer is valid.\n", "rust"), [(1, "the pointer is valid.")])

    def test_python_has_comments_and_docstrings(self):
        python = '#!/usr/bin/env python3\n"""One.\n\nTwo.\n"""\na = "# no"  # yes\n'
        self.assertEqual(comments(python, "python"), [(2, "One."), (4, "Two."), (6, "yes")])

    def test_shell_parameters_are_no_comments(self):
        self.assertEqual(comments('a=${b#c} d=$# e="# no"  # yes\n', "hashed"), [(1, "yes")])

    def test_usage_lines_are_apart(self):
        self.assertEqual(len(comments("# Says why.\n#   tool run   says how\n# Goes on.\n", "hashed")), 3)

    def test_protocol_and_go_have_slashes(self):
        self.assertEqual(comments('a = "//"; // yes\n/* block */\n', "slashed"), [(1, "yes"), (2, "block")])


class Literals(unittest.TestCase):
    def test_messages_have_three_words(self):
        rust = '#[error("a\\\n   b {path} c")]\nlet short = "a b";\n// "in a comment"\n'
        (message,) = source.literals(rust)
        self.assertEqual((message.line, " ".join(message.raw.split())), (1, "a b `xxxx` c"))

    def test_code_is_left(self):
        self.assertEqual(source.code_of('a("b"); // c\nd'), "a(   );     \nd")


if __name__ == "__main__":
    unittest.main()
