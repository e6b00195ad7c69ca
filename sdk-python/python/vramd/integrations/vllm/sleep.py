"""The sleep-mode backend `vramd`: pools of the worker, and parameters that engines share."""

from __future__ import annotations

from typing import Literal

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

import vramd.torch
from vramd.integrations import modules

KEPT = ("weights", "runtime")
"""The tags whose bytes sleep keeps, at level 2 without the weights. As in vLLM's own backend all else is discarded."""

used_tags: set[str] = set()
"""The tags of pools that `worker.Worker` has made."""


class VramdSleepBackend(SleepModeBackend):
    """Needs `worker.Worker`, by which the memory of the engine comes from vramd.

    Parameters of the load format `vramd` are shared, so neither level discards them: they may leave the device while no
    engine of the node has them awake.
    """

    def suspend(self, level: int = 1) -> None:
        if not used_tags:
            raise RuntimeError(
                "the sleep-mode backend vramd has no memory to suspend: "
                "start vLLM with --worker-cls vramd.integrations.vllm.worker.Worker"
            )
        self._state = "SUSPENDED"
        kept = [tag for tag in KEPT if level == 1 or tag != "weights"]
        self._sleep(1, used_tags.intersection(kept))
        self._sleep(2, used_tags.difference(kept))
        modules.sleep_all()

    def resume(self, tags: list[str] | None = None) -> None:
        self._state = "RESUMING"
        # Only these two may be left asleep by a call that names tags.
        left = set() if tags is None else {"weights", "kv_cache"}.difference(tags)
        woken = sorted(used_tags - left)
        if woken:
            vramd.torch.wake_up(tags=woken)
        if "weights" not in left:
            modules.wake_up_all()
        self._state = "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        self._sleep(2, used_tags.intersection(tags))
        self._state = "SUSPENDED"

    @staticmethod
    def _sleep(level: Literal[1, 2], tags: set[str]) -> None:
        if tags:
            vramd.torch.sleep(level, tags=sorted(tags))

    @classmethod
    def preserves_communicators(cls) -> bool:
        # The buffers of NCCL are in none of the pools.
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        # The addresses stay, and so do the communicators.
        return True
