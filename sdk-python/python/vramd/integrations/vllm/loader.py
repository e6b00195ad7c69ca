"""The load format `vramd`: the first engine of a node prepares the weights, the others attach them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.config.load import LoadConfig
from vllm.distributed import (
    get_dp_group,
    get_pp_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.model_loader.weight_cache.protocol import WeightCacheKey, check_ipc_quant_support
from vllm.model_executor.model_loader.weight_cache.utils import export_model_attrs
from vllm.model_executor.utils import weights_already_processed
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype

from vramd.integrations import modules



class VramdModelLoader(BaseModelLoader):
    """`--model-loader-extra-config '{"prefix": …, "timeout": …}'`: how names begin, and how many seconds to wait for
    another engine that is publishing.

    Engines share the parameters as this version of vLLM uses them on this rank. Their name says from which files
    and settings they come, so that an engine never gets others. They are read-only: updates of weights fault.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self.prefix, self.timeout = modules.load_options(load_config.model_loader_extra_config, "vllm")

    def download_model(self, model_config: ModelConfig) -> None:
        files_of(model_config)

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        raise RuntimeError("the weights of the load format vramd are shared and read-only: they cannot be loaded again")

    def get_external_weight_memory(self, vllm_config: VllmConfig) -> int:
        """The bytes that are on the device before this engine loads: vLLM asks right before it measures."""
        found = self._find(key_of(vllm_config, vllm_config.model_config))
        if found is None:
            return 0
        resident = modules.resident_bytes(found.weights)
        found.close()
        return resident

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> torch.nn.Module:
        if vllm_config.parallel_config.enable_eplb:
            raise ValueError("the load format vramd cannot share experts that EPLB moves: disable EPLB")
        key = key_of(vllm_config, model_config)
        device = torch.device(self.load_config.device or vllm_config.device_config.device)
        found = self._find(key)
        if found is None:
            return self._publish(vllm_config, model_config, prefix, key)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            check_ipc_quant_support(model)
            found.adopt(model)
            for name, value in found.attributes.items():
                setattr(model, name, value)
            # Only state that is no tensor is made again.
            with weights_already_processed():
                process_weights_after_loading(model, model_config, device)
        modules.drop_meta(model)
        return model.eval()

    def _publish(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str, key: str
    ) -> torch.nn.Module:
        plain = dataclasses.replace(self.load_config, load_format="safetensors", model_loader_extra_config={})
        model = DefaultModelLoader(plain).load_model(vllm_config, model_config, prefix)
        check_ipc_quant_support(model)
        modules.publish(
            model,
            self._name(key),
            key,
            attributes=export_model_attrs(model),
            device=current_platform.get_device_uuid(torch.accelerator.current_device_index()),
            timeout=self.timeout,
        )
        return model

    def _find(self, key: str) -> modules.SharedModule | None:
        return modules.find(self._name(key), key, timeout=self.timeout)

    def _name(self, key: str) -> str:
        return modules.name_of(self.prefix, key)


def files_of(model_config: ModelConfig) -> list[tuple[Any, ...]]:
    return modules.files_of(model_config.model_weights or model_config.model)


def key_of(vllm_config: VllmConfig, model_config: ModelConfig) -> str:
    """All that the prepared parameters follow from."""
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    facts: dict[str, Any] = dataclasses.asdict(
        WeightCacheKey.from_model_config(
            model_config,
            tp_size=get_tensor_model_parallel_world_size(),
            tp_rank=get_tensor_model_parallel_rank(),
            cache_config=vllm_config.cache_config,
            pp_size=get_pp_group().world_size,
            pp_rank=get_pp_group().rank_in_group,
            is_draft=speculative is not None and model_config is speculative.draft_model_config,
            dp_size=get_dp_group().world_size,
            dp_rank=get_dp_group().rank_in_group,
            enable_expert_parallel=parallel.enable_expert_parallel,
            expert_placement_strategy=parallel.expert_placement_strategy,
            kernel_config=vllm_config.kernel_config,
        )
    )
    facts["files"] = files_of(model_config)
    facts["torch"] = torch.__version__
    facts["gpu"] = current_platform.get_device_uuid(torch.accelerator.current_device_index())
    return repr(sorted(facts.items()))
