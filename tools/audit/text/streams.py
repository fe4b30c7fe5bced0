"""Streams of a candidate's own that it waits for where it used them, as the capture of a CUDA graph is prepared."""

from __future__ import annotations

import ast

from foundry.tools.audit.text.source import CandidateSource, Function

_CURRENT = "torch.cuda.current_stream"


def is_joined(source: CandidateSource, node: ast.expr) -> bool:
    """Whether the function around a `torch.cuda.Stream` or `torch.cuda.stream` keeps all of its streams in variables
    of its own and lets the current stream wait for each one after the last block that ran on it."""
    function: ast.AST | None = node
    while function is not None and not isinstance(function, Function):
        function = source.above(function)
    if function is None:
        return False
    parts = list(ast.walk(function))
    made = [part for part in parts if isinstance(part, ast.Call) and source.dotted(part.func) == "torch.cuda.Stream"]
    names = [_variable(source, part) for part in made]
    used = {name: 0 for name in names}
    for part in parts:
        if isinstance(part, ast.Name) and part.id in used and isinstance(part.ctx, ast.Load):
            call = source.above(part)
            if not (isinstance(call, ast.Call) and _waits_for(source, call, part.id)):
                used[part.id] = max(used[part.id], part.lineno)
        if isinstance(part, ast.With):
            for item in part.items:
                name = _entered(source, item.context_expr)
                if name is not None:
                    used[name] = max(used.get(name, 0), part.end_lineno or 0)
    return (
        "" not in used
        and set(used) <= set(names)
        and all(
            any(_waits_for(source, part, name) and part.lineno > line for part in parts if isinstance(part, ast.Call))
            for name, line in used.items()
        )
    )


def _variable(source: CandidateSource, made: ast.Call) -> str:
    above = source.above(made)
    target = above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) else ""


def _entered(source: CandidateSource, item: ast.expr) -> str | None:
    """The variable of `with torch.cuda.stream(variable)`, "" for another expression, None for another block."""
    if not (isinstance(item, ast.Call) and source.dotted(item.func) == "torch.cuda.stream"):
        return None
    return item.args[0].id if item.args and isinstance(item.args[0], ast.Name) else ""


def _waits_for(source: CandidateSource, call: ast.Call, name: str) -> bool:
    """`torch.cuda.current_stream().wait_stream(name)`."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "wait_stream" and len(call.args) == 1):
        return False
    owner = call.func.value
    is_current = isinstance(owner, ast.Call) and source.dotted(owner.func) == _CURRENT
    return is_current and isinstance(call.args[0], ast.Name) and call.args[0].id == name
