"""Finds the model's class in a task file's syntax tree. Free of torch; runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from foundry.knowledge.errors import TaskError

INPUT_MAKERS = ("get_inputs", "get_input_groups")
_NO_MODEL = "a task defines `class Model(nn.Module)` with forward, and get_inputs()"
_MOST_NAMED = 6  # classes that a message lists


def check_members(tree: ast.Module, file: str, wanted: str = "") -> str:
    """The name of the model's class: `wanted`, else Model, else the only module class that no other code uses.

    Raises TaskError if that is not one class, if it has no forward, or if the file makes no inputs.
    """
    names = bound_names(tree)
    model = _model_name(tree, file, names, wanted)
    if not any(maker in names for maker in INPUT_MAKERS):
        raise TaskError(f"{file} has no get_inputs()", f"it returns the list of arguments of {model}.forward")
    node = names[model]
    if isinstance(node, ast.ClassDef):
        _check_class(node, file)
    if model != "Model" and "Model" in names and "Model" in _names_read(node):
        raise TaskError(
            f"{file}: class {model} uses another class called Model, which is the model's name in a kernel's file",
            "rename that class",
        )
    return model


def bound_names(tree: ast.Module) -> dict[str, ast.stmt]:
    """The module's top-level names with the statement that binds each last: classes, functions, imports,
    assignments."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update({(alias.asname or alias.name).split(".")[0]: node for alias in node.names})
        elif isinstance(node, ast.Assign):
            found.update({name.id: node for name in _targets(node)})
    return found


def _model_name(tree: ast.Module, file: str, names: dict[str, ast.stmt], wanted: str) -> str:
    """The name of the model's class: the wanted one, "Model", or the only class that no other uses. Raises
    TaskError."""
    if wanted:
        if wanted not in names:
            known = _listed([node.name for node in tree.body if isinstance(node, ast.ClassDef)])
            raise TaskError(f"{file} has no class {wanted[:100]}", known and f"its classes are {known}")
        return wanted
    if "Model" in names:
        return "Model"
    classes = _module_classes(tree)
    free = [name for name in classes if not _is_used(name, tree)] or classes
    if not free:
        raise TaskError(f"{file} has no class Model", _NO_MODEL)
    if len(free) > 1:
        raise TaskError(
            f"{file} has no class Model, and {len(free)} classes that may be meant: {_listed(free)}",
            f'name one with --class {free[-1]}, or write model = "{free[-1]}" in the options beside the task',
        )
    return free[0]


def _listed(names: list[str]) -> str:
    """The first names, separated by commas, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(name[:60] for name in names[:_MOST_NAMED]) + more


def _module_classes(tree: ast.Module) -> list[str]:
    """Classes that inherit from torch.nn, from each other, or from unknown bases with a forward."""
    found: list[str] = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [ast.unparse(base) for base in node.bases]
        has_known = any(base in found or base.rsplit(".", 2)[-2:-1] == ["nn"] or base == "Module" for base in bases)
        is_function = any(base.rsplit(".", 1)[-1] == "Function" for base in bases)
        if has_known or (bases and not is_function and "forward" in _members_of(node)):
            found.append(node.name)
    return found


def _is_used(name: str, tree: ast.Module) -> bool:
    """True if another class or function of the file names it; the input makers and `if __name__` do not count."""
    for node in tree.body:
        is_maker = isinstance(node, ast.FunctionDef) and node.name in (*INPUT_MAKERS, "get_init_inputs")
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign)
        if is_definition and not is_maker and getattr(node, "name", "") != name and name in _names_read(node):
            return True
    return False


def _names_read(node: ast.AST) -> set[str]:
    """Names that are read anywhere in the tree."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)}


def _check_class(node: ast.ClassDef, file: str) -> None:
    """Raises TaskError unless the class inherits from nn.Module and has a forward."""
    if not node.bases:
        raise TaskError(f"{file}, line {node.lineno}: {node.name} is not an nn.Module", f"class {node.name}(nn.Module)")
    plain = {ast.unparse(base) for base in node.bases} <= {"nn.Module", "torch.nn.Module", "Module"}
    if plain and "forward" not in _members_of(node):
        raise TaskError(f"{file}, line {node.lineno}: class {node.name} has no forward")


def _members_of(node: ast.ClassDef) -> set[str]:
    """Names of all methods and class attributes."""
    inner = list(ast.walk(node))
    methods = {item.name for item in inner if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    return methods | {target.id for item in inner if isinstance(item, ast.Assign) for target in _targets(item)}


def _targets(node: ast.Assign) -> Iterator[ast.Name]:
    """The plain names that an assignment binds."""
    return (target for target in node.targets if isinstance(target, ast.Name))
