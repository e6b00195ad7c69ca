"""The load format `vramd`: the first server of a node prepares the weights, the others attach them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.platforms import current_platform
from sglang.srt.runtime_context import get_exec, get_parallel
from sglang.srt.weight_cache.ipc_loader import IpcModelLoader
from sglang.srt.weight_cache.protocol import compute_env_stamp, hash_quant_config
from sglang.srt.weight_cache.transport import WeightCacheTransportBackend
from sglang.version import __version__

from vramd.integrations import modules

RANKS = (
    "tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "moe_ep_size", "moe_dp_size", "moe_dp_rank", "moe_ep_rank",
    "attn_dp_size", "enable_dp_lm_head", "attn_cp_size", "moe_dense_tp_size",
)  # fmt: skip
"""How SGLang is spread over GPUs, as far as the prepared parameters depend on it."""


class VramdModelLoader(IpcModelLoader):
    """`--model-loader-extra-config '{"prefix": …, "timeout": …}'`: how names begin, and how many seconds to wait for
    another server that is publishing.

    SGLang's own loader of shared tensors builds the module and refuses quantizations that cannot be shared. Here the
    tensors come from vramd instead of SGLang's daemon.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        extra = load_config.model_loader_extra_config or {}
        self.prefix, self.timeout = modules.load_options(extra, "sglang")
        self._transport_backend = SharedTensors()

    def _fetch_from_cache(self, model_config: Any, device_config: Any) -> dict[str, Any] | None:
        """The answer that SGLang's daemon would give, or `None` where this server is the first."""
        self._key = self._key_of(model_config, device_config)
        found = modules.find(self._name(), self._key, timeout=self.timeout)
        if found is None:
            return None
        tensors = {name: {"tensor": tensor, "is_param": is_param} for name, is_param, tensor in found.tensors()}
        return {"entries": tensors, "pid": None, "preloaded_weights_bytes": found.resident_before}

    def _fallback_load(self, model_config: Any, device_config: Any) -> torch.nn.Module:
        plain = dataclasses.replace(
            self.load_config, load_format=LoadFormat.SAFETENSORS, model_loader_extra_config={}
        )
        model: torch.nn.Module = DefaultModelLoader(plain).load_model(
            model_config=model_config, device_config=device_config
        )
        device = current_platform.get_device_uuid(int(device_config.gpu_id))
        modules.publish(model, self._name(), self._key, device=device, timeout=self.timeout)
        return model

    def _name(self) -> str:
        return modules.name_of(self.prefix, self._key)

    def _key_of(self, model_config: Any, device_config: Any) -> str:
        quantization, quant_config = self._resolve_engine_quant(model_config)
        parallel = get_parallel()
        facts = {
            "files": modules.files_of(model_config.model_path),
            "architectures": model_config.hf_config.architectures,
            "dtype": str(model_config.dtype),
            "quantization": [quantization, hash_quant_config(quant_config)],
            "draft": self.load_config.draft_model_idx,
            "gpu": current_platform.get_device_uuid(int(device_config.gpu_id)),
            "moe_a2a_backend": get_exec().moe.moe_a2a_backend,
            "ranks": [getattr(parallel, rank) for rank in RANKS],
            "sglang": __version__,
            **compute_env_stamp(),
        }
        return repr(sorted(facts.items()))


class SharedTensors(WeightCacheTransportBackend):
    """Hands the loader tensors that are mapped already. The methods of SGLang's daemon have no use here."""

    name = "vramd"

    def import_tensor(self, entry: dict[str, Any]) -> torch.Tensor:
        tensor: torch.Tensor = entry["tensor"]
        return tensor

    def prepare_export(self, state_tensors: Any) -> dict[str, dict[str, Any]]:
        raise NotImplementedError

    def send_fetch_state_response(self, conn: Any, **response: Any) -> None:
        raise NotImplementedError

    def recv_fetch_state_response(self, sock: Any, result: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError
