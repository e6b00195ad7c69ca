"""The metadata of the wheel, as installers and licence checkers read them."""

from __future__ import annotations

import pydoc
from importlib import import_module, metadata

import vramd


def test_wheel_has_its_metadata() -> None:
    wheel = metadata.metadata("vramd")
    assert (wheel["Name"], wheel["Version"]) == ("vramd", vramd.__version__)
    assert (wheel["License-Expression"], wheel["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert wheel["Summary"] and wheel["Keywords"] and wheel["Description-Content-Type"].startswith("text/markdown")
    assert "Typing :: Typed" in wheel.get_all("Classifier", [])
    assert wheel.get_all("License-File") == ["LICENSE"]
    files = [str(file) for file in metadata.files("vramd") or []]
    assert any(file.endswith("licenses/LICENSE") for file in files) and any(file.endswith("py.typed") for file in files)
    assert "# vramd for Python" in str(wheel.json["description"])


def test_help_begins_like_a_manual() -> None:
    manual = pydoc.render_doc(vramd, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    opening = manual[: manual.index("PACKAGE CONTENTS")]
    for words in ("vramd.connect", "vramd.load", ".bind(", "vramd.save", "vramd.torch.pool", "vramd.torch.movable"):
        assert words in opening, words
    for module in ("vramd.torch", "vramd.aio", "vramd.testing", "vramd.rmm", "vramd.integrations", "vramd.errors"):
        assert module in opening, module
        if module != "vramd.rmm":
            assert import_module(module).__doc__
