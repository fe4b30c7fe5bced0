"""A printer: all that the kernel compiler has to know to write kernels, and files around them, for one target."""

from __future__ import annotations

import functools
import pprint
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.file.assemble import Body, Entry
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.access import tail_of
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, Kernel, Plan, PrintedKernel
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import DType

Print = Callable[..., PrintedKernel]  # (a kernel of its own class, plan, device, choices)

_VALUE = '''def _value(value, whole, real):
    """An argument as native code takes it: the pointer of a tensor, or a number of one of two types."""
    if isinstance(value, torch.Tensor):
        if not value.is_contiguous():
            raise ValueError(f"a tensor with strides {value.stride()} is not contiguous: pass x.contiguous()")
        return ctypes.c_void_p(value.data_ptr())
    return real(value) if isinstance(value, float) else whole(value)
'''


@dataclass(frozen=True)
class Unprintable:
    """A kernel that the target's template does not print, and why."""

    kernel: Kernel
    reason: str

    @property
    def may_split(self) -> bool:
        """True if the kernel was joined of others that may be printed apart: attention, or a kernel with a tail."""
        return isinstance(self.kernel, AttentionKernel) or tail_of(self.kernel) is not None


class Printer(ABC):
    """One target's texts. A package's printer may derive from another target's and change what differs."""

    folder: ClassVar[str]  # subfolder of knowledge/compiler/ with module.py.txt, the template of a candidate's file
    compiler: ClassVar[str]
    flags: ClassVar[Sequence[str]]
    loader: ClassVar[tuple[str, str]]  # lines of the template: where the loader of SOURCE begins, and what follows it
    imports: ClassVar[str]  # modules that the loader needs
    call_text: ClassVar[str]  # Python: the function by which an author's whole file calls into SOURCE

    @abstractmethod
    def templates(self) -> Mapping[type, Print]:
        """The function that prints each class of kernels."""

    @abstractmethod
    def module(self, entries: Sequence[Entry], device: Device) -> Body:
        """The parts of the candidate's file other than the task's model."""

    @abstractmethod
    def header(self) -> str:
        """The native text that all kernels share."""

    @abstractmethod
    def element(self, dtype: DType) -> str:
        """The native type of a buffer's elements."""

    @abstractmethod
    def limits(self, device: Device) -> str:
        """The device's limits that decide about tiles, in words for an author of kernels."""

    def literals(self, device: Device) -> dict[str, object]:
        """The entries of FOUNDRY in a file that an author writes."""
        return {"target": device.target, "compiler": self.compiler, "flags": [*self.flags]}

    @functools.cached_property
    def _templates(self) -> Mapping[type, Print]:
        """The function that prints each kind of kernel, made once."""
        return self.templates()

    def print_kernel(self, kernel: Kernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
        """The text of one kernel. Raises CannotLower for a kernel beyond its template's limits."""
        return self._templates[type(kernel)](kernel, plan, device, choices)

    def print_or_refuse(
        self, kernel: Kernel, plan: Plan, device: Device, choices: dict[str, Choice]
    ) -> PrintedKernel | Unprintable:
        """The text of one kernel, or why there is none."""
        try:
            return self.print_kernel(kernel, plan, device, choices)
        except CannotLower as error:
            return Unprintable(kernel, str(error))

    def build_text(self, device: Device) -> str:
        """Python text for an author's whole file: FOUNDRY, the loader of SOURCE, and a function that calls into it."""
        template = read_library_text(f"{self.folder}/module.py.txt")
        first, last = self.loader
        loader = template[template.index(first) : template.index(last)].rstrip()
        imports = "\n".join(f"import {name}" for name in [*self.imports.split(), "torch"])
        about = pprint.pformat(self.literals(device), width=110, sort_dicts=False)
        return f"{imports}\n\nFOUNDRY = {about}\n\n\n{loader}\n\n\n{_VALUE}\n\n{self.call_text}"
