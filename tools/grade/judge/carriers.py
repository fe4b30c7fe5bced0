"""Carries tensors to one runner and back: through host memory, or in blocks of GPU memory. Runs in the judge.

Host memory is sealed: a runner reads it, copies it, and changes its copies when it is told to. GPU memory cannot be
sealed, and a process that maps it may write to it for ever. So each runner has blocks of its own, which no other runner
reads. The judge keeps the originals out of reach, writes every content into the blocks itself, and checks itself
whether a call changed its inputs. Nothing that is larger than a message crosses the host.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.messages.runner import Block, Matched, RunnerCommands, StateForm
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.runner import timed_calls
from foundry.tools.process.channel import close_all, memory
from foundry.tools.process.gpu_memory import OutOfGpuMemory, SharedGpuMemory
from foundry.tools.process.messages import A, Question, asking
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol.rules import IN_PLACE, Parameters
from foundry.tools.task import bundle
from foundry.tools.task.bundle import Parcel

PATIENCE_S = 5.0  # seconds to wait for other processes that are about to give memory back
HOST_PART_BYTES = 16 << 20  # bytes of a large state that go to a runner at a time
PART_BYTES = 256 << 20  # the same beside a GPU, where each part costs a mapping
UNWRITTEN = 0xFF  # an answer that was not written is no answer


class Asks(Protocol):
    """Sends a command with open files to a runner and returns its answer."""

    def __call__(self, question: Question[A], handles: Sequence[int] = (), /) -> A: ...


@dataclass(frozen=True)
class Sent:
    """The part of a command that carries tensors: open files that the sender closes afterwards, and the block if it is
    GPU memory."""

    handles: list[int]
    memory: Block = None


@dataclass(frozen=True)
class Room:
    """Memory for a runner's outputs: the judge's flat views of it, and the command's fields that describe it."""

    views: list[torch.Tensor]
    sent: Sent


class Carrier(Protocol):
    """Brings tensors to one runner and back. A key names one set of inputs or parameters. `device_s`: seconds that a
    GPU spent on changing contents."""

    device_s: float

    def place(self, key: str, parcel: Parcel) -> Sent:
        """Replaces the set that `key` names by the parcel's tensors. Returns the fields and files of the command."""

    def restore(self, key: str, parcel: Parcel) -> Sent | None:
        """Resets a set that the runner has to its original content. Returns the fields of the command.

        None if the runner has to reset it itself.
        """

    def change(self, key: str, factor: float, shift: int) -> None:
        """Writes other content (`timed_calls.change`); does nothing if the runner changes its own copies."""

    def changed(self, key: str) -> list[int] | None:
        """Indices of the tensors that differ from what was placed, without those that the reference writes to; None
        if only the runner can tell."""

    def let_go(self, key: str) -> None:
        """Marks a set's content as no longer needed; its memory is kept for the next set."""

    def room(self, specs: Sequence[TensorSpec]) -> Room:
        """Memory for outputs, filled with a pattern that no kernel writes."""

    def forget(self, key: str) -> None:
        """Frees the memory of a set."""

    def close(self) -> None:
        """Frees all memory."""


class HostCarrier:
    """Sealed files for inputs and parameters, one shared file for outputs of each kind."""

    def __init__(self) -> None:
        """Holds no memory yet."""
        self.device_s = 0.0
        self._rooms: dict[str, tuple[int, list[torch.Tensor]]] = {}

    def place(self, key: str, parcel: Parcel) -> Sent:
        """The fields and the open file of the parcel's sealed memory."""
        return Sent([os.dup(parcel.handle)])

    def restore(self, key: str, parcel: Parcel) -> Sent | None:
        """None: the runner has to reset its own copies."""
        return None

    def change(self, key: str, factor: float, shift: int) -> None:
        """Does nothing: the runner changes its own copies."""

    def changed(self, key: str) -> list[int] | None:
        """None: only the runner can tell."""
        return None

    def let_go(self, key: str) -> None:
        """Does nothing: the sealed memory belongs to its parcel."""

    def room(self, specs: Sequence[TensorSpec]) -> Room:
        """Memory for outputs of these specs, shared with the runner and erased; kept for later calls with the same
        specs."""
        key = repr(specs)
        if key not in self._rooms:
            handle = memory("outputs", bundle.offsets(specs)[1])
            self._rooms[key] = (handle, bundle.flat_views(specs, handle, writable=True))
        handle, views = self._rooms[key]
        _erase(views)
        return Room(views, Sent([os.dup(handle)]))

    def forget(self, key: str) -> None:
        """Does nothing: the sealed memory belongs to its parcel."""

    def close(self) -> None:
        """Closes the outputs' memory."""
        for handle, _ in self._rooms.values():
            os.close(handle)
        self._rooms.clear()


