"""A recipe becomes a candidate file: plan each captured shape, print every kernel, assemble the module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import NOWHERE, Recipe, Unrounded
from foundry.knowledge.compiler.algebra.complex import VIEWS
from foundry.knowledge.compiler.authored.planning import plan_authored
from foundry.knowledge.compiler.file.assemble import Entry, Reference
from foundry.knowledge.compiler.ir.access import is_prepared
from foundry.knowledge.compiler.ir.cost import compulsory_bytes, flops, traffic_bytes
from foundry.knowledge.compiler.ir.kernels import (
    Kernel,
    KernelSummary,
    Plan,
    PrintedKernel,
    TorchCall,
)
from foundry.knowledge.compiler.lowered import LeftWork, Lowered, Outline
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.compiler.printers import find_printer, module_file, print_kernel
from foundry.knowledge.compiler.printers.base import Unprintable
from foundry.knowledge.compiler.rules import pointwise, shape, special
from foundry.knowledge.compiler.rules.builder import RULES
from foundry.knowledge.compiler.seeds import more_accurate, seed_recipes
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import OpGraph

_SIMPLE_RULES = (pointwise.__name__, special.__name__, shape.__name__)


@dataclass(frozen=True)
class Printed:
    """One captured shape as text."""

    plan: Plan
    kernels: tuple[PrintedKernel | None, ...]  # None for a call of PyTorch

    def kernel_pairs(self) -> list[tuple[Kernel, PrintedKernel]]:
        """The kernels of a call; those that run only after a parameter has changed are not worth a choice."""
        return [
            (step, text)
            for step, text in zip(self.plan.steps, self.kernels, strict=True)
            if not isinstance(step, TorchCall) and text is not None and not is_prepared(step, self.plan.buffers)
        ]


def lower(graphs: Sequence[OpGraph], recipe: Recipe, *, task_source: str, device: Device) -> Lowered:
    """The candidate of a recipe over all captured shapes; the first one gives summaries.

    Raises CannotLower when a graph cannot be lowered, or when nothing of it would run in a kernel of ours.
    """
    if not graphs:
        raise CannotLower("there is no captured graph")
    printed = [print_plan(graph, recipe, device) for graph in with_dense(graphs, recipe)]
    first = printed[0]
    pairs = first.kernel_pairs()
    if not pairs:
        kinds = dict.fromkeys(item.kind for item in _left_work(first.plan, graphs[0]))
        raise CannotLower(f"it has no kernel for {', '.join(kinds) or 'any operator'}, and nothing else is computed")
    entries = [Entry(item.plan, item.kernels) for item in printed]
    source = module_file(reference_of(task_source, graphs), entries, device)
    found = outline_of(recipe, first)
    texts = [text for item in printed for _, text in item.kernel_pairs()]
    labels = [label for item in printed for label in item.plan.labels]
    labels += [label for text in texts for label in text.labels]
    return Lowered(
        recipe=found.recipe,
        source=source,
        kernels=found.kernels,
        fused=first.plan.fused,
        materialised=first.plan.materialised,
        rewrites_applied=first.plan.applied,
        rewrites_open=tuple(name for name in first.plan.rewrites if name not in first.plan.applied),
        labels=tuple(dict.fromkeys(labels)),
        flops=(first.plan.graph or graphs[0]).flops or sum(summary.flops for summary in found.kernels),
        traffic_bytes=compulsory_bytes(first.plan),
        left=_left_work(first.plan, graphs[0]),
    )


def reference_of(task_source: str, graphs: Sequence[OpGraph]) -> Reference:
    """The part of a task that its candidates' files keep: its class, or the construction of the class's tensors."""
    constructions = tuple(graph.construction for graph in graphs if graph.construction is not None)
    reasons = [graph.kept_class for graph in graphs if graph.kept_class]
    if reasons:
        return Reference(task_source, graphs[0].overrides, (), reasons[0])
    return Reference(task_source, graphs[0].overrides, constructions)


def with_dense(graphs: Sequence[OpGraph], recipe: Recipe) -> list[OpGraph]:
    """The graphs; each with inputs that repeat elements in memory (`expand`) is followed by its dense variant.

    Kernels of the first read each element once and cannot take dense inputs. An author's kernel takes dense inputs, so
    an authored recipe gets no variants.
    """
    if recipe.authored is not None:
        return list(graphs)
    return [
        variant
        for graph in graphs
        for variant in ((graph, graph.with_dense_inputs()) if graph.overlapping_inputs else (graph,))
    ]


def _left_work(planned: Plan, captured: OpGraph) -> tuple[LeftWork, ...]:
    """The operators that a plan leaves to PyTorch in every call."""
    graph = planned.graph or captured
    calls = [step for step in planned.steps if isinstance(step, TorchCall) and not is_prepared(step, planned.buffers)]
    names = {name for step in calls for name in step.ops}
    left = [op for op in graph.ops if op.name in names and op.kind not in VIEWS]
    return tuple(LeftWork(op.kind, op.flops, graph.moved_bytes(op), op.line) for op in left)


def outline_of(recipe: Recipe, printed: Printed) -> Outline:
    """Summaries of a plan's kernels, and the recipe that names all their choices."""
    summaries = tuple(_summary(kernel, text, printed.plan) for kernel, text in printed.kernel_pairs())
    return Outline(complete_recipe(recipe, printed), summaries)


