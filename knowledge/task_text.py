"""A task's source text with module constants replaced: what `--scale` and extra shapes make of the file."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from foundry.knowledge import syntax
from foundry.knowledge.errors import TaskError


def module_constants(tree: ast.Module) -> dict[str, ast.Assign | ast.AnnAssign]:
    """Top-level `NAME = expression` statements by name, the last one winning as in Python."""
    found: dict[str, ast.Assign | ast.AnnAssign] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node
    return found


def overridden_source(source: str, overrides: Mapping[str, int]) -> str:
    """`source` with module constants replaced by `overrides`; line numbers stay as they are.

    The text is changed, not the loaded module, so that constants computed from others follow. Raises TaskError when a
    name is not a module constant.
    """
    if not overrides:
        return source
    constants = module_constants(syntax.parse(source))
    lines = source.encode("utf-8").splitlines(keepends=True)  # AST columns count bytes
    for name, value in sorted(overrides.items(), key=lambda item: -_line_of(constants, item[0])):
        expression = constants[name].value
        assert expression is not None and expression.end_lineno is not None and expression.end_col_offset is not None
        first, last = expression.lineno - 1, expression.end_lineno - 1
        tail = lines[last][expression.end_col_offset :]
        lines[first] = lines[first][: expression.col_offset] + str(int(value)).encode() + tail
        for index in range(first + 1, last + 1):
            lines[index] = b"\n"
    return b"".join(lines).decode("utf-8")


def _line_of(constants: dict[str, ast.Assign | ast.AnnAssign], name: str) -> int:
    if name not in constants:
        raise TaskError(
            f"{name} is overridden but is not a module constant of the task",
            f"add `{name} = ...` at the top of the file and use it in get_inputs",
        )
    return constants[name].lineno
