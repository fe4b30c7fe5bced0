"""Memory of a judge with a large reference, if memory is short. Runs in the judge (imports torch).

Usually a case holds the reference twice, as it is and in float64, and its parameters of each kind beside it. A lean
case holds one copy. Its tensors become those of another kind in place, one after the other, and are used in float64
one after the other. What the constructor made rests on disk, or beside a GPU in the host's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.questions.on_use import BroughtOnUse
from foundry.tools.grade.questions.other_parameters import (
    Drawn,
    Piece,
    State,
    States,
    WholeTensors,
    plain_tensors,
    whole_tensors,
)
from foundry.tools.grade.questions.widening import wide
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol.orders import NOT_ASKED
from foundry.tools.protocol.rules import OutputError, Parameters

MAPPED_BYTES = 1 << 20  # bytes; in a lean judge a larger tensor has a memory mapping of its own
ROWS_BYTES = 8 << 20  # bytes of a tensor that are read, drawn or sent at a time
# Bytes; a smaller buffer is written again before each run, even if forward was not seen to change it.
RESET_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3  # malloc.h


@dataclass(frozen=True)
class CaseRoom:
    """The memory that a case may use.

    `is_lean`: it holds one copy of the model, with at most `resident_bytes` on the GPU and the rest on the host.
    `widens`: it is asked for float64 answers.
    """

    is_lean: bool = False
    widens: bool = True
    resident_bytes: int = 0


ROOMY = CaseRoom()


@dataclass(frozen=True)
class Learned:
    """Findings of a case that later cases of the same task use: see `Case`."""

    name: str
    may_lack_memory: bool
    mutable: list[int]
    strides: list[tuple[int, ...]]
    writes: list[int] | None
    usual_tf32: list[OutputError]


def return_freed_memory() -> None:
    """Makes this process return the host memory of large tensors when they are freed.

    By default malloc keeps it, which saves page faults: a judge held 13 times a model's parameters so, of which it
    used 5.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # missing in some C libraries
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


