"""Weights in place: the files of a checkpoint, mapped into this process, from which the device reads.

Nothing is allocated or charged. The bytes are page cache of the kernel, which all processes share, and which the kernel
takes back under pressure. Where that is not possible the caller copies the checkpoint, and the daemon counts why.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

from vramd import _native
from vramd._checkpoint import IN_PLACE_ALIGNMENT, Checkpoint, Entry, ShardFile
from vramd.errors import Error, OtherContent
from vramd.weights import PIECE_BYTES, Weights, WeightsPin, readable

if TYPE_CHECKING:
    from vramd.weights import Where

MISALIGNED = "misaligned"
NOT_REQUESTED = "not_requested"
UNCHECKED = "file_unchecked"
OF_THE_DEVICE = ("separate_tiers", "register_unsupported")
"""The reasons for which a device reads no file at all."""


class MappedWeights(Weights):
    """The tensors of a checkpoint whose files this process maps. The device reads them in place.

    The files stay mapped while this object or a tensor lives. They never leave, so nothing needs a pin. The last of them
    may only go once the kernels have ended that read the files.
    """

    always_held = True

    def __init__(self, files: list[tuple[ShardFile, _native.MappedFile]], client: _native.Client) -> None:
        self.client = client
        self.metadata = {key: text for file, _ in files for key, text in file.metadata.items()}
        self._files = [mapped for _, mapped in files]
        self._paths = [file.path for file, _ in files]
        self._entries: dict[str, Entry] = {}
        self._memories: dict[str, _native.MappedFile] = {}
        for file, mapped in files:
            self._entries |= file.tensors
            self._memories |= dict.fromkeys(file.tensors, mapped)
        self.copied_because = self.copy_problem = None

    def __getattr__(self, name: str) -> NoReturn:
        # Only for attributes that no other place has.
        hint = ": mapped files are no allocation" if name == "memory" else ""
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}{hint}")

    @property
    def name(self) -> None:
        """Mapped files have none: every process loads them by their path."""
        return None

    @property
    def where(self) -> Literal["in_place", "device"]:
        return "in_place"

    @property
    def device(self) -> str:
        """UUID."""
        return self._files[0].device

    @property
    def digest(self) -> str:
        """`sha256:` and the digest over all bytes of the files, in the order of their names, read now."""
        digest = hashlib.sha256()
        for mapped in self._files:
            for start in range(0, mapped.size, PIECE_BYTES):
                digest.update(mapped.copy_to(start, min(PIECE_BYTES, mapped.size - start)))
        return f"sha256:{digest.hexdigest()}"

    def memory_of(self, name: str) -> _native.MappedFile:
        self.entry(name)
        return self._memories[name]

    def is_copy_of(self, checkpoint: Checkpoint) -> bool:
        return False

    def pin(self, *, parts: range | None = None, wait: float | None = None) -> WeightsPin:
        """Does nothing: mapped files never leave."""
        return NoPin(self)

    def part_bytes(self) -> NoReturn:
        raise TypeError(f"{self!r} has no parts: mapped files never leave the place where they are read")

    def begin_pin(self, parts: range | None = None, *, wait: float | None = None) -> NoReturn:
        self.part_bytes()

    def is_pinned(self, name: str) -> bool:
        return True

    def unpin(self) -> None:
        """Does nothing: the kernel takes the pages back when it needs them, and reads them again."""

    def detach(self) -> None:
        """Forgets the files. They are unmapped once no tensor lies in them any more: wait for kernels that read them."""
        for mapped in self._files:
            mapped.detach()

    def free(self) -> None:
        """The same as `detach`: there is no allocation to free."""
        self.detach()

    def __repr__(self) -> str:
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        return f"<vramd.Weights in {self._paths[0]}{more}: {len(self)} tensors, {readable(self.nbytes)}>"


class NoPin(WeightsPin):
    """A block in which mapped files are where they always are."""

    def __init__(self, weights: MappedWeights) -> None:
        super().__init__(weights, None, None)

    def _begin(self) -> tuple[Weights, None]:
        return self._weights, None


def map_checkpoint(
    client: _native.Client,
    checkpoint: Checkpoint,
    device: str | int | None,
    where: Where | None,
    *,
    needs_allocation: bool,
) -> MappedWeights | NotMapped:
    """Maps the files of a checkpoint, if that is wanted and possible. Otherwise the caller copies them."""
    if where == "device":
        return NotMapped(None)
    try:
        checks = [client.check_file(file.descriptor, device=device) for file in checkpoint.files]
    except Error as error:
        if where == "in_place":
            raise
        # The program did not ask for a check. If the device or the daemon is at fault, the copy says so.
        return NotMapped(UNCHECKED, str(error))
    refusals = [check.not_in_place for check in checks if check.not_in_place is not None]
    refused = next(iter(refusals), None)
    if where is None and refused is not None and refused.reason in OF_THE_DEVICE:
        # The device reads no files, so a copy is what the program expects.
        return NotMapped(None)
    if refused is not None:
        return NotMapped(refused.reason, refused.problem)
    if not checkpoint.is_aligned():
        return NotMapped(MISALIGNED, f"a tensor begins at no multiple of {IN_PLACE_ALIGNMENT} bytes")
    if where is None and (needs_allocation or not all(check.in_place_by_default for check in checks)):
        return NotMapped(NOT_REQUESTED, "the program did not ask to read in place")
    return map_files(client, checkpoint, checks)


def map_files(
    client: _native.Client, checkpoint: Checkpoint, checks: Sequence[_native.FileCheck]
) -> MappedWeights | NotMapped:
    files = []
    for file, check in zip(checkpoint.files, checks, strict=True):
        made = client.map_file(file.descriptor, check)
        if isinstance(made, _native.NotInPlace):
            return NotMapped(made.reason, made.problem)
        files.append((file, made))
    for file, _ in files:
        if file.has_changed():
            raise OtherContent(f"{file.path} was written while it was mapped: nothing of it is served")
    return MappedWeights(files, client)


@dataclass(frozen=True, slots=True)
class NotMapped:
    """Why a checkpoint is not read in place."""

    reason: str | None
    """`None` if a copy is what the program expects: that is not counted."""
    problem: str | None = None
    """The same in one sentence, with the facts of this case."""

    def count_copy(self, client: _native.Client, checkpoint: Checkpoint) -> None:
        """Has the daemon count the copy that was made."""
        if self.reason is None:
            return
        # The copy is good, also if the daemon cannot count it.
        with contextlib.suppress(Error):
            client.report_fall_back(self.reason, checkpoint.nbytes)