@dataclass
class _Block:
    """A block of GPU memory that the runner maps too: the tensors in it, and the originals that they should equal."""

    number: int
    memory: SharedGpuMemory
    specs: list[TensorSpec]
    tensors: list[torch.Tensor]
    originals: list[torch.Tensor] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)  # numbers of the tensors that the reference's forward writes to
    is_known: bool = False  # the runner has it

    def sent(self) -> Sent:
        """The command's fields that describe this block, the first time with its open file."""
        handles = [] if self.is_known else [self.memory.handle()]
        self.is_known = True
        return Sent(handles, (self.number, self.memory.nbytes))


class GpuCarrier:
    """Blocks of GPU memory that belong to one runner."""

    def __init__(self) -> None:
        """Allocates no block yet."""
        self.device_s = 0.0
        self._numbers = itertools.count()
        self._blocks: dict[str, _Block] = {}
        self._room: _Block | None = None

    def place(self, key: str, parcel: Parcel) -> Sent:
        """Copies the parcel's tensors into the key's block and keeps them as originals; makes a new block if the specs
        differ."""
        specs = parcel.specs
        if key not in self._blocks or self._blocks[key].specs != specs:
            self._blocks.pop(key, None)  # its memory first, then the new one's
            made = _created(bundle.gpu_places(specs)[1])
            tensors = bundle.shaped(specs, bundle.gpu_views(specs, made))
            self._blocks[key] = _Block(next(self._numbers), made, specs, tensors)
        block = self._blocks[key]
        block.originals, block.writes = parcel.tensors(), parcel.writes
        _write(block.tensors, block.originals)
        torch.cuda.synchronize()
        return block.sent()

    def restore(self, key: str, parcel: Parcel) -> Sent | None:
        """Places the parcel again: a runner that served another link has its blocks, and this link has none."""
        return self.place(key, parcel)  # a runner that served another link has its blocks, this link has not

    def change(self, key: str, factor: float, shift: int) -> None:
        """Writes the originals, changed by `timed_calls.change`, into the key's block; adds the GPU's seconds to
        `device_s`."""
        block, ends = self._blocks[key], [_event(), _event()]
        ends[0].record()
        timed_calls.change(block.tensors, block.originals, factor, shift, block.writes)
        ends[1].record()
        ends[1].synchronize()
        self.device_s += ends[0].elapsed_time(ends[1]) / 1e3

    def changed(self, key: str) -> list[int] | None:
        """Indices of the tensors in the key's block that differ from the originals bit for bit."""
        block = self._blocks[key]
        pairs = enumerate(zip(block.tensors, block.originals, strict=True))
        others = ((index, pair) for index, pair in pairs if index not in block.writes)
        return [index for index, pair in others if not bundle.same_bits(*pair)]

    def let_go(self, key: str) -> None:
        """Drops the originals of a set; its block is kept for the next set."""
        if key in self._blocks:
            self._blocks[key].originals = []

    def room(self, specs: Sequence[TensorSpec]) -> Room:
        """Views of one block for outputs, erased; the block grows if it is too small."""
        needed = bundle.gpu_places(specs)[1]
        if self._room is None or self._room.memory.nbytes < needed:
            self._room = None
            self._room = _Block(next(self._numbers), _created(needed), [], [])
        views = bundle.gpu_views(specs, self._room.memory)
        _erase(views)
        torch.cuda.synchronize()
        return Room(views, self._room.sent())

    def forget(self, key: str) -> None:
        """Frees the block of this key, if there is one."""
        self._blocks.pop(key, None)

    def close(self) -> None:
        """Frees all blocks."""
        self._blocks.clear()
        self._room = None


