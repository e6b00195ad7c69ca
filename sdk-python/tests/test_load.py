"""Files as sealed memory: in place where they never change, else copied."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Callable

import pytest
from conftest import MIB, Daemon

import vramd

WEIGHTS = os.urandom(5 * MIB + 11)
HEADER = 1000


@pytest.fixture
def models(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "m").write_bytes(bytes(HEADER) + WEIGHTS)
    os.sync()
    return tmp_path


@pytest.fixture
def loading(start: Callable[..., Daemon], models: pathlib.Path) -> vramd.Client:
    return start(more=f'[files]\nimmutable_paths = ["{models.resolve()}"]\n').connect()


def is_intact(sealed: vramd.Sealed) -> bool:
    with memoryview(sealed) as view:
        return hashlib.sha256(view).digest() == hashlib.sha256(WEIGHTS).digest()


def test_immutable_file_is_the_backing(loading: vramd.Client, models: pathlib.Path) -> None:
    sealed = loading.load(models / "m", offset=HEADER, name="m", part_size="2MiB", unpinned=True, copy=False)
    info = loading.describe("m")
    assert (info.file, info.in_file, info.charged) == (str(models.resolve() / "m"), 6 * MIB, 0)
    assert (info.size, info.state) == (len(WEIGHTS), "sealed")
    assert sealed.info.copied_because is None
    assert is_intact(sealed)
    again = loading.describe("m")
    assert (again.in_file, again.charged) == (0, 6 * MIB)
    sealed.free()


def test_mutable_file_is_copied(client: vramd.Client, models: pathlib.Path) -> None:
    sealed = client.load(str(models / "m"), offset=HEADER)
    info = client.describe(sealed.id)
    assert (info.file, info.in_file, info.charged) == (None, 0, 6 * MIB)
    assert "files.immutable_paths" in (sealed.info.copied_because or "")
    assert info.copied_because is None, "the daemon knows no file of it"
    (models / "m").write_bytes(b"other")
    assert is_intact(sealed)


def test_mutable_file_is_refused_without_a_copy(client: vramd.Client, models: pathlib.Path) -> None:
    with pytest.raises(vramd.FailedPrecondition, match="may change") as refused:
        client.load(models / "m", name="m", copy=False)
    assert refused.value.reason == "FILE_MUTABLE" and not client.list()


def test_range_of_a_file_is_loaded(loading: vramd.Client, models: pathlib.Path) -> None:
    sealed = loading.load(models / "m", offset=HEADER + 7, size=100)
    assert bytes(memoryview(sealed)) == WEIGHTS[7:107]


def test_file_that_cannot_be_loaded_is_refused(loading: vramd.Client, models: pathlib.Path) -> None:
    for path, more in [("none", {}), ("", {}), ("m", {"size": "1GiB"}), ("m", {"offset": 1 << 40})]:
        with pytest.raises(vramd.InvalidArgument) as raised:
            loading.load(models / path, **more)  # type: ignore[arg-type]
        assert raised.value.reason == "FILE_INVALID"
    with pytest.raises(FileNotFoundError, match="none"):
        loading.load(models / "none")
    with pytest.raises(vramd.InvalidArgument) as zero:
        loading.load(models / "m", size=0)
    assert (zero.value.reason, zero.value.metadata["size"]) == ("SIZE_INVALID", "0")
    assert "size_bytes: 0 bytes" in str(zero.value)
    os.mkfifo(models / "pipe")
    with pytest.raises(vramd.InvalidArgument, match="a pipe"):
        loading.load(models / "pipe")
    with open(models / "m", "r+b") as file:
        sealed = loading.load(models / "m", part_size="2MiB", unpinned=True)
        file.seek(HEADER)
        file.write(b"another")
        file.flush()
        os.fsync(file.fileno())
        with pytest.raises(vramd.ContentLost):
            memoryview(sealed)
