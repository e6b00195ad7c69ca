"""The guide does what it says."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
import textwrap
from collections.abc import Callable

import pytest
import vramd
from conftest import ROOT, Daemon



def blocks_of(page: str) -> list[tuple[str, str]]:
    text = (ROOT / page).read_text()
    return re.findall(r"^```(\w+ ?[\w.]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


BLOCKS = blocks_of("docs/guides/python.md")


def blocks(kind: str) -> list[str]:
    return [block for named, block in BLOCKS if named == kind]


@pytest.mark.parametrize("page", ["README.md", "docs/start/README.md"])
def test_first_program_runs(daemon: Daemon, page: str) -> None:
    """With the allocation that the page's commands have made."""
    [program] = [block for named, block in blocks_of(page) if named == "python"]
    with daemon.connect() as client:
        memory = client.allocate("2MiB", name="llama", lifetime="persistent")
        memory.copy_from(bytes(range(8)))
        memory.seal().detach()
    assert "[0 1 2 3" in daemon.run(program)


def test_every_block_runs(daemon: Daemon) -> None:
    assert {named for named, _ in BLOCKS} == {"sh", "python", "python torch"}
    printed = daemon.run("\n".join(blocks("python")))
    for words in ("Simulated GPU", "/llama blake3:", "views keep a-", "268435456", "belongs to its process"):
        assert words in printed, printed


def test_every_block_of_the_pytorch_page_runs(daemon: Daemon) -> None:
    found = blocks_of("docs/guides/pytorch.md")
    assert {named for named, _ in found} == {"python", "python gpu"}
    printed = daemon.run("\n".join(block for named, block in found if named == "python"))
    for words in ("net: 8 tensors", "sha256:", "uses 'layers.0."):
        assert words in printed, printed


def test_program_of_the_page_of_turns_alternates_with_itself(start: Callable[..., Daemon]) -> None:
    """Two of them on a device of 16 MiB, where one fits."""
    [program] = [block for named, block in blocks_of("docs/guides/turns.md") if named == "python"]
    daemon = start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\n[turns]\nquantum_ms = 20\nmin_quantum_ms = 10\n')
    children = [daemon.child(program) for _ in range(2)]
    for child in children:
        printed, _ = child.communicate(timeout=60)
        assert (child.returncode, printed) == (0, "steps: 200\n")


def test_install_command_installs_this_package() -> None:
    """`run` has run the block just now, from the tree's root: there is one, and it left the module that is tested."""
    [block] = blocks("sh")
    installed = importlib.metadata.distribution("vramd")
    came_from = json.loads(installed.read_text("direct_url.json") or "{}")
    assert came_from["url"] == (ROOT / block.split()[-1]).resolve().as_uri()
    assert vramd.__file__ == str(installed.locate_file("vramd/__init__.py"))
    for source in (ROOT / "sdk-python/python/vramd").glob("*.py*"):
        assert pathlib.Path(vramd.__file__).with_name(source.name).read_bytes() == source.read_bytes(), source


def test_gpu_block_is_part_of_the_gpu_suite() -> None:
    [block] = blocks("python torch")
    program = (ROOT / "tests/gpu/torch_model.py").read_text()
    assert textwrap.indent(re.sub(r" +#.*", "", block), " " * 4) in re.sub(r" +#.*", "", program)


def test_gpu_blocks_of_the_pytorch_page_are_part_of_the_gpu_suite() -> None:
    found = [block for named, block in blocks_of("docs/guides/pytorch.md") if named == "python gpu"]
    program = (ROOT / "tests/gpu/torch_pool.py").read_text()
    assert len(found) == 2 and all(textwrap.indent(block, " " * 8) in program for block in found)
