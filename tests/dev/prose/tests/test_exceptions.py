import unittest
from collections import Counter

import cli
import exceptions
from exceptions import Exceptions, Growth
from offence import Offence

HEAD = """# Head.
commits_after = "abc"

[[allow]]
check = "actor"
text = "The user nobody."
reason = "a user's name"

"""
FILE = HEAD + '[listed]\n"a.rs" = { actor = 2, subject = 3 }\n"b.md" = { wide = 1 }\n'


def offences(path: str, check: str, count: int) -> list[Offence]:
    return [Offence(path, line, check, "message", f"text {line}") for line in range(count)]


class List(unittest.TestCase):
    def setUp(self):
        self.listed = Exceptions.parse(FILE)

    def test_the_file_stays_as_it_is(self):
        self.assertEqual(self.listed.render(), FILE)

    def test_a_reason_is_required(self):
        with self.assertRaises(ValueError):
            Exceptions.parse(HEAD.replace('"a user\'s name"', '""'))

    def test_an_allowed_text_is_sifted_out(self):
        allowed = Offence("a.rs", 1, "actor", "message", "The user nobody.")
        other = Offence("a.rs", 1, "subject", "message", "The user nobody.")
        self.assertEqual(self.listed.sift([allowed, other]), [other])
        self.assertEqual(self.listed.unused([allowed]), [])
        self.assertEqual(self.listed.unused([other]), ["actor: The user nobody."])

    def test_lowering_never_raises(self):
        self.listed.lower({"a.rs": Counter(actor=1, subject=4, wide=1), "c.rs": Counter(actor=1)})
        self.assertEqual(self.listed.listed, {"a.rs": Counter(actor=1, subject=3)})

    def test_a_renamed_file_is_adopted(self):
        self.listed.adopt({"a.rs": Counter(actor=1, subject=3), "c.rs": Counter(actor=1)}, ["c.rs"])
        lines = '[listed]\n"a.rs" = { actor = 1, subject = 3 }\n"c.rs" = { actor = 1 }\n'
        self.assertEqual(self.listed.render(), HEAD + lines)

    def test_new_offences_are_not_adopted(self):
        with self.assertRaisesRegex(Growth, "actor = 1"):
            self.listed.adopt({"a.rs": Counter(actor=2, subject=3), "c.rs": Counter(actor=1)}, ["c.rs"])


class Ratchet(unittest.TestCase):
    def beyond(self, count: int) -> list[str]:
        return cli._beyond({"a.rs": Counter(actor=2)}, offences("a.rs", "actor", count))

    def test_the_listed_count_passes(self):
        self.assertEqual(self.beyond(2), [])

    def test_more_fail_and_are_shown(self):
        failures = self.beyond(3)
        self.assertEqual(len(failures), 4)
        self.assertIn("mend 1 of these", failures[-1])

    def test_fewer_fail_until_the_list_is_lowered(self):
        for count in (0, 1):
            (failure,) = self.beyond(count)
            self.assertIn("--lower", failure)

    def test_an_unlisted_file_fails(self):
        self.assertTrue(cli._beyond({}, offences("b.rs", "wide", 1)))

    def test_counts_are_per_check(self):
        self.assertEqual(exceptions.counted(offences("a", "b", 2)), {"a": Counter(b=2)})


if __name__ == "__main__":
    unittest.main()
