"""The printers of the targets, one module each: kernels become a target's source text, and a candidate's file."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.file.assemble import Entry, Reference, assemble
from foundry.knowledge.compiler.ir.kernels import Kernel, Plan, PrintedKernel
from foundry.knowledge.compiler.printers.base import Printer
from foundry.knowledge.device import Device
from foundry.knowledge.targets import find_target, load_part


@functools.cache
def find_printer(target: str) -> Printer:
    """The printer of a target, imported when it is first asked for. Raises UsageError for a name without a target."""
    found: Printer = load_part(find_target(target).printer)()
    return found


def print_kernel(kernel: Kernel, plan: Plan, device: Device, choices: Mapping[str, Choice]) -> PrintedKernel:
    """The text of one kernel for the device's target.

    On the CPU `functions` are C++ functions and `call` is a C++ statement; in CUDA `functions` are extern "C"
    __global__ kernels and `call` is a JSON list of launch records (cuda/launches.py). Choices that are not legal for
    the kernel take their defaults. Raises CannotLower for a kernel beyond its template's limits.
    """
    return find_printer(device.target).print_kernel(kernel, plan, device, dict(choices))


def module_file(reference: Reference | str, entries: Sequence[Entry], device: Device) -> str:
    """The text of a candidate that runs `entries`, dispatched on input shapes, with the parameters of `reference` (or
    of the class Model in a task's source)."""
    if isinstance(reference, str):
        reference = Reference(reference)
    printer = find_printer(device.target)
    return assemble(reference, entries, printer.module(entries, device), printer.folder)
