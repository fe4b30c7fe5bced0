"""Names of their own for the variables of comprehensions and loops, so that facts about `t` in `for t in (q, k, v)` say
nothing about `t` in `b, h, t, d = q.shape`. Free of torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def separate(tree: ast.Module) -> ast.Module:
    """The same program, in place, with these variables renamed where nothing else can mean them."""
    for node in ast.walk(tree):
        if isinstance(node, _COMPREHENSIONS):
            _separate_comprehension(node)
    for node in ast.walk(tree):
        if isinstance(node, Function):
            _separate_loops(node)
    return tree


def _separate_comprehension(node: ast.expr) -> None:
    """The first iterable belongs to the scope around it (Python's reference, 6.2.4)."""
    assert isinstance(node, _COMPREHENSIONS)
    bound = {name for part in node.generators for name in _stored(part.target)}
    bound -= {item.target.id for item in ast.walk(node) if isinstance(item, ast.NamedExpr)}
    bound -= {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)}  # a lambda's own
    outside = {id(item) for item in ast.walk(node.generators[0].iter)}
    _rename((item for item in ast.walk(node) if id(item) not in outside), bound, "_in_comprehension")


def _separate_loops(function: Function) -> None:
    """Loops of the function's own level whose variable nobody reads after them before it is bound anew."""
    shared = {name for node in ast.walk(function) for name in _shared(node, function)}
    for index, loop in enumerate(function.body):
        if not isinstance(loop, ast.For):
            continue
        later = [*loop.orelse, *function.body[index + 1 :]]
        names = {name for name in _stored(loop.target) if not _is_read(later, name)} - shared
        outside = {id(item) for item in ast.walk(loop.iter)}
        _rename((item for item in ast.walk(loop) if id(item) not in outside), names, f"_in_loop_{index}")


def _shared(node: ast.AST, function: Function) -> Iterable[str]:
    """Names that inner functions, or outer ones, may mean too."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return node.names
    if isinstance(node, Function | ast.Lambda) and node is not function:
        return [item.id for item in ast.walk(node) if isinstance(item, ast.Name)]
    return ()


def _is_read(statements: Sequence[ast.stmt], name: str) -> bool:
    """Whether the name may be read before it is bound for certain."""
    for statement in statements:
        if isinstance(statement, ast.For) and name in _stored(statement.target):
            if any(_mentions(part, name) for part in (statement.iter, *statement.orelse)):
                return True
            continue  # it may run no time
        if isinstance(statement, ast.Assign) and any(name in _stored(target) for target in statement.targets):
            return _mentions(statement.value, name) or any(_loads(target, name) for target in statement.targets)
        if _mentions(statement, name):
            return True
    return False


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(node))


def _loads(target: ast.AST, name: str) -> bool:
    named = (item for item in ast.walk(target) if isinstance(item, ast.Name) and item.id == name)
    return any(isinstance(item.ctx, ast.Load) for item in named)


def _stored(target: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(target) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}


def _rename(nodes: Iterable[ast.AST], names: set[str], suffix: str) -> None:
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in names:
            node.id += suffix
