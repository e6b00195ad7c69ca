"""The sources of vLLM, SGLang and transformers at the pinned versions have all that the integrations ask for.

Modules that can be imported alone run: how both engines find plug-ins, vLLM's sleep-mode backends, SGLang's hooks.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib
from typing import Any

import engine_sources as sources
import pytest
from conftest import ROOT
from engine_sources import ENGINES, OurModule

import vramd

OURS = ROOT / "sdk-python/python/vramd/integrations"
VLLM_BASES = {
    "VramdSleepBackend": "vllm.device_allocator.sleep_mode_backend.SleepModeBackend",
    "VramdModelLoader": "vllm.model_executor.model_loader.base_loader.BaseModelLoader",
    "Worker": "vllm.v1.worker.gpu_worker.Worker",
}
SGLANG_BASES = {
    "VramdModelLoader": "sglang.srt.weight_cache.ipc_loader.IpcModelLoader",
    "SharedTensors": "sglang.srt.weight_cache.transport.WeightCacheTransportBackend",
    "VramdMemorySaver": "sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter",
}
SUBCLASSES = [("vllm", *each) for each in VLLM_BASES.items()] + [("sglang", *each) for each in SGLANG_BASES.items()]
OWN_HELPERS = {"_publish", "_find", "_name", "_key_of", "_sleep"}
"""Methods of our subclasses that override nothing."""


def modules_of(engine: str) -> list[OurModule]:
    paths = sorted((OURS / engine).glob("*.py")) or [OURS / f"{engine}.py"]
    return [OurModule(path, engine) for path in paths]


def pyproject() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = tomllib.loads((ROOT / "sdk-python/pyproject.toml").read_text())["project"]
    return found


def extra(engine: str) -> str:
    extras: Any = pyproject()["optional-dependencies"]
    [requirement] = extras[engine]
    return str(requirement)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_names_that_are_imported_exist(engine: str) -> None:
    missing = [
        f"{module}.{name}"
        for ours in modules_of(engine)
        for module, name in ours.imports.values()
        if not (sources.is_at_hand(f"{module}.{name}") or sources.has(module, name))
    ]
    assert not missing
    assert sum(len(ours.imports) for ours in modules_of(engine)) > 10, "or nothing was looked at"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_calls_fit_what_they_call(engine: str) -> None:
    checked, faults = [], []
    for ours in modules_of(engine):
        for called, call in ours.calls():
            first, *rest = called.split(".")
            node = sources.find(*ours.imports[first])
            if isinstance(node, ast.ClassDef) and not rest:
                found = sources.init_of(node)
            elif isinstance(node, ast.ClassDef):
                assert rest[0] in sources.methods(node), f"{first} has no {rest[0]}"
                found = sources.signature(sources.methods(node)[rest[0]])
            elif isinstance(node, ast.FunctionDef):
                found = sources.signature(node)
            else:
                continue
            checked.append(called)
            fault = sources.binds(found, call)
            faults += [f"{called}: {fault}"] if fault else []
    assert not faults
    expected = {
        "vllm": {"initialize_model", "process_weights_after_loading", "WeightCacheKey.from_model_config",
                 "SleepModeBackendFactory.register_backend", "register_model_loader", "get_pp_group"},
        "sglang": {"HookRegistry.register", "hash_quant_config", "compute_env_stamp", "get_parallel"},
    }  # fmt: skip
    assert expected[engine] <= set(checked), f"only these were checked: {checked}"


@pytest.mark.parametrize(("engine", "name", "base"), SUBCLASSES)
def test_subclass_stands_for_its_base(engine: str, name: str, base: str) -> None:
    [ours] = [each.classes()[name] for each in modules_of(engine) if name in each.classes()]
    module, _, base_name = base.rpartition(".")
    theirs = sources.class_of(module, base_name)
    assert base_name in {ast.unparse(each).rpartition(".")[2] for each in ours.bases}
    known = dict(sources.methods(theirs))
    # The loaders of SGLang have a common base.
    for each in theirs.bases:
        if isinstance(each, ast.Name) and sources.has(module, each.id):
            node = sources.find(module, each.id)
            known = {**(sources.methods(node) if isinstance(node, ast.ClassDef) else {}), **known}
    for method, node in sources.methods(ours).items():
        if method in OWN_HELPERS:
            assert method not in known, f"{base} has a {method} of its own now"
            continue
        assert method in known, f"{base} has no {method}"
        if method == "__init__":
            # The engines make a loader of its configuration alone.
            sources.signature(node).bind("load_config")
            continue
        fault = sources.overrides(sources.signature(node), sources.signature(known[method]))
        assert fault is None, f"{name}.{method}: {fault}"
        kinds = {"classmethod", "staticmethod", "property"}
        assert sources.decorators(node) & kinds == sources.decorators(known[method]) & kinds, f"{name}.{method}"
    left = sources.abstract(theirs) - sources.methods(ours).keys()
    assert not left, f"{name} leaves {left} abstract"


@pytest.mark.parametrize(
    ("ours", "theirs", "fault"),
    [
        ("def f(self, a, b=1): ...", "def f(self, a, b=1, *, c=2): ...", "does not take c"),
        ("def f(self, b, a): ...", "def f(self, a, b): ...", "the engine gives"),
        ("def f(self, a): ...", "def f(self, a=None): ...", "insists on a"),
        ("def f(self, a, *, d): ...", "def f(self, a): ...", "insists on d"),
        ("def f(self, a, **more): ...", "def f(self, a, *, c=2): ...", None),
    ],
)
def test_methods_that_do_not_fit_are_found(ours: str, theirs: str, fault: str | None) -> None:
    own, base = (sources.signature(ast.parse(text).body[0]) for text in (ours, theirs))  # type: ignore[arg-type]
    found = sources.overrides(own, base)
    assert found is None if fault is None else found is not None and fault in found


def test_worker_of_vllm_uses_what_the_worker_overrides() -> None:
    """The tags by which vLLM asks for pools, and what it computes before the quota is applied."""
    worker = ast.unparse(sources.class_of("vllm.v1.worker.gpu_worker", "Worker"))
    tags = set(re.findall(r"_maybe_get_memory_pool_context\((?:tag=)?'(\w+)'\)", worker))
    assert tags == {"weights", "kv_cache", "runtime", "workspace"}
    steps = "get_external_weight_memory(self.vllm_config)", "self.init_snapshot = ", "requested_memory = request_memory("
    order = [worker.index(text) for text in steps]
    assert order == sorted(order), "the weights are on the device before vLLM measures"
    kept = sources.methods(sources.class_of("vllm.device_allocator.sleep_mode_backend", "CuMemBackend"))["suspend"]
    assert "('runtime', 'cudagraph')" in ast.unparse(kept) and "('weights', *offload_tags)" in ast.unparse(kept)


def test_options_of_the_page_exist() -> None:
    page = (ROOT / "docs/guides/engines.md").read_text()
    _, vllm, sglang, _ = (section for section in page.split("\n## ")[1:])
    arguments = (ENGINES / "vllm/vllm/engine/arg_utils.py").read_text()
    options = set(re.findall(r"--[\w-]+", vllm))
    assert options >= {"--load-format", "--model-loader-extra-config", "--enable-sleep-mode", "--sleep-mode-backend"}
    assert [option for option in options if f'"{option}"' not in arguments] == []
    assert "sleep_mode_backend" in sources.fields(sources.class_of("vllm.config.model", "ModelConfig"))
    fields = ENGINES / "sglang/sglang/srt/arg_groups/fields"
    declared = "".join((fields / name).read_text() for name in ("model.py", "exec_.py"))
    options = set(re.findall(r"--[\w-]+", sglang))
    assert options >= {"--model-path", "--load-format", "--enable-memory-saver"}
    assert [option for option in options if f"\n    {option[2:].replace('-', '_')}: A[" not in declared] == []


def test_ranks_of_sglang_are_those_of_its_own_cache() -> None:
    """If SGLang's fingerprint looks at one more, parameters of ours could be taken for others."""
    cache = sources.class_of("sglang.srt.weight_cache.ipc_loader", "IpcModelLoader")
    fetch = sources.methods(cache)["_fetch_from_cache"]
    theirs = set(re.findall(r"\bparallel\.(\w+)", ast.unparse(fetch)))
    loader = ast.parse((OURS / "sglang/loader.py").read_text())
    assigned = [node for node in loader.body if isinstance(node, ast.Assign)]
    [ranks] = [node.value for node in assigned if ast.unparse(node.targets[0]) == "RANKS"]
    assert set(ast.literal_eval(ranks)) == theirs
    flags = {"model_path", "model_arch", "quant_method", "quant_config_hash", "dtype", "revision", "moe_a2a_backend"}
    known = theirs | flags | {"ep_size", "device_capability", "torch_version"}
    assert sources.fields(sources.class_of("sglang.srt.weight_cache.protocol", "CacheConfig")) <= known