def complete_recipe(recipe: Recipe, printed: Printed) -> Recipe:
    """The recipe with the choices of all kernels that it leads to, and no choice of a kernel that it does not."""
    return replace(
        recipe,
        materialise=printed.plan.materialised,
        rewrites=printed.plan.applied,
        choices={kernel.name: text.choices for kernel, text in printed.kernel_pairs()},
    )


def _summary(kernel: Kernel, text: PrintedKernel, planned: Plan) -> KernelSummary:
    """The search's facts about a printed kernel: template, operators, choices, tunables, FLOPs, bytes."""
    return KernelSummary(
        name=kernel.name,
        template=text.template,
        ops=tuple(dict.fromkeys(kernel.ops)),
        choices=text.choices,
        tunables=text.tunables,
        flops=flops(kernel),
        traffic_bytes=traffic_bytes(kernel, planned),
    )


def print_plan(graph: OpGraph, recipe: Recipe, device: Device) -> Printed:
    """Plans and prints one shape. If the printer refuses an attention kernel, it becomes product, softmax, product, and
    a tail becomes a kernel of its own again; if it refuses another kernel, the operator is left to PyTorch. An author's
    kernel is all there is, or refused."""
    if recipe.authored is not None:
        planned = plan_authored(graph, recipe.authored, ieee_only=recipe.ieee_only)
        (whole,) = (step for step in planned.steps if not isinstance(step, TorchCall))
        return Printed(planned, (print_kernel(whole, planned, device, recipe.choices.get(whole.name, {})),))
    refused: set[str] = set()
    apart: set[str] = set()
    while True:
        planned = plan(graph, recipe, refused=frozenset(refused), apart=frozenset(apart))
        texts: list[PrintedKernel | None] = []
        refusals: list[Unprintable] = []
        for step in planned.steps:
            text = None if isinstance(step, TorchCall) else _print_step(step, planned, recipe, device)
            if isinstance(text, Unprintable):
                refusals.append(text)
            else:
                texts.append(text)
        if not refusals:
            return Printed(planned, tuple(texts))
        again, split = set[str](), set[str]()
        for refusal in refusals:
            anchors = _anchors(planned.graph or graph, refusal.kernel)
            if refusal.may_split and not anchors <= apart:
                split |= anchors
            else:
                again |= anchors - refused
        if not again | split:
            raise CannotLower(refusals[-1].reason)
        refused |= again
        apart |= split


def _print_step(step: Kernel, planned: Plan, recipe: Recipe, device: Device) -> PrintedKernel | Unprintable:
    """One kernel of a plan; its product is accurate where the recipe wants that and chooses no precision."""
    printer, choices = find_printer(device.target), recipe.choices.get(step.name, {})
    text = printer.print_or_refuse(step, planned, device, choices)
    if isinstance(text, Unprintable) or "precision" in choices or not set(step.ops) & set(recipe.accurate):
        return text
    wanted = next((value for item in text.tunables if (value := more_accurate(item)) is not None), None)
    if wanted is None:
        return text
    return printer.print_or_refuse(step, planned, device, {**choices, "precision": wanted})


def _anchors(graph: OpGraph, kernel: Kernel) -> set[str]:
    """The operators that determine a kernel's template; all of them for pointwise work."""
    ops = [op for op in graph.ops if op.name in kernel.ops]
    shaped = {op.name for op in ops if op.kind in RULES and RULES[op.kind].__module__ not in _SIMPLE_RULES}
    return shaped or {op.name for op in ops}


def seeds(graph: OpGraph, device: Device, unrounded: Unrounded = NOWHERE) -> tuple[Recipe, ...]:
    """Three to seven diverse recipes, the safest first. `unrounded`: where PyTorch is more accurate than TF32. Raises
    CannotLower when even the first cannot be lowered."""
    base = Recipe(device.target)
    first = print_plan(graph, base, device)
    tunables = {kernel.name: text.tunables for kernel, text in first.kernel_pairs()}
    return seed_recipes(base, first.plan, tunables, unrounded)