class CaseReference:
    """The reference of a case with its parameters and buffers of each kind, and its float64 form."""

    is_lean = False

    def __init__(self, model: nn.Module, build: Callable[[], nn.Module], room: CaseRoom) -> None:
        """Takes a constructed model and copies its tensors. `build` constructs it again."""
        self.model, self._build, self._room = model, build, room
        self.exact: nn.Module | None = None  # the model in float64, once it was asked for
        self.states = States(WholeTensors({key: tensor.clone() for key, tensor in plain_tensors(model).items()}))

    def load(self, model: nn.Module, kind: Parameters, mutable: Collection[str]) -> None:
        """Copies the tensors of a kind into the model, or into its float64 form. `mutable`: names of those that forward
        writes."""
        own = plain_tensors(model)
        for piece in self.states.each(kind):
            piece.of(own[piece.key]).copy_(piece.tensor)

    def held(self, kind: Parameters) -> Drawn:
        """The tensors of a kind, for runners."""
        return self.states.each(kind)

    def running(self) -> contextlib.AbstractContextManager[object]:
        """A context manager to hold while the model runs."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def widened(self) -> Iterator[nn.Module]:
        """Yields the model in float64, for one run. Raises TaskError if there is no room for it."""
        if not self._room.widens:
            raise TaskError(f"{NOT_ASKED} memory")
        self.exact = self.exact or self._build()._apply(wide)  # type: ignore[no-untyped-call]
        yield self.exact

    def free_memory(self, *, is_crowded: bool = False) -> None:
        """Does nothing here; a lean reference frees its device. `is_crowded`: it stays on the host afterwards."""


class LeanReference(CaseReference):
    """One copy of the reference, whose tensors hold one kind of parameters at a time."""

    is_lean = True

    def __init__(self, model: nn.Module, build: Callable[[], nn.Module], room: CaseRoom, device: torch.device) -> None:
        """Takes a constructed model, saves its tensors outside of the device and wakes it with the constructed ones."""
        self.model, self._build, self._room = model, build, room
        self.exact = None
        self._device = torch.empty(0, device=device).device  # the device with its number
        self._saved = _Saved(plain_tensors(model), device)
        self.states = States(self._saved, keeps=False)
        self._held: tuple[str, int] | None = self.states.label("seeded")
        self._fresh: State = {}  # tensors of the held kind that are written again before each run
        self._is_awake = False
        self._resident = room.resident_bytes
        self._wide_on_use: list[torch.Tensor] | None = None  # tensors widened when used; None outside a float64 run
        self._mutable: frozenset[str] = frozenset()
        self._wake()

    def load(self, model: nn.Module, kind: Parameters, mutable: Collection[str]) -> None:
        """Writes parameters of `kind` into the model's own tensors, unless it holds them.

        Tensors that a run may change (`mutable`) are written again each time.
        """
        label, own = self.states.label(kind), self._tensors()
        self._mutable = frozenset(mutable)
        with torch.no_grad():
            if label != self._held:
                self._wake()
                self._held, self._fresh = None, {}
                for piece in self.states.each(kind):
                    piece.of(own[piece.key].data).copy_(piece.tensor)
                self._held = label
                self._fresh = {key: own[key].detach().clone() for key in own if self._is_reset(key, own[key])}
            missing = {key for key in own if self._is_reset(key, own[key])} - self._fresh.keys()
            self._fresh |= {
                key: tensor.to(own[key].device) for key, tensor in self.states.picked(kind, missing).items()
            }
            for key, tensor in self._fresh.items():
                own[key].data.copy_(tensor)

    def _is_reset(self, key: str, tensor: torch.Tensor) -> bool:
        """True for what a forward may change: mutable tensors, and buffers of at most RESET_BYTES."""
        return key in self._mutable or (not isinstance(tensor, nn.Parameter) and tensor.nbytes <= RESET_BYTES)

    def held(self, kind: Parameters) -> Drawn:
        """The tensors of a kind: the model's own, loaded first; the saved ones if "seeded" is asked and not loaded."""
        if kind == "seeded" and self._held != self.states.label(kind):
            return self.states.each(kind)
        self.load(self.model, kind, self._mutable)
        return in_rows((key, tensor.detach()) for key, tensor in self._tensors().items())

    def running(self) -> contextlib.AbstractContextManager[object]:
        """A context manager for a run of the model: tensors that are not on the device are brought there when used."""
        is_wide = self._wide_on_use is not None
        stored = self._wide_on_use or [item for item in self._tensors().values() if item.device != self._device]
        return BroughtOnUse(stored, self._device, is_wide=is_wide) if stored else contextlib.nullcontext()

    @contextlib.contextmanager
    def widened(self) -> Iterator[nn.Module]:
        """A context manager with the model in float64: some tensors widened in place, the others when used.

        Raises TaskError if memory is too short for that.
        """
        if not self._room.widens:
            raise TaskError(f"{NOT_ASKED} memory")
        on_use = [tensor for key, tensor in self._tensors().items() if not self._is_reset(key, tensor)]
        with _widened_in_place(self.model, on_use):
            self._wide_on_use = on_use
            try:
                yield self.model
            finally:
                self._wide_on_use = None

    def free_memory(self, *, is_crowded: bool = False) -> None:
        """Frees the memory of the model's tensors, which keep their shapes and types.

        `is_crowded`: all of them are on the host from then on; else as many as have room are on the device again.
        """
        self._resident = 0 if is_crowded else self._room.resident_bytes
        if self._is_awake:
            for tensor in self._tensors().values():
                tensor.data = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
            self._is_awake, self._held, self._fresh = False, None, {}
            self._saved.free_memory()
            torch_device_of(self._device).release()

    def _wake(self) -> None:
        """Gives the tensors memory: the first ones on the device, as many as have room there.

        Does nothing if they are awake. Their content stays if a kind is loaded, else it is undefined.
        """
        if self._is_awake:
            return
        left = self._resident
        has_content = self._held is not None
        tensors = list(dict.fromkeys(self._tensors().values()))
        for tensor in sorted(tensors, key=lambda item: isinstance(item, nn.Parameter)):  # buffers first
            left -= tensor.nbytes
            if left >= 0 or torch_device_of(self._device).is_host:
                tensor.data = (
                    tensor.data if has_content else torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
                )
            else:
                tensor.data = _on_host(tensor.data, has_content=has_content)
        if left >= self._saved.nbytes:
            self._saved.come()
        self._is_awake = True

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The model's own parameters and buffers, which forward may have replaced."""
        state: dict[str, Any] = self.model.state_dict(keep_vars=True)
        return {key: tensor for key, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def reference_of(
    model: nn.Module, build: Callable[[], nn.Module], room: CaseRoom, device: torch.device
) -> CaseReference:
    """The reference of a case: `model`, on a device. `build` makes another one for float64 runs."""
    return LeanReference(model, build, room, device) if room.is_lean else CaseReference(model, build, room)


def in_rows(tensors: Iterable[tuple[str, torch.Tensor]]) -> Drawn:
    """Yields tensors in pieces of ROWS_BYTES, or of one row if that is longer."""
    for key, tensor in tensors:
        step = _rows_of(tensor.shape, tensor.nbytes)
        for first in range(0, max(1, tensor.shape[0]) if tensor.dim() else 1, step):
            yield Piece(key, first, tensor[first : first + step] if tensor.dim() else tensor)


def _rows_of(shape: Sequence[int], nbytes: int) -> int:
    """Number of rows in a piece of a tensor."""
    return max(1, ROWS_BYTES * shape[0] // max(1, nbytes)) if shape else 1


class _Saved:
    """The constructed tensors, read only.

    On a host they are in a file without a name. Beside a GPU they are in the host's memory, and on the GPU too if it
    has room. They are read to the device, some rows at a time.
    """

    def __init__(self, state: State, device: torch.device) -> None:
        """Copies the tensors to a file (on a host) or to the host's memory (beside a GPU)."""
        self._device = device
        self.nbytes = sum(item.nbytes for item in state.values())
        self._there: State = {}  # copies on the GPU
        is_host = torch_device_of(device).is_host
        self._host = {} if is_host else {key: _on_host(item) for key, item in state.items()}
        self._file = _File() if is_host else None
        if self._file is not None:
            for key, item in state.items():
                self._file.write(key, item)

    def come(self) -> None:
        """Copies the tensors to the GPU."""
        self._there = self._there or {key: item.to(self._device) for key, item in self._host.items()}

    def free_memory(self) -> None:
        """Frees the copies on the GPU."""
        self._there = {}

    def pieces(self) -> Drawn:
        """The saved tensors, some rows at a time, on the device."""
        if self._file is not None:
            return self._file.pieces()
        held = in_rows((self._there or self._host).items())
        return (Piece(key, first, item.to(self._device)) for key, first, item in held)

    def whole(self, key: str) -> torch.Tensor:
        """One saved tensor, on the device."""
        if self._file is not None:
            return whole_tensors(self._file.pieces([key]))[key]
        return (self._there or self._host)[key].to(self._device)


class _File:
    """Tensors on disk, in a file without a name in the process's folder."""

    def __init__(self) -> None:
        """Opens the file, without a name and empty."""
        self._file = tempfile.TemporaryFile(dir=".")  # noqa: SIM115  # open as long as this object
        self._end = 0
        self._specs: dict[str, tuple[int, torch.Size, torch.dtype]] = {}  # (first byte, shape, type) by name

    def write(self, key: str, tensor: torch.Tensor) -> None:
        """Appends a tensor's bytes and notes where they begin."""
        self._specs[key] = self._end, tensor.shape, tensor.dtype
        for piece in in_rows([(key, tensor)]):
            view = _bytes_of(piece.tensor.contiguous())
            while len(view):
                count = os.pwrite(self._file.fileno(), view, self._end)
                view, self._end = view[count:], self._end + count

    def pieces(self, keys: Iterable[str] = ()) -> Drawn:
        """Yields the tensors of these names, or all, read from the file some rows at a time."""
        for key in keys or self._specs:
            place, shape, dtype = self._specs[key]
            step = _rows_of(shape, shape.numel() * dtype.itemsize)
            for first in range(0, max(1, shape[0]) if shape else 1, step):
                part = torch.empty((min(step, shape[0] - first), *shape[1:]) if shape else (), dtype=dtype)
                yield Piece(key, first, self._read(part, place))
                place += part.nbytes

    def _read(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Fills a host tensor from the file, beginning at byte `place`, and returns it. Raises OSError if the file is
        cut off."""
        view = _bytes_of(tensor)
        while len(view):
            count = os.preadv(self._file.fileno(), [view], place)
            if not count:
                raise OSError("a model's saved parameters are gone")
            view, place = view[count:], place + count
        return tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, as a view of its memory."""
    flat = tensor.detach().reshape(-1)
    values: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return memoryview(values)


def _on_host(tensor: torch.Tensor, *, has_content: bool = True) -> torch.Tensor:
    """A copy in host memory, page-locked if possible. Its content is undefined unless `has_content`."""
    try:
        made = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    except RuntimeError:  # the host gives no more of such memory
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
    return made.copy_(tensor) if has_content else made


@contextlib.contextmanager
def _widened_in_place(model: nn.Module, others: Collection[torch.Tensor]) -> Iterator[None]:
    """Converts a model's floating parameters and buffers, except `others`, to float64 for the `with` body, and back.

    Their numbers come back unchanged.
    """
    left, own = set(map(id, others)), {name: item.dtype for name, item in _named(model)}
    for _, item in _named(model):
        if id(item) not in left:
            item.data = wide(item.data)
    try:
        yield
    finally:
        for name, item in _named(model):  # forward may have put others in their places
            if item.dtype != own.get(name, item.dtype):
                item.data = item.data.to(own[name])


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields parameters and buffers by name, those outside the state included; a shared one under one name."""
    yield from model.named_parameters()
    yield from model.named_buffers()
