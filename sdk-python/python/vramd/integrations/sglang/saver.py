"""SGLang's memory saver over pools of vramd: `--enable-memory-saver`, and the calls that release and resume memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

import vramd.torch
from vramd.integrations import modules, sglang

WEIGHTS = "weights"
_backed_up: dict[str, bool] = {}
"""For each tag that has a pool, whether its bytes are kept while it is paused. SGLang makes several adapters."""


class VramdMemorySaver(TorchMemorySaverAdapter):
    """The memory of captured CUDA graphs stays on the device."""

    def configure_subprocess(self) -> AbstractContextManager[None]:
        return nullcontext()

    def region(self, tag: str, enable_cpu_backup: bool = False) -> AbstractContextManager[object]:
        if tag == WEIGHTS and sglang.shares_weights:
            # Shared parameters are allocations already, and what is loaded before them is freed.
            return nullcontext()
        pool: AbstractContextManager[object] = vramd.torch.pool(tag)
        _backed_up[tag] = _backed_up.get(tag, False) or enable_cpu_backup
        return pool

    def cuda_graph(
        self, *, tag: str, enable_cpu_backup: bool = False, **arguments: Any
    ) -> AbstractContextManager[None]:
        graph: AbstractContextManager[None] = torch.cuda.graph(**arguments)
        return graph

    def disable(self) -> AbstractContextManager[None]:
        return nullcontext()

    def pause(self, tag: str) -> None:
        if tag in _backed_up:
            vramd.torch.sleep(1 if _backed_up[tag] else 2, tags=[tag])
        if tag == WEIGHTS:
            modules.sleep_all()

    def resume(self, tag: str) -> None:
        if tag in _backed_up:
            vramd.torch.wake_up(tags=[tag])
        if tag == WEIGHTS:
            modules.wake_up_all()

    @property
    def enabled(self) -> bool:
        return True
