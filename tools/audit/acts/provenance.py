"""Who did the work: the operators PyTorch ran during ModelNew.forward, weighed against the reference's graph.

Names and obfuscation do not matter here, because PyTorch's dispatcher sees each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foundry.knowledge.candidate import Gate
from foundry.knowledge.compiler.lowered import LeftWork
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import Policy
from foundry.tools.task.operators import COPIES, FREE, OF_VIEWS, OWN

# PyTorch may do this much of the reference's FLOPs and bytes beside allocation, views and copies.
LARGEST_SHARE = 0.02
# Of a call's time: a sum of rows by PyTorch and nothing else takes 0.84 to 0.86 of it, honest kernels 0.02 at most.
LARGEST_TIME = 0.4


def provenance_gates(
    op_log: Sequence[dict[str, Any]], graph: OpGraph | None, policy: Policy, *, reference_work: float | None = None
) -> list[Gate]:
    """The gate "provenance": PyTorch's share of the work in ModelNew.forward is nearly nothing.

    `reference_work` (FLOPs + bytes that the reference's own run dispatched) replaces the graph's where the reference
    could not be captured; without either, any computing operator fails. Under open the gate passes and names
    what PyTorch did.
    """
    computing = computing_rows(op_log)
    share = torch_share(op_log, graph, reference_work=reference_work)
    copies = [row for row in op_log if kind_of(row) in COPIES]
    words = ", ".join(f"{row['op']} ({row['calls']}x, {_amount(row)})" for row in computing[:4])
    if not computing:
        copied = sum(float(row["bytes"]) for row in copies)
        detail = f"it copied or filled {copied / 1e6:.2f} MB" if copied else "it allocated and viewed"
        return [Gate("provenance", True, f"PyTorch computed nothing in forward; {detail}")]
    if policy == "open":
        return [Gate("provenance", True, f"PyTorch ran {words}, which policy open allows")]
    if share is None:
        why = "the reference's own work could not be measured, so that PyTorch may compute nothing in forward"
        return [Gate("provenance", False, f"{why}; it ran {words}", (Reason(ReasonKind.UNDECIDED, why),))]
    percent = f"{100 * share:.3g} % of the reference's work"
    return [Gate("provenance", share <= LARGEST_SHARE, f"PyTorch did {percent} in forward: {words}")]


def time_gate(seen: Mapping[str, Any]) -> Gate:
    """The gate "provenance (time)", on a CPU: PyTorch's operators do not take most of a call's time. What is little of
    the reference's work may be all of the candidate's: where the reference multiplies by a one-hot matrix, a sum of
    rows is 1 % of its work.

    `seen`: "torch_time", the part of a call's time that PyTorch's computing operators take, all of it where nothing is
    said, and "longest", their names.
    """
    share, names = float(seen.get("torch_time", 1.0)), ", ".join(str(name)[:80] for name in seen.get("longest", ()))
    if share <= LARGEST_TIME:
        return Gate("provenance (time)", True, f"PyTorch's operators take {100 * share:.2g} % of a call's time")
    words = f"PyTorch's {names} take {100 * share:.2g} % of a call's time; compute that in a kernel of your own"
    return Gate("provenance (time)", False, words)


def computing_rows(op_log: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of operators that are neither allocation, view nor copy, heaviest first."""
    rows = [row for row in op_log if not str(row["op"]).startswith(OWN) and kind_of(row) not in FREE | COPIES]
    return sorted(rows, key=lambda row: -(row["flops"] + row["bytes"]))


def torch_share(
    op_log: Sequence[dict[str, Any]], graph: OpGraph | None, *, reference_work: float | None = None
) -> float | None:
    """FLOPs and bytes of PyTorch's computing operators over those of the reference; None when that is unknown."""
    done = _done(op_log)
    whole = reference_work if graph is None else graph_work(graph)
    if not done:
        return 0.0
    return done / whole if whole else None


def heavier(
    one: Sequence[dict[str, Any]] | None, other: Sequence[dict[str, Any]] | None
) -> Sequence[dict[str, Any]] | None:
    """The log in which PyTorch computed more; None stands for a log that is not there."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other, key=_done)


def later_work(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], moved_bytes: float) -> str:
    """What PyTorch computes in a later call beyond what it did when it was checked, in words, or ""."""
    words = more_work(before, after, moved_bytes)
    return words and f"after the timed calls PyTorch computes in forward what it did not when it was checked: {words}"


def more_work(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], moved_bytes: float) -> str:
    """What PyTorch computes in one call and not in another, in words, or ""; `moved_bytes` are those of inputs and
    outputs."""
    if _done(after) - _done(before) <= LARGEST_SHARE * moved_bytes:
        return ""
    return ", ".join(f"{row['op']} ({row['calls']}x, {_amount(row)})" for row in computing_rows(after)[:4])


def _done(op_log: Sequence[dict[str, Any]]) -> float:
    return sum(float(row["flops"]) + float(row["bytes"]) for row in computing_rows(op_log))


def graph_work(graph: OpGraph) -> float:
    """FLOPs plus the bytes that eager moves, operator by operator: the same measure as an op log's."""
    return float(sum(op.flops + graph.moved_bytes(op) for op in graph.ops if op.kind not in FREE | COPIES))


def refused_plan(left: Sequence[LeftWork], graph: OpGraph, policy: Policy) -> str:
    """Why the gate "provenance" would refuse a kernel of the library's that leaves so much to PyTorch, in words, or "".

    It is known before the kernel is built, and in doubt says nothing: within such an operator PyTorch may run others,
    which move more, but for those of views and copies not less."""
    computing = [item for item in left if item.kind not in FREE | COPIES | OF_VIEWS]
    whole = graph_work(graph)
    share = sum(item.flops + item.moved_bytes for item in computing) / whole if whole else 0.0
    if policy == "open" or share <= LARGEST_SHARE:
        return ""
    kinds = ", ".join(dict.fromkeys(_kind_and_line(item) for item in computing))
    most = f"policy {policy} allows {100 * LARGEST_SHARE:g} %"
    return f"it has no kernel for {kinds}, so that PyTorch would do {100 * share:.2g} % of the work; {most}"


def _kind_and_line(item: LeftWork) -> str:
    return f"{item.kind} (line {item.line})" if item.line else item.kind


def kind_of(row: dict[str, Any]) -> str:
    parts = str(row["op"]).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _amount(row: dict[str, Any]) -> str:
    return f"{row['flops'] / 1e6:.3g} MFLOP" if row["flops"] else f"{row['bytes'] / 1e6:.3g} MB"