def test_sglang_takes_a_class_for_a_load_format() -> None:
    loader = sources.find("sglang.srt.model_loader.loader", "get_model_loader")
    assert loader is not None and "return load_config.load_format(load_config)" in ast.unparse(loader)
    load = sources.methods(sources.class_of("sglang.srt.weight_cache.ipc_loader", "IpcModelLoader"))
    text = ast.unparse(load["load_model"])
    assert "self._fetch_from_cache(model_config, device_config)" in text
    assert "return self._fallback_load(model_config, device_config)" in text
    assert "self._transport_backend.import_tensor(entry)" in ast.unparse(load["_load_zero_copy_mode"])
    capture = (ENGINES / "sglang/sglang/srt/model_executor/runner_backend/full_cuda_graph_backend.py").read_text()
    assert "graph_ctx(cuda_graph=graph, pool=self._pool, stream=self._capture_stream)" in capture


def test_transformers_5_has_what_the_recipe_calls() -> None:
    factory = sources.methods(sources.class_of("transformers.models.auto.auto_factory", "_BaseAutoModelClass"))
    assert "classmethod" in sources.decorators(factory["from_config"])
    model = sources.methods(sources.class_of("transformers.modeling_utils", "PreTrainedModel"))
    assert '"dtype"' in ast.unparse(model["_from_config"]).replace("'", '"')
    assert all(each.default is not each.empty for each in sources.signature(model["tie_weights"]).parameters.values())
    assert "generation_config" in ast.unparse(model["__init__"])


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_extra_has_the_version_that_is_checked(engine: str) -> None:
    install = (ROOT / "tests/dev/install-tools").read_text()
    pinned = re.findall(rf"\b{engine}==([\d.]+)", install)
    assert len(pinned) == 1, "one version is read"
    low, high = re.fullmatch(rf"{engine}>=([\d.]+),<([\d.]+)", extra(engine)).groups()  # type: ignore[union-attr]
    numbers = [tuple(map(int, each.split("."))) for each in (low, pinned[0], high)]
    assert numbers[0] <= numbers[1] < numbers[2]
    page = (ROOT / "docs/guides/engines.md").read_text()
    assert f"{engine} {pinned[0]}" in page.replace("vLLM", "vllm").replace("SGLang", "sglang"), "the page says which"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_import_without_the_engine_names_the_extra(engine: str) -> None:
    source = f"""
        import sys
        # Finds what another one finds, except the engine.
        class Hiding:
            def __init__(self, finder):
                self.finder = finder

            def find_spec(self, name, path=None, target=None):
                return None if name == {engine!r} else self.finder.find_spec(name, path, target)

        sys.meta_path = [Hiding(finder) for finder in sys.meta_path]
        try:
            import vramd.integrations.{engine}
        except ImportError as missing:
            print(missing)
    """
    folder = pathlib.Path(vramd.__file__).parents[1]
    child = run(source, path=[folder])
    told = f"needs {engine}, which is not installed: pip install 'vramd[{engine}]'"
    assert child == f"vramd.integrations.{engine} {told}\n"


