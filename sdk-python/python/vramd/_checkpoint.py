"""Checkpoints in the format safetensors: what a file says of its tensors, checked before anything is allocated.

A file begins with the length of its header (8 bytes, little-endian), then has the header (JSON), then the tensors'
bytes. Nothing in it is trusted: a header that does not describe exactly the bytes that follow is refused.
"""

from __future__ import annotations

import json
import os
import pathlib
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from vramd.errors import InvalidCheckpoint

Source = pathlib.Path | str
"""A file, or the name of an allocation: what an error says of what is refused."""

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000
"""The format's own bound."""
TENSORS_MAX = 100_000
"""Most tensors of one checkpoint."""
ALIGNMENT = 256
"""Every tensor that is copied begins at a multiple of it, as memory of `torch` itself does."""
IN_PLACE_ALIGNMENT = 16
"""The least that kernels with vector loads need, in memory that is a file itself."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""The bits of an element of each type."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: where its bytes lie, counted from the beginning of the file or of the allocation."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Identity:
    """By what a file is recognized without reading it: every write to a file changes the time of its last change."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Identity:
        facts = os.fstat(descriptor)
        return cls(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


class ShardFile:
    """One open file of a checkpoint, with the tensors that its header names."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
                refuse(path, "it is no ordinary file")
            self.identity = Identity.of(self.descriptor)
            self.header = read_header(self.descriptor, self.identity.size, path)
            self.tensors, self.metadata = parse_header(self.header, self.identity.size, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills the buffer. A file that has become shorter is refused."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self.descriptor, [buffer[done:]], offset + done)
            if count == 0:
                refuse(self.path, f"it ends at byte {offset + done}: it became shorter while it was read")
            done += count

    def has_changed(self) -> bool:
        """Whether it was written since it was opened."""
        return Identity.of(self.descriptor) != self.identity


class Checkpoint:
    """All files of a checkpoint, open. As a context manager it closes them."""

    def __init__(self, files: Sequence[ShardFile]) -> None:
        self.files = files
        self.tensors: dict[str, tuple[ShardFile, Entry]] = {}
        for file in files:
            for name, entry in file.tensors.items():
                if name in self.tensors:
                    refuse(file.path, f"tensor {name!r} is also in {self.tensors[name][0].path}")
                self.tensors[name] = (file, entry)
        if not self.tensors:
            refuse(files[0].path, "it has no tensors")
        if len(self.tensors) > TENSORS_MAX:
            refuse(files[0].path, f"the checkpoint has {len(self.tensors)} tensors, more than {TENSORS_MAX}")

    @classmethod
    def open(cls, source: str | os.PathLike[str]) -> Checkpoint:
        """Opens a file, the file of an index (`….safetensors.index.json`), or a folder that has either."""
        paths, weight_map = find_files(pathlib.Path(source))
        with ExitStack() as stack:
            files = []
            for path in paths:
                files.append(ShardFile(path))
                stack.callback(files[-1].close)
            checkpoint = cls(files)
            checkpoint.check_index(weight_map)
            stack.pop_all()
        return checkpoint

    def check_index(self, weight_map: dict[str, pathlib.Path] | None) -> None:
        for name, path in (weight_map or {}).items():
            held = self.tensors.get(name)
            if held is None or held[0].path != path:
                refuse(path, f"its index names tensor {name!r}, which it does not have")

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for _, entry in self.tensors.values())

    def is_aligned(self) -> bool:
        """Whether tensors may be used where they lie in the file."""
        return all(entry.start % IN_PLACE_ALIGNMENT == 0 for _, entry in self.tensors.values())

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def find_files(source: pathlib.Path) -> tuple[list[pathlib.Path], dict[str, pathlib.Path] | None]:
    """The files of a checkpoint. With an index also the file that it names for each tensor."""
    if source.is_dir():
        indexes = sorted(source.glob("*.safetensors.index.json"))
        if len(indexes) > 1:
            refuse(source, f"it has {len(indexes)} indexes: name the one that you mean")
        if indexes:
            return find_files(indexes[0])
        files = sorted(source.glob("*.safetensors"))
        if not files:
            refuse(source, "it has no file `*.safetensors`")
        return files, None
    if source.suffix != ".json":
        return [source], None
    try:
        index = json.loads(source.read_bytes(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        refuse(source, f"it is no index in JSON: {error}")
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not named:
        refuse(source, "it has no `weight_map`")
    weight_map = {}
    for name, file in named.items():
        if not isinstance(file, str) or pathlib.PurePath(file).name != file or file in ("", ".", ".."):
            refuse(source, f"tensor {name!r} is in {file!r}, which is no file beside the index")
        weight_map[name] = source.parent / file
    return sorted(set(weight_map.values())), weight_map


def read_header(descriptor: int, size: int, path: pathlib.Path) -> bytes:
    """The bytes of the header, without their length."""
    (length,) = struct.unpack("<Q", os.pread(descriptor, LENGTH_BYTES, 0).ljust(LENGTH_BYTES, b"\0"))
    if size < LENGTH_BYTES:
        refuse(path, f"it has {size} bytes, and a checkpoint begins with the {LENGTH_BYTES} of its header's length")
    if length > HEADER_BYTES_MAX:
        refuse(path, f"its header has {length} bytes, more than {HEADER_BYTES_MAX}")
    if length > size - LENGTH_BYTES:
        refuse(path, f"its header has {length} bytes, and the file {size}")
    header = os.pread(descriptor, length, LENGTH_BYTES)
    if len(header) != length:
        refuse(path, "it became shorter while it was read")
    return header


def parse_header(header: bytes, size: int, path: Source) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors that a header describes, and its metadata. `size` is that of the whole file."""
    try:
        content = json.loads(header, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        refuse(path, f"its header is no JSON: {error}")
    if not isinstance(content, dict):
        refuse(path, "its header is no JSON object")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        refuse(path, "its `__metadata__` are not texts")
    if len(content) > TENSORS_MAX:
        refuse(path, f"its header has {len(content)} tensors, more than {TENSORS_MAX}")
    first = LENGTH_BYTES + len(header)
    tensors = {name: parse_entry(name, facts, first, path) for name, facts in content.items()}
    check_coverage(tensors, first, size, path)
    return tensors, metadata


def parse_entry(name: str, facts: Any, first: int, path: Source) -> Entry:
    if not isinstance(facts, dict) or facts.keys() != {"dtype", "shape", "data_offsets"}:
        refuse(path, f"tensor {name!r} has other facts than `dtype`, `shape` and `data_offsets`")
    dtype, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        refuse(path, f"tensor {name!r} has the type {dtype!r}, which this version does not know")
    if not is_counts(shape):
        refuse(path, f"tensor {name!r} has a shape that is no list of counts")
    if not is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(path, f"tensor {name!r} has `data_offsets` that are no begin and end")
    bits = bits_of(dtype, shape)
    if bits is None:
        refuse(path, f"tensor {name!r} is larger than any memory")
    start, end = offsets
    if bits == 0:
        refuse(path, f"tensor {name!r} has no bytes")
    if bits != (end - start) * 8:
        refuse(path, f"tensor {name!r} has {end - start} bytes, and {bits / 8:g} by its type and shape")
    return Entry(dtype, tuple(shape), first + start, first + end)


def bits_of(dtype: str, shape: Iterable[int]) -> int | None:
    """The bits of all elements. `None` if no memory has so many."""
    bits = BITS[dtype]
    for count in shape:
        bits *= count
        # Python's numbers have no bound, and a long shape would take long to multiply.
        if bits >> 66:
            return None
    return bits


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(count) is int and 0 <= count < 1 << 63 for count in value)


def check_coverage(tensors: dict[str, Entry], first: int, size: int, path: Source) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    at, before = first, "the header"
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != at:
            fault = "overlaps" if entry.start < at else "leaves a gap after"
            refuse(path, f"tensor {name!r} {fault} {before}")
        at, before = entry.end, f"tensor {name!r}"
    if at != size:
        refuse(path, f"its tensors end at byte {at}, and the file at {size}")


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, unless it has a key twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {key!r} twice")
        found[key] = value
    return found


def refuse(path: Source, problem: str) -> NoReturn:
    raise InvalidCheckpoint(f"{os.fspath(path)}: {problem}")
