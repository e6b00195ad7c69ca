"""A model's weights, once per node: a checkpoint as one sealed allocation that every process attaches by its name.

    import vramd

    weights = vramd.load("model.safetensors", name="llama")
    weights.bind(model)                       # the parameters of a `torch.nn.Module` lie there now

The first process reads the file. Every other one attaches what is there, also one that asks at the same moment. A name
never serves other content than the checkpoint that the caller names: `OtherContent` is raised instead.

`hold=False` gives tensors that do not keep the memory on the device. Their addresses are stable, and they are valid
inside `with weights.pin():`. In between the daemon may move the memory when others need the room.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import astuple
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal

from vramd import _native
from vramd._checkpoint import (
    ALIGNMENT,
    BITS,
    HEADER_BYTES_MAX,
    IN_PLACE_ALIGNMENT,
    LENGTH_BYTES,
    Checkpoint,
    Entry,
    ShardFile,
    bits_of,
    is_counts,
    parse_header,
    refuse,
)
from vramd.errors import Deadline, Error, FailedPrecondition, HandleClosed, NameTaken, NotFound, NotSealed, OtherContent

if TYPE_CHECKING:
    import torch

MAGIC = b"vramd index 1\0\0\0"
"""The end of an allocation that was copied from a checkpoint. Before it is the length of the index, and before that the
index."""
PIECE_BYTES = 4 << 20
"""The bytes that one thread reads and copies at once. As much is page-locked for it, which RLIMIT_MEMLOCK may bound."""
COPY_THREADS = 8
INDEX_BYTES_MAX = 256 << 20
LOAD_SECONDS = 600.0
POLL_SECONDS = 0.02
CLEAN_UP_SECONDS = 0.5
"""How long an interrupted call waits until what it made is freed."""

Progress = Callable[[int, int], object]
Where = Literal["in_place", "device"]


class Weights:
    """The tensors of a checkpoint, in one sealed allocation.

    As a mapping it goes from names to `vramd.Tensor`s, which any library with DLPack takes. `tensors` and `bind` are
    for PyTorch. The memory stays while this object, or a tensor that holds it, lives.
    """

    always_held = False
    """Whether tensors made with `hold=False` keep their memory all the same."""

    def __init__(self, memory: _native.Sealed, client: _native.Client) -> None:
        self.memory = memory
        """The sealed allocation."""
        self.client = client
        """The session that has it attached."""
        self.metadata: dict[str, str]
        """The texts that the checkpoint's author left in it (`format`, …)."""
        self._entries, self.metadata, self._sources = read_index(memory)
        self._lock = threading.Lock()
        self._pins: weakref.WeakSet[_native.Pin] = weakref.WeakSet()
        """The pins of `begin_pin`. They are not counted, so that none can be taken without being counted."""
        self._part_bytes: int | None = None
        self.copied_because: str | None = None
        """Why `load` did not have the device read the files in place, although it was asked to or could have: a reason
        of `vramd.fall_back.reason` on the page of metrics."""
        self.copy_problem: str | None = None
        """The same in one sentence, with the facts of this case."""

    @classmethod
    def attach(cls, name: str, *, client: _native.Client | None = None, unpinned: bool = False) -> Weights:
        """Attaches what `load` or `save` has put there, by `name` or by `tenant/name`.

        Nothing is compared: use `load` with the checkpoint where it matters which content the name has.
        """
        own = client if client is not None else shared_client()
        return cls(own.attach(name, unpinned=unpinned), own)

    @property
    def name(self) -> str | None:
        """As `tenant/name`."""
        return self.memory.name

    @property
    def where(self) -> Where:
        """`in_place` if the device reads mapped files, `device` if the tensors lie in an allocation."""
        return "device"

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(entry.nbytes for entry in self._entries.values())

    @property
    def device(self) -> str:
        """UUID."""
        return self.memory.device

    @property
    def digest(self) -> str:
        """The daemon's digest over all bytes of the allocation.

        Of a copy that includes where it came from. `content_digest` is one of the tensors alone.
        """
        return self.memory.digest

    def keys(self) -> list[str]:
        return list(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """The type, the shape, and the range of bytes of a tensor in the allocation."""
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"{self!r} has no tensor {name!r}") from None

    def __getitem__(self, name: str) -> _native.Tensor:
        """A view of one tensor. It keeps the memory where it is."""
        entry = self.entry(name)
        if entry.dtype in PYTORCH_ONLY:
            raise TypeError(f"tensor {name!r} has the type {entry.dtype}, which only PyTorch takes: use `tensors()`")
        if entry.dtype not in NATIVE:
            raise TypeError(
                f"tensor {name!r} has the type {entry.dtype}, which neither NumPy nor PyTorch has: take its bytes from "
                "`memory_of(name)`, at those of `entry(name)`"
            )
        return self.memory_of(name).tensor(entry.shape, NATIVE[entry.dtype], entry.start)

    def memory_of(self, name: str) -> _native.Sealed | _native.MappedFile:
        """The memory in which a tensor lies, at the bytes of its `entry`."""
        return self.memory

    def digest_of(self, name: str) -> str:
        """`sha256:` and the digest over one tensor's bytes, read from where they lie now."""
        entry, memory = self.entry(name), self.memory_of(name)
        digest = hashlib.sha256()
        for start in range(entry.start, entry.end, PIECE_BYTES):
            digest.update(memory.copy_to(start, min(PIECE_BYTES, entry.end - start)))
        return f"sha256:{digest.hexdigest()}"

    def digests(self) -> dict[str, str]:
        """The digest of each tensor."""
        return {name: self.digest_of(name) for name in self}

    def content_digest(self) -> str:
        """`sha256:` and a digest over the names, types, shapes and bytes of all tensors, in the order of their names.

        The same tensors have the same one, wherever they lie: from another path, in other shards, saved or in place.
        """
        digest = hashlib.sha256()
        for name in sorted(self):
            entry = self.entry(name)
            digest.update(json.dumps([name, entry.dtype, entry.shape, self.digest_of(name)]).encode() + b"\n")
        return f"sha256:{digest.hexdigest()}"

    def is_copy_of(self, checkpoint: Checkpoint) -> bool:
        """Whether it was copied from these very files, and none was written since, by what the kernel says of them."""
        found = [row[1:] for row in self._sources]
        return bool(found) and sorted(map(repr, found)) == sorted(
            repr(list(astuple(file.identity))) for file in checkpoint.files
        )

    def verify(self, source: str | os.PathLike[str]) -> None:
        """Compares every byte with a checkpoint, and raises `OtherContent` with the first tensor that differs."""
        with Checkpoint.open(source) as checkpoint:
            check_tensors(self, checkpoint)
            check_bytes(self, checkpoint)

    def tensors(self, *, hold: bool = True) -> dict[str, torch.Tensor]:
        """A tensor of PyTorch for each name, without a copy.

        With `hold` each keeps its memory on the device for as long as it lives. Without it a tensor is valid inside
        `with weights.pin():`, at the same address each time. The memory is sealed: a kernel that writes to it faults.
        A tensor of a type that this PyTorch lacks is left out, and a `UserWarning` names it.
        """
        from vramd import torch as ours

        return ours.tensors_of(self, hold=hold)

    def bind(
        self,
        module: torch.nn.Module,
        *,
        hold: bool = True,
        strict: bool = True,
        rename: Callable[[str], str] | None = None,
    ) -> None:
        """Points the parameters of a module at the tensors of the same names, without a copy.

        The module may be built on the device `meta`, so that it needs no memory of its own (`vramd.torch.on_meta`).
        Parameters that share one tensor still do afterwards, and a parameter of another shape with as many elements
        keeps its shape. The module takes the types of the checkpoint, as by `load_state_dict(assign=True)`. Buffers
        become private copies, since a module may write them. With `strict` a name that only the module or only the
        checkpoint has is refused (`ValueError`). So is a tensor of the module whose type this PyTorch lacks
        (`TypeError`). The module is then as it was. `rename` turns a name of the module into one of the checkpoint.
        `hold` is that of `tensors`.
        """
        from vramd import torch as ours

        ours.bind(self, module, hold=hold, strict=strict, rename=rename)

    def pin(self, *, parts: range | None = None, wait: float | None = None) -> WeightsPin:
        """Has all tensors on the device for a `with` block, also those that do not hold the memory themselves.

        At the end of the block the memory stays until the work is done that PyTorch's current stream was given.
        `parts` are some parts (`parts_of` has those of a tensor). `wait` is that of `Memory.pin`.
        """
        return WeightsPin(self, parts, wait)

    def part_bytes(self) -> int:
        """The size of a part, the last of which may be smaller."""
        if self._part_bytes is None:
            with self.memory.pin(parts=range(self.memory.part_count)[-1:]) as last:
                before = max(self.memory.part_count - 1, 1)
                at = last.device_ptr - self.memory.device_ptr
                self._part_bytes = at // before if at else last.size
        return self._part_bytes

    def parts_of(self, name: str) -> range:
        """The parts in which a tensor lies."""
        entry, size = self.entry(name), self.part_bytes()
        return range(entry.start // size, (entry.end - 1) // size + 1)

    def begin_pin(self, parts: range | None = None, *, wait: float | None = None) -> _native.Pin:
        """Pins parts for code that cannot use a `with` block; `end_pin` ends it. The default is all parts."""
        pin: _native.Pin | None = None
        try:
            pin = self.memory.pin(parts=parts, wait=wait)
            with self._lock:
                self._pins.add(pin)
            return pin
        except BaseException:
            if pin is not None:
                # The traceback would keep it.
                pin.release()
                self._pins.discard(pin)
            raise

    def end_pin(self, pin: _native.Pin) -> None:
        """Ends a pin of `begin_pin` once the work is done that PyTorch's current stream was given so far.

        It does nothing for a pin that has ended. After Ctrl-C the call may be made again.
        """
        ours = sys.modules.get("vramd.torch")
        if ours is None or not self.memory.is_device_memory:
            pin.release()
        elif not pin.is_released:
            pin.unpin_after(ours.current_stream(self))
        with self._lock:
            self._pins.discard(pin)

    def is_pinned(self, name: str) -> bool:
        """Whether pins of `pin` or `begin_pin` have all parts of a tensor on the device."""
        parts = self.parts_of(name)
        pinned_to = parts.start
        for pinned in sorted(self.pinned_parts(), key=lambda pinned: pinned.start):
            if pinned.start <= pinned_to:
                pinned_to = max(pinned_to, pinned.stop)
        return pinned_to >= parts.stop

    def pinned_parts(self) -> list[range]:
        """The parts of each pin of `pin` or `begin_pin` that has not ended."""
        with self._lock:
            pins = list(self._pins)
        found = []
        for pin in pins:
            # Another thread may end it at any time.
            with contextlib.suppress(HandleClosed):
                found.append(pin.parts)
        return found

    def unpin(self) -> None:
        """Lets the memory leave the device whenever no pin and no tensor that holds it uses it."""
        self.memory.unpin()

    def detach(self) -> None:
        """Unmaps the memory, and leaves it to the other processes."""
        self.memory.detach()

    def free(self) -> None:
        """Frees it; other sessions keep what they have mapped."""
        self.memory.free()

    def __repr__(self) -> str:
        return f"<vramd.Weights {self.name or self.memory.id}: {len(self)} tensors, {readable(self.nbytes)}>"


class WeightsPin(_native._Scope["Weights", "_native.Pin | None"]):
    """A block in which all tensors of `Weights` are on the device."""

    def __init__(self, weights: Weights, parts: range | None, wait: float | None) -> None:
        self._weights, self._parts, self._wait = weights, parts, wait

    def _begin(self) -> tuple[Weights, _native.Pin | None]:
        return self._weights, self._weights.begin_pin(self._parts, wait=self._wait)

    def _end(self, pin: _native.Pin | None, error: BaseException | None) -> None:
        if pin is not None:
            self._weights.end_pin(pin)


NATIVE = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
"""The names of types that `vramd.Tensor` has too."""
PYTORCH_ONLY = {"F4": "float4_e2m1fn_x2", "F8_E8M0": "float8_e8m0fnu"}
"""The names of further types in PyTorch. Two elements of F4 are one of PyTorch's."""


def load(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    client: _native.Client | None = None,
    device: str | int | None = None,
    lifetime: Literal["session", "persistent"] | None = None,
    readers: Sequence[str] = (),
    part_size: int | str | None = None,
    unpinned: bool = False,
    wait: float = 0.0,
    timeout: float = LOAD_SECONDS,
    progress: bool | Progress = False,
    where: Where | None = None,
) -> Weights:
    """Loads a checkpoint in the format safetensors, or attaches what another process has loaded under the name.

    `source` is a file, the file of an index (`….safetensors.index.json`), or a folder with either. A single file that
    never changes (fs-verity, or the operator's `files.immutable_paths`) is used in place, unless a tensor in it begins
    at an odd place. Any other checkpoint is copied, with every tensor aligned.

    With a `name` the allocation is persistent by default: it outlives this process. Without one it ends with the
    session. `unpinned` memory may leave the device at once (see `Weights.pin`), and may be larger than it. `client` is
    by default one that all calls of this process share. `timeout` bounds in seconds how long to wait for another process
    that is loading the same name. `progress` is `True` for a bar (by `tqdm` where it is installed), or a function that
    is called with the bytes done and the bytes in all. The other arguments are those of `Client.allocate`.

    If the name exists, the arguments for a new allocation do not count. A copy is compared with the files by what the
    kernel says of them: inode, size, and the times of their last write and change. If these differ, and for a file in
    place, every byte is compared. Other content raises `OtherContent`.

    `where="in_place"` has the device read the files where this process maps them. Nothing is allocated or charged, and
    all processes share the pages. That needs a device that reads host memory, and files that never change. Otherwise the
    checkpoint is copied, `Weights.copied_because` says why, and the daemon counts it for operators. `name` and the
    arguments for an allocation count for such a copy only. `where="device"` always makes an allocation. Without `where`
    files are read in place where device memory and host memory are one, unless `name`, `lifetime`, `readers`,
    `part_size` or `unpinned` asks for an allocation.

    A file that is no such checkpoint, or has a tensor without elements, raises `InvalidCheckpoint`, and nothing is
    allocated.
    """
    if where not in (None, "in_place", "device"):
        raise ValueError(f"where={where!r}: it is 'in_place', 'device' or None")
    made: list[_native.Allocation | _native.Sealed] = []
    own = client if client is not None else shared_client()
    options: dict[str, Any] = {
        "name": name, "device": device, "lifetime": lifetime, "readers": readers, "part_size": part_size,
        "unpinned": unpinned, "wait": wait,
    }  # fmt: skip
    try:
        return load_or_attach(own, source, options, timeout, progress, where, made)
    except BaseException as error:
        free_after_failure(made, error)
        raise


def load_or_attach(
    own: _native.Client,
    source: str | os.PathLike[str],
    options: dict[str, Any],
    timeout: float,
    progress: bool | Progress,
    where: Where | None,
    made: list[_native.Allocation | _native.Sealed],
) -> Weights:
    """Does what `load` says. Allocations go into `made`, for the caller to free after a failure."""
    name, lifetime, unpinned = options["name"], options["lifetime"], options["unpinned"]
    needs_allocation = any(
        (name is not None, lifetime is not None, options["readers"], options["part_size"] is not None, unpinned)
    )
    if lifetime is None:
        options["lifetime"] = "persistent" if name else "session"
    options["readers"] = list(options["readers"])
    from vramd import _in_place

    deadline = time.monotonic() + timeout
    with Checkpoint.open(source) as checkpoint:
        not_mapped = _in_place.NotMapped(None)
        device = options["device"]
        if name is None or where == "in_place":
            mapped = _in_place.map_checkpoint(own, checkpoint, device, where, needs_allocation=needs_allocation)
            if isinstance(mapped, _in_place.MappedWeights):
                with Meter(checkpoint.nbytes, progress) as meter:
                    meter.add(checkpoint.nbytes)
                return mapped
            not_mapped = mapped
        while True:
            if name is not None:
                found = attach(own, name, deadline, unpinned=unpinned)
                if found is not None:
                    check_same(found, checkpoint)
                    if where == "in_place":
                        # The process that made the allocation has had the copy counted.
                        found.copied_because, found.copy_problem = not_mapped.reason, not_mapped.problem
                    return found
                if where is None:
                    # Only now, so that a process that attaches asks nothing.
                    mapped = _in_place.map_checkpoint(own, checkpoint, device, where, needs_allocation=True)
                    assert isinstance(mapped, _in_place.NotMapped)
                    not_mapped = mapped
            try:
                placed = place(own, checkpoint, options, progress, made)
                placed.copied_because, placed.copy_problem = not_mapped.reason, not_mapped.problem
                not_mapped.count_copy(own, checkpoint)
                return placed
            except NameTaken:
                # Another process was first: it is loading, or has just loaded.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(POLL_SECONDS)


def save(
    tensors: Mapping[str, torch.Tensor],
    name: str,
    *,
    client: _native.Client | None = None,
    device: str | int | None = None,
    readers: Sequence[str] = (),
    replace: bool = False,
    metadata: Mapping[str, str] | None = None,
    part_size: int | str | None = None,
    unpinned: bool = False,
    wait: float = 0.0,
) -> Weights:
    """Shares tensors of PyTorch that no file has: copies them into one sealed allocation under the name.

    The copy is complete when it returns. `unpinned` memory may leave the device at once, and may be larger than it.
    `replace` takes the name from the sealed allocation that has it. Other processes attach it by
    `vramd.Weights.attach(name)`.
    """
    from vramd import torch as ours

    own = client if client is not None else shared_client()
    options = {"device": device, "readers": list(readers), "replace": replace, "part_size": part_size, "wait": wait}
    return ours.save(own, tensors, name, metadata=metadata, unpinned=unpinned, **options)


def place(
    client: _native.Client,
    checkpoint: Checkpoint,
    options: Mapping[str, Any],
    progress: bool | Progress,
    made: list[_native.Allocation | _native.Sealed],
) -> Weights:
    """Makes the allocation: the file itself where that is possible, else a copy."""
    if len(checkpoint.files) == 1 and checkpoint.is_aligned():
        in_place = partial(client.load, checkpoint.files[0].path, copy=False, **options)
        try:
            # No handler of a signal runs between the call and the entry in the list, as none of these is Python's code.
            made.extend(starmap(in_place, [()]))
        except FailedPrecondition as refused:
            if refused.reason != "FILE_MUTABLE":
                raise
        else:
            return opened(made[-1], client, checkpoint)
    entries = layout({name: (entry.dtype, entry.shape, entry.nbytes) for name, (_, entry) in checkpoint.tensors.items()})
    metadata = {key: text for file in checkpoint.files for key, text in file.metadata.items()}
    sources = [[os.fspath(file.path), *astuple(file.identity)] for file in checkpoint.files]
    index = index_bytes(entries, metadata, sources)
    end = max(entry.end for entry in entries.values())
    memory = client.allocate(end + len(index), uninitialized=True, **options)
    made.append(memory)
    with Meter(checkpoint.nbytes, progress) as meter:
        copy_files(memory, checkpoint, entries, meter)
    memory.copy_from(index, end)
    for file in checkpoint.files:
        if file.has_changed():
            raise OtherContent(f"{file.path} was written while it was loaded: nothing of it is served")
    return opened(memory.seal(), client, checkpoint)


def opened(sealed: _native.Allocation | _native.Sealed, client: _native.Client, checkpoint: Checkpoint) -> Weights:
    """Opens what this process has just made."""
    assert isinstance(sealed, _native.Sealed)
    weights = Weights(sealed, client)
    check_tensors(weights, checkpoint)
    return weights


def free_after_failure(made: Iterable[_native.Allocation | _native.Sealed], error: BaseException) -> None:
    """Frees memory after a failure, which is what the caller hears of. The exception would keep it and its name.

    After Ctrl-C, or another end of the wait, this does not wait long for the daemon, which frees it once it answers.
    """
    interrupt = _native._Interrupt()
    timer = threading.Timer(CLEAN_UP_SECONDS, interrupt.set)
    is_patient = isinstance(error, Exception) and not isinstance(error, InterruptedError)
    with contextlib.ExitStack() as stack:
        if not is_patient:
            stack.callback(timer.cancel)
            stack.enter_context(interrupt)
            timer.daemon = True
            timer.start()
        for memory in made:
            with contextlib.suppress(Error, InterruptedError):
                try:
                    memory.free()
                except HandleClosed:
                    # It was sealed, and the failure has lost what `seal` returned.
                    memory._free_by_id()


def layout(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> dict[str, Entry]:
    """Places tensors one after the other, each aligned, in their order."""
    entries, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        entries[name] = Entry(dtype, shape, at, at + nbytes)
        at = aligned(at + nbytes)
    return entries


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def copy_files(memory: _native.Allocation, checkpoint: Checkpoint, entries: Mapping[str, Entry], meter: Meter) -> None:
    """Copies all tensors, by several threads. The first failure ends the others."""
    if memory.device_ptr == 0:
        # Only memory that was mapped has a device to lock buffers for.
        with memory.pin(parts=range(1), write=True):
            pass
    local = threading.local()
    stopped, interrupt = threading.Event(), _native._Interrupt()

    def copy(piece: tuple[ShardFile, int, int, int]) -> None:
        file, source, target, count = piece
        if stopped.is_set():
            return
        # A thread that waits for the daemon is not to outlast Ctrl-C, which only the main thread sees.
        with interrupt:
            if not hasattr(local, "buffer"):
                # Locking pages takes time, so a small checkpoint has a small buffer.
                local.buffer = memory.staging_buffer(min(PIECE_BYTES, checkpoint.nbytes))
            with memoryview(local.buffer)[:count] as buffer:
                file.read_into(buffer, source)
                memory.copy_from(buffer, target)
        meter.add(count)

    with ThreadPoolExecutor(COPY_THREADS, "vramd-load") as pool:
        try:
            jobs = [pool.submit(copy, piece) for piece in pieces_of(checkpoint, entries)]
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
        finally:
            stopped.set()
            interrupt.set()


def pieces_of(checkpoint: Checkpoint, entries: Mapping[str, Entry]) -> Iterator[tuple[ShardFile, int, int, int]]:
    """The copies to make: a file, the place in it, the place in the allocation, the bytes. Neighbours are joined."""
    run: tuple[ShardFile, int, int, int] | None = None
    for name, (file, entry) in checkpoint.tensors.items():
        target = entries[name].start
        if run is not None and (run[0], run[1] + run[3], run[2] + run[3]) == (file, entry.start, target):
            run = (file, run[1], run[2], run[3] + entry.nbytes)
            continue
        if run is not None:
            yield from split(run)
        run = (file, entry.start, target, entry.nbytes)
    if run is not None:
        yield from split(run)


def split(run: tuple[ShardFile, int, int, int]) -> Iterator[tuple[ShardFile, int, int, int]]:
    file, source, target, count = run
    for start in range(0, count, PIECE_BYTES):
        yield file, source + start, target + start, min(PIECE_BYTES, count - start)


def index_bytes(entries: Mapping[str, Entry], metadata: Mapping[str, str], sources: Sequence[object]) -> bytes:
    """The end of an allocation: what lies in it, and from which files it came."""
    tensors = {name: [entry.dtype, entry.shape, entry.start, entry.end] for name, entry in entries.items()}
    index = json.dumps({"tensors": tensors, "metadata": dict(metadata), "sources": sources}).encode()
    return index + struct.pack("<Q", len(index)) + MAGIC


def read_index(memory: _native.Sealed) -> tuple[dict[str, Entry], dict[str, str], list[list[Any]]]:
    """The tensors, the metadata, and the identities of the files that were copied: none for a file in place."""
    name = memory.name or f"allocation {memory.id}"
    if memory.info.file is not None:
        return *read_file_header(memory, name), []
    tail = len(MAGIC) + LENGTH_BYTES
    end = memory.copy_to(memory.size - tail) if memory.size > tail else b""
    if end[LENGTH_BYTES:] != MAGIC:
        refuse(name, "it is no checkpoint: it was not made by `vramd.load` or `vramd.save`")
    (length,) = struct.unpack("<Q", end[:LENGTH_BYTES])
    last = memory.size - tail - length
    if length > INDEX_BYTES_MAX or last < 0:
        refuse(name, f"its index has {length} bytes, and the allocation {memory.size}")
    try:
        index = json.loads(memory.copy_to(last, length))
        rows = {key: Entry(dtype, tuple(shape), start, end) for key, (dtype, shape, start, end) in index["tensors"].items()}
        metadata, sources = dict(index["metadata"]), [list(row) for row in index["sources"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        refuse(name, f"its index cannot be read: {error!r}")
    if not rows:
        refuse(name, "its index has no tensors")
    for key, entry in rows.items():
        if not is_placed(entry, last):
            refuse(name, f"its index places tensor {key!r} where it cannot be")
    return rows, metadata, sources


def is_placed(entry: Entry, end: int) -> bool:
    """Whether the entry, which another process may have written, describes aligned bytes of the allocation."""
    if type(entry.dtype) is not str or entry.dtype not in BITS:
        return False
    if not is_counts([entry.start, entry.end, *entry.shape]):
        return False
    is_inside = entry.start < entry.end <= end and entry.start % IN_PLACE_ALIGNMENT == 0
    return is_inside and bits_of(entry.dtype, entry.shape) == entry.nbytes * 8


def read_file_header(memory: _native.Sealed, name: str) -> tuple[dict[str, Entry], dict[str, str]]:
    if memory.size < LENGTH_BYTES:
        refuse(name, f"it is no checkpoint: it has {memory.size} bytes")
    (length,) = struct.unpack("<Q", memory.copy_to(0, LENGTH_BYTES))
    if length > min(memory.size - LENGTH_BYTES, HEADER_BYTES_MAX):
        refuse(name, f"it is no checkpoint: its header would have {length} bytes")
    return parse_header(memory.copy_to(LENGTH_BYTES, length), memory.size, name)


def attach(client: _native.Client, name: str, deadline: float, *, unpinned: bool) -> Weights | None:
    """Attaches the name, once the process that loads it has sealed it. `None` if no allocation has the name."""
    while True:
        try:
            return Weights(client.attach(name, unpinned=unpinned), client)
        except NotFound:
            return None
        except NotSealed:
            if time.monotonic() >= deadline:
                message = f"another process is still loading {name}: it was waited for as long as `timeout` says"
                raise Deadline(message) from None
            time.sleep(POLL_SECONDS)


def check_same(weights: Weights, checkpoint: Checkpoint) -> None:
    """Checks that an allocation has the content of the checkpoint: by the files' identities, else by every byte."""
    check_tensors(weights, checkpoint)
    # Other tenants could write what identities they like into an index.
    is_own = weights.memory.info.tenant == weights.client.tenant
    if not (is_own and weights.is_copy_of(checkpoint)):
        check_bytes(weights, checkpoint)


def check_tensors(weights: Weights, checkpoint: Checkpoint) -> None:
    theirs = {name: (entry.dtype, entry.shape) for name, (_, entry) in checkpoint.tensors.items()}
    ours = {name: (weights.entry(name).dtype, weights.entry(name).shape) for name in weights}
    if theirs != ours:
        differing = next(name for name in [*theirs, *ours] if theirs.get(name) != ours.get(name))
        raise OtherContent(
            f"{weights!r} has other tensors than {checkpoint.files[0].path}: {differing!r} is "
            f"{ours.get(differing)} there, and {theirs.get(differing)} in the file"
        )


def check_bytes(weights: Weights, checkpoint: Checkpoint) -> None:
    buffer = bytearray(PIECE_BYTES)
    for name, (file, entry) in checkpoint.tensors.items():
        start, memory = weights.entry(name).start, weights.memory_of(name)
        for done in range(0, entry.nbytes, PIECE_BYTES):
            with memoryview(buffer)[: min(PIECE_BYTES, entry.nbytes - done)] as piece:
                file.read_into(piece, entry.start + done)
                if memory.copy_to(start + done, len(piece)) != piece:
                    raise OtherContent(f"tensor {name!r} of {weights!r} has other bytes than in {file.path}")


class Meter:
    """Tells how far a copy is: to a function, to a bar of `tqdm`, or as a line on standard error."""

    def __init__(self, total: int, progress: bool | Progress) -> None:
        self._total, self._done, self._lock = total, 0, threading.Lock()
        self._bar: Any = None
        self._tell: Progress | None = progress if callable(progress) else None
        if progress is True:
            try:
                from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

                self._bar = tqdm(total=total, unit="B", unit_scale=True, desc="vramd.load")
            except ImportError:
                self._tell = print_progress

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.update(count)
            if self._tell is not None:
                self._tell(self._done, self._total)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.close()


def print_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rvramd.load: {readable(done)} of {readable(total)}", end=end, file=sys.stderr, flush=True)


def readable(count: int) -> str:
    """A number of bytes as the daemon writes it."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f} {unit}" if unit != "B" else f"{count} B"


_shared: tuple[str, _native.Client] | None = None
_shared_lock = threading.Lock()


def shared_client() -> _native.Client:
    """The client of calls that name none: one for the daemon that `connect` finds, and a new one if it has ended."""
    global _shared
    with _shared_lock:
        folder = _native.socket_dir()
        if _shared is None or _shared[0] != folder or not _shared[1].is_connected:
            _shared = (folder, _native.connect(os.path.basename(sys.argv[0] or "python")))
        return _shared[1]


def _forget_shared() -> None:
    """A forked child connects a client of its own, and another thread of its parent may have had the lock."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_shared)
