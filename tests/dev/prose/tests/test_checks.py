import unittest

from checks import actors, methods, openings, pages, tests_named
from repository import REGISTRIES
from tests.support import found, texts


class Subject(unittest.TestCase):
    def test_vague_openings_are_found(self):
        for opening in (
            "Who waits is served",
            "Whoever comes is told",
            "Whose memory it is",
            "What is pinned stays",
            "Whatever fails is tried again",
            "Those that wait go on",
            "Those of a device",
            "It is looked who holds it",
            "It is told at once",
            "Somebody waits",
            "Nobody has it",
            "So many are kept",
            "So much is free",
            '"What is free" is a figure',
        ):
            self.assertEqual(texts(openings.check, opening + "."), [opening + "."])

    def test_a_later_sentence_is_found_on_its_line(self):
        self.assertEqual(found(openings.check, "A part\nleaves. Who pins it\nwaits."), [(2, "Who pins it waits.")])

    def test_every_place_is_read(self):
        for content, language in (
            ("- Nobody has it.", "markdown"),
            ("| a | Nobody has it. |", "markdown"),
            ("> Nobody has it.", "markdown"),
            ("**Nobody** has it.", "markdown"),
            ("/// Nobody has it.", "rust"),
            ("// SAFETY: Nobody has it.", "rust"),
            ('#[error("nobody has {it}")]', "rust"),
            ('"""Nobody has it."""', "python"),
            ("x = 1  # Nobody has it.", "python"),
            ("# Nobody has it.", "hashed"),
            ("// Nobody has it.", "slashed"),
        ):
            self.assertEqual(len(texts(openings.check, content, language)), 1, content)

    def test_near_misses_pass(self):
        for content in (
            "What does it cost?",
            "Who holds the memory?",
            "## What a closed channel means",
            "| What it shows | Where |\n|---|---|",
            "`What` is a type.",
            "Whole parts leave.",
            "Those bytes are free.",
            "Those two sums agree.",
            "It is mapped.",
            "So the part stays.",
            "What: the name of a field.",
            "The client knows what it maps.",
        ):
            self.assertEqual(texts(openings.check, content), [], content)

    def test_a_question_that_is_no_question_is_found(self):
        self.assertEqual(len(texts(openings.check, "## Nobody waits")), 1)
        self.assertEqual(len(texts(openings.check, "Those that wait?")), 1)


class Actor(unittest.TestCase):
    def test_unnamed_actors_are_found(self):
        for content in (
            "The room is for who waits.",
            "The part goes to who asks first.",
            "A part, who pins it, and who maps it.",
            "It is nobody that it serves.",
            "The room that somebody needs.",
            "A part that nobody pins.",
            "The copy waits for those who read.",
            "The word of whoever writes.",
            "| a | who is charged |",
        ):
            self.assertTrue(texts(actors.check, content), content)

    def test_messages_are_read(self):
        self.assertEqual(len(texts(actors.check, 'warn!("part that nobody pins")', "rust")), 1)

    def test_an_opening_is_the_other_checks(self):
        self.assertEqual(texts(actors.check, "Who waits is served. Nobody has it. Those who wait go."), [])
        self.assertEqual(texts(actors.check, 'panic!("nobody waits for it")', "rust"), [])

    def test_near_misses_pass(self):
        for content in (
            "The client who waits is served.",
            "An operator, who holds the part, is told.",
            "The log tells who holds it.",
            "## Tenants, and who they are",
            "Whether the daemon, or who else?",
            "The user is `nobody` there.",
            "The whole part.",
        ):
            self.assertEqual(texts(actors.check, content), [], content)


