"""vLLM, SGLang, transformers and agents of llm-d over memory of the daemon, each through doors that it documents.

Nothing here is imported by `vramd` itself. vLLM and SGLang find theirs by entry points. The guide is
`docs/guides/engines.md`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence


def require(package: str) -> None:
    """Raises an `ImportError` that names the extra, unless the package is there."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ImportError(
            f"vramd.integrations.{package} needs {package}, which is not installed: pip install 'vramd[{package}]'",
            name=package,
        )


def after_import(name: str, action: Callable[[], object]) -> None:
    """Runs the action once a module has been imported: now, if it has been, and never if it never is.

    An engine asks its plugins in every process, and most of them need neither the module nor the seconds that its
    import takes.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in after)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            # Others may only have asked where the module is, or their import may have failed.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.action()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
