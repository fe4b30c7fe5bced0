"""Watches a model's operators for how they use integer inputs. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.tools.grade.questions.integers.counts import Counts, Kind

# Operators whose results hold the elements of their first argument.
_PASS_ON = frozenset({"_to_copy", "clone", "contiguous", "detach", "alias", "lift_fresh"})
NUMBERS = 0  # kind: converted to floats; any order of them is valid, and no other values
TOTALS = -1  # kind: 64-bit integers that are only added up; larger ones are valid
BOUNDS = -2  # kind: ascending offsets of bags; other offsets are valid
# Kind: used in arithmetic only; any others of the same range are valid; n less if 2**n as large are valid too.
FACTORS = -3
WIDE = -100  # kind: only bits, remainders or divisors are taken; any others of their sign and range are valid
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
_CHOOSE = frozenset({"abs", "clamp", "minimum", "maximum", "max", "min", "amax", "amin", "aminmax", "cummax", "cummin"})
_INTO_FLOATS = frozenset({"_to_copy", "mul", "add", "sub", "div", "rsub"})
# Operators with an answer for any value, or that read the shape alone.
_ASK = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge"),
        *(f"{what}_like" for what in ("empty", "zeros", "ones", "full", "rand", "randn")),
        *(f"new_{what}" for what in ("empty", "zeros", "ones", "full", "empty_strided")),
    )
)
_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
# Operators that only ask for the order of integers or which are equal; the first result holds the elements.
_SORT = frozenset({"sort", "msort", "topk", "_unique2", "unique_dim", "unique_consecutive"})
# Operators that only ask which integers are zero.
_IS_ZERO = frozenset({"any", "all", "count_nonzero", "nonzero", "logical_not", "logical_and", "logical_or"})
_READ = frozenset({"_local_scalar_dense", "repeat_interleave", "equal", "is_nonzero"})
_READ_BY_PYTHON = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)
_OF_PLACES = frozenset({"bucketize", "searchsorted"})  # operators that ask between which elements a number lies
MOST_CONSTANTS = 4096  # numbers that integers are compared with; of more, none is a class


class _Call(NamedTuple):
    """One operator's call: its arguments, the sizes of what it selects from by id of the indices, and its result."""

    name: str
    given: Sequence[Any]
    sizes: Mapping[int, int]
    result: Any


