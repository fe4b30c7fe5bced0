"""Which of a device's measured arithmetic rates bounds a task: the one rule for every roofline floor.

What a policy allows bounds what any kernel could do: a time below that floor cannot be true, and a search that has
reached it is done. What a kernel uses bounds the kernel as it is: the share of the floor that is shown. On a CPU all
rates are one.
"""

from __future__ import annotations

from collections.abc import Collection

from foundry.knowledge.device import Precision
from foundry.knowledge.opgraph import DType, OpGraph
from foundry.knowledge.task import Policy

_HALF: tuple[DType, ...] = ("float16", "bfloat16")


def allowed_precision(graph: OpGraph, policy: Policy) -> Precision:
    """The fastest arithmetic that may compute the graph. Only strict asks for IEEE float32: else a product of float32
    may run in TF32, or with its operands scaled to 16 bits, which keep as many digits."""
    is_half = any(op.flops and _is_half(op.outputs[0].spec.dtype) for op in graph.ops)
    return "half" if policy != "strict" or is_half else "ieee"


def used_precision(graph: OpGraph | None, labels: Collection[str]) -> Precision:
    """The arithmetic of a kernel that declares `labels` ("tf32", "tf32:half"); without them the dtype of the operator
    with most of the work tells."""
    if "tf32:half" in labels:
        return "half"
    if any(label == "tf32" or label.startswith("tf32:") for label in labels):
        return "tf32"
    if graph is None or not graph.ops:
        return "ieee"
    heaviest = max(graph.ops, key=lambda op: op.flops)
    return "half" if _is_half(heaviest.outputs[0].spec.dtype) else "ieee"


def _is_half(dtype: DType) -> bool:
    return dtype in _HALF