class Pages(unittest.TestCase):
    def test_a_long_sentence_is_found(self):
        self.assertEqual(texts(pages.check_sentences, "word " * 30 + "end."), ["word " * 30 + "end."])
        self.assertEqual(len(texts(pages.check_sentences, "| " + "word " * 31 + "|")), 1)

    def test_thirty_words_pass(self):
        self.assertEqual(texts(pages.check_sentences, "word " * 29 + "`one two three`."), [])

    def test_code_and_comments_have_no_limit(self):
        self.assertEqual(texts(pages.check_sentences, "```\n" + "word " * 40 + "\n```"), [])
        self.assertEqual(texts(pages.check_sentences, "// " + "word " * 40, "rust"), [])

    def test_registries_are_pages(self):
        path = min(REGISTRIES)
        self.assertEqual(len(found(pages.check_sentences, f'"{"word " * 31}"', "rust", path)), 1)

    def test_a_wide_line_is_found(self):
        self.assertEqual(found(pages.check_width, "a\n" + "b" * 121), [(2, "b" * 121)])
        self.assertEqual(len(found(pages.check_width, "# " + "b" * 119)), 1)

    def test_lines_that_cannot_wrap_pass(self):
        wide = "b" * 121
        links = (f"- [a](https://{wide})", f"[a]: {wide}", f"https://{wide}")
        for content in (f"| {wide} |", f"```\n{wide}\n```", *links):
            self.assertEqual(found(pages.check_width, content), [], content)
        self.assertEqual(found(pages.check_width, "b" * 120), [])


class Question(unittest.TestCase):
    def test_questions_and_statements_are_found(self):
        signatures = ("(&mut self)", "(\n        &mut self,\n        a: u8,\n    )", "<T: Ord>(&'a mut self)")
        for name in ("is_written", "has_left", "may_come", "waits", "leaves_its_device", "losses_are_told"):
            for signature in signatures:
                self.assertEqual(texts(methods.check, f"impl A {{ fn {name}{signature} {{}} }}", "rust"), [name])

    def test_near_misses_pass(self):
        for rust in (
            "fn is_written(&self) -> bool",
            "fn mark_written(&mut self)",
            "fn process(&mut self)",
            "fn pass_on(&mut self)",
            "fn issue(&mut self)",
            "fn refuse_what_is_below(&mut self)",
            "fn is_empty(queue: &mut Queue)",
            "// fn is_written(&mut self)",
        ):
            self.assertEqual(texts(methods.check, rust, "rust"), [], rust)

    def test_a_trait_answers_for_its_implementations(self):
        implementation = "impl A for B {\n    fn takes(&mut self) {}\n}\n"
        rust = "trait A { fn takes(&mut self); }\n" + implementation + "impl B { fn gives(&mut self) {} }"
        self.assertEqual(found(methods.check, rust, "rust"), [(1, "takes"), (5, "gives")])


class TestName(unittest.TestCase):
    def test_vague_names_are_found(self):
        for name in ("who_waits_is_served", "what_is_pinned_stays", "nobody_waits", "test_those_that_wait"):
            self.assertEqual(found(tests_named.check, f"#[test]\nfn {name}() {{}}", "rust"), [(2, name)])
        self.assertEqual(texts(tests_named.check, "def test_who_waits():\n", "python"), ["test_who_waits"])

    def test_attributes_are_read_over(self):
        rust = '#[tokio::test(start_paused = true)]\n#[ignore = "slow"]\nasync fn who_waits() {}'
        self.assertEqual(texts(tests_named.check, rust, "rust"), ["who_waits"])

    def test_a_long_name_is_found(self):
        self.assertEqual(len(texts(tests_named.check, f"#[test] fn {'a' * 71}() {{}}", "rust")), 1)
        self.assertEqual(texts(tests_named.check, f"#[test] fn {'a' * 70}() {{}}", "rust"), [])

    def test_listed_cases_are_read(self):
        contract = "broker/driver/src/contract/mod.rs"
        self.assertEqual(len(found(tests_named.check, "        lifetime::what_is_left,\n", "rust", contract)), 1)
        suite = '    ("who waits", pins::waits),\n    ("a pin waits", pins::waits),\n'
        self.assertEqual(found(tests_named.check, suite, "rust", "tests/gpu/e2e/mod.rs"), [(1, "who waits")])

    def test_near_misses_pass(self):
        for rust in ("fn who_waits() {}", "#[test]\nfn whole_parts_leave() {}", "// #[test]\nfn who_waits() {}"):
            self.assertEqual(texts(tests_named.check, rust, "rust"), [], rust)


if __name__ == "__main__":
    unittest.main()
