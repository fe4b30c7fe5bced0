"""One kernel of a plan as a candidate file of its own, so that it is built, launched and timed without the others.

Buffers that it reads from other kernels become inputs, its results become outputs. Parameters stay parameters, so
that layouts which are prepared once stay prepared. The kernel's own text is the one in the whole candidate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.access import step_buffers
from foundry.knowledge.compiler.ir.cost import flops, traffic_bytes
from foundry.knowledge.compiler.ir.kernels import Buffer, Kernel, OutputView, Plan, PrintedKernel
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device, Precision
from foundry.knowledge.opgraph import Arrangement, OpGraph
from foundry.knowledge.roofline import used_precision

# The model in such a file; the tuner's process registers the parameters on it.
BARE_MODEL = "import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n"
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Subject:
    """A kernel to tune, within its plan."""

    kernel: Kernel
    whole: Plan
    device: Device
    present: Mapping[str, Choice]  # the kernel's choices in the recipe

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    def print(self, choices: Mapping[str, Choice]) -> PrintedKernel:
        """The kernel printed with these choices; illegal ones take their default. Raises CannotLower."""
        return print_kernel(self.kernel, self.whole, self.device, dict(choices))

    def file(self, printed: PrintedKernel) -> str:
        """The candidate file that runs this kernel alone."""
        return module_file(BARE_MODEL, [Entry(self.plan(), (printed,))], self.device)

    def plan(self) -> Plan:
        """A plan with this kernel as its only step: buffers that it reads are inputs or parameters, those it writes
        outputs."""
        reads, writes = step_buffers(self.kernel)
        buffers: dict[str, Buffer] = {}
        inputs = 0
        for name in dict.fromkeys([*reads, *writes]):
            buffer = self.whole.buffers[name]
            if name in writes:
                buffers[name] = replace(buffer, role="output", source="")
            elif buffer.role in ("parameter", "constant", "prepared"):
                held = replace(buffer, role="parameter", source=f"p{len(buffers)}")
                buffers[name] = buffer if buffer.data is not None else held
            else:
                buffers[name] = replace(buffer, role="input", source=str(inputs))
                inputs += 1
        outputs = tuple(OutputView(name, buffers[name].shape, buffers[name].strides) for name in writes)
        return Plan(buffers, (self.kernel,), outputs, Arrangement.flat(len(outputs)), ieee_only=self.whole.ieee_only)

    def signature(self) -> str:
        """A text that is equal for kernels that differ in names only: tuning one of them tunes all."""
        names = {name: f"v{index}" for index, name in enumerate([self.name, *self.plan().buffers])}
        text = self.file(self.print(self.present))
        found = re.sub(r"[A-Za-z_]\w*", lambda word: _renamed(word[0], names), text)
        geometry = [(b.shape, b.strides, b.dtype, b.role) for b in self.plan().buffers.values()]
        return f"{found}{geometry}"

    def floor_ms(self, printed: PrintedKernel) -> float | None:
        """The least time in ms by the device's ceilings, for the arithmetic of this printing; None without ceilings."""
        precision: Precision = used_precision(None, printed.labels)
        if precision == "ieee" and any(self.whole.buffers[name].dtype in _HALF for name in self.plan().buffers):
            precision = "half"
        return self.device.floor_ms(flops(self.kernel), traffic_bytes(self.kernel, self.whole), precision)


def _renamed(word: str, names: Mapping[str, str]) -> str:
    """The word with a buffer's or kernel's name replaced by its neutral one, behind a known prefix."""
    for prefix in ("", "b_", "foundry_"):
        if word.startswith(prefix) and (short := names.get(word.removeprefix(prefix))):
            return prefix + short
    return word


def subjects(graph: OpGraph, recipe: Recipe, device: Device) -> list[Subject]:
    """The kernels of a recipe's plan that are not PyTorch's, in call order. Raises CannotLower."""
    printed = print_plan(graph, recipe, device)
    return [Subject(step, printed.plan, device, text.choices) for step, text in printed.kernel_pairs()]
