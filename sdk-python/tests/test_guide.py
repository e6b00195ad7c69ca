"""The guide does what it says."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
import textwrap

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
