"""Checkpoints in the format safetensors: loaded once, attached by all, and never another content under a name."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import MIB, Daemon, eventually, vramctl

import vramd
from vramd import _checkpoint

LAYERS: dict[str, np.ndarray[Any, Any]] = {
    "embed": np.arange(300_000, dtype=np.float32).reshape(1000, 300),
    "layer.0.weight": np.full((512, 1024), 3, np.float16),
    "layer.0.flags": np.array([True, False, True]),
    "step": np.array(7, np.int64),
}


def write(path: pathlib.Path, header: object, data: bytes = b"") -> pathlib.Path:
    """A file with any header, which need not fit."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(start: int, end: int, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(LAYERS, path, metadata={"format": "np"})
    return path


@pytest.fixture
def sharded(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "sharded"
    folder.mkdir()
    names = list(LAYERS)
    weight_map: dict[str, str] = {}
    for at, part in enumerate((names[:2], names[2:])):
        file = f"model-{at + 1:05}-of-00002.safetensors"
        safetensors.numpy.save_file({name: LAYERS[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def is_whole(weights: vramd.Weights) -> bool:
    """Whether all layers are there, with their types and shapes."""
    arrays = {name: np.from_dlpack(weights[name]) for name in weights}
    return arrays.keys() == LAYERS.keys() and all(
        array.dtype == LAYERS[name].dtype and array.shape == LAYERS[name].shape and np.array_equal(array, LAYERS[name])
        for name, array in arrays.items()
    )


def test_loaded_checkpoint_is_attached_by_another_process(
    daemon: Daemon, client: vramd.Client, model: pathlib.Path
) -> None:
    weights = vramd.load(model, name="llama", client=client)
    assert is_whole(weights) and weights.metadata == {"format": "np"}
    assert "llama: 4 tensors" in repr(weights) and "embed" in weights
    info = client.describe("llama")
    assert (info.state, info.lifetime) == ("sealed", "persistent")
    printed = daemon.run(
        "import sys, vramd\n"
        "weights = vramd.load(sys.argv[1], name='llama')\n"
        "print(weights.memory.id, weights.digest_of('embed'), weights.entry('step').shape)",
        model,
    )
    digest = hashlib.sha256(LAYERS["embed"].tobytes()).hexdigest()
    assert printed.split(maxsplit=2) == [str(weights.memory.id), f"sha256:{digest}", "()\n"]
    assert len(client.list()) == 1, "nothing was allocated for the second"
    weights.verify(model)


def test_shards_become_one_allocation(client: vramd.Client, sharded: pathlib.Path) -> None:
    for at, source in enumerate((sharded, sharded / "model.safetensors.index.json")):
        assert is_whole(vramd.load(source, name=f"by-{at}", client=client))
    (sharded / "model.safetensors.index.json").unlink()
    unnamed = vramd.load(str(sharded), client=client)
    assert is_whole(unnamed) and unnamed.name is None
    assert len(client.list()) == 3


def test_the_same_tensors_have_the_same_digest(
    client: vramd.Client, model: pathlib.Path, sharded: pathlib.Path
) -> None:
    whole, shards = (vramd.load(source, client=client) for source in (model, sharded))
    assert whole.digests() == {
        name: f"sha256:{hashlib.sha256(array.tobytes()).hexdigest()}" for name, array in LAYERS.items()
    }
    assert whole.content_digest() == shards.content_digest() and whole.digest != shards.digest
    seen = {whole.content_digest()}
    for change in (
        {"step": np.array(8, np.int64)},
        {"step": np.array(7, np.uint64)},
        {"step": np.array([7], np.int64)},
        {"other": np.array(1)},
    ):
        safetensors.numpy.save_file(LAYERS | change, model)
        seen.add(vramd.load(model, client=client).content_digest())
    assert len(seen) == 5, "bytes, types, shapes and names count"


def test_load_with_a_closed_client_is_refused(daemon: Daemon, model: pathlib.Path) -> None:
    client = daemon.connect()
    client.close()
    with pytest.raises(vramd.HandleClosed):
        vramd.load(model, client=client)


def test_progress_without_tqdm_is_a_line(
    client: vramd.Client, model: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    weights = vramd.load(model, client=client, progress=True)
    total = vramd.weights.readable(weights.nbytes)
    assert capsys.readouterr().err.endswith(f"\rvramd.load: {total} of {total}\n")


def test_daemon_killed_in_mid_load_is_told(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "large.safetensors"
    safetensors.numpy.save_file({"x": np.zeros(40 * MIB, np.uint8)}, path)
    with daemon.connect() as client:
        # The first one of a process opens descriptors that stay.
        vramd.load(path, client=client).free()
    before = len(os.listdir("/proc/self/fd"))
    killed: list[int] = []

    def kill(done: int, _total: int) -> None:
        if not killed:
            killed.append(done)
            daemon.kill()

    with daemon.connect() as client:
        begun = time.monotonic()
        with pytest.raises(vramd.BrokerGone):
            vramd.load(path, name="large", client=client, progress=kill)
        assert time.monotonic() - begun < 20 and killed[0] < 40 * MIB
    eventually("its descriptors are closed", lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_file_that_never_changes_is_used_in_place(
    start: Callable[..., Daemon], model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    client = start(more=f'[files]\nimmutable_paths = ["{tmp_path.resolve()}"]\n').connect()
    os.sync()
    names = sorted(LAYERS, key=lambda name: -LAYERS[name].itemsize)
    aligned = {name: np.resize(LAYERS[name], 4096) for name in names}
    path = tmp_path / "aligned.safetensors"
    # The length of the header is a multiple of 8 in this format, and here of 16 with its own 8 bytes.
    for pad in range(16):
        safetensors.numpy.save_file(aligned, path, metadata={"pad": " " * pad})
        if (struct.unpack("<Q", path.read_bytes()[:8])[0] + 8) % 16 == 0:
            break
    os.sync()
    weights = vramd.load(path, name="in-place", client=client)
    assert client.describe("in-place").file == str(path.resolve())
    assert np.array_equal(np.from_dlpack(weights["embed"]), aligned["embed"])
    assert vramd.load(path, name="in-place", client=client).memory.id == weights.memory.id
    copied = vramd.load(model, name="odd", client=client)
    assert is_whole(copied)
    with pytest.raises(vramd.OtherContent, match="other tensors"):
        vramd.load(model, name="in-place", client=client)


def test_file_in_place_is_compared_by_its_bytes(
    start: Callable[..., Daemon], tmp_path: pathlib.Path
) -> None:
    client = start(more=f'[files]\nimmutable_paths = ["{tmp_path.resolve()}"]\n').connect()
    path = tmp_path / "m.safetensors"
    # A header of 72 bytes, with those of its length at the beginning, and a last tensor that ends as an index does.
    forged = json.dumps({"tensors": {"a": ["U8", [16], 16, 32]}, "metadata": {}, "sources": []}).encode()
    forged += struct.pack("<Q", len(forged)) + vramd.weights.MAGIC
    header = json.dumps({"a": entry(0, 16), "b": entry(16, 16 + len(forged))}).encode()
    header += b" " * (-(len(header) + 8) % 16)
    write(path, header, bytes([1] * 16) + forged)
    os.sync()
    weights = vramd.load(path, name="in-place", client=client)
    assert client.describe("in-place").file == str(path.resolve())
    assert bytes(memoryview(weights["a"])) == bytes([1] * 16), "its header counts, and not what its tensors end with"
    other = write(tmp_path / "other", header, bytes([2] * 16) + forged)
    os.replace(other, path)
    os.sync()
    with pytest.raises(vramd.OtherContent, match="tensor 'a'"):
        vramd.load(path, name="in-place", client=client)
    path.unlink()
    write(path, header, bytes([1] * 16) + forged)
    assert vramd.load(path, name="in-place", client=client).memory.id == weights.memory.id


def test_identities_of_another_tenant_are_not_believed(
    start: Callable[..., Daemon], model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start(more='[[tenants]]\ntenant = "other"\nuid = 20001\n')
    client = daemon.connect()
    weights = vramd.load(model, name="mine", client=client, readers=["*"])
    assert vramd.load(model, name=f"{client.tenant}/mine", client=client).memory.id == weights.memory.id
    compared: list[str] = []
    monkeypatch.setattr(vramd.weights, "check_bytes", lambda weights, _: compared.append(weights.name))
    with _checkpoint.Checkpoint.open(model) as checkpoint:
        assert weights.is_copy_of(checkpoint)
        vramd.weights.check_same(weights, checkpoint)
        assert compared == []
        weights.client = OfAnotherTenant()  # type: ignore[assignment]
        vramd.weights.check_same(weights, checkpoint)
        assert compared == [weights.name]


class OfAnotherTenant:
    tenant = "other"


def test_misaligned_tensors_are_placed_aligned(client: vramd.Client, tmp_path: pathlib.Path) -> None:
    data = bytes(range(3)) + np.arange(5, dtype=np.float64).tobytes() + b"z"
    path = write(
        tmp_path / "odd.safetensors",
        {"head": entry(0, 3), "odd": entry(3, 43, "F64", [5]), "tail": entry(43, 44, shape=[1, 1])},
        data,
    )
    weights = vramd.load(path, client=client)
    assert list(np.from_dlpack(weights["odd"])) == [0, 1, 2, 3, 4]
    assert all(weights.entry(name).start % 256 == 0 for name in weights)
    assert bytes(memoryview(weights["tail"])) == b"z"


def test_callers_at_one_moment_share_one_allocation(daemon: Daemon, model: pathlib.Path, client: vramd.Client) -> None:
    source = (
        "import sys, vramd\n"
        "sys.stdin.readline()\n"
        "weights = vramd.load(sys.argv[1], name='at-once')\n"
        "print(weights.memory.id, weights.digest)"
    )
    children = [daemon.child(source, model) for _ in range(6)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    printed = {child.communicate(timeout=60)[0] for child in children}
    assert len(printed) == 1 and printed.pop().startswith(str(client.list()[0].id))
    assert [child.returncode for child in children] == [0] * 6 and len(client.list()) == 1


def test_caller_takes_over_from_one_that_died(daemon: Daemon, model: pathlib.Path, client: vramd.Client) -> None:
    first = daemon.child(
        "import vramd\n"
        "memory = vramd.connect().allocate('1MiB', name='taken', lifetime='persistent')\n"
        "print('there', flush=True)\n"
        "input()"
    )
    assert first.stdout is not None and first.stdout.readline() == "there\n"
    found: list[vramd.Weights] = []
    second = threading.Thread(target=lambda: found.append(vramd.load(model, name="taken", client=client)))
    second.start()
    with pytest.raises(vramd.Deadline, match="still loading taken"):
        vramd.load(model, name="taken", client=client, timeout=0.05)
    first.kill()
    first.communicate()
    second.join(timeout=60)
    assert found and is_whole(found[0])


def test_changed_file_is_refused_under_its_name(client: vramd.Client, model: pathlib.Path) -> None:
    weights = vramd.load(model, name="llama", client=client)
    content = model.read_bytes()
    # The same bytes in a new file, or with a new time, are the same content.
    model.unlink()
    model.write_bytes(content)
    assert vramd.load(model, name="llama", client=client).memory.id == weights.memory.id
    with open(model, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"changed")
    with pytest.raises(vramd.OtherContent, match="'embed'|'layer.0.weight'|'step'|'layer.0.flags'"):
        vramd.load(model, name="llama", client=client)
    with pytest.raises(vramd.OtherContent):
        weights.verify(model)
    safetensors.numpy.save_file({"embed": LAYERS["embed"]}, model)
    with pytest.raises(vramd.OtherContent, match="other tensors"):
        vramd.load(model, name="llama", client=client)
    assert is_whole(weights)


def test_file_written_while_it_is_loaded_is_not_served(client: vramd.Client, model: pathlib.Path) -> None:
    def touch(_done: int, _total: int) -> None:
        with open(model, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")

    with pytest.raises(vramd.OtherContent, match="was written while it was loaded"):
        vramd.load(model, name="llama", client=client, progress=touch)
    assert not client.list()

    def shorten(_done: int, _total: int) -> None:
        os.truncate(model, 4096)

    big = model.with_name("big.safetensors")
    safetensors.numpy.save_file({"x": np.zeros(40 * MIB, np.uint8)}, big)
    model.unlink()
    big.rename(model)
    with pytest.raises((vramd.InvalidCheckpoint, vramd.OtherContent)):
        vramd.load(model, name="llama", client=client, progress=shorten)
    assert not client.list()
    safetensors.numpy.save_file(LAYERS, model)
    assert is_whole(vramd.load(model, name="llama", client=client))


DATA = bytes(64)
HOSTILE: dict[str, tuple[object, bytes, str]] = {
    "no JSON": (b"{not json", DATA, "is no JSON"),
    "not UTF-8": (b'{"\xff": 1}', DATA, "is no JSON"),
    "a list": ([], DATA, "no JSON object"),
    "deep": (b"[" * 100_000, DATA, "is no JSON"),
    "no tensors": ({}, b"", "has no tensors"),
    "a key twice": (b'{"a": 1, "a": 2}', DATA, "the key 'a' twice"),
    "overlap": ({"a": entry(0, 40), "b": entry(24, 64)}, DATA, "'b' overlaps tensor 'a'"),
    "a gap": ({"a": entry(0, 16), "b": entry(24, 64)}, DATA, "'b' leaves a gap after tensor 'a'"),
    "a gap first": ({"a": entry(8, 64)}, DATA, "leaves a gap after the header"),
    "bytes left over": ({"a": entry(0, 16)}, DATA, "tensors end at byte"),
    "beyond the file": ({"a": entry(0, 65)}, DATA, "tensors end at byte"),
    "offsets beyond 2^63": ({"a": entry(0, 1 << 63)}, DATA, "no list of counts|no begin and end"),
    "a huge number": (b'{"a": {"dtype": "U8", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 64]}}', DATA, "JSON"),
    "a product beyond 2^64": ({"a": entry(0, 64, shape=[1 << 40, 1 << 40])}, DATA, "larger than any memory"),
    "begin after end": ({"a": entry(64, 0, shape=[64])}, DATA, "no begin and end"),
    "a negative begin": ({"a": entry(-1, 63, shape=[64])}, DATA, "no begin and end"),
    "a fraction": ({"a": {"dtype": "U8", "shape": [64.0], "data_offsets": [0, 64]}}, DATA, "no list of counts"),
    "a truth": ({"a": {"dtype": "U8", "shape": [64, True], "data_offsets": [0, 64]}}, DATA, "no list of counts"),
    "no elements": ({"a": entry(0, 64), "b": entry(64, 64)}, DATA, "'b' has no bytes"),
    "another type": ({"a": entry(0, 64, "F99")}, DATA, "type 'F99'"),
    "a type that is no text": ({"a": {"dtype": [], "shape": [64], "data_offsets": [0, 64]}}, DATA, "the type"),
    "a shape that does not fit": ({"a": entry(0, 64, "F32", [17])}, DATA, "has 64 bytes, and 68"),
    "other facts": ({"a": {"dtype": "U8"}}, DATA, "other facts"),
    "no object": ({"a": 7}, DATA, "other facts"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "a": entry(0, 64)}, DATA, "`__metadata__`"),
    "too many": ({f"t{at}": entry(at, at + 1) for at in range(100_001)}, bytes(100_001), "100001 tensors, more than"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_checkpoint_is_refused(client: vramd.Client, tmp_path: pathlib.Path, case: str) -> None:
    header, data, words = HOSTILE[case]
    path = write(tmp_path / "hostile.safetensors", header, data)
    with pytest.raises(vramd.InvalidCheckpoint, match=words) as refused:
        vramd.load(path, name="hostile", client=client)
    assert isinstance(refused.value, ValueError) and str(path) in str(refused.value)
    assert not client.list()


def test_file_that_is_no_checkpoint_is_refused(client: vramd.Client, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.safetensors"
    for content, words in [
        (b"", "it has 0 bytes"),
        (b"1234567", "it has 7 bytes"),
        (struct.pack("<Q", 1 << 62), "more than 100000000"),
        (struct.pack("<Q", 100) + b"{}", "header has 100 bytes, and the file 10"),
    ]:
        path.write_bytes(content)
        with pytest.raises(vramd.InvalidCheckpoint, match=words):
            vramd.load(path, client=client)
    with pytest.raises(FileNotFoundError):
        vramd.load(tmp_path / "none.safetensors", client=client)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(vramd.InvalidCheckpoint, match="no ordinary file"):
        vramd.load(tmp_path / "pipe", client=client)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(vramd.InvalidCheckpoint, match="has no file"):
        vramd.load(empty, client=client)
    assert not client.list()


def test_hostile_index_is_refused(client: vramd.Client, sharded: pathlib.Path) -> None:
    index = sharded / "model.safetensors.index.json"
    for content, words in [
        ("{", "no index in JSON"),
        ("[]", "no `weight_map`"),
        ('{"weight_map": {}}', "no `weight_map`"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "no file beside the index"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "no file beside the index"),
        ('{"weight_map": {"a": 7}}', "no file beside the index"),
        ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "names tensor 'a', which it does not have"),
    ]:
        index.write_text(content)
        with pytest.raises(vramd.InvalidCheckpoint, match=words):
            vramd.load(sharded, client=client)
    index.write_text('{"weight_map": {"a": "missing.safetensors"}}')
    with pytest.raises(FileNotFoundError):
        vramd.load(sharded, client=client)
    index.unlink()
    safetensors.numpy.save_file({"step": LAYERS["step"]}, sharded / "twice.safetensors")
    with pytest.raises(vramd.InvalidCheckpoint, match="tensor 'step' is also in"):
        vramd.load(sharded, client=client)


def test_allocation_that_is_no_checkpoint_is_refused(client: vramd.Client, model: pathlib.Path) -> None:
    tail = vramd.weights.MAGIC
    contents = [
        b"other",
        bytes(4096),
        struct.pack("<Q", 1 << 40) + tail,
        b"[]" + struct.pack("<Q", 2) + tail,
        b"{not" + struct.pack("<Q", 4) + tail,
    ]
    for dtype, shape, first, last in [
        ("U8", [9], 0, 9), ("U8", [-1], 0, 1), ("F32", [1], 0, 3), ("??", [1], 0, 1), ("U8", [1 << 70], 0, 1 << 70),
        ("F32", [1], 1, 5), ([], [1], 0, 1), ("U8", [0], 0, 0), ("U8", [True], 0, 1),
    ]:  # fmt: skip
        index = json.dumps({"tensors": {"a": [dtype, shape, first, last]}, "metadata": {}, "sources": []}).encode()
        contents.append(bytes(8) + index + struct.pack("<Q", len(index)) + tail)
    for index in (b'{"tensors": {}, "metadata": {}, "sources": []}', b'{"tensors": {}, "metadata": {}, "sources": [5]}'):
        contents.append(index + struct.pack("<Q", len(index)) + tail)
    for at, content in enumerate(contents):
        memory = client.allocate(len(content), name=f"other-{at}", lifetime="persistent")
        memory.copy_from(content)
        memory.seal()
        with pytest.raises(vramd.InvalidCheckpoint, match=f"other-{at}"):
            vramd.Weights.attach(f"other-{at}", client=client)
        with pytest.raises(vramd.InvalidCheckpoint, match=f"other-{at}"):
            vramd.load(model, name=f"other-{at}", client=client)


def test_checkpoint_beyond_the_quota_leaves_nothing(
    daemon: Daemon, client: vramd.Client, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "large.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(20 * MIB, np.uint8)}, path)
    vramctl(daemon, "quota", "set", client.tenant, "--limit", "8MiB", "--tier", "device")
    with pytest.raises(vramd.QuotaExceeded):
        vramd.load(path, name="large", client=client)
    assert not client.list()


def test_unpinned_weights_leave_and_come_back(streaming: Daemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.safetensors"
    numbers = {f"layer.{at}": np.full(2 * MIB, at, np.uint8) for at in range(3)}
    safetensors.numpy.save_file(numbers, path)
    client = streaming.connect()
    weights = vramd.load(path, name="m", client=client, unpinned=True)
    with weights.pin():
        address = weights.memory.device_ptr
        assert bytes(weights.memory.copy_to(weights.entry("layer.2").start, 1)) == b"\2"
    other = client.allocate("7MiB", wait=20)
    assert client.describe("m").resident < 6 * MIB
    other.free()
    with weights.pin():
        assert weights.memory.device_ptr == address
        assert np.array_equal(np.from_dlpack(weights["layer.1"]), numbers["layer.1"])


def test_progress_is_told_and_ends_at_the_total(client: vramd.Client, model: pathlib.Path) -> None:
    told: list[tuple[int, int]] = []
    weights = vramd.load(model, client=client, progress=lambda done, total: told.append((done, total)))
    assert told and told[-1] == (weights.nbytes, weights.nbytes) and told == sorted(told)


def test_progress_bar_is_drawn(daemon: Daemon, model: pathlib.Path) -> None:
    with daemon.child(
        "import os, sys, vramd\nos.dup2(1, 2)\nvramd.load(sys.argv[1], progress=True)", model
    ) as child:
        printed, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and "vramd.load" in printed, printed


def test_interrupted_load_leaves_nothing(daemon: Daemon, client: vramd.Client, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.safetensors"
    # Tensors of a size that is not aligned are copied one by one, more of them than threads.
    safetensors.numpy.save_file({f"layer.{number}": np.zeros(1001, np.uint8) for number in range(100)}, path)
    child = daemon.child(
        "import sys, time, vramd\n"
        "def slow(done, total):\n"
        "    print(done, flush=True)\n"
        "    time.sleep(0.2)\n"
        "client = vramd.connect()\n"
        "try:\n"
        "    vramd.load(sys.argv[1], name='m', client=client, progress=slow)\n"
        "except KeyboardInterrupt as interrupt:\n"
        "    print('interrupted', len(client.list()), flush=True)",
        path,
    )
    assert child.stdout is not None and int(child.stdout.readline()) > 0
    child.send_signal(signal.SIGINT)
    printed, _ = child.communicate(timeout=60)
    *reports, end = printed.splitlines()
    # The threads have ended what they had begun, and nothing more.
    assert end == "interrupted 0" and all(int(done) < 100 * 1001 for done in reports), printed
    assert not client.list()
    assert is_closed(path)


def is_closed(path: pathlib.Path) -> bool:
    """Whether this process has no descriptor of the file."""
    links = pathlib.Path("/proc/self/fd")
    return all(os.readlink(link) != str(path) for link in links.iterdir() if link.is_symlink())


def test_refused_load_closes_its_files(client: vramd.Client, sharded: pathlib.Path) -> None:
    write(sharded / "model-00002-of-00002.safetensors", {"a": entry(0, 9)}, b"")
    with pytest.raises(vramd.InvalidCheckpoint):
        vramd.load(sharded, client=client)
    assert is_closed(sharded / "model-00001-of-00002.safetensors")


def test_shared_client_is_one_for_the_process(daemon: Daemon, model: pathlib.Path) -> None:
    printed = daemon.run(
        "import os, sys, vramd\n"
        "one, two = (vramd.load(sys.argv[1], name=name) for name in 'ab')\n"
        "print(one.client is two.client, one.client.is_connected)\n"
        "if (child := os.fork()) == 0:\n"
        "    again = vramd.load(sys.argv[1], name='a')\n"
        "    os._exit(again.client is one.client)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        model,
    )
    assert printed.split() == ["True", "True", "0"]


def test_types_have_the_bits_of_the_format() -> None:
    assert _checkpoint.BITS["F4"] == 4 and _checkpoint.BITS["BF16"] == 16 and set(vramd.weights.NATIVE) < set(_checkpoint.BITS)


def test_type_without_a_numpy_view_is_told(client: vramd.Client, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "f4.safetensors", {"a": entry(0, 8, "F4", [16]), "b": entry(8, 16, "F8_E4M3")}, bytes(16))
    weights = vramd.load(path, client=client)
    with pytest.raises(TypeError, match="'a' has the type F4"):
        weights["a"]
    assert weights["b"].dtype == "float8_e4m3fn"
    with pytest.raises(KeyError, match="no tensor 'c'"):
        weights["c"]
    eventually("it is listed", lambda: len(client.list()) == 1)


def test_vramctl_verifies_what_was_loaded(
    daemon: Daemon, client: vramd.Client, model: pathlib.Path, sharded: pathlib.Path
) -> None:
    """By its tensors: however the files are cut, and wherever they lie in the allocation."""
    vramd.load(sharded, name="model", client=client)
    for path in (model, sharded, sharded / "model.safetensors.index.json"):
        assert "the same as" in vramctl(daemon, "verify", "model", str(path))
    safetensors.numpy.save_file(LAYERS | {"step": np.array(8, np.int64)}, model)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        vramctl(daemon, "verify", "model", str(model))
    assert refused.value.returncode == 1 and 'tensor "step" has other bytes' in refused.value.stderr
