"""What a run asks of the experience store and what it leaves there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from foundry.knowledge.candidate import Choice, Evaluation, Recipe
from foundry.knowledge.device import Device
from foundry.knowledge.experience.record import ExperienceRecord, Hit, Query
from foundry.knowledge.experience.store import record_id, shape_class
from foundry.knowledge.library.ir import KernelSummary
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Diagnosis, Proposal

SEED = "seed"
WHOLE_KERNEL = "source"


def query(graph: OpGraph, device: Device, limiter: str = "", text: str = "") -> Query:
    """What to recall for a graph on a device, sharper with the parent's limiter or failure."""
    shapes = [value.spec.shape for value in [*graph.inputs, *graph.state]]
    kinds = tuple(sorted(graph.op_counts()))
    return Query(graph.signature, kinds, shape_class(shapes), device.key, device.target, limiter, text)


def portable(recipe: Recipe, kernels: Sequence[KernelSummary]) -> Recipe:
    """The recipe with kernels named by position, so that it fits the same graph captured again."""
    return _renamed(recipe, {kernel.name: f"#{index}" for index, kernel in enumerate(kernels)})


def localised(recipe: Recipe, kernels: Sequence[KernelSummary]) -> Recipe:
    """The inverse of `portable` for the kernels of this graph; choices of kernels that are not here are dropped."""
    return _renamed(recipe, {f"#{index}": kernel.name for index, kernel in enumerate(kernels)})


def _renamed(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    choices: dict[str, dict[str, Choice]] = {
        names[kernel]: dict(values) for kernel, values in recipe.choices.items() if kernel in names
    }
    return Recipe(recipe.target, recipe.materialise, recipe.rewrites, choices)


def winners(hits: Sequence[Hit], graph: OpGraph, device: Device, limit: int) -> list[Hit]:
    """Recipes that won an earlier run on the same graph structure and device, best first, each once."""
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


def move_key(proposal: Proposal | None) -> str:
    """What the step is filed under: its moves, or that a whole kernel was written."""
    if proposal is None:
        return SEED
    return " + ".join(move.key for move in proposal.moves) or WHOLE_KERNEL


def lesson(
    *,
    run: str,
    step: str,
    task: str,
    graph: OpGraph,
    device: Device,
    diagnosis: Diagnosis | None,
    proposal: Proposal | None,
    parent: Evaluation | None,
    child: Evaluation,
    kernels: Sequence[KernelSummary],
    is_run_best: bool = False,
) -> ExperienceRecord:
    """One lesson; its id depends on run and step only, so that a step executed twice teaches once."""
    asked = query(graph, device)
    recipe = child.candidate.recipe
    before = parent.speedup if parent else None
    move = move_key(proposal)
    outcome = child.verdict.outcome if child.verdict else "compile_error"
    if child.audit is not None and not child.audit.clean:
        outcome = "cheating"
    return ExperienceRecord(
        id=record_id(run, step, "best" if is_run_best else ""),
        run=run,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        task=task,
        graph_signature=asked.graph_signature,
        op_kinds=asked.op_kinds,
        shape_class=asked.shape_class,
        device=device.key,
        target=device.target,
        limiter=(diagnosis.failure or diagnosis.limiter or "") if diagnosis else "",
        evidence=diagnosis.evidence if diagnosis else "",
        move=SEED if is_run_best else move,
        outcome=outcome,
        parent_speedup=before,
        child_speedup=child.speedup,
        child_ci95=child.timing.speedup_ci95 if child.accepted and child.timing else None,
        is_run_best=is_run_best,
        recipe=portable(recipe, kernels) if recipe else None,
        source_digest=child.candidate.source,
        lineage=child.candidate.parents,
        text=_sentence(move, task, device, before, child),
    )


def _sentence(move: str, task: str, device: Device, before: float | None, child: Evaluation) -> str:
    if child.speedup is None:
        return f"{task} on {device.name}: {move} gave {child.verdict.outcome if child.verdict else 'compile_error'}."
    from_what = f"{before:.2f}x to " if before else ""
    return (
        f"{task} on {device.name}: {move} went from {from_what}{child.speedup:.2f}x."
        if before
        else (f"{task} on {device.name}: {move} reached {child.speedup:.2f}x.")
    )
