"""Models of transformers whose weights lie in vramd: `from_pretrained` without a copy of one's own.

    from vramd.integrations.transformers import from_pretrained

    model = from_pretrained("llama/", name="llama")
    model.generate(**inputs)
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vramd.integrations import require

require("transformers")

import torch
import transformers

import vramd
from vramd import torch as ours
from vramd._checkpoint import Checkpoint
from vramd.weights import Weights

DTYPE = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf")


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    model_class: Any = None,
    config: Any = None,
    dtype: torch.dtype | None = None,
    hold: bool = True,
    strict: bool = True,
    rename: Callable[[str], str] | None = None,
    **load: Any,
) -> Any:
    """The model of a folder that `save_pretrained` has written, on the device of its weights, to evaluate.

    The first process with a `name` reads the files, each later one attaches what is there (`vramd.load`, which takes
    all other arguments). `model_class` is a class of transformers, automatic or not; the default is
    `AutoModelForCausalLM`. `config` is used in place of the folder's. `hold`, `strict` and `rename` are those of
    `Weights.bind`, and `model.vramd_weights` are the weights.

    Bytes are shared as they are, so they are never cast: a checkpoint of another type than the configuration's is
    refused, unless `dtype` names it. So are quantized checkpoints, formats other than safetensors, and models whose
    modules have other names or shapes than the checkpoint. Nothing is loaded then.
    """
    path = pathlib.Path(folder)
    check_format(path)
    config = config if config is not None else transformers.AutoConfig.from_pretrained(path)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{path} has quantized weights, which transformers must prepare: load them by itself")
    chosen = dtype or dtype_of(config)
    model = build(model_class or transformers.AutoModelForCausalLM, config, chosen)
    check_fit(path, model, rename, strict=strict)
    weights = vramd.load(path, name=name, **load)
    weights.bind(model, hold=hold, strict=strict, rename=rename)
    model.eval()
    model.vramd_weights = weights
    model.config._name_or_path = os.fspath(path)
    if (path / "generation_config.json").is_file() and hasattr(model, "generation_config"):
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    return model


def weights_of(model: Any) -> Weights:
    """The weights of a model that `from_pretrained` made."""
    weights: Weights = model.vramd_weights
    return weights


def check_format(path: pathlib.Path) -> None:
    if not path.is_dir():
        raise ValueError(f"{os.fspath(path)!r} is no folder: download the model first, and name where it lies")
    others = sorted(file.name for pattern in OTHER_FORMATS for file in path.glob(pattern))
    if others and not any(path.glob("*.safetensors")):
        raise vramd.InvalidCheckpoint(
            f"{path} has {ours.listed(others)}, and only safetensors files can be shared: "
            "load it by transformers, and write it again by `save_pretrained`"
        )


def dtype_of(config: Any) -> torch.dtype:
    """The type of the configuration, under its old name or its new one."""
    said = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.get_default_dtype()
    return getattr(torch, said) if isinstance(said, str) else said


def build(model_class: Any, config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """The module without memory for its parameters."""
    make = getattr(model_class, "from_config", None) or model_class._from_config
    with ours.on_meta(), default_dtype(dtype):
        model: torch.nn.Module = make(config, **{DTYPE: dtype})
    # Parameters that are one are in the checkpoint once.
    model.tie_weights()
    return model


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def check_fit(
    path: pathlib.Path, model: torch.nn.Module, rename: Callable[[str], str] | None, *, strict: bool
) -> None:
    """Refuses, before anything is loaded, a checkpoint that transformers would cast or convert."""
    called = rename if rename is not None else str
    with Checkpoint.open(path) as checkpoint:
        entries = {name: entry for name, (_, entry) in checkpoint.tensors.items()}
    slots = list(ours.slots_of(model))
    found: dict[int, object] = {id(slot.old): slot for slot in slots if called(slot.name) in entries}
    missing, unused = ours.unmatched(slots, found, entries, called)
    if strict and (missing or unused):
        raise ValueError(
            f"{path} does not fit {type(model).__name__}: it lacks {ours.listed(missing)}, and the model lacks "
            f"{ours.listed(unused)}. Use `rename=` where names differ. Tensors that transformers converts as it loads "
            "them can be shared after that, by `vramd.save`"
        )
    for name, parameter in model.named_parameters():
        entry = entries.get(called(name))
        if entry is not None and ours.dtype_of(name, entry) != parameter.dtype:
            raise ValueError(
                f"{path} has {name!r} in {ours.dtype_of(name, entry)}, and the model in {parameter.dtype}: "
                "shared bytes are not cast, so name the checkpoint's type by `dtype=`"
            )
