"""The parameters of a module that an engine has prepared, once per node.

An engine fuses, slices, repacks and quantizes what a checkpoint has, so its parameters are in no file. The first
process prepares them and calls `publish`; each later one builds the module on the device `meta` and calls `adopt`.

    shared = publish(model, "llama-a1b2", key)         # copies the parameters, seals them, and points the model there
    shared = find("llama-a1b2", key, timeout=600)      # in another process: the same, or None
    shared.adopt(model)

Parameters are shared, and read-only for all. Buffers, and parameters that lie on the host, become private copies.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any

import torch

from vramd import _checkpoint, _native
from vramd import torch as ours
from vramd import weights as _weights
from vramd.errors import NameTaken, OtherContent
from vramd.weights import Weights

FACTS = "vramd.module"
"""The name of the metadata in which `publish` says what is no tensor."""
KEY = "vramd.module.key"
ATTRIBUTES = "vramd.module.attributes"

_shared: list[SharedModule] = []
"""All modules of this process that compute with shared parameters."""


class SharedModule:
    """Parameters that processes share. Their addresses stay, and they are on the device while this is awake.

    It begins asleep.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.facts: dict[str, Any] = json.loads(weights.metadata[FACTS])
        self.attributes: dict[str, Any] = json.loads(weights.metadata[ATTRIBUTES])
        """Facts that the process which published gave beside the module."""
        self.resident_before = resident_bytes(weights)
        """The bytes of it that were on the device before this process asked for them."""
        self._pin: _native.Pin | None = None
        _shared.append(self)

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    def sleep(self) -> None:
        """Lets the parameters leave the device once no other process has them pinned. They are lost in no case."""
        if self._pin is not None:
            self.weights.end_pin(self._pin)
            self._pin = None

    def wake_up(self) -> None:
        """Returns when the parameters are on the device."""
        if self._pin is None or self._pin.is_released:
            self._pin = self.weights.begin_pin()

    def close(self) -> None:
        """Leaves the parameters to the other processes. A module that has them must not compute afterwards."""
        self.sleep()
        if self in _shared:
            _shared.remove(self)

    def tensors(self) -> Iterator[tuple[str, bool, torch.Tensor]]:
        """For each name whether it is a parameter, and its tensor: a shared one, or a private copy.

        Names of one parameter have one tensor.
        """
        loaded = self.weights.tensors(hold=False)
        made: dict[str, torch.Tensor] = {}
        for name, fact in self.facts.items():
            if name == fact["of"]:
                made[name] = tensor_of(name, loaded.get(name), fact, self.weights)
            yield name, fact["parameter"], made[fact["of"]]

    def adopt(self, module: torch.nn.Module) -> None:
        """Gives a module all parameters and buffers, also those that it did not have when it was built."""
        owners = dict(module.named_modules(remove_duplicate=False))
        known: dict[int, torch.nn.Parameter] = {}
        for name, is_parameter, tensor in self.tensors():
            path, _, key = name.rpartition(".")
            if path not in owners:
                raise ValueError(f"{self.weights!r} has {name!r}, and {type(module).__name__} has no module {path!r}")
            forget(owners[path], key)
            if is_parameter:
                parameter = known.setdefault(id(tensor), torch.nn.Parameter(tensor, requires_grad=False))
                owners[path].register_parameter(key, parameter)
            else:
                owners[path].register_buffer(key, tensor, persistent=self.facts[name]["persistent"])

    def point(self, module: torch.nn.Module) -> None:
        """Points the parameters of the module that was published at the shared ones, and frees their own memory."""
        shared = {name: tensor for name, is_parameter, tensor in self.tensors() if is_parameter}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(False)
            if parameter.numel() and parameter.device == shared[name].device:
                parameter.data = shared[name]

    def __repr__(self) -> str:
        return f"<vramd.integrations.SharedModule of {self.weights!r}>"


def load_options(extra: Any, prefix: str) -> tuple[str, float]:
    """How names begin, and how many seconds to wait for a process that is publishing, as an engine's user says it."""
    options: dict[str, Any] = {"prefix": prefix, "timeout": _weights.LOAD_SECONDS}
    if not isinstance(extra, dict) or not extra.keys() <= options.keys():
        raise ValueError(f"the load format vramd takes the options {sorted(options)}, and got {extra!r}")
    options |= extra
    return options["prefix"], options["timeout"]


def name_of(prefix: str, key: str) -> str:
    """The name that parameters with this key have."""
    return f"{prefix}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def files_of(folder: str) -> list[tuple[Any, ...]]:
    """The files of a checkpoint, as the kernel tells them apart."""
    if not os.path.isdir(folder):
        raise ValueError(f"the load format vramd needs a local folder of safetensors files, and {folder!r} is none")
    with _checkpoint.Checkpoint.open(folder) as checkpoint:
        return [astuple(file.identity) for file in checkpoint.files]


def all_shared() -> list[SharedModule]:
    """The open shared modules of this process, asleep or not."""
    return list(_shared)


def sleep_all() -> None:
    """`SharedModule.sleep` for all of this process."""
    for shared in _shared:
        shared.sleep()


def wake_up_all() -> None:
    """`SharedModule.wake_up` for all of this process. If one fails, those before it are awake."""
    for shared in _shared:
        shared.wake_up()


