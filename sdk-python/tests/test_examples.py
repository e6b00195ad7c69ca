"""The examples run, and their page shows them word for word."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from conftest import PROGRAM, ROOT, eventually

import vramd.testing

FOLDER = ROOT / "sdk-python/examples"
PAGE = ROOT / "docs/guides/python-examples.md"
EXAMPLES: dict[str, tuple[dict[str, str], list[str]]] = {
    "share_weights": (
        {},
        [
            "loader: sealed .*/weights with 2097152 bytes",
            "worker: the sum of a row is 523776",
            "loader: the worker ended with status 0",
        ],
    ),
    "quota": (
        {"quota": "16MiB"},
        [
            "tenant .* may have 16777216 bytes, and can get 16777216 now",
            *(f"16777216 of 16777216 bytes are in use: dropped result {oldest}" for oldest in range(5)),
            "kept: 5 6 7 0",
        ],
    ),
    "follow_pressure": (
        {"memory": "64MiB"},
        [
            r"(?:\d+ results, the last of \d+ inputs: (?:normal|elevated)\n)*"
            r"\d+ results, the last of \d+ inputs: (?:high|critical)",
            r"(?:dropped \d results: (?:high|critical)\n)*dropped \d results: (?:normal|elevated)",
            r"kept \d+ results",
        ],
    ),
    "stream_layers": (
        {"memory": "64MiB", "quota": "8MiB", "host": "64MiB"},
        [
            "a model of 33554432 bytes under a quota of 8388608",
            "the daemon works [1-4] layers ahead",
            *["the signal is at position 16"] * 3,
        ],
    ),
    "sleep_and_wake": (
        {"memory": "64MiB", "quota": "32MiB", "host": "64MiB"},
        [
            "model 2 answers 2",
            "both do not fit: the other one has to sleep first",
            "model 1 answers 1",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str) -> None:
    arguments, lines = EXAMPLES[name]
    with vramd.testing.Daemon(program=PROGRAM, **arguments) as daemon:  # type: ignore[arg-type]
        ran = subprocess.run(
            [sys.executable, FOLDER / f"{name}.py"], env=daemon.environment, capture_output=True, text=True, timeout=120
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert re.fullmatch("\n".join(lines) + "\n", ran.stdout), ran.stdout
        eventually("it leaves no memory", lambda: json.loads(daemon.vramctl("ls", "--json"))["allocations"] == [])


def test_page_shows_the_examples_word_for_word() -> None:
    files = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
    assert files.keys() == EXAMPLES.keys()
    program = re.compile(r"`sdk-python/examples/(\w+)\.py`.*?\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    shown = program.findall(PAGE.read_text())
    assert dict(shown) == files
