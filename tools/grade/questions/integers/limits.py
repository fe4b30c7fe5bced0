"""Finds by trial which lengths, parts and classes a reference takes. Runs in the judge (imports torch)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.questions.integers.counts import Counts, Kind, are_offsets, draw_counts
from foundry.tools.grade.questions.integers.watching import index_arguments, is_integer, tensors_of
from foundry.tools.task import bundle

Run = Callable[[list[Any]], list[torch.Tensor]]  # the reference's outputs for inputs; raises TaskError
Answer = tuple[Any, ...] | None  # what tells answers apart; None if the reference refuses the inputs
LONGEST_S = 2.0  # seconds of trials for one input, after which the limits known so far count
MOST_GROWTH = 4  # an answer of more times the elements of the first one, and of more than the inputs, ends the trials
PIECE = 1 << 24  # elements of an answer that are added up at a time
MOST_CLASSES = 4096  # different numbers; more are no classes
_WRITES = ("index_put", "_index_put_impl", "_unsafe_index_put", "index_put_")


def with_limits(kinds: Sequence[Kind], inputs: Sequence[Any], run: Run, *, may_wrap: bool) -> list[Kind]:
    """The kinds with the limits of lengths, offsets and classes; None for those that nothing else may be.

    Trials begin with the inputs as given, and change one input at a time. `may_wrap`: see `InRange`.
    """
    tensors, run_in_range = bundle.tensors_in(list(inputs)), partial(_run_in_range, run, may_wrap=may_wrap)
    numbers = [value for value in inputs if type(value) is int]
    has_gaps = any(is_integer(tensor) and tensor.numel() and int(tensor.min()) < 0 for tensor in tensors)
    most = max((tensor.numel() // max(1, tensor.shape[-1]) for tensor in tensors if tensor.dim()), default=0)
    found = list(kinds)
    for number, kind in enumerate(kinds):
        if isinstance(kind, Counts):
            # A table that ends in negative numbers (no page) has no entries beyond the lengths as given.
            started = replace(kind, only_less=has_gaps)
            found[number] = _limited(started, tensors[number], _Trials(list(inputs), number, run_in_range), most)
    return _with_numbers(found, tensors, numbers)


def indices_wrap(inputs: list[Any], run: Run) -> bool:
    """True if the inputs as given lead to negative indices, which PyTorch counts from the end."""
    try:
        _run_in_range(run, bundle.copied(inputs), may_wrap=False)
    except TaskError:
        return True
    return False


def _run_in_range(run: Run, inputs: list[Any], *, may_wrap: bool) -> list[torch.Tensor]:
    """Runs the reference; raises TaskError for an index out of range."""
    with InRange(may_wrap=may_wrap):
        return run(inputs)


def _with_numbers(kinds: list[Kind], tensors: Sequence[torch.Tensor], numbers: list[int]) -> list[Kind]:
    """Lengths stay below a number among the inputs that is the longest one as given; such a number stays as it is."""
    singles = {
        number: int(tensor)
        for number, tensor in enumerate(tensors)
        if isinstance(kinds[number], Counts) and tensor.numel() == 1
    }
    for number, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True)):
        if isinstance(kind, Counts) and kind.meaning != "classes" and number not in singles:
            longest = int((tensor.diff() if kind.meaning == "offsets" else tensor).max())
            if longest in (*numbers, *singles.values()):
                kinds[number] = replace(kind, high=longest)
            for other in [other for other, value in singles.items() if value == longest]:
                kinds[other] = None
    return kinds


class _Trials:
    """Runs of the reference with one integer input changed."""

    def __init__(self, inputs: list[Any], number: int, run: Run) -> None:
        """Runs nothing yet. Trials of input `number` stop after LONGEST_S seconds."""
        self._inputs, self._number, self._run = inputs, number, run
        self._stop, self._is_over = time.monotonic() + LONGEST_S, False
        self._usual_elements = sum(tensor.numel() for tensor in bundle.tensors_in(inputs))
        self._elements = 0  # elements of the first answer

    @property
    def is_over(self) -> bool:
        """True if there is no time for another one, or an answer was so large that the next may fill the memory."""
        return self._is_over or time.monotonic() > self._stop

    def answer(self, values: torch.Tensor) -> Answer:
        """Sizes and sums that tell the answer for these integers from others; None if the reference refuses them."""
        numbers = itertools.count()
        changed = bundle.map_tensors(
            self._inputs, lambda tensor: values.clone() if next(numbers) == self._number else tensor.clone()
        )
        try:
            outputs = self._run(changed)
            sums = [_sums(item) for item in outputs]
        except (TaskError, RuntimeError):  # memory may be short, too
            return None
        elements = sum(item.numel() for item in outputs)
        self._is_over |= elements > max(self._usual_elements, MOST_GROWTH * (self._elements or elements))
        self._elements = self._elements or elements
        return tuple((*item.shape, *each) for item, each in zip(outputs, sums, strict=True))


def _sums(output: torch.Tensor) -> tuple[float, float]:
    """The sums of the elements and of their squares, without infinities and NaN."""
    flat, total, squares = output.detach().reshape(-1), 0.0, 0.0
    for start in range(0, len(flat), PIECE):
        values = flat[start : start + PIECE].double().nan_to_num_(0.0, 0.0, 0.0)
        total, squares = total + float(values.sum()), squares + float(torch.dot(values, values))
    return total, squares


def _limited(kind: Counts, given: torch.Tensor, trials: _Trials, most: int) -> Counts | None:
    """One input's kind with its limits; None if no others are known to be valid."""
    if not given.numel():
        return None
    if kind.meaning == "classes" or int(given.min()) < 0:
        return _classes(kind, given, trials)
    if are_offsets(given):
        return _offsets(given, trials)
    return _lengths(kind, given, trials, most)


