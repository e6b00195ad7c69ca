"""The guide does what it says."""

from __future__ import annotations

import re
import textwrap

from conftest import ROOT, Daemon

GUIDE = (ROOT / "docs/guides/python.md").read_text()
BLOCKS = re.findall(r"^```(\w+ ?\w*)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [block for named, block in BLOCKS if named == kind]


def test_every_block_runs(daemon: Daemon) -> None:
    assert {named for named, _ in BLOCKS} == {"sh", "python", "python torch"}
    printed = daemon.run("\n".join(blocks("python")))
    for words in ("Simulated GPU", "/llama blake3:", "still look at a-", "268435456", "belongs to its process"):
        assert words in printed, printed


def test_commands_are_those_of_this_run() -> None:
    """How the package came here: `run` installs it so, with the profile and the environment of tests."""
    assert blocks("sh") == ["pip install ./sdk-python\n"]
    assert "pip install" in (ROOT / "sdk-python/tests/run").read_text()


def test_the_block_for_gpus_is_part_of_their_suite() -> None:
    [block] = blocks("python torch")
    program = (ROOT / "tests/gpu/torch_model.py").read_text()
    assert textwrap.indent(re.sub(r" +#.*", "", block), " " * 4) in re.sub(r" +#.*", "", program)
