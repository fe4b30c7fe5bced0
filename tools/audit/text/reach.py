"""What of a candidate's file can run while it is imported, constructed and called; the rest is no evidence of anything.

A self-test under `if __name__ == "__main__"`, the copy of the reference with its get_inputs, a benchmark that nobody
calls: none of them can change an answer. Where the file looks names up by means that a reader cannot follow, all of it
counts as running.
"""

from __future__ import annotations

import ast

from foundry.tools.words import words

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_FINDS_BY_NAME = frozenset(
    words(
        "globals locals vars eval exec __import__ modules import_module __globals__ f_globals __builtins__ "
        "__main__ __subclasses__ run_module run_path attrgetter methodcaller __getattribute__ pythonapi py_object "
        "_getframe currentframe get_objects get_referrers get_referents getmembers loads"
    )
)
# Decorators that hand a function to nobody.
_KEEPS_TO_ITSELF = frozenset(
    words(
        "lru_cache cache wraps no_grad inference_mode contextmanager functools torch contextlib dataclass dataclasses"
    )
)


def living(body: list[ast.stmt]) -> list[ast.stmt]:
    """The module's statements without those that cannot run. A class that nobody names keeps what its body runs."""
    parts = [part for top in body for part in ast.walk(top) if isinstance(part, ast.Name)]
    assigned = {part.id for part in parts if isinstance(part.ctx, ast.Store)}
    kept = [node for node in body if "__name__" in assigned or not _is_script(node)]
    definitions = {id(node): node for node in kept if isinstance(node, Definition) and not _is_live_alone(node)}
    pending = [name for node in kept if id(node) not in definitions for name in _names(node)]
    pending += [name for node in definitions.values() for name in _names_on_definition(node)]
    names = [node.name for node in body if isinstance(node, Definition)]
    pending += ["ModelNew", *(name for name in names if names.count(name) > 1)]  # who defines twice means something
    by_name: dict[str, list[Definition]] = {}
    for node in definitions.values():
        by_name.setdefault(node.name, []).append(node)
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += [other for node in by_name.get(name, ()) for other in _names(node)]
    dead = {key for key, node in definitions.items() if node.name not in reached}
    alive = [node for node in kept if id(node) not in dead]
    if any(_names(node) & _FINDS_BY_NAME or _computes_names(node) for node in alive):
        return kept
    left = [_emptied(node) if id(node) in dead else node for node in kept]
    return [node for node in left if node is not None]


def _is_script(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":` with nothing else to do."""
    return isinstance(node, ast.If) and ast.unparse(node.test).replace('"', "'") in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    ) and not node.orelse  # fmt: skip


def _is_live_alone(node: Definition) -> bool:
    """Whether a decorator or a base class's machinery hands the definition to somebody."""
    if isinstance(node, ast.ClassDef) and (node.keywords or node.name == "ModelNew"):
        return True
    parts = {part for item in node.decorator_list for part in _names(item)}
    return bool(parts - _KEEPS_TO_ITSELF) or node.name.startswith("__")


def _computes_names(part: ast.AST) -> bool:
    """getattr of a name that is put together."""
    calls = [node for node in ast.walk(part) if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"]
    return any(len(call.args) < 2 or not isinstance(call.args[1], ast.Constant) for call in calls)


def _names_on_definition(node: Definition) -> set[str]:
    """Names that are used when a definition itself is executed."""
    runs: list[ast.AST] = list(node.decorator_list)
    if isinstance(node, ast.ClassDef):
        runs += [*node.bases, *(part for part in node.body if not isinstance(part, ast.FunctionDef))]
        runs += [item for part in node.body if isinstance(part, ast.FunctionDef) for item in part.decorator_list]
    else:
        runs += [*node.args.defaults, *(item for item in node.args.kw_defaults if item is not None)]
    return {name for part in runs for name in _names(part)}


def _names(part: ast.AST) -> set[str]:
    """Names, attributes and whole strings: whatever may lead to a definition of that name."""
    found: set[str] = set()
    for node in ast.walk(part):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.name for alias in node.names)
    return found


def _emptied(node: ast.stmt) -> ast.stmt | None:
    """What a definition that nobody calls still runs; None when that is nothing."""
    if not isinstance(node, ast.ClassDef):
        return None
    runs = [part for part in node.body if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    if all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in runs):
        return None
    left = ast.ClassDef(node.name, node.bases, [], runs, node.decorator_list)
    return ast.copy_location(left, node)
