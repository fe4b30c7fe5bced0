"""The reference of a case with its parameters and buffers of each kind, for questions and runners.

Runs in the judge (imports torch).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.questions import other_parameters
from foundry.tools.grade.questions.lean import CaseRoom, reference_of
from foundry.tools.grade.questions.other_parameters import Piece, is_constant, plain_tensors, whole_tensors
from foundry.tools.grade.questions.trial import Packed, StatePart, contiguous_spec
from foundry.tools.protocol.rules import Parameters
from foundry.tools.task import bundle, loading
from foundry.tools.task.form.values import as_real, same_numbers
from foundry.tools.task.loading import LoadedTask

CALLS = "num_batches_tracked"


class Differing(NamedTuple):
    """A tensor that differs between two kinds of parameters: its rank, and True if all its elements are equal."""

    dims: int
    is_constant: bool


class CaseParameters:
    """The model of a case, built from one seed, and its tensors of each kind."""

    def __init__(self, loaded: LoadedTask, seed: int, device: torch.device, room: CaseRoom) -> None:
        """Builds the reference's model on `device` from `seed` and keeps its constructed tensors."""
        build = partial(loaded.build_model, seed, device)
        self.seed = seed
        self._device = device
        self._model = build()
        self._reference = reference_of(self._model, build, room, device)
        self._states = self._reference.states
        self._learned = {key for key, _ in self._model.named_parameters(remove_duplicate=False)}
        self._packed: dict[str, Packed] = {}
        self._mutable: list[int] | None = None  # indices of the tensors that forward updates; known after a call
        self._usual_mutable: list[int] = []  # the same of an earlier case, used until then
        self._counters = other_parameters.unread_counters(self._model)

    @property
    def is_lean(self) -> bool:
        """True if there is one copy of the model, and runners get some of its tensors at a time."""
        return self._reference.is_lean

    @property
    def mutable(self) -> list[int]:
        """Indices of the state's tensors that forward updates."""
        return self._usual_mutable if self._mutable is None else self._mutable

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        """Shapes and types by name of the parameters and buffers that a candidate gets, in the state's order."""
        return {key: contiguous_spec(item) for key, item in self._tensors().items()}

    def has_parameters(self, least: int = 1) -> bool:
        """True if the model has at least so many parameters or running statistics that can be randomised."""
        return sum(self._is_randomised(*item) for item in self._model.state_dict().items()) >= least

    def constant_parameter(self) -> str:
        """The name of a parameter whose initial elements are all equal (a scale of ones), or "".

        With initial values no test shows if a kernel reads such a parameter.
        """
        found = self._constant_keys("seeded")
        named = (key for key, item in self._tensors().items() if item.numel() > 1 and self._is_randomised(key, item))
        return next((key for key in named if key in found), "")

    def _constant_keys(self, kind: Parameters) -> set[str]:
        """Names of tensors whose elements are equal within each piece; two pieces may differ."""
        constant, others = set[str](), set[str]()
        for piece in self._states.each(kind):
            (constant if is_constant(piece.tensor) else others).add(piece.key)
        return constant - others

    def learned_places(self) -> list[int]:
        """Indices of the state's tensors that are unshared parameters: a shared one may not share its gradient."""
        state = self._without_counters(self._model.state_dict(keep_vars=True))
        often = Counter(map(id, state.values()))
        return [n for n, (key, item) in enumerate(state.items()) if key in self._learned and often[id(item)] == 1]

    def randomise(self, seed: int, kind: Parameters = "randomised") -> None:
        """Fixes how the parameters of kind `kind` are drawn for the next trials, and frees what was packed of them."""
        states, seeded = self._states, self._states.seeded
        if kind in other_parameters.TABLES:
            tables = self._tables(kind)
            states.plan(kind, lambda: other_parameters.draw_tables(kind, seeded, tables, seed))
        else:
            chosen = {key for key, tensor in self._model.state_dict().items() if self._is_randomised(key, tensor)}
            before = other_parameters.BEFORE.get(kind)
            last: Parameters = before if before is not None and before in states else "seeded"
            rest = kind, seeded, chosen, chosen & self._learned, seed
            states.plan(
                kind, lambda: other_parameters.draw_parameters(*rest, last=states.each(last) if before else None)
            )
        for other in [kind, *(self._packed if states.are_large else ())]:
            if other != "seeded" and (old := self._packed.pop(other, None)) is not None:
                old.parcel.close()

    def state(self, kind: Parameters) -> Packed:
        """Parameters and buffers of a kind; randomised ones as last drawn, or drawn now."""
        self._plan(kind)
        if kind not in self._packed:
            tensors = self._without_counters(whole_tensors(self._states.each(kind)))
            self._packed[kind] = Packed(list(tensors), bundle.pack([*tensors.values()], self._device))
        packed = self._packed[kind]
        packed.mutable = self.mutable
        return packed

    def state_parts(self, kind: Parameters, most_bytes: int, *, is_split: bool) -> Iterator[StatePart]:
        """Yields parameters and buffers of a kind in parts of about `most_bytes`. `is_split`: a part may hold some rows
        of a tensor."""
        self._plan(kind)
        places = {key: place for place, key in enumerate(self.state_specs)}
        pieces = (piece for piece in self._reference.held(kind) if piece.key in places)
        for group in grouped(pieces, most_bytes, is_split=is_split):
            rows = [(places[key], first, first + len(item) if item.dim() else 1) for key, first, item in group]
            yield StatePart(rows, bundle.pack([piece.tensor for piece in group], self._device))

    def seeded_tensors(self) -> Iterator[torch.Tensor]:
        """The constructed parameters and buffers, one after the other."""
        return (piece.tensor for piece in self._states.each("seeded") if piece.key not in self._counters)

    def _plan(self, kind: Parameters) -> None:
        """Draws parameters of this kind with the case's seed, unless they are drawn already."""
        if kind not in self._states:
            self.randomise(self.seed, kind)

    def other_parameters(self, before: Parameters, now: Parameters) -> dict[str, Differing]:
        """Parameters and buffers of kind `before`, as last drawn, that differ from those of kind `now`, by name."""
        pairs, constant = (
            zip(self._states.each(before), self._states.each(now), strict=True),
            self._constant_keys(before),
        )
        found = {one.key: one.tensor.dim() for one, other in pairs if not same_numbers(one.tensor, other.tensor)}
        return {key: Differing(dims, key in constant) for key, dims in found.items() if key not in self._counters}

    def free_memory(self) -> None:
        """Frees the device if memory is short; until `close`, the model stays on the host."""
        self._reference.free_memory(is_crowded=True)

    def close(self) -> None:
        """Frees the shared memory of its states and, if memory is short, the tensors of the model."""
        self._reference.free_memory()
        for packed in self._packed.values():
            packed.parcel.close()
        self._packed.clear()

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that a candidate has too, by name. While a lean model rests, only shapes and types hold."""
        return self._without_counters(plain_tensors(self._model))

    def _read_updated(self, model: nn.Module) -> list[torch.Tensor]:
        """Copies of the updated parameters and buffers, with the values that forward has just written."""
        tensors = list(self._without_counters(model.state_dict()).values())
        return [tensors[index].clone() for index in self._mutable or []]

    def _without_counters(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state without counters that nothing reads; a candidate may leave them out."""
        return {key: tensor for key, tensor in state.items() if key not in self._counters}

    def _mutable_keys(self) -> list[str]:
        """Names of the tensors that forward updates; empty before a call."""
        keys = list(self._tensors())
        return [keys[index] for index in self._mutable or []]

    def _before_updates(self, kind: Parameters) -> dict[str, torch.Tensor]:
        """The tensors that forward updates, and counts of calls, with their values before a run with this kind."""
        calls = [key for key in plain_tensors(self._model) if key.endswith(CALLS)]
        return self._states.picked(kind, {*self._mutable_keys(), *calls})

    def _note_updates(self, kind: Parameters) -> None:
        """Records which tensors forward has written in its first run; the run used parameters of this kind."""
        own, written = self._tensors(), set[str]()
        for piece in self._states.each(kind):
            if piece.key in own and not loading.bits_equal(now := piece.of(own[piece.key]), piece.tensor.to(now)):
                written.add(piece.key)
        self._mutable = [place for place, key in enumerate(own) if key in written]

    def _is_randomised(self, key: str, tensor: torch.Tensor) -> bool:
        """True for parameters and running statistics; other buffers (tables, masks) belong to the model's code."""
        is_statistic = key.rsplit(".", 1)[-1].startswith("running_")
        return (tensor.is_floating_point() or tensor.is_complex()) and (is_statistic or key in self._learned)

    def _tables(self, kind: Parameters) -> set[str]:
        """Names of the buffers that a kind changes: none that forward updates. Known after the first trial."""
        state = enumerate(self._tensors().items())
        fixed = [item for number, item in state if number not in (self._mutable or ())]
        buffers = {key for key, item in fixed if not self._is_randomised(key, item)}
        if not buffers:
            return set()
        firsts = (piece for piece in self._states.each("seeded") if not piece.first and piece.key in buffers)
        return {piece.key for piece in firsts if other_parameters.TABLES[kind](as_real(piece.tensor))}


def grouped(pieces: Iterable[Piece], most_bytes: int, *, is_split: bool) -> Iterator[list[Piece]]:
    """Yields lists of pieces of about `most_bytes`. Unless `is_split`, the pieces of one tensor become one."""
    group, size = list[Piece](), 0
    if not is_split:
        runs = itertools.groupby(pieces, key=lambda piece: piece.key)
        pieces = (Piece(key, 0, whole_tensors(run)[key]) for key, run in runs)
    for piece in pieces:
        if group and size + piece.tensor.nbytes > most_bytes:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.tensor.nbytes
    if group:
        yield group
