"""Weighs the operators that PyTorch ran during ModelNew.forward against the reference's graph.

PyTorch's dispatcher sees each call, so names and obfuscation make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.candidate import Gate
from foundry.knowledge.compiler.lowered import LeftWork
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import Policy
from foundry.tools.audit.acts.observed import Observations, OperatorRow
from foundry.tools.task.operators import COPIES, FREE, OF_VIEWS, OWN, foreign_name

# Share of the reference's FLOPs and bytes that PyTorch may do beside allocation, views and copies.
LARGEST_SHARE = 0.02
# Share of a call's time. PyTorch alone summing rows takes 0.84 to 0.86 of it, honest kernels 0.02 at most.
LARGEST_TIME = 0.4
FOREIGN = "foreign:"  # label of an operator that is not written for one task, and that PyTorch may do
MOST_FOREIGN = 2.0  # times the work of the reference's own operators of that name, which PyTorch does in several steps


def provenance_gates(
    op_log: Sequence[OperatorRow], graph: OpGraph | None, policy: Policy, *, reference_work: float | None = None
) -> list[Gate]:
    """Gate "provenance": PyTorch does at most LARGEST_SHARE of the work in ModelNew.forward.

    `reference_work` (FLOPs + bytes that the reference's own run dispatched) replaces the graph's if the reference
    could not be captured; without either, any computing operator fails. Under "open" the gate passes and names
    PyTorch's part.
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
    if share > LARGEST_SHARE and (names := foreign_names(op_log, graph)):
        parts = ", ".join(f"{name} {100 * part:.3g} %" for name, part in names.items())
        why = "which is not written for one task; its other operators are within the limit"
        return [Gate("provenance", True, f"PyTorch did {percent} in forward, nearly all of it {parts}, {why}: {words}")]
    limit = f"policy {policy} allows {100 * LARGEST_SHARE:g} %"
    return [Gate("provenance", share <= LARGEST_SHARE, f"PyTorch did {percent} in forward ({limit}): {words}")]


def foreign_names(op_log: Sequence[OperatorRow], graph: OpGraph | None) -> dict[str, float]:
    """The foreign operators that PyTorch may do for this reference, with their shares of its work.

    Empty if there are none, or if PyTorch does more than that: operators that the reference has not, more work in
    them than the reference has, more than LARGEST_SHARE of the reference's other work, or all of the work.
    """
    done = [(foreign_name(kind_of(row)), float(row["flops"]) + float(row["bytes"])) for row in computing_rows(op_log)]
    return {} if graph is None else _foreign_shares(done, graph)


def _foreign_shares(done: Sequence[tuple[str, float]], graph: OpGraph) -> dict[str, float]:
    """Shares of the reference's work by foreign name of (foreign name or "", work) pairs; empty if that is too much."""
    whole, own = graph_work(graph), _work_by_name(graph)
    by_name = {name: sum(work for other, work in done if other == name) for name, _ in done}
    rest = by_name.pop("", 0.0)
    others = whole - sum(own.get(name, 0.0) for name in by_name)
    if any(work > MOST_FOREIGN * own.get(name, 0.0) for name, work in by_name.items()):
        return {}
    is_little = others > 0 and rest <= LARGEST_SHARE * others
    return {name: work / whole for name, work in by_name.items()} if is_little else {}


def _work_by_name(graph: OpGraph) -> dict[str, float]:
    """FLOPs plus bytes of the reference's own foreign operators by name."""
    found: dict[str, float] = {}
    for op in graph.ops:
        if name := foreign_name(op.kind):
            found[name] = found.get(name, 0.0) + op.flops + graph.moved_bytes(op)
    return found


def time_gate(seen: Observations) -> Gate:
    """Gate "provenance (time)", on a CPU: PyTorch's operators take at most LARGEST_TIME of a call's time.

    A small part of the reference's work may be all of the candidate's: if the reference multiplies by a one-hot
    matrix, a sum of rows is 1 % of its work. `seen["torch_time"]` is PyTorch's share of a call's time (1.0 if
    absent); `seen["longest"]` gives its operators' shares of that by name, the longest first. If only foreign
    operators are too long, they are the gate's reasons, and the audit may excuse them.
    """
    share = seen.get("torch_time", 1.0)
    longest = {name[:80]: part for name, part in seen.get("longest", ())}
    names = ", ".join(list(longest)[:4])
    if share <= LARGEST_TIME:
        return Gate("provenance (time)", True, f"PyTorch's operators take {100 * share:.2g} % of a call's time")
    part = f"{100 * share:.3g} % of a call's time"
    words = f"PyTorch's operators ({names}) take {part}; compute that in a kernel of your own"
    foreign = {name: part for name, part in longest.items() if foreign_name(_kind(name))}
    left = share * (1 - sum(foreign.values()))
    is_rest_short = left <= LARGEST_TIME * (1 - share * sum(foreign.values()))
    reasons = [Reason(ReasonKind.TORCH_OPERATOR, _kind(name)) for name in foreign]
    return Gate("provenance (time)", False, words, tuple(reasons) if is_rest_short else ())


def computing_rows(op_log: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Rows of operators that are neither allocation, view nor copy, heaviest first."""
    rows = [row for row in op_log if not row["op"].startswith(OWN) and kind_of(row) not in FREE | COPIES]
    return sorted(rows, key=lambda row: -(row["flops"] + row["bytes"]))


def torch_share(
    op_log: Sequence[OperatorRow], graph: OpGraph | None, *, reference_work: float | None = None
) -> float | None:
    """FLOPs and bytes of PyTorch's computing operators over those of the reference; None if the reference's are
    unknown."""
    done = _done(op_log)
    whole = reference_work if graph is None else graph_work(graph)
    if not done:
        return 0.0
    return done / whole if whole else None


def heavier(one: Sequence[OperatorRow] | None, other: Sequence[OperatorRow] | None) -> Sequence[OperatorRow] | None:
    """The op log in which PyTorch computed more; None is a missing log."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other, key=_done)


def later_work(before: Sequence[OperatorRow], after: Sequence[OperatorRow], moved_bytes: float) -> str:
    """Says in words what PyTorch computes in a later call but did not when the candidate was checked; "" if nothing."""
    words = more_work(before, after, moved_bytes)
    return words and f"after the timed calls PyTorch computes in forward what it did not when it was checked: {words}"


def more_work(before: Sequence[OperatorRow], after: Sequence[OperatorRow], moved_bytes: float) -> str:
    """Says in words what PyTorch computes in `after` beyond `before`; "" if little. `moved_bytes`: of inputs and
    outputs."""
    if _done(after) - _done(before) <= LARGEST_SHARE * moved_bytes:
        return ""
    return ", ".join(f"{row['op']} ({row['calls']}x, {_amount(row)})" for row in computing_rows(after)[:4])


def _done(op_log: Sequence[OperatorRow]) -> float:
    """FLOPs plus bytes of the computing operators in an op log."""
    return sum(float(row["flops"]) + float(row["bytes"]) for row in computing_rows(op_log))


def graph_work(graph: OpGraph) -> float:
    """FLOPs plus bytes that eager PyTorch moves, operator by operator: the same measure as an op log's. Free operators
    and copies count nothing."""
    return float(sum(op.flops + graph.moved_bytes(op) for op in graph.ops if op.kind not in FREE | COPIES))


def refused_plan(left: Sequence[LeftWork], graph: OpGraph, policy: Policy) -> str:
    """Says why the gate "provenance" would refuse a compiled kernel that leaves these operators to PyTorch; "" if it
    would not.

    The estimate is made before the build and is cautious: inside such an operator PyTorch may run others that move
    more. What is left may be foreign operators that the task itself calls.
    """
    computing = [item for item in left if item.kind not in FREE | COPIES | OF_VIEWS]
    whole = graph_work(graph)
    work = sum(item.flops + item.moved_bytes for item in computing)
    share = work / whole if whole else 0.0
    if policy == "open" or share <= LARGEST_SHARE:
        return ""
    if _foreign_shares([(foreign_name(item.kind), item.flops + item.moved_bytes) for item in computing], graph):
        return ""
    shares: dict[str, float] = {}
    for item in computing:
        name = _kind_and_line(item)
        shares[name] = shares.get(name, 0.0) + (item.flops + item.moved_bytes) / whole
    kinds = ", ".join(shares)
    each = ", ".join(f"{name} {100 * part:.2g} %" for name, part in shares.items()) if len(shares) > 1 else ""
    most = f"policy {policy} leaves it at most {100 * LARGEST_SHARE:g} %, {100 * (share - LARGEST_SHARE):.2g} % less"
    return (
        f"it has no kernel for {kinds}, so that PyTorch would do {100 * share:.2g} % of the work"
        f"{f' ({each})' if each else ''}; {most}"
    )


# Operators of ATen under the names by which people call them.
KNOWN_AS = {
    "col2im": "F.fold",
    "im2col": "F.unfold",
    "grid_sampler": "F.grid_sample",
    "embedding_bag": "F.embedding_bag",
}


def _kind_and_line(item: LeftWork) -> str:
    """An operator's kind with the line of the task that calls it."""
    name = KNOWN_AS.get(item.kind, item.kind)
    return f"{name} (line {item.line})" if item.line else name


def kind_of(row: OperatorRow) -> str:
    """The operator's name without namespace and overload: "aten.add.Tensor" -> "add"."""
    return _kind(row["op"])


def _kind(operator: str) -> str:
    """The operator's name between the dots of "aten.add.Tensor"; the whole text without one."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _amount(row: OperatorRow) -> str:
    """An op log row's FLOPs (or bytes, if it has none) in words."""
    return f"{row['flops'] / 1e6:.3g} MFLOP" if row["flops"] else f"{row['bytes'] / 1e6:.3g} MB"