def _classes(kind: Counts, given: torch.Tensor, trials: _Trials) -> Counts | None:
    """Numbers that occur as given, and those that the model compares with if it takes them."""
    own: set[int] = set(given.unique().tolist())  # type: ignore[no-untyped-call]
    has_rows = given.dim() > 0 and given.shape[-1] > 1 and len(own) > 1
    ascends = has_rows and bool((given.diff(dim=-1) >= 0).all())
    limits = torch.iinfo(given.dtype)
    every = sorted(own | {value for value in kind.values if limits.min <= value <= limits.max})
    if len(every) > MOST_CLASSES:
        return None
    values = torch.tensor(every, device=given.device, dtype=given.dtype)
    places = torch.arange(given.numel(), device=given.device) % len(every)
    tried = values[places].reshape(given.shape)
    tried = tried.sort(dim=-1).values if ascends else tried
    found = every if set(every) == own or trials.answer(tried) is not None else sorted(own)
    return Counts("classes", values=tuple(found), ascends=ascends) if len(found) > 1 else None


def _offsets(given: torch.Tensor, trials: _Trials) -> Counts | None:
    """Ascending offsets: parts may be empty unless the reference refuses such."""
    total = int(given[-1])
    stream = torch.Generator(given.device).manual_seed(0)
    for low in (0, 1):
        counts = Counts("offsets", low=low, high=total)
        drawn = draw_counts(given, counts, "short lengths", stream)
        if trials.answer(drawn) is not None:
            return counts
    return None


def _lengths(kind: Counts, given: torch.Tensor, trials: _Trials, most: int) -> Counts | None:
    """Lengths from the least to the largest that the reference takes and that change its answer."""
    top, largest = int(given.max()), torch.iinfo(given.dtype).max

    @cache
    def answer(length: int) -> Answer:
        """The reference's answer if all lengths are this one, or at most this one; None if it is too large."""
        if length > largest:
            return None
        equal = torch.full_like(given, length)
        return trials.answer(torch.minimum(equal, given) if kind.only_less else equal)

    if given.numel() > 1 and answer(top) is None:
        return _of_one_sum(given, trials)
    low = next((length for length in (0, 1) if length <= top and answer(length) is not None), int(given.min()))
    if top == low:
        return _of_one_sum(given, trials)
    found = _largest(answer, top, most, trials)
    high = max(top, kind.high) if found is None else found
    return Counts("lengths", low=low, high=high, only_less=kind.only_less)


def _of_one_sum(given: torch.Tensor, trials: _Trials) -> Counts | None:
    """Lengths that must add up to the same number, if the reference takes others at all."""
    if given.numel() < 2:
        return None
    stream = torch.Generator(given.device).manual_seed(0)
    for low in (0, 1):
        counts = Counts("lengths", low=low, high=int(given.sum()), keeps_sum=True)
        if trials.answer(draw_counts(given, counts, "short lengths", stream)) is not None:
            return counts
    return None


def _largest(answer: Callable[[int], Answer], top: int, most: int, trials: _Trials) -> int | None:
    """The length beyond which the reference refuses, or gives the same answer; None if none is found.

    Sizes of tensors are not asked for: a slice that is too long is cut, and pages are counted in blocks.
    """
    low, before = top, answer(top)
    while (after := answer(2 * low)) is not None and after != before:
        low, before = 2 * low, after
        if low > most or trials.is_over:
            return None
    if after is not None and low == top:
        return top
    is_refused = after is None
    low, high = (low, 2 * low) if is_refused else (low // 2, low)
    while high - low > 1 and not trials.is_over:
        middle = (low + high) // 2
        found = answer(middle)
        low, high = (low, middle) if found is None or (found == before and not is_refused) else (middle, high)
    return low if is_refused else high


class InRange(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that raises TaskError for an index outside of its tensor: on a GPU that would end the process.

    Negative indices raise it too unless they `may_wrap`: the last step of a sequence of no steps is a mistake that
    PyTorch does not notice.
    """

    def __init__(self, *, may_wrap: bool) -> None:
        """`may_wrap`: negative indices count from the end."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._may_wrap = may_wrap

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here (see `IntegerWatcher`)."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Checks an operator's indices, then runs it. Raises TaskError for one out of range."""
        name = func._schema.name.removeprefix("aten::")
        is_write = name in _WRITES
        sizes = dict(index_arguments("index" if is_write else name, args, kwargs or {}))
        for item in tensors_of([*args, *(kwargs or {}).values()]) if sizes else ():
            size = sizes.get(id(item), -1)
            least = -size if self._may_wrap and (is_write or name == "index") else 0
            if size >= 0 and item.numel() and not least <= int(item.min()) <= int(item.max()) < size:
                raise TaskError(f"{name}: an index outside of {size} rows")
        return func(*args, **(kwargs or {}))
