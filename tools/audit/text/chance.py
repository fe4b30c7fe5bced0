"""Random numbers that a function draws to tune or to try its kernels, and that go no further than the function.

Numbers that are kept or handed on could be inputs of the grader, drawn again, and are judged elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from foundry.tools.audit.text.forbidden import RANDOM
from foundry.tools.audit.text.source import CandidateSource, Function
from foundry.tools.audit.text.taint import METADATA, bindings

_SOURCES = frozenset((*RANDOM, "torch.Generator"))
_ANSWERS = ("torch.", "self.forward", "ModelNew", "Model")  # what could make an answer of an input


def is_random(path: str) -> bool:
    return path in _SOURCES


def passing_numbers(source: CandidateSource) -> set[ast.AST]:
    """Nodes of the functions in which random numbers stay: not those of forward or of a constructor's own body."""
    found: set[ast.AST] = set()
    for statement in source.own:
        for node in ast.walk(statement):
            if isinstance(node, Function) and node.name not in ("forward", "__init__") and not _lets_out(source, node):
                found.update(ast.walk(node))
    return found


def _lets_out(source: CandidateSource, function: Function) -> bool:
    """Whether random numbers, or an answer made of them, are returned, kept or stored in anything but a local."""
    drawn: set[str] = set()
    body = [part for top in function.body for part in ast.walk(top)]
    for _ in range(6):
        before = len(drawn)
        for node in body:
            for target, value in _stores(node):
                if _is_drawn(source, value, drawn):
                    if isinstance(target, ast.Attribute | ast.Subscript):
                        return True
                    drawn.update(item.id for item in ast.walk(target) if isinstance(item, ast.Name))
        if len(drawn) == before:
            break
    kept = {name for node in body if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    returned = [node.value for node in body if isinstance(node, ast.Return | ast.Yield) and node.value is not None]
    return bool(kept & drawn) or any(_is_drawn(source, value, drawn) for value in returned)


def _stores(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from bindings(node)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value


def _is_drawn(source: CandidateSource, value: ast.expr, drawn: set[str]) -> bool:
    """Whether an expression holds random numbers or an answer made of them; a measured time or a choice does not."""
    if isinstance(value, ast.Call):
        path = source.dotted(value.func)
        if path in _SOURCES:
            return True
        if isinstance(value.func, ast.Attribute) and value.func.attr in ("data_ptr", *METADATA):
            return False
        is_answer = path.startswith(_ANSWERS) or isinstance(value.func, ast.Attribute)
        parts = [*value.args, *(item.value for item in value.keywords)]
        if isinstance(value.func, ast.Attribute):
            parts.append(value.func.value)
        return (is_answer or path in ("list", "tuple", "float")) and any(
            _is_drawn(source, part, drawn) for part in parts
        )
    if isinstance(value, ast.Name):
        return value.id in drawn
    if isinstance(value, ast.Compare | ast.Lambda):
        return False
    return any(_is_drawn(source, part, drawn) for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))
