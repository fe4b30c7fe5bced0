"""The correct kernel that faults are planted into: the compiler's first kernel of a task, as parts. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import Kernel, Plan, TorchCall
from foundry.knowledge.compiler.lower import Printed, lower, print_plan, reference_of, seeds
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task


@dataclass(frozen=True)
class Original:
    """One task's correct kernel. `printed` has one entry for each captured shape, the file's own first."""

    task: Task
    device: Device
    graphs: tuple[OpGraph, ...]
    recipe: Recipe
    printed: tuple[Printed, ...]
    text: str

    def with_graphs(self, graphs: Sequence[OpGraph]) -> str:
        """The file for other operator graphs; raises CannotLower."""
        return lower(graphs, self.recipe, task_source=self.task.text, device=self.device).source

    def with_kernel(self, entry: int, step: int, kernel: Kernel) -> str:
        """The file with kernel `step` of captured shape `entry` replaced; raises CannotLower."""
        printed = self.printed[entry]
        steps = (*printed.plan.steps[:step], kernel, *printed.plan.steps[step + 1 :])
        plan = replace(printed.plan, steps=steps)
        choices = self.recipe.choices.get(kernel.name, {})
        text = print_kernel(kernel, plan, self.device, choices)
        kernels = (*printed.kernels[:step], text, *printed.kernels[step + 1 :])
        entries = [Entry(item.plan, item.kernels) for item in self.printed]
        entries[entry] = Entry(plan, kernels)
        return module_file(reference_of(self.task.text, self.graphs), entries, self.device)

    def kernels(self, entry: int) -> list[tuple[int, Kernel, Plan]]:
        """Position and kernel of every step of a captured shape that is not a call of PyTorch."""
        plan = self.printed[entry].plan
        return [(at, step, plan) for at, step in enumerate(plan.steps) if not isinstance(step, TorchCall)]


def original_of(task: Task, graphs: Sequence[OpGraph], device: Device) -> Original:
    """The compiler's first kernel of a task; raises CannotLower if it has none."""
    recipe = seeds(graphs[0], device)[0]
    text = lower(graphs, recipe, task_source=task.text, device=device).source
    printed = tuple(print_plan(graph, recipe, device) for graph in graphs)
    return Original(task, device, graphs=tuple(graphs), recipe=recipe, printed=printed, text=text)
