"""Replaces module constants in a task's source text, for `--scale` and extra shapes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

from foundry.knowledge import syntax
from foundry.knowledge.errors import TaskError


def module_constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Expressions of top-level `NAME = expression` and `A, B = one, other`, by name; the last one wins, as in
    Python."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            found |= _named(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found |= _named(node.target, node.value)
    return found


def _named(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    """The expressions assigned to the names of one target."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List):
        return {}
    if len(target.elts) != len(value.elts) or any(
        isinstance(item, ast.Starred) for item in (*target.elts, *value.elts)
    ):
        return {}
    return {name: own for pair in zip(target.elts, value.elts, strict=True) for name, own in _named(*pair).items()}


def overridden_source(source: str, overrides: Mapping[str, int]) -> str:
    """`source` with module constants replaced by `overrides`; line numbers stay as they are.

    The text is changed, not the loaded module, so that constants computed from others follow. Raises TaskError for a
    name that is not a module constant.
    """
    if not overrides:
        return source
    constants = module_constants(syntax.parse(source))
    lines = source.encode("utf-8").splitlines(keepends=True)  # AST columns count bytes
    for name, value in sorted(overrides.items(), key=lambda item: _place_of(constants, item[0]), reverse=True):
        expression = constants[name]
        assert expression.end_lineno is not None and expression.end_col_offset is not None
        first, last = expression.lineno - 1, expression.end_lineno - 1
        tail = lines[last][expression.end_col_offset :]
        lines[first] = lines[first][: expression.col_offset] + str(int(value)).encode() + tail
        for index in range(first + 1, last + 1):
            lines[index] = b"\n"
    return b"".join(lines).decode("utf-8")


def _place_of(constants: dict[str, ast.expr], name: str) -> tuple[int, int]:
    """Line and column of a constant's expression; raises TaskError if there is none."""
    if name not in constants:
        raise TaskError(
            f"{name} is overridden but is not a module constant of the task",
            f"add `{name} = ...` at the top of the file and use it in get_inputs",
        )
    return constants[name].lineno, constants[name].col_offset


# Modules that are present wherever torch is.
_BESIDE_TORCH = frozenset({"torch", "numpy", "typing_extensions", *sys.stdlib_module_names})


def foreign_imports(source: str) -> tuple[str, ...]:
    """Packages and files that a text imports and torch does not bring, each once, in order; a relative import is
    ".name"."""
    found: list[str] = []
    for node in ast.walk(syntax.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(f"{'.' * node.level}{(node.module or '').partition('.')[0]}")
    return tuple(dict.fromkeys(name for name in found if name not in _BESIDE_TORCH))
