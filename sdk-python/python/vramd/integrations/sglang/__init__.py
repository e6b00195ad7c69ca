"""SGLang: the load format `vramd`, and a memory saver whose memory is a tenant's.

    VRAMD_SGLANG=1 python -m sglang.launch_server --model-path DIR --load-format vramd --enable-memory-saver

SGLang calls `register` in each of its processes, by the entry point of this package. Its hooks would take over the
memory saver of every server, so they are only set where the environment says so.
"""

from __future__ import annotations

import os
from typing import Any

from vramd.integrations import require

require("sglang")

SWITCH = "VRAMD_SGLANG"
CREATE_SAVER = "sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter.create"
CHECK_LOAD_CONFIG = "sglang.srt.configs.load_config.LoadConfig.__post_init__"

shares_weights = False
"""Whether a model of this process has the load format `vramd`."""


def register() -> None:
    """The entry point of the group `sglang.srt.plugins`."""
    if os.environ.get(SWITCH, "0") in ("", "0"):
        return
    from sglang.srt.arg_groups.choices import add_load_format_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_load_format_choices(["vramd"])
    HookRegistry.register(CHECK_LOAD_CONFIG, use_loader, HookType.BEFORE)
    HookRegistry.register(CREATE_SAVER, create_saver, HookType.AROUND)


def use_loader(config: Any) -> None:
    """SGLang takes the class of a loader for a load format, and refuses names that it does not know."""
    global shares_weights
    if config.load_format == "vramd":
        shares_weights = True
        from vramd.integrations.sglang.loader import VramdModelLoader

        config.load_format = VramdModelLoader


def create_saver(original: Any, enable: bool) -> Any:
    if not enable:
        return original(enable)
    from vramd.integrations.sglang.saver import VramdMemorySaver

    return VramdMemorySaver()
