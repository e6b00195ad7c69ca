"""The metadata of the wheel, as installers and licence checkers read them."""

from __future__ import annotations

from importlib import metadata

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