def publish(
    module: torch.nn.Module,
    name: str,
    key: str,
    *,
    attributes: Mapping[str, Any] | None = None,
    client: _native.Client | None = None,
    device: str | int | None = None,
    part_size: int | str | None = None,
    timeout: float = _weights.LOAD_SECONDS,
) -> SharedModule:
    """Copies parameters and buffers into one sealed allocation, and points the parameters of the module there.

    If another process has published the name meanwhile, its allocation is taken instead. `key` says in words what the
    content is made of; under a name with another key `OtherContent` is raised, and the module is as it was.
    While it copies, the parameters exist twice. The copy may be in the host tier until the module's own is freed.
    """
    facts, stored = facts_of(module)
    metadata = {FACTS: json.dumps(facts), KEY: key, ATTRIBUTES: json.dumps(dict(attributes or {}))}
    options: dict[str, Any] = {"client": client, "device": device, "part_size": part_size}
    try:
        weights = _weights.save(stored, name, metadata=metadata, unpinned=True, **options)
    except NameTaken:
        found = find(name, key, client=client, timeout=timeout)
        if found is None:
            raise
        shared = found
    else:
        shared = SharedModule(weights)
    # They are the module's own memory, under other names.
    stored.clear()
    shared.sleep()
    shared.point(module)
    if torch.cuda.is_initialized():
        # The module's own memory makes room for the shared one.
        gc.collect()
        torch.cuda.empty_cache()
    shared.wake_up()
    return shared


def find(
    name: str, key: str, *, client: _native.Client | None = None, timeout: float = _weights.LOAD_SECONDS
) -> SharedModule | None:
    """Attaches the parameters that another process has published, and waits while it writes them.

    `None` if nothing has the name.
    """
    own = client if client is not None else _weights.shared_client()
    weights = _weights.attach(own, name, time.monotonic() + timeout, unpinned=True)
    if weights is None:
        return None
    found = weights.metadata.get(KEY)
    if found != key or FACTS not in weights.metadata:
        weights.detach()
        raise OtherContent(f"{name!r} has the key {found!r}, and {key!r} is meant: free it, or take another name")
    shared = SharedModule(weights)
    shared.wake_up()
    return shared


def resident_bytes(weights: Weights) -> int:
    """The bytes of it that are on the device now."""
    return next((info.resident for info in weights.client.list() if info.id == weights.memory.id), 0)


def facts_of(module: torch.nn.Module) -> tuple[dict[str, dict[str, Any]], dict[str, torch.Tensor]]:
    """The facts that are stored of each name, and the tensors."""
    facts: dict[str, dict[str, Any]] = {}
    stored: dict[str, torch.Tensor] = {}
    first: dict[int, str] = {}
    for slot in ours.slots_of(module):
        name, tensor = slot.name, slot.old
        if tensor is None:
            continue
        of = first.setdefault(id(tensor), name)
        is_saved = slot.key not in slot.owner._non_persistent_buffers_set
        facts[name] = {"of": of, "parameter": slot.is_parameter, "persistent": is_saved}
        if of != name:
            continue
        facts[name] |= {"device": tensor.device.type, "shape": list(tensor.shape)}
        if tensor.numel() == 0:
            facts[name]["dtype"] = str(tensor.dtype).removeprefix("torch.")
            continue
        order = order_of(name, tensor)
        facts[name]["order"] = order
        stored[name] = tensor.detach().permute(order) if order else tensor.detach()
    return facts, stored


def order_of(name: str, tensor: torch.Tensor) -> list[int]:
    """The dimensions from the widest stride down: kernels want some weights transposed in memory."""
    if tensor.is_meta or tensor.layout != torch.strided:
        raise ValueError(f"{name!r} has no bytes of its own, so that it cannot be shared: it is on `meta` or sparse")
    if tensor.is_contiguous():
        return []
    order = sorted(range(tensor.dim()), key=lambda at: (-tensor.stride(at), -tensor.shape[at]))
    if not tensor.permute(order).is_contiguous():
        raise ValueError(f"{name!r} has gaps between its elements, so that it cannot be shared")
    return order


def tensor_of(name: str, stored: torch.Tensor | None, fact: dict[str, Any], weights: Weights) -> torch.Tensor:
    if stored is None:
        return torch.empty(fact["shape"], dtype=getattr(torch, fact["dtype"]), device=device_of(weights, fact))
    if fact["order"]:
        stored = stored.permute([fact["order"].index(at) for at in range(len(fact["order"]))])
    if fact["parameter"] and fact["device"] == stored.device.type:
        return stored
    # A model may write it, and a write to sealed memory faults.
    with weights.pin(parts=weights.parts_of(name)):
        return stored.clone().to(fact["device"])


def device_of(weights: Weights, fact: dict[str, Any]) -> torch.device:
    if fact["device"] != "cuda":
        return torch.device(fact["device"])
    return next(iter(weights.tensors(hold=False).values())).device


def drop_meta(module: torch.nn.Module) -> None:
    """Sets to `None` what nothing gave content: the process that published had dropped it before."""
    for owner in module.modules():
        tables: list[dict[str, Any]] = [owner._parameters, owner._buffers]
        for table in tables:
            for key, tensor in table.items():
                if tensor is not None and tensor.is_meta:
                    table[key] = None


def forget(owner: torch.nn.Module, key: str) -> None:
    """A name may be another kind of attribute in a module that was built and not loaded."""
    tables: list[dict[str, Any]] = [owner._parameters, owner._buffers, owner.__dict__]
    for table in tables:
        table.pop(key, None)
