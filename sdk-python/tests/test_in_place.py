"""Weights in place: files that this process maps, from which the device reads, and the copies where it does not."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MIB, TARGET, Daemon, vramctl

import vramd
import vramd.torch
from vramd.integrations.llm_d import Workload

ALIGNMENT = 16
MADV_PAGEOUT = 21
LAYERS: dict[str, np.ndarray[Any, Any]] = {
    "embed": np.arange(3000, dtype=np.float32).reshape(100, 30),
    "layer.weight": np.arange(4096, dtype=np.float16).reshape(64, 64),
    "layer.bias": np.arange(64, dtype=np.float16),
}
TYPES = {"float32": "F32", "float16": "F16", "uint8": "U8"}


def save(path: pathlib.Path, tensors: dict[str, np.ndarray[Any, Any]], *, odd: bool = False) -> pathlib.Path:
    """A checkpoint whose tensors begin at multiples of 16 bytes, or at odd ones."""
    header, at = {}, 0
    for name, array in tensors.items():
        end = at + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT + (4 if odd else 0))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())
        os.fsync(file.fileno())
    return path


@pytest.fixture
def models(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path.resolve() / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def model(models: pathlib.Path) -> pathlib.Path:
    return save(models / "model.safetensors", LAYERS)


@pytest.fixture
def play(start: Callable[..., Daemon], models: pathlib.Path) -> Callable[..., Daemon]:
    """Starts a daemon whose device plays a platform."""

    def begin(platform: str, folder: pathlib.Path = models, memory: str = "64MiB") -> Daemon:
        more = f'[driver.sim]\nplatform = "{platform}"\n[files]\nimmutable_paths = ["{folder}"]\n'
        return start(memory=memory, more=more)

    return begin


def fall_backs(daemon: Daemon) -> dict[str, tuple[int, int]]:
    """By reason: the loads and the bytes that `vramctl doctor` has."""
    readings = json.loads(vramctl(daemon, "--json", "doctor"))["readings"]
    return {row["reason"]: (row["loads"], row["copied_bytes"]) for row in readings["daemon"]["fall_backs"]}


def charged(client: vramd.Client) -> int:
    return sum(place.used for place in client.quota())


def is_whole(weights: vramd.Weights) -> bool:
    arrays = {name: np.from_dlpack(weights[name]) for name in weights}
    return arrays.keys() == LAYERS.keys() and all(np.array_equal(arrays[name], LAYERS[name]) for name in LAYERS)


NBYTES = sum(array.nbytes for array in LAYERS.values())


@pytest.fixture
def on_disk() -> Iterator[pathlib.Path]:
    """A folder on a disk: the pages of files in memory (tmpfs) cannot be taken back."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=TARGET)).resolve()
    found = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], check=True, capture_output=True, text=True).stdout
    assert found.strip() not in ("tmpfs", "ramfs"), f"{TARGET} is no disk"
    yield folder
    shutil.rmtree(folder)


def mapped_pages(of: pathlib.Path) -> dict[str, int]:
    """The kernel's figures of this process's mapping of a file, in KiB."""
    text = pathlib.Path("/proc/self/smaps").read_text()
    begin = next(at for at, line in enumerate(text.splitlines()) if line.endswith(str(of)))
    facts = (line.split() for line in text.splitlines()[begin + 1 : begin + 24])
    return {name.rstrip(":"): int(value) for name, value, *_ in facts if name.rstrip(":") != "VmFlags" and value.isdigit()}


OTHER = """
import sys, hashlib, vramd
weights = vramd.load(sys.argv[1])
print(weights.where, weights.digest_of('w'), flush=True)
sys.stdin.readline()
"""


def test_two_processes_read_files_larger_than_the_device_in_place(
    play: Callable[..., Daemon], on_disk: pathlib.Path
) -> None:
    daemon = play("one-pool", on_disk, memory="48MiB")
    size = 32 * MIB  # two thirds of it
    first, second = (save(on_disk / f"{name}.safetensors", {"w": np.frombuffer(os.urandom(size), np.uint8)}) for name in "ab")
    with daemon.connect() as client, daemon.child(OTHER, first) as child:
        assert child.stdout is not None and child.stdin is not None
        weights = vramd.load(first, client=client)
        assert (weights.where, weights.copied_because) == ("in_place", None)
        assert child.stdout.readline().split() == ["in_place", weights.digest_of("w")]
        weights.verify(first)
        pages = mapped_pages(first)
        # All pages are there, are not this process's own, and each is counted as a half of each process's.
        assert pages["Rss"] >= size // 1024 and pages["Anonymous"] == pages["Private_Dirty"] == pages["Locked"] == 0
        assert pages["Pss"] < 0.6 * pages["Rss"]
        also = vramd.load(second, client=client)
        also.verify(second)
        assert charged(client) < 0.01 * size and charged(client) == 0
        child.stdin.write("\n")
        child.stdin.close()
        assert child.wait(20) == 0
    assert fall_backs(daemon) == {}
    assert "the device reads mapped files in place; their pages stay page cache" in vramctl(daemon, "doctor")


