"""PyTorch over memory of the daemon: weights of a module, modules whose weights come and go, and pools that sleep.

    import vramd, vramd.torch

    weights = vramd.load("llama/", name="llama", unpinned=True)
    with vramd.torch.on_meta():
        model = AutoModelForCausalLM.from_config(config)
    weights.bind(model, hold=False)
    vramd.torch.movable(model, weights)       # each block is on the device while it computes

Weights are read-only for all: parameters have no gradients, and a kernel that writes to them faults, which ends the
process's CUDA context.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramd import _native
from vramd._checkpoint import BITS, Entry
from vramd._torch_pool import ManagedPool, Pool, asleep_with, managed_pool, pool, quota_as_memory, sleep, wake_up
from vramd.errors import NotResident
from vramd.weights import NATIVE, PYTORCH_ONLY

if TYPE_CHECKING:
    from vramd.weights import Weights

__all__ = [
    "ManagedPool", "Movable", "Pool", "debug", "managed_pool", "movable", "on_meta", "pool", "quota_as_memory", "sleep", "wake_up",
]

_TYPES = NATIVE | PYTORCH_ONLY
"""The name of each type in this module's `torch`."""

_unheld: dict[int, tuple[Weights, str]] = {}
"""The storages of tensors without a pin of their own, by their address in PyTorch, for debug mode."""


def dtype_of(name: str, entry: Entry) -> torch.dtype:
    kind = getattr(torch, _TYPES.get(entry.dtype, ""), None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"tensor {name!r} has the type {entry.dtype}, which PyTorch {torch.__version__} does not have")
    return kind


