"""Finds out how a model uses its integer inputs: as indices, as numbers, or in arithmetic. Runs in the judge.

An index as `get_inputs` draws it may leave most of a table out; a kernel must be right for every row. Any other
integer (a length, a flag, a count) may have a meaning that its values alone do not show, so it is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.questions import patterns
from foundry.tools.protocol.rules import Pattern
from foundry.tools.task import bundle

# Operators whose results hold the elements of their first argument.
_PASS_ON = frozenset({"_to_copy", "clone", "contiguous", "detach", "alias", "lift_fresh"})
NUMBERS = 0  # kind: converted to floats; any order of them is valid, and no other values
TOTALS = -1  # kind: 64-bit integers that are only added up; larger ones are valid
BOUNDS = -2  # kind: ascending offsets of bags; other offsets are valid
# Kind: used in arithmetic only; any others of the same range are valid; n less if 2**n as large are valid too.
FACTORS = -3
WIDE = -100  # kind: only bits, remainders or divisors are taken; any others of their sign and range are valid
NEAR = 8  # redrawn factors lie within this part of the largest
# Bits by which 64-bit factors may grow: a kernel that holds fewer bits of a product is wrong then.
GROWTHS = range(24, -1, -2)
_ADD_UP = frozenset({"cumsum", "sum"})
_CALCULATE = frozenset(
    {"mul", "add", "sub", "rsub", "neg", "dot", "mm", "bmm", "mv", "addmm", "baddbmm", "sum", "cumsum"}
)
_OF_ANY_SIZE = frozenset(
    (
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"),
        *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
        *("remainder", "fmod", "floor_divide", "gcd", "sign"),
    )
)
# Operators that choose among integers: beside bits any size is valid, and beside sums as much as these can hold.
_CHOOSE = frozenset({"abs", "clamp", "minimum", "maximum", "max", "min", "amax", "amin", "cummax", "cummin"})
_INTO_FLOATS = frozenset({"_to_copy", "mul", "add", "sub", "div", "rsub"})
# Operators with an answer for any value, or that read the shape alone.
_ASK = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge"),
        *(f"{what}_like" for what in ("empty", "zeros", "ones", "full", "rand", "randn")),
        *(f"new_{what}" for what in ("empty", "zeros", "ones", "full", "empty_strided")),
    )
)


def index_ranges(run: Callable[[], object], tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """The use of each tensor's integers: a positive n for indices from 0 to n - 1, a kind, or None if unknown.

    NUMBERS: only converted to floating numbers. BOUNDS: only offsets of bags. TOTALS: 64-bit integers that are only
    added up, with no use of the sums. FACTORS: only multiplied, added, summed and chosen from, like their results.
    WIDE: only bits, remainders, divisors, sizes or signs are taken. `run` calls the model on these very tensors.
    """
    watcher = _Watcher(tensors)
    with watcher:
        run()
    return [watcher.range_of(tensor) for tensor in tensors]


def redraw(
    tensor: torch.Tensor, kind: int | None, generator: torch.Generator, pattern: Pattern = "other indices"
) -> torch.Tensor:
    """Other integers of the kind that `index_ranges` found; the same ones if they may mean anything.

    The patterns `equal indices` and `paired indices` change only indices.
    """
    if pattern != "other indices":
        share = 1.0 if pattern == "equal indices" else 0.0
        return reindex(tensor, kind, generator, share, are_paired=not share) if kind and kind > 0 else tensor
    if kind == NUMBERS:
        return patterns.shuffle_rows(tensor, generator)
    if kind == TOTALS:
        return enlarge(tensor)
    if kind == WIDE:
        drawn = widen(tensor, generator) if tensor.dtype == torch.int64 else tensor
        return some_special(drawn, generator)
    if kind is not None and kind <= FACTORS:
        return agree(tensor, generator, FACTORS - kind)
    if kind == BOUNDS:
        return rebound(tensor, generator)
    return reindex(tensor, kind, generator) if kind else tensor


def without_overflow(
    ranges: list[int | None], inputs: Any, run: Callable[[Any], list[torch.Tensor]]
) -> list[int | None]:
    """`ranges` with FACTORS lowered by the bits that 64-bit factors may grow: as many as the reference's integers hold.

    None for factors that overflow even without growth: a kernel with wider integers would be right. A run in float64
    shows overflow; `run` gives the reference's outputs.
    """
    if FACTORS not in ranges:
        return ranges

    def grown(growth: int) -> list[int | None]:
        wide = [item.dtype == torch.int64 for item in bundle.tensors_in(inputs)]
        return [
            kind - growth * is_wide if kind == FACTORS else kind for kind, is_wide in zip(ranges, wide, strict=True)
        ]

    def outputs(kinds: list[int | None], *, as_floats: bool) -> list[torch.Tensor]:
        each = iter(kinds)

        def drawn(tensor: torch.Tensor) -> torch.Tensor:
            kind = next(each)
            if kind is None or kind > FACTORS or kind == WIDE:
                return tensor.clone()
            agreed = redraw(tensor, kind, torch.Generator(tensor.device).manual_seed(0))
            return agreed.double() if as_floats else agreed

        return [item.double() for item in run(bundle.map_tensors(inputs, drawn))]

    for kinds in map(grown, GROWTHS):
        try:
            pairs = zip(outputs(kinds, as_floats=False), outputs(kinds, as_floats=True), strict=True)
            if all(torch.allclose(own, wide, rtol=1e-9) for own, wide in pairs):
                return kinds
        except (TaskError, RuntimeError):
            continue
    return [None if kind == FACTORS else kind for kind in ranges]


def reindex(
    index: torch.Tensor, count: int, generator: torch.Generator, crowded: float = 0.5, *, are_paired: bool = False
) -> torch.Tensor:
    """Other indices from 0 to `count` - 1 in any order, the share `crowded` of them equal.

    A kernel may rely on no order, nor on room for the usual number of equal ones. `are_paired`: the second half
    repeats the first. Negative indices, which mean "none" or count from the end, stay. Distinct indices stay
    distinct.
    """
    places = patterns.whole(0, count, index.shape, generator)
    crowd = patterns.whole(0, count, (), generator)
    drawn = torch.where(patterns.uniform(index.shape, generator) < crowded, crowd, places)
    if are_paired:
        half = index.numel() // 2
        flat = drawn.reshape(-1)
        drawn = torch.cat([flat[:half], flat[:half], flat[2 * half :]]).reshape(index.shape)
    if index.numel() > 1 and index.numel() <= count and len(set(index.flatten().tolist())) == index.numel():
        order = torch.randperm(count, generator=generator, device=generator.device)
        drawn = order[: index.numel()].reshape(index.shape)
    return patterns.keep_layout(index, torch.where(index < 0, index, drawn.to(index.dtype)))


def rebound(bounds: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other offsets of bags between the first and the last one: a quarter of the entries in one bag, other bags empty.

    Offsets that do not ascend stay.
    """
    if bounds.dim() != 1 or bounds.numel() < 3 or not bool((bounds.diff() >= 0).all()):
        return bounds
    low, high = int(bounds[0]), int(bounds[-1])
    quarter = (high - low) // 4
    start = low + int(patterns.whole(0, high - low - quarter + 1, (), generator))
    drawn = patterns.whole(low, high + 1, bounds.shape, generator)
    drawn = torch.where((drawn > start) & (drawn < start + quarter), start, drawn).sort().values
    drawn[0], drawn[-1] = low, high
    return patterns.keep_layout(bounds, drawn.to(bounds.dtype))