class IntegerWatcher(TorchDispatchMode):
    """A dispatch mode that records the use of integer inputs, and of copies of them, by each operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here. PyTorch would import its compiler, for a second in each judge, to switch
        it off."""
        return False

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Watches the integer tensors among these; has seen nothing yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners = {_place(item): _place(item) for item in tensors if is_integer(item)}
        self._ranges: dict[int, int | None] = {}
        self._numbers: set[int] = set()
        self._totals: set[int] = set()
        self._factors: set[int] = set()
        self._wide: set[int] = set()
        self._chosen: set[int] = set()
        self._read: set[int] = set()  # read by Python, or compared with places
        self._places: dict[int, int] = {}  # input -> number of the places that it was compared with
        self._compared: dict[int, set[int]] = {}  # input -> numbers that it was compared with
        self._otherwise: set[int] = set()  # something of another kind was computed from results
        # Address of a computed tensor -> addresses of the inputs that it comes from.
        self._results: dict[int, set[int]] = {}
        self._kept: list[torch.Tensor] = []  # kept, so that their memory does not become another tensor's
        self._functions = _Readings(self)

    def __enter__(self) -> IntegerWatcher:
        """Enters both modes, of functions and of operators."""
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Leaves both modes."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]

    def kind_of(self, tensor: torch.Tensor) -> Kind:
        """The use of a tensor's integers, as `index_ranges` gives it.

        Of the limits of lengths only the number of places that they were compared with is known.
        """
        if not is_integer(tensor):
            return None
        place = _place(tensor)
        known = self._ranges.get(place, 0)
        if known is None:
            return None
        if place in self._read and (not known or place in self._otherwise):
            return Counts("lengths", high=self._places.get(place, 0))
        if place in self._otherwise:
            return None
        return known or self._kind_of_arithmetic(place)

    def _kind_of_arithmetic(self, place: int) -> Kind:
        """The use of an input that selects nothing: in arithmetic, as numbers, or in comparisons only."""
        is_number, is_factor, is_wide = (place in uses for uses in (self._numbers, self._factors, self._wide))
        if not is_number:
            if is_factor or is_wide:  # both uses would need more than 64 bits
                return None if is_factor and is_wide else FACTORS if is_factor else WIDE
            if place in self._chosen:
                return FACTORS if place in self._totals else WIDE
            if place in self._totals:
                return TOTALS
        is_computed = place in self._totals | self._chosen | self._factors | self._wide
        if place in self._compared and not is_computed:
            return Counts("classes", values=tuple(sorted(self._compared[place])))
        return NUMBERS if is_number else None

    def note_reading(self, tensor: torch.Tensor) -> None:
        """Records that Python reads a tensor's elements past the dispatcher."""
        place = _place(tensor)
        self._read |= {*self._results.get(place, ()), *([self._owners[place]] if place in self._owners else ())}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator, then notes its use of watched inputs and of results that come from them."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        given = [*args, *(kwargs or {}).values()]
        sizes = dict(index_arguments(name, args, kwargs or {}))
        call = _Call(name, given, sizes, result)
        for item in tensors_of(given):
            owner = self._owners.get(_place(item))
            if owner is not None:
                self._note(owner, item, call)
            for factor in list(self._results.get(_place(item), ())):
                self._note_result(factor, item, call)
        return result

    def _note(self, owner: int, item: torch.Tensor, call: _Call) -> None:
        """Records one operator's use of an integer input."""
        name, given, sizes, result = call
        if id(item) in sizes and BOUNDS in (sizes[id(item)], self._ranges.get(owner)):
            self._ranges[owner] = BOUNDS if self._ranges.get(owner, BOUNDS) == sizes[id(item)] == BOUNDS else None
        elif id(item) in sizes:
            known = self._ranges.get(owner, sizes[id(item)])
            self._ranges[owner] = None if known is None else min(known, sizes[id(item)])
        elif self._is_reading(item, name, given):
            self._read.add(owner)
            for places in tensors_of(given) if name in _COMPARE else ():
                if places is not item:
                    self._places[owner] = max(self._places.get(owner, 0), int(places.max()) + (name in ("lt", "gt")))
        elif name in _ASK | _SORT | _IS_ZERO:
            self._note_question(owner, item, name, given)
            if name in _SORT:
                self._keep_copy(owner, _value(result))
        elif name in _ADD_UP and item.dtype == torch.int64 and is_integer(result):
            self._totals.add(owner)
            self._keep_result(owner, result)
        elif name in _INTO_FLOATS and isinstance(result, torch.Tensor) and result.is_floating_point():
            self._numbers.add(owner)
        elif (uses := self._uses(name)) is not None and is_integer(_value(result)) and _place(_value(result)) != owner:
            uses.add(owner)
            self._keep_result(owner, _value(result))
        elif name in _PASS_ON and is_integer(result):
            self._keep_copy(owner, result)
        elif not _is_view(item, result):  # a view is no use yet
            self._ranges[owner] = None

    def _note_question(self, owner: int, item: torch.Tensor, name: str, given: Sequence[Any]) -> None:
        """Records what an integer input is compared with, or that it is sorted."""
        if name in _COMPARE | _SORT | _IS_ZERO:
            found = self._compared.setdefault(owner, set())
            other = next((value for value in given[:2] if value is not item), None)
            if name in ("eq", "ne") and not self._is_known(other):
                found.update(_numbers_in(other))
            elif name in _IS_ZERO:
                found.add(0)

    def _note_result(self, owner: int, item: torch.Tensor, call: _Call) -> None:
        """Records one operator's use of integers computed from an input.

        Computed integers may be used in arithmetic, copied, compared and converted; as an index, a larger one may be
        refused or misread. Totals may count something, so they may not be compared or converted.
        """
        name, given, _, result = call
        value = _value(result)
        may_count = owner in self._totals
        if (uses := self._uses(name)) is not None and is_integer(value):
            uses.add(owner)
            self._keep_result(owner, value)
        elif name in _PASS_ON | (_INTO_FLOATS - _CALCULATE) and is_integer(result):
            self._keep_result(owner, result)
        elif _is_view(item, result):
            return  # a view is no use yet
        elif self._is_reading(item, name, given):
            self._read.add(owner)
        elif may_count or name not in _ASK | (set() if is_integer(result) else _INTO_FLOATS):
            self._otherwise.add(owner)

    def _is_reading(self, item: torch.Tensor, name: str, given: Sequence[Any]) -> bool:
        """True if an operator gives integers to Python, uses them as sizes, or compares places with them."""
        if name in _COMPARE - {"eq", "ne"}:
            return any(self._is_of_places(other) for other in tensors_of(given) if other is not item)
        return name in _READ or (name in _OF_PLACES and item is given[name == "bucketize"])

    def _is_known(self, other: Any) -> bool:
        """True for a tensor that is an input or computed from one."""
        return isinstance(other, torch.Tensor) and (_place(other) in self._owners or _place(other) in self._results)

    def _is_of_places(self, other: torch.Tensor) -> bool:
        """True for places (`arange`): integers that ascend in equal steps, and are no input."""
        if not is_integer(other) or self._is_known(other):
            return False
        line = [size for size, stride in zip(other.shape, other.stride(), strict=True) if size > 1 and stride]
        if len(line) != 1:
            return False
        steps = _without_repeats(other).flatten().diff()
        return bool((steps == steps[0]).all()) and int(steps[0]) > 0

    def _uses(self, name: str) -> set[int] | None:
        """The set of inputs with this operator's kind of use; None for any other operator."""
        kinds = ((_CALCULATE, self._factors), (_OF_ANY_SIZE, self._wide), (_CHOOSE, self._chosen))
        return next((uses for names, uses in kinds if name in names), None)

    def _keep_copy(self, owner: int, copy: torch.Tensor) -> None:
        """Treats a tensor that holds elements of the input `owner` like the input."""
        self._kept.append(copy)
        self._owners[_place(copy)] = owner

    def _keep_result(self, owner: int, result: torch.Tensor) -> None:
        """Remembers that a tensor was computed from the index tensor `owner`, and keeps it alive."""
        self._kept.append(result)
        self._results.setdefault(_place(result), set()).add(owner)


