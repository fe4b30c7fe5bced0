"""Memory of a judge with a large reference, if memory is short. Runs in the judge (imports torch).

Usually a case holds the reference twice, as it is and in float64, and its parameters of each kind beside it on the
device. In a lean case the reference itself is widened for each float64 run, and parameters lie on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.questions.widening import wide
from foundry.tools.protocol.orders import NOT_ASKED
from foundry.tools.protocol.rules import OutputError

MAPPED_BYTES = 1 << 20  # bytes; in a lean judge a larger tensor has a memory mapping of its own
_M_MMAP_THRESHOLD = -3  # malloc.h


@dataclass(frozen=True)
class CaseRoom:
    """The memory that a case may use. `is_lean`: it holds one copy of the model; `widens`: in float64 too."""

    is_lean: bool = False
    widens: bool = True

    def place(self, device: torch.device) -> torch.device:
        """The device on which parameters of a kind wait until a model gets them."""
        return torch.device("cpu") if self.is_lean else device

    def load(self, model: nn.Module, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
        """Copies parameters and buffers into a model, in the order of its state; moves it back to its device first,
        if lean."""
        if self.is_lean:
            model.to(device)
        with torch.no_grad():
            for own, tensor in zip(model.state_dict().values(), tensors, strict=True):
                own.copy_(tensor)

    def rest(self, model: nn.Module) -> None:
        """Moves the model of a lean case to the host."""
        if self.is_lean:
            model.to("cpu")


ROOMY = CaseRoom()


@dataclass(frozen=True)
class Learned:
    """Findings of a case that later cases of the same task use: see `Case`."""

    name: str
    may_lack_memory: bool
    mutable: list[int]
    strides: list[tuple[int, ...]]
    usual_tf32: list[OutputError]


def return_freed_memory() -> None:
    """Makes this process return the host memory of large tensors when they are freed.

    By default malloc keeps it, which saves page faults: a judge held 13 times a model's parameters so, of which it
    used 5.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # missing in some C libraries
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


class ExactModel:
    """The reference in float64. `kept` is a second model, once built; a lean case has none."""

    def __init__(self, reference: nn.Module, build: Callable[[], nn.Module], room: CaseRoom) -> None:
        self._reference, self._build, self._room = reference, build, room
        self.kept: nn.Module | None = None

    @contextlib.contextmanager
    def widened(self) -> Iterator[nn.Module]:
        """The model for one float64 run. Raises TaskError if there is no room for one."""
        if not self._room.widens:
            raise TaskError(f"{NOT_ASKED} memory")
        if self._room.is_lean:
            with widened_in_place(self._reference):
                yield self._reference
            return
        self.kept = self.kept or self._build()._apply(wide)  # type: ignore[no-untyped-call]
        yield self.kept


@contextlib.contextmanager
def widened_in_place(model: nn.Module) -> Iterator[None]:
    """Converts a model's floating parameters and buffers to float64 for the `with` body, one after the other, and back.

    Their numbers come back unchanged.
    """
    own = {name: tensor.dtype for name, tensor in _tensors_of(model).items()}
    model._apply(wide)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for name, tensor in _tensors_of(model).items():
            if tensor.dtype != own.get(name, tensor.dtype):
                tensor.data = tensor.data.to(own[name])


def _tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, those outside the state included; a shared one under one name."""
    return dict([*model.named_parameters(), *model.named_buffers()])
