"""vLLM: the load format and the sleep-mode backend `vramd`, and a worker whose memory is a tenant's.

    vllm serve DIR --load-format vramd
    vllm serve DIR --enable-sleep-mode --sleep-mode-backend vramd --worker-cls vramd.integrations.vllm.worker.Worker

vLLM calls `register` in each of its processes, by the entry point of this package.
"""

from __future__ import annotations

from vramd.integrations import after_import, require

require("vllm")

BACKENDS = "vllm.device_allocator.sleep_mode_backend"
LOADERS = "vllm.model_executor.model_loader"
_registered = False


def register() -> None:
    """The entry point of the group `vllm.general_plugins`. It imports nothing of vLLM by itself."""
    global _registered
    if not _registered:
        _registered = True
        after_import(BACKENDS, register_backend)
        after_import(LOADERS, register_loader)


def register_backend() -> None:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    SleepModeBackendFactory.register_backend("vramd", "vramd.integrations.vllm.sleep", "VramdSleepBackend")


def register_loader() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    from vramd.integrations.vllm.loader import VramdModelLoader

    register_model_loader("vramd")(VramdModelLoader)