def test_default_on_one_pool_is_in_place_unless_the_weights_have_a_name(
    play: Callable[..., Daemon], model: pathlib.Path
) -> None:
    daemon = play("one-pool")
    with daemon.connect() as client:
        unnamed = vramd.load(model, client=client)
        assert unnamed.where == "in_place" and unnamed.name is None and is_whole(unnamed)
        assert not client.list() and fall_backs(daemon) == {}
        named = vramd.load(model, name="m", client=client)
        assert (named.where, named.copied_because) == ("device", "not_requested") and is_whole(named)
        assert fall_backs(daemon) == {"not_requested": (1, NBYTES)}
        again = vramd.load(model, name="m", client=client)
        assert again.copied_because is None, "it was attached"
        wanted = vramd.load(model, where="device", client=client)
        assert (wanted.where, wanted.copied_because) == ("device", None)
        assert fall_backs(daemon) == {"not_requested": (1, NBYTES)}
        in_place = vramd.load(model, name="other", where="in_place", client=client)
        assert in_place.where == "in_place" and [info.name for info in client.list("m")] == [named.name]


@pytest.mark.parametrize("platform", ["hmm", "coherent-numa", "coherent-cdmm"])
def test_default_elsewhere_is_a_copy_that_is_counted(
    play: Callable[..., Daemon], model: pathlib.Path, platform: str
) -> None:
    daemon = play(platform)
    with daemon.connect() as client:
        copied = vramd.load(model, client=client)
        assert (copied.where, copied.copied_because) == ("device", "not_requested") and is_whole(copied)
        before = charged(client)
        in_place = vramd.load(model, where="in_place", client=client)
        assert in_place.where == "in_place" and is_whole(in_place) and charged(client) == before > 0
    assert fall_backs(daemon) == {"not_requested": (1, NBYTES)}


