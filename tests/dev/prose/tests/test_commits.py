import os
import pathlib
import subprocess
import tempfile
import unittest

from checks import commits


class Subjects(unittest.TestCase):
    def test_the_form_passes(self):
        for subject in (
            "core/line: skip waiters blocked by their own limit",
            "core, sdk-python: rename victims",
            "tests/dev: check prose by machine",
            ".ci: run the prose check",
        ):
            self.assertEqual(list(commits.faults(subject)), [], subject)

    def test_offences_are_found(self):
        subjects = ("Who waits is served", "wip", "core: wip on it", "Core: skip it", "core: skip", "fixup! core: a b")
        for subject in subjects:
            self.assertEqual(len(list(commits.faults(subject))), 1, subject)

    def test_length_is_limited(self):
        self.assertEqual(list(commits.faults("core: skip " + "a" * 61)), [])
        self.assertEqual(list(commits.faults("core: skip " + "a" * 62)), ["73 characters, 72 at most"])

    def test_merges_are_found(self):
        self.assertEqual(list(commits.faults("core: merge the line", parents=2)), ["a merge: rebase instead"])


class History(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.git("init", "--quiet", "--initial-branch=main")
        self.base = self.commit("Before the rule")

    def git(self, *arguments: str) -> str:
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        unset = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-C", self.root, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=unset | names).stdout.strip()

    def commit(self, subject: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    def test_only_later_commits_are_checked(self):
        self.commit("core: skip waiters")
        self.assertEqual(list(commits.check(self.root, self.base)), [])
        self.commit("No form")
        self.assertEqual([offence.text for offence in commits.check(self.root, self.base)], ["No form"])

    def test_a_base_outside_the_clone_is_told(self):
        with self.assertRaisesRegex(commits.HistoryMissing, "unshallow"):
            list(commits.check(self.root, "0" * 40))

    def test_a_base_on_another_branch_is_told(self):
        self.git("checkout", "--quiet", "--orphan", "other")
        self.commit("core: begin anew")
        with self.assertRaisesRegex(commits.HistoryMissing, "rebase"):
            list(commits.check(self.root, self.base))


if __name__ == "__main__":
    unittest.main()