def shape_of(name: str, entry: Entry) -> tuple[int, ...]:
    if BITS[entry.dtype] != 4:
        return entry.shape
    *rows, count = entry.shape or (1,)
    if count % 2:
        raise TypeError(f"tensor {name!r} has an odd number of F4 elements in a row, and PyTorch takes pairs")
    return (*rows, count // 2)


def tensors_of(weights: Weights, *, hold: bool) -> dict[str, torch.Tensor]:
    """See `Weights.tensors`."""
    tensors: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    for name in weights:
        try:
            tensors[name] = tensor_of(weights, name, hold=hold)
        except TypeError as problem:
            problems.append(str(problem))
    if problems:
        warnings.warn(f"{weights!r}, left out: {listed(problems)}", stacklevel=3)
    return tensors


def tensor_of(weights: Weights, name: str, *, hold: bool) -> torch.Tensor:
    """One tensor. `TypeError` if PyTorch cannot have it."""
    entry = weights.entry(name)
    kind, shape = dtype_of(name, entry), shape_of(name, entry)
    return bytes_of(weights, name, hold=hold).view(kind).view(shape)


def bytes_of(weights: Weights, name: str, *, hold: bool) -> torch.Tensor:
    """The same as bytes, whatever its type."""
    if hold or weights.always_held:
        return held(weights.memory_of(name), weights.entry(name))
    return unheld(weights, name, weights.entry(name))


def held(memory: _native.Memory | _native.MappedFile, entry: Entry) -> torch.Tensor:
    """The bytes of a tensor, whose parts stay on the device while the result or a view of it lives."""
    view = memory.tensor(entry.nbytes, "uint8", entry.start)
    if memory.is_device_memory:
        return torch.from_dlpack(view)
    with warnings.catch_warnings():
        # PyTorch warns that it knows no read-only tensors.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(view, dtype=torch.uint8)


def unheld(weights: Weights, name: str, entry: Entry) -> torch.Tensor:
    """The same without a pin: only the address. It keeps the weights attached, so that the address stays theirs."""
    source: Any
    # Memory has no address before it is mapped, and CUDA knows no device of one that nothing is mapped at.
    with weights.pin(parts=weights.parts_of(name)):
        start = weights.memory.device_ptr + entry.start
        if weights.memory.is_device_memory:
            source = DeviceBytes(start, entry.nbytes)
            raw = torch.as_tensor(source)
        else:
            # A class of its own, since plain arrays take no attributes.
            kind: Any = type("HostBytes", (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": entry.nbytes})
            source = kind.from_address(start)
            raw = torch.frombuffer(source, dtype=torch.uint8)
    source.weights = weights
    key = storage_of(raw)
    # PyTorch keeps the source for as long as the storage lives. No entry is made that nothing would remove.
    weakref.finalize(source, _unheld.pop, key, None)
    _unheld[key] = (weights, name)
    return raw


def storage_of(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage
    return int(storage._cdata)


class DeviceBytes:
    """An address on a GPU, in the words of `__cuda_array_interface__`."""

    def __init__(self, start: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            # PyTorch takes no memory that is said to be read-only.
            "data": (start, False),
            "strides": None,
            "version": 3,
        }


def current_stream(weights: Weights) -> int:
    """The stream of the device that the weights are on, to which PyTorch gives work now."""
    device = _devices.get(weights)
    if device is None:
        device = torch.as_tensor(DeviceBytes(weights.memory.device_ptr, 1)).device
        _devices[weights] = device
    return int(torch.cuda.current_stream(device).cuda_stream)


_devices: weakref.WeakKeyDictionary[Weights, torch.device] = weakref.WeakKeyDictionary()


def bind(
    weights: Weights, module: torch.nn.Module, *, hold: bool, strict: bool, rename: Callable[[str], str] | None
) -> None:
    """See `Weights.bind`."""
    called = rename if rename is not None else lambda name: name
    # Only what the module has, since PyTorch may lack the types of other tensors.
    tensors: dict[str, torch.Tensor] = {}
    slots = list(slots_of(module))
    # A parameter that is shared has several names, and the checkpoint may have one of them.
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for slot in slots:
        name = called(slot.name)
        if name in weights and slot.old is not None and id(slot.old) not in found:
            if name not in tensors:
                tensors[name] = tensor_of(weights, name, hold=hold)
            found[id(slot.old)] = (name, fitted(slot, tensors[name]))
    missing, unused = unmatched(slots, found, weights, called)
    if strict and (missing or unused):
        raise ValueError(
            f"{weights!r} does not fit {type(module).__name__}: it lacks {listed(missing)}, and the module lacks "
            f"{listed(unused)}. `strict=False` leaves these as they are"
        )
    some = next(iter(tensors.values()), None)
    device = (some if some is not None else bytes_of(weights, next(iter(weights)), hold=hold)).device
    new: dict[int, torch.Tensor] = {}
    for slot in slots:
        if slot.old is not None and id(slot.old) not in new:
            made = slot.content(weights, found.get(id(slot.old)), device)
            if made is not None:
                new[id(slot.old)] = made
    replaced = [slot for slot in slots if id(slot.old) in new]
    try:
        for slot in replaced:
            # As an attribute: recurrent modules keep a list of their own.
            setattr(slot.owner, slot.key, new[id(slot.old)])
    except BaseException:
        for slot in replaced:
            setattr(slot.owner, slot.key, slot.old)
        raise


def unmatched(
    slots: Sequence[Slot], found: Mapping[int, object], stored: Iterable[str], called: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """The names of places that get no content, and of stored tensors that belong to no place."""
    names = {called(slot.name) for slot in slots}
    return [slot.name for slot in slots if slot.is_missing(found)], [name for name in stored if name not in names]


def fitted(slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    assert slot.old is not None
    if tensor.shape == slot.old.shape:
        return tensor
    if tensor.numel() != slot.old.numel():
        raise ValueError(
            f"{slot.name} has the shape {tuple(slot.old.shape)}, and its tensor in the checkpoint {tuple(tensor.shape)}"
        )
    return tensor.view(slot.old.shape)


class Slot:
    """A place of a module where a parameter or a buffer is."""

    def __init__(self, name: str, owner: torch.nn.Module, key: str, *, is_parameter: bool) -> None:
        self.name, self.owner, self.key, self.is_parameter = name, owner, key, is_parameter
        self.old: torch.Tensor | None = (owner._parameters if is_parameter else owner._buffers)[key]

    def is_missing(self, found: Mapping[int, object]) -> bool:
        """Whether nothing gives it content: neither the checkpoint nor the module itself."""
        if self.old is None or id(self.old) in found:
            return False
        is_saved = self.is_parameter or self.key not in self.owner._non_persistent_buffers_set
        return is_saved or self.old.is_meta

    def content(
        self, weights: Weights, found: tuple[str, torch.Tensor] | None, device: torch.device
    ) -> torch.Tensor | None:
        """The tensor that belongs there. `None` if the old one stays."""
        if self.is_parameter:
            return torch.nn.Parameter(found[1], requires_grad=False) if found is not None else None
        if found is None:
            return None if self.old is None or self.old.is_meta else self.old.to(device)
        # A module may write its buffers, and the memory is sealed.
        name, tensor = found
        with weights.pin(parts=weights.parts_of(name)):
            return tensor.clone()


def slots_of(module: torch.nn.Module) -> Iterator[Slot]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        dot = prefix + "." if prefix else ""
        for is_parameter, table in ((True, owner._parameters), (False, owner._buffers)):
            for key in table:
                yield Slot(dot + key, owner, key, is_parameter=is_parameter)


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "nothing"


Moved = dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]]
"""Parameters that were replaced by others on `meta`, by the identity of the first."""

_building = threading.local()
_patch_lock = threading.Lock()
_register: Callable[..., None] | None = None


class on_meta(_native._Scope[None, "Moved | None"]):
    """Modules that this thread builds inside have their parameters on the device `meta`, which takes no memory.

    Their buffers are real, since a checkpoint often lacks them.
    """

    def _begin(self) -> tuple[None, Moved | None]:
        _patch_register_parameter()
        before: Moved | None = getattr(_building, "moved", None)
        try:
            _building.moved = {} if before is None else before
            return None, before
        except BaseException:
            _building.moved = before
            raise

    def _end(self, before: Moved | None, error: BaseException | None) -> None:
        _building.moved = before


def _patch_register_parameter() -> None:
    """Once, and for ever: it does nothing in threads that build nothing on `meta`."""
    global _register
    with _patch_lock:
        if _register is not None:
            return
        _register = original = torch.nn.Module.register_parameter

        def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
            # A parameter that is registered twice is moved once.
            moved: Moved | None = getattr(_building, "moved", None)
            original(module, name, param)
            if moved is None or param is None or param.is_meta:
                return
            if id(param) not in moved:
                made = type(param)(param.to("meta"), requires_grad=param.requires_grad)
                made.__dict__.update(vars(param))
                moved[id(param)] = (param, made)
            module._parameters[name] = moved[id(param)][1]

        torch.nn.Module.register_parameter = register


class Movable(_native._Scope["Movable", None]):
    """A module whose blocks are on the device while they compute, and may leave in between (`movable`)."""

    def __init__(self, module: torch.nn.Module, weights: Weights, blocks: Sequence[torch.nn.Module]) -> None:
        self.module, self.weights, self.blocks = module, weights, list(blocks)
        self._ranges = [ranges_of(weights, block.parameters()) for block in self.blocks]
        # A block without weights is no step.
        self._steps = {at: step for step, at in enumerate(at for at, ranges in enumerate(self._ranges) if ranges)}
        self._sequence: _native.Sequence | None = None
        self._passes, self._pass, self._begun = 0, -1, -1
        self._pins = threading.local()
        self._hooks: list[Any] = []
        self._is_installed = False
        """Otherwise its hooks do nothing. Ctrl-C may lose the handle that would remove one."""

    def install(self) -> None:
        self._is_installed = True
        for at, block in enumerate(self.blocks):
            self._hook(block, self._ranges[at], partial(self._begin_step, at))
        self._hook(self.module, ranges_of(self.weights, parameters_outside(self.module, self.blocks)), self._begin_pass)

    def declare(self, passes: int = 0) -> None:
        """Tells the daemon that the blocks follow one another, so many times; 0 is for ever.

        While one block computes, the daemon brings the next ones. After the last pass the sequence ends.
        """
        self.end_sequence()
        memory = self.weights.memory
        steps: list[Any] = [[(memory, parts) for parts in ranges] for ranges in self._ranges if ranges]
        self._passes, self._pass, self._begun = passes, -1, -1
        self._sequence = self.weights.client.sequence(steps, passes=passes)

    def end_sequence(self) -> None:
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            sequence.end()

    def remove(self) -> None:
        """Removes the hooks, and ends the sequence. The module then computes only inside of `weights.pin()`."""
        self._is_installed = False
        self.end_sequence()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._end_all()

    def _end(self, begun: None, error: BaseException | None) -> None:
        self.remove()

    def _begin_pass(self) -> None:
        # The blocks of a call that raised an error have not ended where PyTorch does not say so.
        self._end_all()
        self._pass += 1
        if self._passes and self._pass >= self._passes:
            self.end_sequence()

    def _begin_step(self, at: int) -> None:
        sequence, step = self._sequence, self._steps.get(at)
        if sequence is None or step is None or self._pass < 0:
            return
        number = self._pass * len(self._steps) + step
        # A block that computes twice in a pass is one step.
        if number > self._begun:
            self._begun = number
            sequence.begin(number)

    def _hook(self, module: torch.nn.Module, ranges: list[range], begun: Callable[[], None]) -> None:
        def begin(*_call: object) -> None:
            if not self._is_installed:
                return
            begun()
            stack = self._stack()
            stack.append([])
            for parts in ranges:
                stack[-1].append(self.weights.begin_pin(parts))

        def end(*_call: object) -> None:
            if self._stack():
                self._end_last()

        # Since PyTorch 2.0 the second is called for a call that raised an error too, but not after Ctrl-C.
        always = {"always_call": True} if ALWAYS_CALL else {}
        self._hooks.append(module.register_forward_pre_hook(begin))
        self._hooks.append(module.register_forward_hook(end, **always))

    def _stack(self) -> list[list[_native.Pin]]:
        """The pins of the blocks that compute in this thread now, from the whole module down."""
        stack: list[list[_native.Pin]] | None = getattr(self._pins, "stack", None)
        if stack is None:
            stack = self._pins.stack = []
        return stack

    def _end_all(self) -> None:
        while self._stack():
            self._end_last()

    def _end_last(self) -> None:
        """Ends the pins of the innermost block. After Ctrl-C the next call ends those that are left."""
        stack = self._stack()
        try:
            while stack[-1]:
                self.weights.end_pin(stack[-1][-1])
                stack[-1].pop()
        except Exception:
            stack.pop()
            raise
        stack.pop()

    def __repr__(self) -> str:
        return f"<vramd.torch.Movable {type(self.module).__name__}: {len(self.blocks)} blocks of {self.weights!r}>"


ALWAYS_CALL = "always_call" in inspect.signature(torch.nn.Module.register_forward_hook).parameters


def movable(
    module: torch.nn.Module,
    weights: Weights,
    *,
    blocks: Sequence[torch.nn.Module] | None = None,
    passes: int | None = 0,
) -> Movable:
    """Has each block of a module on the device while it computes; in between its weights may leave.

    The module is bound to the weights with `hold=False`. `blocks` are by default the modules of its longest
    `torch.nn.ModuleList` or `Sequential`; all its other weights are on the device for as long as the whole module
    computes. The pins of a block end once its work on the current stream is done. The order of the blocks is declared
    to the daemon (`passes` times, 0 for ever), which brings the next ones ahead; `passes=None` declares nothing.
    """
    if weights.always_held:
        raise TypeError(f"{weights!r} is read in place: its files never leave, so there is nothing to bring back")
    chosen = list(blocks) if blocks is not None else longest_list(module)
    made = Movable(module, weights, chosen)
    try:
        if passes is not None and len(made._steps) > 1:
            made.declare(passes)
        made.install()
        weights.unpin()
        return made
    except BaseException:
        made.remove()
        raise


def longest_list(module: torch.nn.Module) -> list[torch.nn.Module]:
    lists = [list(it) for it in module.modules() if isinstance(it, (torch.nn.ModuleList, torch.nn.Sequential))]
    return max(lists, key=len, default=[])


def parameters_outside(module: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> Iterator[torch.Tensor]:
    """The parameters of all modules that are in no block. One that is tied to a block's is among them."""
    inside = {id(part) for block in blocks for part in block.modules()}
    for part in module.modules():
        if id(part) not in inside:
            yield from part.parameters(recurse=False)


def ranges_of(weights: Weights, tensors: Iterable[torch.Tensor]) -> list[range]:
    """The parts of the weights in which these tensors lie."""
    base, size, part_bytes = weights.memory.device_ptr, weights.memory.size, weights.part_bytes()
    parts: set[int] = set()
    for tensor in tensors:
        start = tensor.data_ptr() - base
        if not tensor.is_meta and 0 <= start < size:
            parts.update(range(start // part_bytes, (start + tensor_bytes(tensor) - 1) // part_bytes + 1))
    return joined(sorted(parts))


def joined(parts: Sequence[int]) -> list[range]:
    """Neighbours as ranges."""
    ranges: list[range] = []
    for part in parts:
        if ranges and ranges[-1].stop == part:
            ranges[-1] = range(ranges[-1].start, part + 1)
        else:
            ranges.append(range(part, part + 1))
    return ranges


def tensor_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


class debug(TorchDispatchMode):
    """In a block `with vramd.torch.debug():` a use of a tensor outside of a pin raises `NotResident` with its name.

    Without it such a use reads an address that nothing may be mapped at, and ends the CUDA context or the process. It
    watches tensors that were made with `hold=False`, tensors of pools that are asleep, and their views. Pins of `Weights.pin`, `Weights.begin_pin` and
    `movable` count; those of `weights.memory` itself do not. Each operation takes some microseconds more.
    """

    def __torch_dispatch__(
        self, func: Any, _types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tensors_in([args, kwargs or {}]):
            if tensor.is_meta or tensor.layout != torch.strided:
                continue
            asleep = asleep_with(tensor)
            if asleep is not None:
                raise NotResident(f"{func} uses a tensor of {asleep!r}: wake the pool up first")
            weights, name = _unheld.get(storage_of(tensor), (None, ""))
            if weights is not None and not weights.is_pinned(name):
                raise NotResident(
                    f"{func} uses {name!r} of {weights!r} outside of a pin: use it inside `with weights.pin():`, "
                    "or take tensors with `hold=True`"
                )
        return func(*args, **(kwargs or {}))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)


def save(
    client: _native.Client,
    tensors: Mapping[str, torch.Tensor],
    name: str,
    *,
    metadata: Mapping[str, str] | None,
    **options: Any,
) -> Weights:
    """See `vramd.save`."""
    from vramd import weights as _weights

    if not tensors:
        raise ValueError("there are no tensors to save")
    facts: dict[str, tuple[str, tuple[int, ...], int]] = {}
    targets: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for key, tensor in tensors.items():
        kind = type_of(key, tensor)
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        # Tensors that are one stay one.
        targets[key] = first.setdefault(same, key)
        if targets[key] == key:
            facts[key] = (kind, tuple(tensor.shape), tensor_bytes(tensor))
    placed = _weights.layout(facts)
    entries = {key: placed[targets[key]] for key in tensors}
    index = _weights.index_bytes(entries, metadata or {}, [])
    end = max(entry.end for entry in placed.values())
    made: list[_native.Allocation | _native.Sealed] = []
    view: torch.Tensor | None = None
    try:
        memory = client.allocate(end + len(index), name=name, lifetime="persistent", uninitialized=True, **options)
        made.append(memory)
        with torch.no_grad():
            for key, entry in placed.items():
                view = held(memory, entry)
                view.view(tensors[key].dtype).view(tensors[key].shape).copy_(tensors[key])
                if memory.is_device_memory:
                    # The memory may leave once the view is gone.
                    torch.cuda.current_stream(view.device).synchronize()
                view = None
        memory.copy_from(index, end)
        return _weights.Weights(memory.seal(), client)
    except BaseException as error:
        # A view that still lived would keep the memory.
        view = None
        traceback.clear_frames(error.__traceback__)
        _weights.free_after_failure(made, error)
        raise


def type_of(name: str, tensor: torch.Tensor) -> str:
    if tensor.is_meta or tensor.layout != torch.strided:
        raise TypeError(f"tensor {name!r} has no bytes of its own: it is on `meta` or sparse")
    if tensor.numel() == 0:
        raise ValueError(f"tensor {name!r} has no elements")
    for dtype, known in _TYPES.items():
        if getattr(torch, known, None) is tensor.dtype and BITS[dtype] >= 8:
            return dtype
    raise TypeError(f"tensor {name!r} has the type {tensor.dtype}, which the format safetensors does not have")
