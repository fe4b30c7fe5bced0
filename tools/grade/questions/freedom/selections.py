"""Places that a model selects by value (argmax, sort, topk), and equally right ones. In the judge; imports torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError

ROUNDING = 4.0  # multiple of PyTorch's own rounding of two values, within which either is the larger one
MOST_CHOICES = 256  # reruns, each with another of the tied values
# Operators that return values and places; PyTorch documents the first of equal values for those in _FIRST.
_PAIRS = frozenset({"max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"})
_PLACES_ALONE = frozenset({"argmax", "argmin"})
_FIRST = _PLACES_ALONE | {"max", "min", "cummax", "cummin"}
_ORDERS = frozenset({"sort", "topk"})  # operators that select each place once


@dataclass(frozen=True)
class SelectedPlaces:
    """Places that one call of an operator selected along `dim` of `values`, which has at least one element there.

    `is_first`: of equal values the first one (or the operator's documented one) counts. `is_order`: no place comes
    twice. `unit` is the usual error of a value in PyTorch's own run, and `relative` its dtype's epsilon; both are 0
    if PyTorch rounds nothing. `missed`: number of PyTorch's own places that do not tie.
    """

    values: torch.Tensor
    places: torch.Tensor
    dim: int
    is_first: bool
    is_order: bool
    unit: float = 0.0
    relative: float = 0.0
    missed: int = 0

    def part_for(self, output: torch.Tensor) -> SelectedPlaces | None:
        """This selection cut to an output of the model in float64: all places, or the first or last few along `dim`.

        None if most of the output's elements are other numbers.
        """
        shape = list(self.places.shape)
        if self.is_order and output.dim() == len(shape) and shape:
            shape[self.dim] = output.shape[self.dim]
            starts = sorted({0, max(0, self.places.shape[self.dim] - output.shape[self.dim])})
        else:
            starts = [0]
        has_another_shape = self.is_order and (list(output.shape) != shape or shape > list(self.places.shape))
        if has_another_shape or output.numel() != math.prod(shape) or not output.numel():
            return None
        for start in starts:
            places = self.places.narrow(self.dim, start, shape[self.dim])
            if 2 * int((places == output.reshape(shape).to(places.device)).sum()) >= output.numel():
                return replace(self, places=places)
        return None

    def are_tied(self, output: torch.Tensor) -> torch.Tensor:
        """A mask of the elements of an output that name places whose values tie with those of the selected places."""
        mine = output.to(self.places.device).reshape(self.places.shape).long()
        size = self.values.shape[self.dim]
        is_inside = (mine >= 0) & (mine < size)
        one, other = (self.values.gather(self.dim, item.clamp(0, size - 1)) for item in (mine, self.places))
        slack = ROUNDING * (self.unit + self.relative * torch.maximum(one.abs(), other.abs()))
        tied = ((one - other).abs() <= slack) | (one == other) | (one.isnan() & other.isnan())
        if self.is_first:  # the first of equal values counts, unless rounding made them equal
            tied &= (one != other) | (slack > 0) | (mine == self.places)
        if self.is_order and mine.shape[self.dim] > 1:
            tied &= ~(mine.sort(self.dim).values.diff(dim=self.dim) == 0).any(self.dim, keepdim=True)
        return (tied & is_inside).reshape(output.shape).to(output.device)


class Watcher(TorchDispatchMode):
    """A dispatch mode that records every selection of a run: (values, places, dim, operator, is stable)."""

    def __init__(self) -> None:
        """Has recorded no selection yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[torch.Tensor, torch.Tensor, int, str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and records it if it selects places by value (argmax, sort, topk)."""
        named = dict(kwargs or {})
        result = func(*args, **named)
        name = func.overloadpacket.__name__
        if name in _PLACES_ALONE:
            dim = args[1] if len(args) > 1 else named.get("dim")
            values = args[0].reshape(-1) if dim is None else args[0]
            self._note(values, result, 0 if dim is None else dim, name, False)
        elif name in _PAIRS and isinstance(result, tuple) and len(result) == 2 and "out" not in named:
            bound = {item.name: value for item, value in zip(func._schema.arguments, args, strict=False)} | named
            defaults = {item.name: item.default_value for item in func._schema.arguments if item.has_default_value()}
            self._note(args[0], result[1], (defaults | bound).get("dim", -1), name, bool(bound.get("stable")))
        return result

    def _note(self, values: torch.Tensor, places: torch.Tensor, dim: int, name: str, is_stable: bool) -> None:
        """Records one selection."""
        values = values.detach().clone() if values.dim() else values.detach().reshape(1)
        dim %= values.dim()
        shape = list(values.shape)
        shape[dim] = places.numel() // max(1, values.numel() // max(1, shape[dim]))
        self.found.append((values, places.detach().clone().reshape(shape), dim, name, is_stable))


def selections(wide: Callable[[], object], own: Callable[[], object]) -> Iterator[SelectedPlaces]:
    """The selections of a float64 run, with the errors that their values have in PyTorch's own run.

    None are yielded if the two runs select by different operators.
    """
    exact, plain = Watcher(), Watcher()
    with exact:
        wide()
    with plain:
        own()
    if [item[3] for item in exact.found] != [item[3] for item in plain.found]:
        return
    for (values, places, dim, name, is_stable), (rounded, own_places, *_) in zip(exact.found, plain.found, strict=True):
        if values.shape != rounded.shape or values.is_complex():
            continue
        true = values.double()
        unit = 0.0
        relative = 0.0
        if values.is_floating_point() and rounded.is_floating_point():
            off = (true - rounded.double()).nan_to_num_(0.0, 0.0, 0.0)
            unit = float(off.square().mean().sqrt()) if off.numel() else 0.0
            is_rounded = unit > 0 or rounded.dtype == torch.float64
            relative = torch.finfo(rounded.dtype).eps if is_rounded else 0.0
        is_first = name in _FIRST or is_stable
        found = SelectedPlaces(true, places, dim, is_first, is_order=name in _ORDERS, unit=unit, relative=relative)
        missed = int((~found.are_tied(own_places)).sum()) if own_places.shape == places.shape else places.numel()
        yield replace(found, missed=missed)


class _OtherChoices(TorchDispatchMode):
    """A dispatch mode that selects, among floating values that tie with the extreme by rounding, the one numbered
    `way`."""

    def __init__(self, way: int) -> None:
        """`way` is the number of the choice among tied values; `most` becomes the largest number of ties seen."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._way = way
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator; for an extreme of floats returns another of the places that tie with it."""
        named = dict(kwargs or {})
        result = func(*args, **named)
        name = func.overloadpacket.__name__
        is_extreme = name in _PLACES_ALONE or (name in ("max", "min") and isinstance(result, tuple))
        if not is_extreme or not args[0].is_floating_point() or not args[0].numel():
            return result
        dim = args[1] if len(args) > 1 else named.get("dim")
        places = result if name in _PLACES_ALONE else result[1]
        chosen = self._chosen(args[0].reshape(-1) if dim is None else args[0], dim or 0, places)
        return chosen if name in _PLACES_ALONE else type(result)((result[0], chosen))

    def _chosen(self, values: torch.Tensor, dim: int, places: torch.Tensor) -> torch.Tensor:
        """The places chosen instead of `places`: among those whose values tie within rounding, number `way` modulo
        their count.

        Raises `most` to the largest number of ties.
        """
        values = values.reshape(1) if not values.dim() else values
        shape = list(values.shape)
        shape[dim] = 1
        best = values.gather(dim, places.reshape(shape))
        tied = (values - best).abs() <= ROUNDING * torch.finfo(values.dtype).eps * best.abs()
        ranks = tied.cumsum(dim)
        counts = tied.sum(dim, keepdim=True).clamp_(min=1)
        self.most = max(self.most, int(counts.max()))
        wanted = tied & (ranks == self._way % counts + 1)
        found = wanted.int().argmax(dim, keepdim=True)
        return torch.where(wanted.any(dim, keepdim=True), found, places.reshape(shape)).reshape(places.shape)


def in_choices(run: Callable[[], list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Yields the outputs of `run` with other places of extremes, as many as tie somewhere, at most MOST_CHOICES.

    Yields fewer if `run` fails so, for example for lack of memory.
    """
    with contextlib.suppress(torch.OutOfMemoryError, TaskError):
        for way in range(MOST_CHOICES):
            with _OtherChoices(way) as mode:
                outputs = run()
            yield outputs
            if way + 1 >= mode.most:
                return
