"""Reads the sources of engines that are too large to install: the names of their modules, and what functions take."""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator

from conftest import ROOT

ENGINES = ROOT / ".tools" / "engines"
Defined = ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.Assign
Methods = dict[str, ast.FunctionDef]


def tree_of(module: str) -> tuple[str, ast.Module]:
    """The name of the package that relative imports start from, and the module."""
    engine, *rest = module.split(".")
    folder = ENGINES / engine / engine
    package = folder.joinpath(*rest, "__init__.py")
    if package.is_file():
        return module, ast.parse(package.read_text())
    return module.rpartition(".")[0], ast.parse(folder.joinpath(*rest).with_suffix(".py").read_text())


def find(module: str, name: str) -> Defined | None:
    """Finds the definition that a module has under a name, itself or by an import from a module that is at hand."""
    package, tree = tree_of(module)
    for node in statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node
        if isinstance(node, ast.ImportFrom):
            source = absolute(package, node)
            for alias in node.names:
                if (alias.asname or alias.name) == name and is_at_hand(source):
                    return find(source, alias.name)
                if alias.name == "*" and is_at_hand(source):
                    found = find(source, name)
                    if found is not None:
                        return found
    return None


def has(module: str, name: str) -> bool:
    """Whether `from module import name` finds something, as far as the sources at hand tell."""
    _, tree = tree_of(module)
    for node in statements(tree.body):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return True
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__" and f"'{name}'" in ast.unparse(node):
            return True
    return find(module, name) is not None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also below `if` and `try`."""
    for node in body:
        yield node
        for inner in ("body", "orelse") if isinstance(node, (ast.If, ast.Try)) else ():
            yield from statements(getattr(node, inner))


def absolute(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def is_at_hand(module: str) -> bool:
    engine, *rest = module.split(".")
    path = (ENGINES / engine / engine).joinpath(*rest)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def class_of(module: str, name: str) -> ast.ClassDef:
    node = find(module, name)
    assert isinstance(node, ast.ClassDef), f"{module} has no class {name}"
    return node


def methods(node: ast.ClassDef) -> Methods:
    return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}


def fields(node: ast.ClassDef) -> set[str]:
    return {name for name, _ in annotated(node)}


def annotated(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """The annotated names of a class, with their values."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, each.value


def abstract(node: ast.ClassDef) -> set[str]:
    return {name for name, each in methods(node).items() if "abstractmethod" in decorators(each)}


def decorators(node: ast.FunctionDef) -> set[str]:
    return {ast.unparse(each).split("(")[0].rpartition(".")[2] for each in node.decorator_list}


def signature(node: ast.FunctionDef) -> inspect.Signature:
    """That of a function, without what a method is bound to."""
    given = node.args
    kind = inspect.Parameter
    names = [*given.posonlyargs, *given.args]
    defaults = [kind.empty] * (len(names) - len(given.defaults)) + [ast.unparse(each) for each in given.defaults]
    parameters = [
        kind(each.arg, kind.POSITIONAL_OR_KEYWORD, default=default)
        for each, default in zip(names, defaults, strict=True)
    ]
    if parameters and parameters[0].name in ("self", "cls"):
        parameters.pop(0)
    if given.vararg:
        parameters.append(kind(given.vararg.arg, kind.VAR_POSITIONAL))
    for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        default = kind.empty if value is None else ast.unparse(value)
        parameters.append(kind(each.arg, kind.KEYWORD_ONLY, default=default))
    if given.kwarg:
        parameters.append(kind(given.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(parameters)


def init_of(node: ast.ClassDef) -> inspect.Signature:
    """How a class is called: by its `__init__`, or by its fields."""
    made = methods(node).get("__init__")
    if made is not None:
        return signature(made)
    kind = inspect.Parameter
    return inspect.Signature(
        [
            kind(name, kind.KEYWORD_ONLY, default=kind.empty if value is None else ast.unparse(value))
            for name, value in annotated(node)
        ]
    )


class OurModule:
    """A module of ours that uses an engine."""

    def __init__(self, path: pathlib.Path, engine: str) -> None:
        self.tree = ast.parse(path.read_text())
        self.imports: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == engine:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module or "", alias.name)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Calls of imported names and of their attributes, as `name` or `name.attribute`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called.split(".")[0] in self.imports and all(part.isidentifier() for part in called.split(".")):
                    yield called, node

    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}


def binds(called: inspect.Signature, call: ast.Call) -> str | None:
    """Why a call does not fit. `None` if it does."""
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    try:
        called.bind(*call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords})
    except TypeError as error:
        return str(error)
    return None


def overrides(ours: inspect.Signature, theirs: inspect.Signature) -> str | None:
    """Why a method cannot stand for the one of its base class. `None` if it can."""
    kind = inspect.Parameter
    own = ours.parameters
    takes_all = any(each.kind is kind.VAR_KEYWORD for each in own.values())
    names = [each.name for each in own.values() if each.kind is kind.POSITIONAL_OR_KEYWORD]
    expected = [each.name for each in theirs.parameters.values() if each.kind is kind.POSITIONAL_OR_KEYWORD]
    if not takes_all and names[: len(expected)] != expected:
        return f"it takes {names}, and the engine gives {expected}"
    for name, parameter in theirs.parameters.items():
        if parameter.kind in (kind.VAR_KEYWORD, kind.VAR_POSITIONAL):
            continue
        if name not in own and not takes_all:
            return f"it does not take {name}"
        if name in own and parameter.default is not kind.empty and own[name].default is kind.empty:
            return f"it insists on {name}, which the engine may leave out"
    for name, parameter in own.items():
        if name not in theirs.parameters and parameter.default is kind.empty and parameter.kind < kind.VAR_KEYWORD:
            if parameter.kind is not kind.VAR_POSITIONAL and not accepts(theirs, name):
                return f"it insists on {name}, which the engine does not give"
    return None


def accepts(theirs: inspect.Signature, name: str) -> bool:
    """Whether the engine's method says nothing of its keywords, so that its callers tell them."""
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in theirs.parameters.values())
