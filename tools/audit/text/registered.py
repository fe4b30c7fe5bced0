"""Operators that a candidate registers under a name of its own: the documented way to wrap a kernel.

Registering for a name that is PyTorch's or another library's replaces what everybody calls, and is no wrapping.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from foundry.tools.audit.text.source import REGISTERS, CandidateSource, Finding, namespace_of
from foundry.tools.task.operators import TAKEN
from foundry.tools.words import words

_REGISTERS = words(
    "custom_op define impl register_fake register_kernel register_autograd impl_abstract register_vmap "
    "register_autocast Library register_torch_dispatch triton_op opcheck"
)
_HARMLESS = frozenset(words("opcheck wrap_triton infer_schema get_ctx"))
_BY_HAND = re.compile(
    r"\btorch::Library\s*(?:::|\w+\s*[({]|[({])"
    r"|\bDispatcher::|\bregisterImpl\b|\bRegisterOperators\b"
)


def is_own_registration(source: CandidateSource, node: ast.expr, path: str) -> bool:
    """Whether a use of torch.library registers under a literal name that nobody else has."""
    parts = path.split(".")
    if parts[:2] != ["torch", "library"]:
        return False
    above = source.above(node)
    if len(parts) == 2:
        return isinstance(above, ast.Attribute)  # judged as the longer name
    if parts[2] in _HARMLESS:
        return True
    if parts[2] == "Library" and not isinstance(above, ast.Call):
        return True  # a type
    return (
        parts[2] in _REGISTERS
        and isinstance(above, ast.Call)
        and above.func is node
        and _is_own_name(source, above.args[0] if above.args else None)
    )


def _is_own_name(source: CandidateSource, name: ast.expr | None) -> bool:
    namespace = namespace_of(source, name)
    return bool(namespace) and namespace not in TAKEN and not namespace.startswith("_")


def registration_findings(line: int, code: str) -> Iterator[Finding]:
    """C++ that registers operators for names which are not its own, or by ways that hide the name."""
    for match in REGISTERS.finditer(code):
        if match[1] in TAKEN or match[1] == "_":
            what = f"registers operators of {match[1]}, which are everybody's"
            yield Finding("global_state", line + code.count("\n", 0, match.start()), what)
    for match in _BY_HAND.finditer(code):
        what = f"uses {match.group().strip()}, which reaches PyTorch's dispatcher"
        yield Finding("global_state", line + code.count("\n", 0, match.start()), what)