def enlarge(value: torch.Tensor) -> torch.Tensor:
    """64-bit integers times a power of two, so that the largest is about 2**36.

    Totals no longer fit 32 bits then, and totals of 2**26 of them still fit 64.
    """
    largest = int(value.abs().max()) if value.numel() else 0
    return value * (1 << max(0, 36 - largest.bit_length()))


def agree(value: torch.Tensor, generator: torch.Generator, growth: int = 0) -> torch.Tensor:
    """Integers near 2**`growth` times the largest that occurs, all of its sign; zeros stay.

    Sums of them and of their products are as large as the input's range allows, while those of usual draws cancel.
    """
    wide = value.long().flatten()
    largest = int(wide[wide.abs().argmax()]) << growth if value.numel() else 0
    sizes = patterns.whole(abs(largest) - abs(largest) // NEAR, abs(largest) + 1, value.shape, generator)
    drawn = (-sizes if largest < 0 else sizes).to(value.dtype)
    return patterns.keep_layout(value, torch.where(value == 0, value, drawn))


def some_special(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half of the integers become powers of two, their neighbours, or Fibonacci numbers, up to the largest that occurs.

    Fibonacci numbers need the most steps in Euclid's algorithm. Signs and zeros stay.
    """
    largest = max(1, int(value.abs().max())) if value.numel() else 1
    pool = {(1 << bit) + apart for bit in range(largest.bit_length()) for apart in (-1, 0, 1)}
    low, high = 1, 2
    while low <= largest:
        pool.add(low)
        low, high = high, low + high
    numbers = torch.tensor(sorted(item for item in pool if 0 < item <= largest), device=value.device)
    chosen = numbers[patterns.whole(0, len(numbers), value.shape, generator)]
    chosen = torch.where(value < 0, -chosen, chosen) * (value != 0)
    is_kept = patterns.uniform(value.shape, generator) < 0.5
    return patterns.keep_layout(value, torch.where(is_kept, value, chosen.to(value.dtype)))


def widen(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """64-bit integers from 2**61 to 2**62 with the old signs; zeros stay."""
    sizes = patterns.whole(1 << 61, 1 << 62, value.shape, generator)
    return patterns.keep_layout(value, torch.where(value < 0, -sizes, sizes) * (value != 0))


class _Watcher(TorchDispatchMode):
    """A dispatch mode that records the use of integer inputs, and of copies of them, by each operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here. PyTorch would import its compiler, for a second in each judge, to switch
        it off."""
        return False

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners = {_place(item): _place(item) for item in tensors if _is_integer(item)}
        self._ranges: dict[int, int | None] = {}
        self._numbers: set[int] = set()
        self._totals: set[int] = set()
        self._factors: set[int] = set()
        self._wide: set[int] = set()
        self._chosen: set[int] = set()
        # Address of a computed tensor -> addresses of the inputs that it comes from.
        self._results: dict[int, set[int]] = {}
        self._kept: list[torch.Tensor] = []  # kept, so that their memory does not become another tensor's

    def range_of(self, tensor: torch.Tensor) -> int | None:
        """The use of a tensor's integers, as `index_ranges` gives it."""
        if not _is_integer(tensor):
            return None
        place = _place(tensor)
        if place not in self._ranges and place not in self._numbers:
            if place in self._factors | self._wide:  # both uses would need more than 64 bits
                return None if place in self._factors & self._wide else FACTORS if place in self._factors else WIDE
            if place in self._chosen:
                return FACTORS if place in self._totals else WIDE
            if place in self._totals:
                return TOTALS
        return self._ranges.get(place, NUMBERS if place in self._numbers else None)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        sizes = dict(_index_arguments(name, args, kwargs or {}))
        for item in _tensors([*args, *(kwargs or {}).values()]):
            owner = self._owners.get(_place(item))
            if owner is not None:
                self._note(owner, item, name, sizes, result)
            for factor in list(self._results.get(_place(item), ())):
                self._note_result(factor, item, name, result)
        return result

    def _note(self, owner: int, item: torch.Tensor, name: str, sizes: Mapping[int, int], result: Any) -> None:
        """Records one operator's use of an integer input."""
        if id(item) in sizes and BOUNDS in (sizes[id(item)], self._ranges.get(owner)):
            self._ranges[owner] = BOUNDS if self._ranges.get(owner, BOUNDS) == sizes[id(item)] == BOUNDS else None
        elif id(item) in sizes:
            known = self._ranges.get(owner, sizes[id(item)])
            self._ranges[owner] = None if known is None else min(known, sizes[id(item)])
        elif name in _ASK:
            return
        elif name in _ADD_UP and item.dtype == torch.int64 and _is_integer(result):
            self._totals.add(owner)
            self._keep_result(owner, result)
        elif name in _INTO_FLOATS and isinstance(result, torch.Tensor) and result.is_floating_point():
            self._numbers.add(owner)
        elif (uses := self._uses(name)) is not None and _is_integer(_value(result)) and _place(_value(result)) != owner:
            uses.add(owner)
            self._keep_result(owner, _value(result))
        elif name in _PASS_ON and _is_integer(result):
            self._kept.append(result)
            self._owners[_place(result)] = owner
        elif not (isinstance(result, torch.Tensor) and _place(result) == _place(item)):  # a view is no use yet
            self._ranges[owner] = None

    def _note_result(self, owner: int, item: torch.Tensor, name: str, result: Any) -> None:
        """Records one operator's use of integers computed from an input.

        Computed integers may be used in arithmetic, copied, compared and converted; as an index, a larger one may be
        refused or misread. Totals may count something, so they may not be compared or converted.
        """
        value = _value(result)
        may_count = owner in self._totals
        if (uses := self._uses(name)) is not None and _is_integer(value):
            uses.add(owner)
            self._keep_result(owner, value)
        elif name in _PASS_ON | (_INTO_FLOATS - _CALCULATE) and _is_integer(result):
            self._keep_result(owner, result)
        elif isinstance(result, torch.Tensor) and _place(result) == _place(item):
            return  # a view is no use yet
        elif may_count or name not in _ASK | (set() if _is_integer(result) else _INTO_FLOATS):
            self._ranges[owner] = None

    def _uses(self, name: str) -> set[int] | None:
        """The set of inputs with this operator's kind of use; None for any other operator."""
        kinds = ((_CALCULATE, self._factors), (_OF_ANY_SIZE, self._wide), (_CHOOSE, self._chosen))
        return next((uses for names, uses in kinds if name in names), None)

    def _keep_result(self, owner: int, result: torch.Tensor) -> None:
        """Remembers that a tensor was computed from the index tensor `owner`, and keeps it alive."""
        self._kept.append(result)
        self._results.setdefault(_place(result), set()).add(owner)


def _index_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """(id of the index tensor, number of rows it selects from) for each index argument of an ATen call; BOUNDS for
    offsets."""
    if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
        yield id(args[1]), args[0].size(0)
        if name != "embedding":
            yield id(args[2]), BOUNDS
    elif name in ("index_select", "gather"):
        yield id(args[2]), args[0].size(args[1]) if args[0].dim() else 1
    elif name == "take":
        yield id(args[1]), args[0].numel()
    elif name in ("nll_loss_forward", "nll_loss2d_forward"):
        yield id(args[1]), args[0].size(1 if args[0].dim() > 1 else 0)
    elif name.removesuffix("_") in (
        "index_add",
        "index_copy",
        "index_fill",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    ):
        yield id(args[2]), args[0].size(args[1]) if args[0].dim() else 1
    elif name == "bincount" and (least := int(kwargs.get("minlength", args[2] if len(args) > 2 else 0))):
        yield id(args[0]), least  # never less than the number that it counts
    elif name == "index" and all(item is None or _is_integer(item) for item in args[1]):
        yield from ((id(item), args[0].size(dim)) for dim, item in enumerate(args[1]) if item is not None)


def _tensors(items: Sequence[Any]) -> Iterator[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)


def _is_integer(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype != torch.bool
        and not value.is_floating_point()
        and not value.is_complex()
    )


def _value(result: Any) -> Any:
    """The tensor that an operator returns; of (values, places) the values."""
    return result[0] if isinstance(result, tuple) and result else result


def _place(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage."""
    return tensor.untyped_storage().data_ptr()