def test_device_with_memory_of_its_own_gets_a_copy(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    daemon = play("discrete")
    with daemon.connect() as client:
        plain = vramd.load(model, client=client)
        assert plain.copied_because is None and fall_backs(daemon) == {}, "that is what a program expects there"
        for call in ("copies", "attaches"):
            staged = vramd.load(model, name="m", where="in_place", client=client)
            assert (staged.where, staged.copied_because) == ("device", "separate_tiers") and is_whole(staged)
            assert staged.copy_problem is not None and "PAGEABLE_MEMORY_ACCESS" in staged.copy_problem
            assert fall_backs(daemon) == {"separate_tiers": (1, NBYTES)}, call
        assert len(client.list("m")) == 1, "all processes share the copy"
    said = vramctl(daemon, "doctor")
    assert "1 load copied" in said and "separate_tiers: the device reads no pageable host memory" in said, said


def test_file_that_may_change_is_copied(
    play: Callable[..., Daemon], tmp_path: pathlib.Path, model: pathlib.Path
) -> None:
    daemon = play("one-pool")
    elsewhere = save(tmp_path / "m.safetensors", LAYERS)
    with daemon.connect() as client:
        # By default too, since the copy takes the room of the file a second time.
        for asked in ({}, {"where": "in_place"}, {"name": "m"}):
            copied = vramd.load(elsewhere, client=client, **asked)  # type: ignore[arg-type]
            assert copied.copied_because == "file_mutable" and is_whole(copied)
            assert copied.copy_problem is not None and "may change" in copied.copy_problem
        with open(elsewhere, "rb") as file:
            not_in_place = client.check_file(file.fileno()).not_in_place
            assert not_in_place is not None and "may change" in not_in_place.problem
            assert isinstance(client.map_file(file.fileno(), client.check_file(file.fileno())), vramd.NotInPlace)
    assert fall_backs(daemon) == {"file_mutable": (3, 3 * NBYTES)}


def test_one_shard_that_may_change_makes_a_copy_that_is_counted(
    play: Callable[..., Daemon], tmp_path: pathlib.Path, models: pathlib.Path
) -> None:
    shards, elsewhere = tmp_path / "shards", tmp_path / "elsewhere"
    shards.mkdir()
    elsewhere.mkdir()
    for at, name in enumerate(LAYERS):
        folder = elsewhere if at == 1 else models
        (shards / f"model-{at}.safetensors").symlink_to(save(folder / f"model-{at}", {name: LAYERS[name]}))
    # On a GPU with HMM the default is a copy anyway, and the reason is what would also prevent reads in place.
    for platform in ("one-pool", "hmm"):
        daemon = play(platform)
        with daemon.connect() as client:
            copied = vramd.load(shards, client=client)
            assert copied.copied_because == "file_mutable" and is_whole(copied)
        assert fall_backs(daemon) == {"file_mutable": (1, NBYTES)}


def test_misaligned_tensors_are_copied(play: Callable[..., Daemon], models: pathlib.Path) -> None:
    daemon = play("one-pool")
    with daemon.connect() as client:
        odd = save(models / "odd.safetensors", LAYERS, odd=True)
        for name in (None, "m"):
            copied = vramd.load(odd, name=name, client=client)
            assert copied.copied_because == "misaligned" and is_whole(copied)
    assert fall_backs(daemon) == {"misaligned": (2, 2 * NBYTES)}


@pytest.mark.parametrize(
    "asked", [{"unpinned": True}, {"readers": ["*"]}, {"part_size": "2MiB"}, {"lifetime": "session"}]
)
def test_arguments_of_an_allocation_get_one_everywhere(
    play: Callable[..., Daemon], model: pathlib.Path, asked: dict[str, Any]
) -> None:
    daemon = play("one-pool")
    with daemon.connect() as client:
        made = vramd.load(model, client=client, **asked)
        assert (made.where, made.copied_because) == ("device", "not_requested") and len(client.list()) == 1
        assert fall_backs(daemon) == {"not_requested": (1, NBYTES)}
        with pytest.raises(vramd.InvalidArgument) as nameless:
            vramd.load(model, lifetime="persistent", client=client)
        assert nameless.value.reason == "NAME_INVALID"
        assert vramd.load(model, where="in_place", client=client, **asked).where == "in_place"


def test_progress_of_files_in_place_is_told_once(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    told: list[tuple[int, int]] = []
    with play("one-pool").connect() as client:
        vramd.load(model, client=client, progress=lambda done, total: told.append((done, total)))
    assert told == [(NBYTES, NBYTES)]


def test_llm_d_refuses_weights_that_cannot_leave(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    with play("one-pool").connect() as client:
        weights = vramd.load(model, client=client)
        with pytest.raises(TypeError, match="cannot leave"):
            Workload({"weights": [weights]})


class Refusing:
    """A client that lacks some calls, as if its daemon did not have them."""

    def __init__(self, client: vramd.Client, *lacks: str) -> None:
        self._client, self._lacks = client, lacks

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name in self._lacks else getattr(self._client, name)

    def _refuse(self, *_arguments: object, **_options: object) -> None:
        raise vramd.BrokerGone("the daemon has ended")


def test_load_does_not_fail_for_a_check_or_a_count(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    daemon = play("one-pool")
    with daemon.connect() as client:
        uncounted: Any = Refusing(client, "report_fall_back")
        kept = vramd.load(model, name="m", client=uncounted)
        assert kept.copied_because == "not_requested" and is_whole(kept) and fall_backs(daemon) == {}
        unchecked: Any = Refusing(client, "check_file")
        copied = vramd.load(model, client=unchecked)
        assert copied.copied_because == "file_unchecked" and is_whole(copied)
        assert copied.copy_problem is not None and "has ended" in copied.copy_problem
        with pytest.raises(vramd.BrokerGone):
            vramd.load(model, where="in_place", client=unchecked)
    assert fall_backs(daemon) == {"file_unchecked": (1, NBYTES)}


class Writing(Refusing):
    """A client whose file is written at a moment of its own, in its time of last write."""

    def __init__(self, client: vramd.Client, file: pathlib.Path, after: str) -> None:
        super().__init__(client, after)
        self._file = file

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        (call,) = self._lacks
        answer = getattr(self._client, call)(*arguments, **options)
        os.utime(self._file, (1, 1))
        return answer


@pytest.mark.parametrize(
    ("after", "refused"), [("check_file", vramd.InvalidArgument), ("map_file", vramd.OtherContent)]
)
def test_file_that_is_written_while_it_is_mapped_is_refused(
    play: Callable[..., Daemon], model: pathlib.Path, after: str, refused: type[Exception]
) -> None:
    with play("one-pool").connect() as client:
        writing: Any = Writing(client, model, after)
        with pytest.raises(refused, match="written"):
            vramd.load(model, where="in_place", client=writing)
        assert str(model) not in pathlib.Path("/proc/self/maps").read_text() and not client.list()


def test_pages_that_the_kernel_takes_back_are_read_again(
    play: Callable[..., Daemon], on_disk: pathlib.Path
) -> None:
    size = 8 * MIB
    path = save(on_disk / "m.safetensors", {"w": np.frombuffer(os.urandom(size), np.uint8)})
    with play("one-pool", on_disk).connect() as client:
        weights = vramd.load(path, client=client)
        assert mapped_pages(path)["Rss"] >= size // 1024
        libc = ctypes.CDLL(None, use_errno=True)
        address, length = ctypes.c_void_p(weights.memory_of("w").device_ptr), ctypes.c_size_t(size)
        assert libc.madvise(address, length, MADV_PAGEOUT) == 0, os.strerror(ctypes.get_errno())
        assert mapped_pages(path)["Rss"] < size // 1024 // 2, "the kernel could take them"
        weights.verify(path)


def test_shards_are_read_in_place_as_weights_of_a_module(
    play: Callable[..., Daemon], models: pathlib.Path
) -> None:
    for at, name in enumerate(LAYERS):
        save(models / f"model-{at}.safetensors", {name: LAYERS[name]})
    with play("one-pool").connect() as client:
        weights = vramd.load(models, client=client)
        assert weights.where == "in_place" and is_whole(weights) and len(weights) == 3
        with vramd.torch.on_meta():
            module = torch.nn.ModuleDict({"layer": torch.nn.Linear(64, 64, dtype=torch.float16)})
        for hold in (True, False):
            weights.bind(module, strict=False, hold=hold)
            assert module["layer"].weight.tolist() == LAYERS["layer.weight"].tolist()
        with weights.pin(), vramd.torch.debug():
            module["layer"].bias.sum()
        with pytest.raises(TypeError, match="never leave"):
            vramd.torch.movable(module, weights)
        with pytest.raises(AttributeError, match="no allocation"):
            weights.memory  # noqa: B018
        assert weights.digest.startswith("sha256:") and weights.device == client.devices[0].uuid


def test_tensors_outlive_weights_and_client(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    client = play("one-pool").connect()
    weights = vramd.load(model, client=client)
    kept, view = np.from_dlpack(weights["embed"]), memoryview(weights["layer.bias"])
    with pytest.raises((ValueError, BufferError)):
        kept[0, 0] = 1
    weights.detach()
    client.close()
    assert np.array_equal(kept, LAYERS["embed"]) and bytes(view) == LAYERS["layer.bias"].tobytes()
    with pytest.raises(vramd.HandleClosed, match="detached"):
        weights["embed"]
    with pytest.raises(vramd.HandleClosed):
        vramd.load(model, where="in_place", client=client)
    del kept, view
    assert str(model) not in pathlib.Path("/proc/self/maps").read_text()


def test_forked_child_loads_for_itself(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    daemon = play("one-pool")
    text = """
import os, sys, vramd
weights = vramd.load(sys.argv[1])
assert weights.where == 'in_place'
child = os.fork()
if child == 0:
    try:
        weights['embed']
    except vramd.Forked:
        again = vramd.load(sys.argv[1])
        os._exit(0 if again.digest == sys.argv[2] else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
print(weights.digest)
"""
    with daemon.connect() as client:
        digest = vramd.load(model, client=client).digest
    assert daemon.run(text, model, digest).strip() == digest


def test_changed_file_does_not_go_unnoticed(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    with play("one-pool").connect() as client:
        weights = vramd.load(model, client=client)
        before = weights.digest_of("embed")
        copy = pathlib.Path(shutil.copy(model, model.parent / "copy.safetensors"))
        # A file that is replaced under its name stays the mapped one.
        os.replace(save(model.parent / "next", {"embed": LAYERS["embed"] + 1}), model)
        assert weights.digest_of("embed") == before
        weights.verify(copy)
        with pytest.raises(vramd.OtherContent):
            weights.verify(model)


def test_wrong_arguments_are_refused(play: Callable[..., Daemon], model: pathlib.Path) -> None:
    with play("one-pool").connect() as client:
        with pytest.raises(ValueError, match="where='host'"):
            vramd.load(model, where="host", client=client)  # type: ignore[arg-type]
        for where in (None, "in_place", "device"):
            with pytest.raises(vramd.DeviceUnknown):
                vramd.load(model, where=where, device="GPU-none", client=client)
        with pytest.raises(ValueError, match="no reason"):
            client.report_fall_back("whim", 1)
        with pytest.raises(ValueError, match="closed"):
            client.check_file(-1)
        with pytest.raises(vramd.InvalidArgument) as invalid:
            client.check_file(1 << 20)
        assert invalid.value.reason == "FILE_INVALID"
