"""Queries of a run to the experience store, and the lessons that it leaves there."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from foundry.agents.playbook.leaps import known_of
from foundry.knowledge.candidate import Choice, Evaluation, Recipe
from foundry.knowledge.compiler.ir.kernels import KernelSummary
from foundry.knowledge.device import Device
from foundry.knowledge.experience.record import (
    NAMED,
    NO_MOVES,
    WHOLE_KERNEL,
    ExperienceRecord,
    Hit,
    KernelChoices,
    Query,
)
from foundry.knowledge.experience.store import record_id, shape_class
from foundry.knowledge.merit import Estimate, estimate_of
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.ruling import rule
from foundry.knowledge.thought import Diagnosis, Move

RATIONALE_CHARS = 160


def query(graph: OpGraph, device: Device, limiter: str = "", text: str = "") -> Query:
    """A query of the store for a graph on a device, narrowed by the parent's limiter or failure if given."""
    shapes = [value.spec.shape for value in [*graph.inputs, *graph.state]]
    kinds = tuple(sorted(graph.op_counts()))
    return Query(
        graph.signature, kinds, shape_class(shapes), device.key, target=device.target, limiter=limiter, text=text
    )


def portable(recipe: Recipe, kernels: Sequence[KernelSummary]) -> Recipe:
    """The recipe with kernels named by position, so that it fits the same graph captured again."""
    return _rename(recipe, {kernel.name: f"#{index}" for index, kernel in enumerate(kernels)})


def localise(recipe: Recipe, kernels: Sequence[KernelSummary]) -> Recipe:
    """The inverse of `portable` for the kernels of this graph; choices of kernels that are not here are dropped."""
    return _rename(recipe, {f"#{index}": kernel.name for index, kernel in enumerate(kernels)})


def _rename(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """The recipe's choices under the kernels' new names; those of unknown kernels are dropped."""
    choices: dict[str, dict[str, Choice]] = {
        names[kernel]: dict(values) for kernel, values in recipe.choices.items() if kernel in names
    }
    return replace(recipe, choices=choices)


def winners(hits: Sequence[Hit], graph: OpGraph, device: Device, limit: int) -> list[Hit]:
    """Recipes that won an earlier run on the same graph structure and device, each once, at most `limit`. The same
    shape class comes first, then the highest speedup."""
    found: dict[str, Hit] = {}
    for hit in hits:
        record = hit.record
        fits = record.graph_signature == graph.signature and record.device == device.key
        if record.is_run_best and fits and record.recipe is not None and record.child_speedup:
            found.setdefault(record.recipe.digest, hit)
    same_shape = shape_class([value.spec.shape for value in [*graph.inputs, *graph.state]])
    ranked = sorted(
        found.values(),
        key=lambda hit: (hit.record.shape_class != same_shape, -(hit.record.child_speedup or 0.0), hit.record.id),
    )
    return ranked[:limit]


def counted(moves: Sequence[Move]) -> dict[str, int]:
    """Number of times that a step made each move, by the move's key, sorted. A step without moves wrote a whole
    kernel."""
    if not moves:
        return {WHOLE_KERNEL: 1}
    return dict(sorted(Counter(move.key for move in moves).items()))


def lessons(
    *,
    run: str,
    step: str,
    task: str,
    graph: OpGraph,
    device: Device,
    diagnosis: Diagnosis | None,
    filed: Mapping[str, int],
    parent: Sequence[Evaluation],
    child: Sequence[Evaluation],
    kernels: Sequence[KernelSummary],
    is_run_best: bool = False,
    rationale: str = "",
) -> list[ExperienceRecord]:
    """One lesson for each key of `filed`; `parent` and `child` are all records of the two candidates.

    The ids depend on run, step and key only, so that a step executed twice teaches once. `rationale` describes a whole
    kernel, which has no moves.
    """
    asked = query(graph, device)
    latest = child[-1]
    recipe = latest.candidate.recipe
    before, after = estimate_of(parent), estimate_of(child)
    return [
        ExperienceRecord(
            id=record_id(run, step, "best" if is_run_best else key),
            run=run,
            step=step,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            task=task,
            graph_signature=asked.graph_signature,
            op_kinds=asked.op_kinds,
            shape_class=asked.shape_class,
            device=device.key,
            target=device.target,
            limiter=(diagnosis.failure or diagnosis.limiter or "") if diagnosis else "",
            evidence=diagnosis.evidence if diagnosis else "",
            move=key,
            outcome=rule(latest).outcome,
            parent_speedup=before.speedup if before else None,
            child_speedup=after.speedup if after else None,
            child_ci95=(after.low, after.high) if after else None,
            is_run_best=is_run_best,
            recipe=portable(recipe, kernels) if recipe else None,
            source_digest=latest.candidate.source,
            lineage=latest.candidate.parents,
            text=f"{task} on {device.name}: {_deed(key, filed, rationale)} {_effect(before, after, latest)}.",
            kernels=_portable_kernels(kernels),
            together={} if key in NO_MOVES else filed,
            log_deviation=math.hypot(*(found.deviation for found in (before, after) if found)),
        )
        for key in filed
    ]


def _portable_kernels(kernels: Sequence[KernelSummary]) -> tuple[KernelChoices, ...]:
    """The kernels' choices under neutral names "#0", "#1", so that they fit another run of the graph."""
    shown = known_of(kernels, "").kernels
    return tuple(replace(kernel, name=f"#{index}") for index, kernel in enumerate(shown))


def _deed(key: str, filed: Mapping[str, int], rationale: str) -> str:
    """A step in words: the move, and those made with it; or a whole kernel with its reason."""
    if key == WHOLE_KERNEL and rationale:
        return f"a kernel of its own ({' '.join(rationale.split())[:RATIONALE_CHARS]})"
    others = [other for other in filed if other != key]
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"{key} together with {', '.join(others[:NAMED])}{more}" if others else key


def _effect(before: Estimate | None, after: Estimate | None, child: Evaluation) -> str:
    """The effect of a step in words: from one speedup to another, or its failure."""
    if after is None:
        return f"gave {rule(child).outcome}"
    return f"went from {before.speedup:.2f}x to {after.speedup:.2f}x" if before else f"reached {after.speedup:.2f}x"
