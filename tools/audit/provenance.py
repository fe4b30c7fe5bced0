"""Who did the work: the operators PyTorch ran during ModelNew.forward, weighed against the reference's graph.

Names and obfuscation do not matter here, because PyTorch's dispatcher sees each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foundry.knowledge.candidate import Gate
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Policy
from foundry.tools.audit.source import TAKEN
from foundry.tools.flops import operator_flops
from foundry.tools.words import words

if TYPE_CHECKING:
    import torch

# PyTorch may do this much of the reference's FLOPs and bytes beside allocation, views and copies.
LARGEST_SHARE = 0.02

OWN = "own::"  # before the name of an operator that the candidate registered and that was looked into

FREE = frozenset(
    words(
        "empty empty_like empty_strided new_empty new_empty_strided view _unsafe_view reshape _reshape_alias "
        "as_strided permute transpose t expand squeeze unsqueeze select slice narrow unbind split "
        "split_with_sizes chunk unfold diagonal detach alias lift_fresh view_as_real resize_ set_ record_stream "
        "is_pinned equal is_same_size"  # whether packed weights are still those of the model: a yes or no, no answer
    )
)
# Free of arithmetic, and what a binding needs for layout: not counted either, but named in the evidence.
COPIES = frozenset(
    words(
        "copy_ clone _to_copy contiguous zeros zeros_like zero_ fill_ full full_like ones ones_like new_zeros new_ones "
        "new_full lift_fresh_copy"
    )
)


def record_ops(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """Calls `run` and returns what PyTorch's dispatcher saw: one row an operator with calls, FLOPs and bytes.

    Rows are {"op": "aten.mm.default", "calls": n, "flops": f, "bytes": b}, heaviest first; bytes are those of tensor
    arguments and results. Runs in the candidate's worker; operators called from C++ and other threads of autograd
    are seen as well. The result of `run` is dropped.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    rows: dict[str, dict[str, Any]] = {}

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inside: list[dict[str, Any]] | None = None
            if func.namespace in TAKEN:
                result = func(*args, **(kwargs or {}))
            else:
                result, inside = _looked_into(lambda: func(*args, **(kwargs or {})))
            name = str(func) if inside is None else f"{OWN}{func}"
            row = rows.setdefault(name, {"op": name, "calls": 0, "flops": 0, "bytes": 0})
            inputs, outputs = _tensors([*args, *(kwargs or {}).values()]), _tensors([result])
            row["calls"] += 1
            row["bytes"] += sum(tensor.numel() * tensor.element_size() for tensor in [*inputs, *outputs])
            kind = func._schema.name.split("::")[-1] if func.namespace in TAKEN else ""
            row["flops"] += _flops(kind, args, kwargs or {}, [t.shape for t in inputs], [t.shape for t in outputs])
            if inside is not None:  # the candidate's own operator: what counts is what PyTorch does in it
                for part in inside:
                    _add(rows.setdefault(part["op"], {"op": part["op"], "calls": 0, "flops": 0, "bytes": 0}), part)
            return result

    with torch.no_grad(), Recorder():  # type: ignore[no-untyped-call]
        run()
    return sorted(rows.values(), key=lambda row: -(row["flops"] + row["bytes"]))


def _add(row: dict[str, Any], part: dict[str, Any]) -> None:
    for key in ("calls", "flops", "bytes"):
        row[key] += part[key]


def _looked_into(run: Callable[[], Any]) -> tuple[Any, list[dict[str, Any]] | None]:
    """The result of an operator that the candidate registered, and PyTorch's operators inside it.

    The dispatcher's mode is off in there; its profiler is not. None when it could not look.
    """
    import torch

    try:
        with torch.autograd.profiler.profile(record_shapes=True) as seen:
            result = run()
        events = list(seen.function_events or ())
    except RuntimeError:
        return run(), None
    rows: list[dict[str, Any]] = []
    for event in events:
        namespace, _, kind = event.name.partition("::")
        shapes = [shape for shape in event.input_shapes or () if shape]
        if kind and namespace in TAKEN and not event.cpu_children:
            size = sum(math.prod(shape) for shape in shapes)
            flops = _flops(kind, (), {}, shapes, shapes[:1])  # its other arguments nobody kept
            rows.append({"op": f"{namespace}.{kind}.inside", "calls": 1, "flops": flops, "bytes": 8 * size})
    return result, rows


def _flops(kind: str, arguments: Any, keywords: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """FLOPs of a PyTorch operator; of one that is none (`kind` is "": the candidate may name its own as it likes) or
    whose arguments say nothing, one for each element it reads."""
    size = sum(int(math.prod(shape)) for shape in inputs)
    try:
        return int(operator_flops(kind, arguments, keywords, inputs, outputs)) if kind else size
    except (LookupError, TypeError, ValueError):
        return size


def _tensors(items: Sequence[Any]) -> list[torch.Tensor]:
    import torch

    found: list[torch.Tensor] = []
    for item in items:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, list | tuple):
            found.extend(_tensors(item))
    return found


def provenance_gates(
    op_log: Sequence[dict[str, Any]], graph: OpGraph | None, policy: Policy, *, reference_work: float | None = None
) -> list[Gate]:
    """The gate "provenance": PyTorch's share of the work in ModelNew.forward is nearly nothing.

    `reference_work` (FLOPs + bytes) replaces the graph's where the reference could not be captured; without either,
    any computing operator fails. Under open the gate passes and names what PyTorch did.
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
    percent = "all of what it ran" if share is None else f"{100 * share:.3g} % of the reference's work"
    passed = share is not None and share <= LARGEST_SHARE
    return [Gate("provenance", passed, f"PyTorch did {percent} in forward: {words}")]


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
    """What PyTorch computes in a later call beyond what it did when it was checked, in words, or ""; `moved_bytes` are
    those of inputs and outputs."""
    if _done(after) - _done(before) <= LARGEST_SHARE * moved_bytes:
        return ""
    words = ", ".join(f"{row['op']} ({row['calls']}x, {_amount(row)})" for row in computing_rows(after)[:4])
    return f"after the timed calls PyTorch computes in forward what it did not when it was checked: {words}"


def _done(op_log: Sequence[dict[str, Any]]) -> float:
    return sum(float(row["flops"]) + float(row["bytes"]) for row in computing_rows(op_log))


def graph_work(graph: OpGraph) -> float:
    """FLOPs plus the bytes that eager moves, operator by operator: the same measure as an op log's."""
    values = graph.values
    total = 0.0
    for op in graph.ops:
        if op.kind not in FREE | COPIES:
            total += op.flops + sum(values[name].spec.nbytes for name in op.reads)
            total += sum(value.spec.nbytes for value in op.outputs)
    return total


def kind_of(row: dict[str, Any]) -> str:
    parts = str(row["op"]).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _amount(row: dict[str, Any]) -> str:
    return f"{row['flops'] / 1e6:.3g} MFLOP" if row["flops"] else f"{row['bytes'] / 1e6:.3g} MB"