def run(source: str, *, path: list[pathlib.Path], **environment: str) -> str:
    """The output of a Python that finds these folders first, and then the packages of this one."""
    home = {"PYTHONPATH": os.pathsep.join(map(str, path)), **environment}
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, env={**os.environ, **home}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def plugins(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder in which a package has the entry points of ours."""
    folder = tmp_path / "vramd_points-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vramd-points\nVersion: 1\n")
    points: Any = pyproject()["entry-points"]
    lines = [f"[{group}]\n{name} = {value}" for group, all in points.items() for name, value in all.items()]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


OWN = pathlib.Path(vramd.__file__).parents[1]


def test_vllm_finds_the_plugin_and_imports_nothing_for_it(plugins: pathlib.Path) -> None:
    source = """
        import sys
        import vllm.plugins
        vllm.plugins.load_general_plugins()
        print("vramd.integrations.vllm" in sys.modules, "torch" in sys.modules)
        print([name for name in sys.modules if name.startswith("vllm.") and "plugins" not in name])
        import types
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
        backend = SleepModeBackendFactory.create_backend(types.SimpleNamespace(sleep_mode_backend="vramd"))
        print(type(backend).__name__, backend.state(), backend.preserves_communicators())
        import vramd.integrations.vllm
        vramd.integrations.vllm.register()
    """
    printed = run(source, path=[ENGINES / "vllm", plugins, OWN]).splitlines()
    assert printed[0] == "True False"
    assert set(ast.literal_eval(printed[1])) <= {"vllm.envs"}, "what vLLM itself needs to look for plug-ins"
    assert printed[2] == "VramdSleepBackend RUNNING True"


def test_sleep_levels_are_those_of_vllm(plugins: pathlib.Path) -> None:
    source = """
        import vramd.torch
        calls = []
        vramd.torch.sleep = lambda level=1, tags=None: calls.append((level, tags))
        vramd.torch.wake_up = lambda tags=None: calls.append(tags)
        from vramd.integrations.vllm import sleep
        backend = sleep.VramdSleepBackend()
        try:
            backend.suspend()
        except RuntimeError as refused:
            print(refused)
        sleep.used_tags.update({"weights", "kv_cache", "runtime", "workspace"})
        for level in (1, 2):
            backend.suspend(level)
        print(backend.state(), calls)
        calls.clear()
        backend.resume(["weights"])
        backend.resume(["kv_cache"])
        backend.resume()
        backend.discard(("kv_cache", "nothing"))
        print(backend.state(), calls)
    """
    told, asleep, awake = run(source, path=[ENGINES / "vllm", OWN]).splitlines()
    assert "--worker-cls vramd.integrations.vllm.worker.Worker" in told
    first = [(1, ["runtime", "weights"]), (2, ["kv_cache", "workspace"])]
    second = [(1, ["runtime"]), (2, ["kv_cache", "weights", "workspace"])]
    assert asleep == f"SUSPENDED {[*first, *second]}"
    runtime = ["runtime", "weights", "workspace"], ["kv_cache", "runtime", "workspace"]
    every = ["kv_cache", "runtime", "weights", "workspace"]
    assert awake == f"SUSPENDED {[*runtime, every, (2, ['kv_cache'])]}"


SGLANG_SUPPORT = {
    "orjson.py": "from json import loads\n",
    "sglang/srt/utils/__init__.py": "from .common import *\n",
    "sglang/srt/utils/common.py": "def is_hip(): return False\ndef is_xpu(): return False\n",
    "sglang/srt/configs/modelopt_config.py": "class ModelOptConfig:\n    def __init__(self, **more): pass\n",
}
"""Names that two files of SGLang import, in the place of modules that need all of it."""


@pytest.fixture
def sglang(plugins: pathlib.Path) -> list[pathlib.Path]:
    folder = plugins / "support"
    adapter = "sglang/srt/utils/torch_memory_saver_adapter.py"
    for name, text in {**SGLANG_SUPPORT, adapter: (ENGINES / "sglang" / adapter).read_text()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [folder, ENGINES / "sglang", plugins, OWN]


def test_sglang_hooks_take_effect_where_the_environment_says(sglang: list[pathlib.Path]) -> None:
    source = """
        import sys, types
        from sglang.srt.plugins import load_plugins
        load_plugins()
        from sglang.srt.arg_groups import choices
        print("vramd" in choices.LOAD_FORMAT_CHOICES)
        made = types.ModuleType("vramd.integrations.sglang.loader")
        made.VramdModelLoader = type("VramdModelLoader", (), {})
        sys.modules[made.__name__] = made
        from sglang.srt.configs.load_config import LoadConfig
        print(LoadConfig(load_format="vramd").load_format.__name__, LoadConfig(load_format="dummy").load_format.value)
        from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter
        print(type(TorchMemorySaverAdapter.create(False)).__name__, type(TorchMemorySaverAdapter.create(True)).__name__)
    """
    printed = run(source, path=sglang, VRAMD_SGLANG="1").splitlines()
    assert printed == ["True", "VramdModelLoader dummy", "_TorchMemorySaverAdapterNoop VramdMemorySaver"]
    source = """
        import sys
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry
        load_plugins()
        print(dict(HookRegistry._hooks), "torch" in sys.modules, "vramd.integrations.sglang" in sys.modules)
    """
    assert run(source, path=sglang, VRAMD_SGLANG="0") == "{} False True\n"


def test_memory_saver_of_sglang_sleeps_by_tag(sglang: list[pathlib.Path]) -> None:
    source = """
        import contextlib
        import vramd.torch
        calls = []
        vramd.torch.pool = lambda tag: calls.append(tag) or contextlib.nullcontext()
        vramd.torch.sleep = lambda level=1, tags=None: calls.append((level, tags))
        vramd.torch.wake_up = lambda tags=None: calls.append(tags)
        from vramd.integrations.sglang.saver import VramdMemorySaver
        saver = VramdMemorySaver()
        with saver.region("weights", enable_cpu_backup=True), VramdMemorySaver().region("kv_cache"), saver.disable():
            pass
        for tag in ("kv_cache", "weights", "cuda_graph"):
            saver.pause(tag)
        for tag in ("cuda_graph", "weights", "kv_cache"):
            saver.resume(tag)
        print(saver.enabled, calls)
        import vramd.integrations.sglang
        vramd.integrations.sglang.shares_weights = True
        saver.region("weights", enable_cpu_backup=True)
        print(len(calls))
        saver.check_validity("release_memory_occupation")
    """
    calls = ["weights", "kv_cache", (2, ["kv_cache"]), (1, ["weights"]), ["weights"], ["kv_cache"]]
    assert run(source, path=sglang) == f"True {calls}\n{len(calls)}\n", "shared weights need no pool"


def test_action_runs_once_the_module_has_been_imported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "later.py").write_text("value = 1\n")
    source = """
        import sys
        from vramd.integrations import after_import
        after_import("later", lambda: print("ran", sys.modules["later"].value))
        after_import("never", lambda: print("never"))
        import importlib.util
        print("before", importlib.util.find_spec("later").name)
        import later, later as again
        after_import("later", lambda: print("at once"))
        try:
            import never
        except ModuleNotFoundError as missing:
            print(missing)
    """
    printed = run(source, path=[tmp_path, OWN]).splitlines()
    assert printed == ["before later", "ran 1", "at once", "No module named 'never'"]