class _Readings(TorchFunctionMode):
    """A function mode that tells a watcher of readings that no dispatcher sees: `tolist` and NumPy."""

    def __init__(self, watcher: IntegerWatcher) -> None:
        """Tells this watcher."""
        super().__init__()
        self._watcher = watcher

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Tells the watcher of a reading by Python, then runs the function."""
        if func in _READ_BY_PYTHON:
            self._watcher.note_reading(args[0])
        return func(*args, **(kwargs or {}))


def index_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
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
    elif name == "index" and all(item is None or is_integer(item) for item in args[1]):
        yield from ((id(item), args[0].size(dim)) for dim, item in enumerate(args[1]) if item is not None)


def tensors_of(items: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors in a nested list of an operator's arguments."""
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors_of(item)


def is_integer(value: Any) -> bool:
    """True for a tensor of whole numbers; booleans are none."""
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


def _is_view(item: torch.Tensor, result: Any) -> bool:
    """True if an operator's result, or each of its results, lies in the memory of its argument."""
    found = list(tensors_of([result]))
    return bool(found) and all(_place(one) == _place(item) for one in found)


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the dimensions in which it repeats itself in memory."""
    for dim, stride in enumerate(tensor.stride()):
        tensor = tensor if stride else tensor.narrow(dim, 0, 1)
    return tensor


def _numbers_in(other: Any) -> list[int]:
    """The whole numbers that integers are compared with; [] if they are too many."""
    if isinstance(other, torch.Tensor):
        other = _without_repeats(other)
        return other.unique().tolist() if is_integer(other) and other.numel() <= MOST_CONSTANTS else []
    return [int(other)] if isinstance(other, int | float) and other == int(other) else []
