"""The floors of a task on a device, and the choice of the arithmetic rate that bounds it.

The fastest arithmetic that the policy allows bounds every kernel: a time below that floor cannot be true, and a
search that has reached it is done. The kernel's own arithmetic bounds the kernel as it is: the reported share of the
floor. On a CPU TF32 is IEEE arithmetic, and 16-bit products are for 16-bit tasks: bfloat16 has fewer digits than
TF32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from foundry.knowledge.device import Device, Precision, TargetName
from foundry.knowledge.opgraph import DType, OpGraph
from foundry.knowledge.ruling import FLOOR_SLACK
from foundry.knowledge.targets import find_target
from foundry.knowledge.task import Policy

PREPARED = "prepared-weights"  # label of a kernel that keeps parameters in its own form between calls
_HALF: tuple[DType, ...] = ("float16", "bfloat16")


@dataclass(frozen=True)
class Floors:
    """Least times in ms by the measured ceilings; None without ceilings.

    No kernel is faster than `traffic_ms`: inputs, parameters and outputs move once in any algorithm. The others
    count the task's own arithmetic, which another algorithm may avoid. Parameters count with their own bytes, or,
    for a kernel that says that it prepares them, with the fewest bytes that it can keep of them.
    """

    traffic_ms: float | None
    allowed_ms: float | None  # time with the fastest arithmetic that the policy allows
    used_ms: float | None  # time with the arithmetic of the kernel's labels


def floor_in_force(floor_ms: float, traffic_ms: float, candidate_ms: float) -> float:
    """The floor that bounds a kernel of this time.

    That of the task's own arithmetic; for a kernel that is clearly faster, because its algorithm needs less, the
    time to move inputs, parameters and outputs once.
    """
    return traffic_ms if candidate_ms * FLOOR_SLACK < floor_ms else floor_ms


def floors(device: Device, graph: OpGraph, policy: Policy, labels: Collection[str] = ()) -> Floors:
    """The floors of a graph, for a kernel that declares `labels`."""
    prepared = graph.packed_bytes if PREPARED in labels else graph.min_bytes
    used, allowed = used_precision(graph, labels), allowed_precision(graph, policy, device.target)
    packs = allowed == "half" and device.traits.has_tf32
    return Floors(
        traffic_ms=device.floor_ms(0.0, prepared, "half"),
        allowed_ms=device.floor_ms(graph.flops, graph.packed_bytes if packs else graph.min_bytes, allowed),
        used_ms=device.floor_ms(graph.flops, prepared if used == "half" else graph.min_bytes, used),
    )


def allowed_precision(graph: OpGraph, policy: Policy, target: TargetName) -> Precision:
    """The fastest arithmetic that may compute the graph.

    Only strict requires IEEE float32. Otherwise a float32 product may run on a GPU in TF32, or with its operands
    scaled to 16 bits, which keep as many digits.
    """
    is_half = any(op.flops and _is_half(op.outputs[0].spec.dtype) for op in graph.ops)
    return "half" if is_half or (policy != "strict" and find_target(target).has_tf32) else "ieee"


def used_precision(graph: OpGraph | None, labels: Collection[str]) -> Precision:
    """The arithmetic of a kernel that declares `labels` ("tf32", "tf32:half"); else that of the heaviest operator's
    dtype."""
    if "tf32:half" in labels:
        return "half"
    if any(label == "tf32" or label.startswith("tf32:") for label in labels):
        return "tf32"
    if graph is None or not graph.ops:
        return "ieee"
    heaviest = max(graph.ops, key=lambda op: op.flops)
    return "half" if _is_half(heaviest.outputs[0].spec.dtype) else "ieee"


def _is_half(dtype: DType) -> bool:
    """True for a float type of two bytes."""
    return dtype in _HALF
