"""Makes the inputs of a distribution from those of `get_inputs`. Runs in the judge (imports torch).

Only floating-point tensors change. Tensors that hold infinities (additive masks) stay as given; integers, booleans
and numbers change only in one pattern each.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foundry.tools.grade.questions.levels import in_alike_rows, in_steps, with_ends_in_common
from foundry.tools.protocol.rules import FEW_CHANGED, OF_INTEGERS, Distribution, Pattern

SPIKE_LOW, SPIKE_HIGH = 8.0, 32.0  # multiples of the root mean square of the input as given
HUGE_LOW, HUGE_HIGH = 128.0, 512.0  # multiples of it
HUGE = 4  # elements that are so large: so few that no sample meets one
NEGLIGIBLE = 2.0**-60  # factor of half of the elements, which makes them negligible
FINEST = 16  # parts of the usual size, of which elements are multiples
BLOCK = 8  # elements of a block of infinities, along each of the last two dimensions
SPIKE_EVERY = 256  # elements for each spike of a sparse input
NON_FINITE_EVERY = 1 << 16
SMALLEST = 16  # least elements of an input that gets infinities
ZEROS_EVERY = 16  # elements for each zero, at most, if the zeros could have a meaning
OFF_DIRECTION = 1 / 32  # share of an input added to its rank-one part: more would show less, less is unsteady
PIECE = 1 << 24  # elements changed at a time if the change needs more memory than they do
STRIDED = 32  # number of a row's largest elements, at least, that lie at a stride
GROUPED = 8.0  # factor of elements across two groups
CLOSE = 2.0**-10  # share of an input's size within which its elements lie close together
CHANCE_EVERY = 1000  # zeros of a structure for each zero, at most, of one draw only


@dataclass(frozen=True)
class Structure:
    """Properties that every draw of an input shares, on which a kernel may rely.

    `zeros` marks the places (bool, the input's shape) that are zero each time (a triangle); `is_symmetric`: a matrix
    equals its transpose.
    """

    zeros: torch.Tensor | None = None
    is_symmetric: bool = False

    @property
    def is_some(self) -> bool:
        """True if the draws share any property."""
        return self.zeros is not None or self.is_symmetric

    def impose_on(self, value: torch.Tensor) -> torch.Tensor:
        """`value` with this structure: zeros at its places, and made symmetric if every draw is."""
        if self.is_symmetric:
            value = value.tril() + value.tril(-1).T
        return value if self.zeros is None else value.masked_fill(self.zeros, 0.0)

    def places(self, count: int, size: int, generator: torch.Generator) -> torch.Tensor:
        """`count` random places (row-major) of an input of `size` elements.

        Without places that are zero in every draw, and with one of each symmetric pair.
        """
        free = None if self.zeros is None else torch.nonzero(~self.zeros.flatten()).flatten()
        drawn = whole(0, size if free is None else len(free), (count,), generator)
        places = drawn if free is None else free[drawn]
        if not self.is_symmetric:
            return places
        width = math.isqrt(size)
        row, column = places // width, places % width
        return torch.maximum(row, column) * width + torch.minimum(row, column)


PLAIN = Structure()


def whole(low: int, high: int, shape: Sequence[int], stream: torch.Generator) -> torch.Tensor:
    """Integers from `low` to below `high`, on the stream's device."""
    return torch.randint(low, high, tuple(shape), generator=stream, device=stream.device)


def uniform(shape: Sequence[int], stream: torch.Generator) -> torch.Tensor:
    """Uniform numbers from [0, 1) of this shape, on the generator's device."""
    return torch.rand(tuple(shape), generator=stream, device=stream.device)


def may_have_structure(value: Any) -> bool:
    """True if a second draw is worth making to look for a structure: many zeros, or a symmetric square matrix."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return False
    return _has_zeros(value) or _is_symmetric(value)


def structure_of(one: Any, other: Any) -> Structure:
    """The structure that two draws of an input share.

    An input that is the same in every draw (a mask) has none: a kernel has to read it like any other.
    """
    if not may_have_structure(one) or not may_have_structure(other) or one.shape != other.shape:
        return PLAIN
    if torch.equal(one, other):
        return PLAIN
    first, second = one == 0, other == 0
    zeros = first & second
    count, apart = int(zeros.sum()), int((first ^ second).sum())  # a uniform draw sometimes holds a zero of its own
    is_fixed = count * ZEROS_EVERY >= one.numel() > count and apart * CHANCE_EVERY <= count
    return Structure(zeros if is_fixed else None, _is_symmetric(one) and _is_symmetric(other))


def break_structure(value: torch.Tensor, structure: Structure, generator: torch.Generator) -> torch.Tensor:
    """The input with its structure broken.

    Numbers of its own magnitude replace the zeros of every draw, or one side of the diagonal of a symmetric matrix.
    """
    drawn = (torch.randn(value.shape, generator=generator, device=generator.device) * size_of(value)).to(value.dtype)
    if structure.is_symmetric:
        value = value.tril() + drawn.triu(1)
    return keep_layout(value, value if structure.zeros is None else torch.where(structure.zeros, drawn, value))


def _has_zeros(value: torch.Tensor) -> bool:
    """True if at least one of ZEROS_EVERY elements is 0."""
    return int((value == 0).sum()) * ZEROS_EVERY >= value.numel()


def _is_symmetric(value: torch.Tensor) -> bool:
    """True for a square matrix of more than one row that equals its transpose."""
    return value.dim() == 2 and value.shape[0] == value.shape[1] > 1 and torch.equal(value, value.T)


def break_each(values: Sequence[Any], structures: Sequence[Structure], generator: torch.Generator) -> list[Any]:
    """All leaves of `get_inputs`, with every structure broken."""
    return [
        break_structure(value, structure, generator) if structure.is_some else value
        for value, structure in zip(values, structures, strict=True)
    ]


def transform(
    value: Any,
    distribution: Distribution,
    generator: torch.Generator,
    *,
    limited: bool = False,
    structure: Structure = PLAIN,
) -> Any:
    """One leaf of `get_inputs` changed by a distribution. `limited`: only numbers that occur in the value are used."""
    if is_number(value) and distribution.pattern == "other numbers":
        # A factor that keeps most numbers within their valid range.
        return value * float(0.5 + 0.4 * uniform((), generator))
    if distribution.pattern in _OF_OTHERS:
        change = OF_MASKS.get(distribution.pattern) if is_mask(value) else None
        return value if change is None else change(value, generator)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if distribution.scale != 1.0:
        scaled = value * distribution.scale
        value = scaled if is_finite(scaled) or not is_finite(value) else value
    if distribution.exponents:
        value = structure.impose_on(_mix_exponents(value, distribution.exponents, generator))
    if not distribution.pattern or not value.numel() or not is_finite(value):
        return value
    if distribution.pattern == "few changed":
        changed = _few_changed(value, generator, structure, limited=limited)
    elif distribution.pattern == "few other signs":
        changed = _few_other_signs(value, generator, structure) if has_one_sign(value) else value
    else:
        changed = _apply_pattern(value, distribution.pattern, generator, limited=limited)
    return keep_layout(value, structure.impose_on(changed))


def transform_each(
    values: Sequence[Any],
    distribution: Distribution,
    structures: Sequence[Structure],
    generator: torch.Generator,
    *,
    limited: bool,
) -> list[Any]:
    """All leaves of `get_inputs` changed by a distribution. Each keeps its structure (a triangle, symmetry)."""
    if distribution.pattern == "steps":
        values = with_ends_in_common(values)
    return [
        transform(value, distribution, generator, limited=limited, structure=structure)
        for value, structure in zip(values, structures, strict=True)
    ]


def with_few_changed(
    values: list[Any], structures: Sequence[Structure], device: torch.device, *, limited: bool
) -> list[Any]:
    """The values with one to three elements changed at secret random places."""
    stream = torch.Generator(device).manual_seed(secrets.randbits(31))
    return transform_each(values, FEW_CHANGED, structures, stream, limited=limited)


def is_mask(value: Any) -> bool:
    """True for a tensor of booleans."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def is_number(value: Any) -> bool:
    """True for a Python float other than zero."""
    return isinstance(value, float) and value != 0.0


def has_one_sign(value: Any) -> bool:
    """True if a floating tensor has no negative elements, or no positive ones."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return False
    return not bool((value < 0).any()) or not bool((value > 0).any())


def in_few_bits(value: torch.Tensor) -> torch.Tensor:
    """The elements rounded to bfloat16's eight significant bits, which every matrix unit holds exactly."""
    return value.bfloat16().to(value.dtype) if value.is_floating_point() else value


def shuffle_rows(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shuffles each row by itself, in the same layout; a row of booleans keeps its number of true elements."""
    if value.dim() == 0:
        return value

    def shuffled(rows: torch.Tensor) -> torch.Tensor:
        """The rows with the elements of each in an order of its own."""
        return rows.gather(-1, uniform(rows.shape, generator).argsort(dim=-1))

    return keep_layout(value, _by_rows(value, shuffled))


def recount_rows(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows of booleans of which a power of two are true, or false, at random places."""
    if value.dim() == 0 or value.shape[-1] < 2:
        return value
    width = value.shape[-1]

    def recounted(rows: torch.Tensor) -> torch.Tensor:
        """For each row a mask with a random number of True elements at random places."""
        place = uniform(rows.shape, generator).argsort(dim=-1).argsort(dim=-1)
        drawn = whole(0, (width - 1).bit_length(), (2, len(rows), 1), generator)
        count = 1 << drawn.amax(dim=0)  # mostly large ones: a counter of eight bits wraps at 256
        is_rest = uniform((len(rows), 1), generator) < 1 / 2
        return place < torch.where(is_rest, width - count, count)

    return keep_layout(value, _by_rows(value, recounted))


def empty_rows(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A quarter of the rows of booleans, at least one, all false, and as many all true."""

    def changed(rows: torch.Tensor) -> torch.Tensor:
        """The masks with a quarter of the rows all False and a quarter all True, at random."""
        order = uniform((len(rows),), generator).argsort()
        part = max(1, len(rows) // 4)
        rows = rows.clone()
        rows[order[:part]], rows[order[part : 2 * part]] = False, True
        return rows

    return keep_layout(value, _by_rows(value, changed)) if value.dim() else value


OF_MASKS: dict[Pattern, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "other masks": shuffle_rows,
    "masks of other counts": recount_rows,
    "empty masks": empty_rows,
}
_OF_OTHERS = (*OF_MASKS, "other numbers", *OF_INTEGERS)


def _apply_pattern(value: torch.Tensor, pattern: Pattern, generator: torch.Generator, *, limited: bool) -> torch.Tensor:
    """The tensor changed by a pattern: few bits, constant, sorted, steps, huge or sparse elements, NaN and
    others."""
    if pattern == "few bits":
        return in_few_bits(value)
    if pattern == "constant":
        return torch.full_like(value, _typical(value, limited=limited))
    if pattern == "ordered":
        return _by_rows(value, lambda rows: rows.sort(dim=-1).values) if value.dim() else value
    if pattern in ("steps", "alike rows"):
        return (in_steps if pattern == "steps" else in_alike_rows)(value, generator)
    if pattern == "largest at a stride":
        return _at_a_stride(value, generator)
    if pattern == "rearranged":
        return value.flip(tuple(range(value.dim())))
    if pattern == "sixteenths":
        part = abs(_typical(value, limited=limited)) / FINEST
        return (value / part).round_().mul_(part) if part > 0 else value
    if pattern == "half negligible":
        factors = torch.where(uniform(value.shape, generator) < 1 / 2, 1.0, NEGLIGIBLE).to(value.dtype)
        return factors.mul_(value)
    if pattern == "few huge":
        places = whole(0, value.numel(), (HUGE,), generator)
        return _replace_at(value.clone(), places, _spikes(value, places, generator, HUGE_LOW, HUGE_HIGH))
    if pattern == "close together":
        middle = _typical(value, limited=limited)
        return (value - middle).mul_(CLOSE).add_(middle)
    if pattern in ("positive", "negative"):
        return value.abs() if pattern == "positive" else -value.abs()
    if pattern == "sparse":
        return _sparse(value, generator)
    if pattern == "two groups":
        factors = torch.where(_across_groups(value, generator), 1.0, 1.0 / GROUPED).to(value.dtype)
        return factors.expand(value.shape).contiguous().mul_(value)
    if pattern == "one-hot rows":
        return _one_hot(value, generator)
    if pattern == "NaN at edges":
        return _nan_at_edges(value, generator)
    if pattern == "few directions":
        return _few_directions(value)
    return _non_finite(value, generator)


def is_finite(value: torch.Tensor) -> bool:
    """True if no element is infinite or NaN. Checked by pieces, because the test takes more memory than the tensor."""
    flat = value.reshape(-1)
    parts = [torch.isfinite(flat[start : start + PIECE]).all() for start in range(0, len(flat), PIECE)]
    return not parts or bool(torch.stack(parts).all())


def _by_rows(value: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`change` applied to the rows of an input (rows x columns, at least one row), some rows at a time.

    Sorting takes ten times the memory of its input. The result is contiguous and has the input's shape.
    """
    width = max(1, value.shape[-1])
    rows = value.reshape(-1, width)
    step = max(1, PIECE // width)
    changed = torch.empty(rows.shape, dtype=value.dtype, device=value.device)
    for start in range(0, len(rows), step):
        changed[start : start + step] = change(rows[start : start + step])
    return changed.reshape(value.shape)


def _mix_exponents(value: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Each element times two to a random power between minus and plus `most`, some elements at a time."""
    flat = value.reshape(-1)
    changed = torch.empty(flat.shape, dtype=value.dtype, device=value.device)
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        changed[start : start + PIECE] = torch.ldexp(piece, whole(-most, most + 1, piece.shape, generator))
    return keep_layout(value, changed.reshape(value.shape))


def _across_groups(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A mask of the elements in a row of one group and a column of the other.

    A third of the rows and half of the columns make the first group, drawn anew in each matrix of a batch. A
    vector's elements are its columns.
    """
    columns = uniform(value.shape[:-2] + (1,) * min(1, value.dim() - 1) + value.shape[-1:], generator) < 1 / 2
    if value.dim() < 2:
        return columns
    return columns != (uniform((*value.shape[:-1], 1), generator) < 1 / 3)


def keep_layout(value: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    """`changed` with the strides of `value`, because a kernel may rely on them; an expanded input becomes
    contiguous."""
    if changed.stride() == value.stride() or 0 in value.stride():
        return changed
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(changed)


WAYS = 3  # ways to nudge


def nudge(tensor: torch.Tensor, way: int = 0) -> torch.Tensor:
    """Moves each element by about one unit in the last place up, down, or not at all; `way` (0 to 2) shifts the
    choice."""
    if not tensor.is_floating_point():
        return tensor.clone()
    changed = tensor.clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    eps = torch.finfo(tensor.dtype).eps
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        steps = torch.arange(start + way, start + way + piece.numel(), device=piece.device).remainder_(3).sub_(1)
        piece.mul_(1 + steps.to(piece.dtype) * eps)
    return keep_layout(tensor, changed)


def _typical(value: torch.Tensor, *, limited: bool) -> float:
    """The power of two nearest to the root mean square, with the sign of most elements. Sums of it are exact."""
    if limited:
        return float(value.flatten()[0])
    size = size_of(value)
    power = 2.0 ** round(math.log2(size)) if size > 0 else 0.0
    return -power if float(value.mean(dtype=torch.float64)) < -0.5 * size else power


def size_of(value: torch.Tensor) -> float:
    """The root mean square of a tensor's elements."""
    return float(torch.linalg.vector_norm(value, dtype=torch.float64)) / math.sqrt(max(1, value.numel()))


def _spikes(
    value: torch.Tensor,
    places: torch.Tensor,
    generator: torch.Generator,
    low: float = SPIKE_LOW,
    high: float = SPIKE_HIGH,
) -> torch.Tensor:
    """Large values with the signs that the input has at these places, between `low` and `high` times its size."""
    factors = low + (high - low) * uniform(places.shape, generator)
    signs = torch.where(value.flatten()[places] < 0, -1.0, 1.0)
    return (factors * signs * max(size_of(value), 1e-3)).to(value.dtype)


def _sparse(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Zeros, with spikes at random places and at both ends."""
    count = max(4, value.numel() // SPIKE_EVERY)
    places = whole(0, value.numel(), (count,), generator)
    places[0], places[-1] = 0, value.numel() - 1
    return _replace_at(torch.zeros_like(value), places, _spikes(value, places, generator))


def _one_hot(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Zeros, with a one at a random place of each row."""
    changed = torch.zeros_like(value)
    width = value.shape[-1] if value.dim() else 1
    rows = torch.arange(value.numel() // width, device=value.device)
    places = rows * width + whole(0, width, (len(rows),), generator)
    return _replace_at(changed, places, torch.ones(len(rows), dtype=value.dtype, device=value.device))


def _few_directions(value: torch.Tensor) -> torch.Tensor:
    """The last two dimensions as products of a column and a row of the input, plus a little of the input."""
    if value.dim() < 2 or min(value.shape[-2:]) < 2:
        return value
    matrix = value[..., :, :1] * value[..., :1, :]
    size = size_of(matrix)
    factor = size_of(value) / size if size > 0 else 0.0
    return matrix.mul_(factor).add_(value, alpha=OFF_DIRECTION)


def _at_a_stride(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rearranges each row so that its largest elements lie a power of two apart.

    Vector lanes or threads that take the columns in turns then leave all of them to one lane. A kernel that samples
    a row meets all of them or none. Rows take turns with the powers of two up to the longest such stride.
    """
    width = value.shape[-1] if value.dim() else 1
    powers = range(max(1, (width // STRIDED).bit_length() - 1), 0, -1)
    columns = torch.arange(width, device=value.device)
    orders = []
    for power in powers:
        first = max(0, int(whole(-(1 << power), 1 << power, (1,), generator)))  # mostly the first column
        orders.append(((columns - first) % (1 << power) * width + columns).argsort())

    def placed(rows: torch.Tensor) -> torch.Tensor:
        """The rows with their elements, largest first, at the places of one of `orders`; the orders take turns."""
        changed = torch.empty_like(rows)
        falling = rows.sort(dim=-1, descending=True).values
        for number, places in enumerate(orders):
            changed[number :: len(orders)] = torch.empty_like(falling[number :: len(orders)]).index_copy_(
                -1, places, falling[number :: len(orders)]
            )
        return changed

    return _by_rows(value, placed) if value.dim() else value.clone()


def _few_changed(
    value: torch.Tensor, generator: torch.Generator, structure: Structure, *, limited: bool
) -> torch.Tensor:
    """One to three elements replaced by spikes, or if `limited` by the input's extremes."""
    count = int(whole(1, 4, (1,), generator))
    places = structure.places(count, value.numel(), generator)
    if not limited:
        return _replace_at(value.clone(), places, _spikes(value, places, generator))
    low, high = value.min(), value.max()
    old = value.flatten()[places]
    return _replace_at(value.clone(), places, torch.where(old < (low + high) / 2, high, low))


def _few_other_signs(value: torch.Tensor, generator: torch.Generator, structure: Structure) -> torch.Tensor:
    """One to three elements replaced by spikes of the other sign."""
    places = structure.places(int(whole(1, 4, (1,), generator)), value.numel(), generator)
    spikes = _spikes(value, places, generator).abs()
    return _replace_at(value.clone(), places, spikes if bool((value < 0).any()) else -spikes)


def _non_finite(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A copy with infinities and NaN at random places, and a block of minus infinity; small tensors as they are."""
    if value.numel() < SMALLEST:
        return value
    each = min(32, 1 + value.numel() // NON_FINITE_EVERY)
    places = whole(0, value.numel(), (3 * each,), generator)
    kinds = torch.tensor([math.inf, -math.inf, math.nan], dtype=value.dtype, device=value.device).repeat(each)
    changed = _replace_at(value.clone(), places, kinds)
    corner = [int(whole(0, size, (), generator)) for size in value.shape]
    ends = [1] * (value.dim() - 2) + [min(BLOCK, size // BLOCK) for size in value.shape[-2:]]
    changed[tuple(slice(low, low + end) for low, end in zip(corner, ends, strict=True))] = -math.inf
    return changed


def _nan_at_edges(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A NaN in the first column and one in the last, each in a row of its own."""
    if value.dim() < 2 or value.shape[-1] < 3 or value.numel() < SMALLEST:
        return value
    width = value.shape[-1]
    rows = whole(0, value.numel() // width, (2,), generator)
    places = rows * width + torch.tensor([0, width - 1], device=rows.device)
    return _replace_at(value.clone(), places, torch.full((2,), math.nan, dtype=value.dtype, device=value.device))


def _replace_at(value: torch.Tensor, places: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """`value` with `elements` at `places` (row-major); `value` must not share memory with an input."""
    flat = value.contiguous().reshape(-1)
    flat[places] = elements
    return flat.reshape(value.shape)