def _created(nbytes: int) -> SharedGpuMemory:
    """A new block of the device's memory, mapped here. Raises OutOfGpuMemory.

    If there is too little, it first releases the idle memory of this process (temporaries of drawn inputs), then waits
    at most PATIENCE_S seconds.
    """
    try:
        return SharedGpuMemory.create(nbytes)
    except OutOfGpuMemory:
        torch.cuda.empty_cache()
        return SharedGpuMemory.create(nbytes, PATIENCE_S)


class PartedState:
    """Sends the parameters of a lean case to a runner in parts, through memory that holds one part.

    So there is never a second copy of all of them. `ask` sends an order with open files and returns the answer.
    """

    def __init__(self, ask: Asks, carrier: Carrier, device: str) -> None:
        """Sends nothing yet; the size of a part depends on the kind of device."""
        self._ask, self._carrier = ask, carrier
        self._part_bytes = HOST_PART_BYTES if torch_device_of(device).is_host else PART_BYTES

    def send(self, number: int, case: Case, kind: Parameters) -> str:
        """Copies parameters in. Returns the reason why they could not be matched, "" if they were."""
        specs = case.state_specs
        keys, shapes = list(specs), [spec.shape for spec in specs.values()]
        is_known = self._ask(asking(RunnerCommands.match, case=number, keys=keys, shapes=shapes))
        for answer in self._parts(number, case, kind, is_split=is_known, compares=False):
            if answer.unmatched:
                return answer.unmatched
        form = StateForm(keys, case.mutable, loads=kind not in IN_PLACE)
        self._ask(asking(RunnerCommands.matched, case=number, form=form))
        return ""

    def find_changed(self, number: int, case: Case) -> list[str]:
        """Names of parameters that differ from the constructed ones, without those that forward updates."""
        fixed = {key for place, key in enumerate(case.state_specs) if place not in case.mutable}
        found: list[str] = []
        for answer in self._parts(number, case, "seeded", is_split=True, compares=True):
            found += [key for key in fixed if key in answer.changed and key not in found]
        return found

    def _parts(self, number: int, case: Case, kind: Parameters, *, is_split: bool, compares: bool) -> Iterator[Matched]:
        """Sends the state part by part, or has each part compared with the runner's (`compares`); yields the runner's
        answers.

        Each part's memory is freed before the next one is made.
        """
        keys, name = list(case.state_specs), f"state {number}"
        for part in case.state_parts(kind, self._part_bytes, is_split=is_split):
            pieces = [(keys[place], first, end) for place, first, end in part.pieces]
            sent = self._carrier.place(name, part.parcel)
            question = asking(
                RunnerCommands.part,
                case=number,
                pieces=pieces,
                compares=compares,
                content=part.parcel.description,
                memory=sent.memory,
            )
            try:
                answer = self._ask(question, sent.handles)
            finally:
                close_all(sent.handles)
                part.parcel.close()
                self._carrier.forget(name)
            yield answer


def carrier_for(device: str) -> Carrier:
    """The carrier for a runner on this kind of device."""
    return HostCarrier() if torch_device_of(device).is_host else GpuCarrier()


def _event() -> Any:
    """A CUDA event that takes times."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _erase(views: Sequence[torch.Tensor]) -> None:
    """Fills the outputs' memory with UNWRITTEN bytes."""
    for view in views:
        view.view(torch.uint8).fill_(UNWRITTEN)


def _write(tensors: Sequence[torch.Tensor], originals: Sequence[torch.Tensor]) -> None:
    """Copies `originals` into `tensors`; memory between the elements of a strided tensor is left alone."""
    for tensor, original in zip(tensors, originals, strict=True):
        distinct = tuple(slice(0, 1) if step == 0 else slice(None) for step in original.stride())
        tensor[distinct].copy_(original[distinct])


def describe_difference(wanted: list[TensorSpec], found: list[TensorSpec]) -> str:
    """The first difference between the wanted outputs and those that a runner reports: their number, a shape or a
    dtype.

    In words. Also for a report that cannot be read, or if there is no difference ("could not be written").
    """
    if len(found) != len(wanted):
        return f"forward returned {len(found)} tensors, the reference {len(wanted)}"
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one.shape != other.shape:
            return f"output {index} has shape {list(one.shape)}, the reference's has {list(other.shape)}"
        if one.dtype != other.dtype:
            return f"output {index} is {one.dtype}, the reference's is {other.dtype}"
    return "the outputs could not be written"
