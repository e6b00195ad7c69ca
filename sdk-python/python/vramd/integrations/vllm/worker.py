"""A worker of vLLM whose weights and KV cache are allocations of vramd, within the quota of its tenant."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from vllm.platforms import current_platform
from vllm.v1.worker import gpu_worker

import vramd.torch
from vramd.integrations.vllm import sleep
from vramd.weights import shared_client


class Worker(gpu_worker.Worker):
    """For `--worker-cls`. Its pools have vLLM's tags, which sleep and wake by themselves."""

    requested_memory: int

    def init_device(self) -> None:
        super().init_device()
        room = room_on(current_platform.get_device_uuid(self.device.index or 0))
        share = int(room * self.cache_config.gpu_memory_utilization)
        # vLLM has computed this from the whole device.
        self.requested_memory = min(self.requested_memory, share)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[object]:
        is_shared = tag == "weights" and self.load_config.load_format == "vramd"
        # Shared parameters are allocations already, and what is loaded before them is freed.
        if is_shared or not current_platform.is_cuda():
            return nullcontext()
        pool: AbstractContextManager[object] = vramd.torch.pool(tag, device=self.device)
        sleep.used_tags.add(tag)
        return pool


def room_on(device: str) -> int:
    """The bytes that the tenant may have on a device, less those that its other processes have."""
    for quota in shared_client().quota():
        if quota.device == device and quota.tier == "device":
            return min(quota.limit, quota.capacity) - quota.used
    raise RuntimeError(f"the daemon does not manage device {device}, on which vLLM is to run")
