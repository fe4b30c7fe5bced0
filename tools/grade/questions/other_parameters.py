"""Draws other parameters and buffers than a model was constructed with. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import nn

from foundry.tools.grade.questions.patterns import in_few_bits
from foundry.tools.protocol.rules import Parameters
from foundry.tools.task.form.values import as_real, from_real

KEPT_BYTES = 256 << 20  # bytes; all kinds of a smaller state are kept
PIECE = 1 << 24  # elements that are shuffled together
FEW_MORE = 3  # elements changed in each parameter, however large it is
LARGE = 4.0  # multiple of the usual parameters: activations saturate, recurrences remember
# Offsets of biases: later clamps and ReLUs act on other elements, and gates forget slowly (sigmoid(3) is 0.95).
OFFSETS: dict[Parameters, float] = {"high": 16.0, "low": -16.0, "few high": 16.0, "raised": 3.0, "lowered": -3.0}
HUGE = 8  # elements of each parameter that become huge
HUGE_SIZE = 256.0
FEW_EVERY = 512  # parameters for each changed one: a kernel that compares samples hardly meets one
HIGH_EVERY = 16  # biases for each high one
CLOSE_ROWS = 8  # rows of a matrix that nearly agree
CLOSE_ROW = 2.0**-7


State = dict[str, torch.Tensor]


class Piece(NamedTuple):
    """A parameter or buffer, or some rows of a large one."""

    key: str
    first: int  # number of its first row
    tensor: torch.Tensor

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The same rows of another tensor of this name."""
        return whole[self.first : self.first + len(self.tensor)] if whole.dim() else whole


Drawn = Iterator[Piece]  # pieces in the order of the model's state


class Seeded(Protocol):
    """The tensors that the constructor made."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""

    def pieces(self) -> Drawn:
        """Yields all tensors in pieces, which are read only."""

    def whole(self, key: str) -> torch.Tensor:
        """The whole tensor of a name, read only."""


class WholeTensors:
    """Tensors that are already on the device of the model."""

    def __init__(self, state: State) -> None:
        """Keeps the state and counts its bytes."""
        self._state, self.nbytes = state, sum(tensor.nbytes for tensor in state.values())

    def pieces(self) -> Drawn:
        """Yields each tensor as one piece."""
        return (Piece(key, 0, tensor) for key, tensor in self._state.items())

    def whole(self, key: str) -> torch.Tensor:
        """The tensor of a name itself."""
        return self._state[key]


# Kinds that change only a part: the other parameters keep the values of the earlier kind.
BEFORE: dict[Parameters, Parameters] = {
    "few more": "few changed",
    "every other": "randomised",
    "the others": "every other",
}
HALVES: tuple[Parameters, ...] = ("every other", "the others")
# Kinds that stay in force for the next question, which changes only a part.
STAY = tuple(BEFORE[kind] for kind in HALVES)


class States:
    """Parameters and buffers of a model by kind.

    Kinds other than "seeded" (as constructed) are drawn on demand, one tensor after the other. `keeps`: drawn kinds
    are kept; if they are large, only the last one.
    """

    def __init__(self, seeded: Seeded, *, keeps: bool = True) -> None:
        """`seeded` are the tensors as constructed; draws nothing yet."""
        self.seeded, self._keeps = seeded, keeps
        self.are_large = not keeps or seeded.nbytes > KEPT_BYTES
        self._makers: dict[Parameters, Callable[[], Drawn]] = {}
        self._kept: dict[Parameters, State] = {}
        self._numbers: Counter[Parameters] = Counter()

    def plan(self, kind: Parameters, make: Callable[[], Drawn]) -> None:
        """Sets how a kind is drawn, the same each time; replaces the kind's earlier values."""
        self._makers[kind] = make
        self._numbers[kind] += 1
        self._kept.pop(kind, None)

    def label(self, kind: Parameters) -> tuple[str, int]:
        """An identity of a kind as last planned; it differs from that of each earlier plan."""
        return kind, self._numbers[kind]

    def __contains__(self, kind: Parameters) -> bool:
        """True for "seeded" and for every kind that can be drawn."""
        return kind == "seeded" or kind in self._makers

    def each(self, kind: Parameters) -> Drawn:
        """Yields the tensors of a kind in pieces. Unless kinds are kept, each piece is drawn when it is asked for."""
        if kind == "seeded":
            return self.seeded.pieces()
        return WholeTensors(self._whole(kind)).pieces() if self._keeps else self._makers[kind]()

    def picked(self, kind: Parameters, keys: Collection[str]) -> State:
        """The whole tensors of a kind that `keys` names."""
        if kind == "seeded":
            return {key: self.seeded.whole(key) for key in keys}
        return whole_tensors(piece for piece in self.each(kind) if piece.key in keys) if keys else {}

    def _whole(self, kind: Parameters) -> State:
        """All tensors of a kind: kept ones, else drawn now. If they are large, other kinds are dropped first."""
        if kind not in self._kept:
            if self.are_large:
                self._kept.clear()
            made = whole_tensors(self._makers[kind]())  # drawing may have kept other kinds
            if self.are_large:
                self._kept.clear()
            self._kept[kind] = made
        return self._kept[kind]


def whole_tensors(pieces: Iterable[Piece]) -> State:
    """The tensors by name, each joined from all its pieces."""
    found: dict[str, list[torch.Tensor]] = {}
    for piece in pieces:
        found.setdefault(piece.key, []).append(piece.tensor)
    return {key: parts[0] if len(parts) == 1 else torch.cat(parts) for key, parts in found.items()}


def unread_counters(model: nn.Module) -> set[str]:
    """Batch counters of layers with a fixed momentum (torch.nn.BatchNorm2d): no output depends on them."""
    layers = {name: item for name, item in model.named_modules() if isinstance(item, nn.modules.batchnorm._NormBase)}
    return {f"{name}.num_batches_tracked".lstrip(".") for name, item in layers.items() if item.momentum is not None}


def plain_tensors(model: nn.Module) -> State:
    """A model's own parameters and buffers (no copies), by their names in its state."""
    return {key: item.detach() for key, item in model.state_dict().items() if isinstance(item, torch.Tensor)}


def draw_parameters(
    kind: Parameters,
    seeded: Seeded,
    chosen: set[str],
    learned: set[str],
    seed: int,
    *,
    last: Drawn | None = None,
) -> Drawn:
    """Yields parameters of a kind in pieces: all of them at once take as much memory again.

    `chosen` names those that may change, `learned` those of them that are no statistics. `last`: the parameters before
    a kind that changes only a part; None: `seeded`.
    """
    drawing: Drawing | None = None
    for key, first, own in seeded.pieces():
        drawing = drawing or Drawing(kind, chosen, learned, seed, own.device)
        before = own if last is None else next(last).tensor
        yield Piece(key, first, from_real(drawing.draw(key, as_real(own), as_real(before)), own))


class Drawing:
    """Draws the tensors of one kind. They are asked for in the state's order, because random numbers depend on it."""

    def __init__(self, kind: Parameters, chosen: set[str], learned: set[str], seed: int, place: torch.device) -> None:
        """`chosen`: keys of the tensors that are redrawn; `learned`: keys of parameters. Draws nothing yet."""
        self._kind, self._chosen, self._learned, self._seed = kind, chosen, learned, seed
        self._half = set(sorted(chosen)[HALVES.index(kind) == 0 :: 2]) if kind in HALVES else set[str]()
        self._noise = torch.Generator(place).manual_seed(seed)
        self._places = torch.Generator(place).manual_seed(seed ^ 0xFE3)

    def draw(self, key: str, tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """A tensor of the kind, from the constructed one and the one of the question before."""
        kind, seed, is_chosen, is_learned = self._kind, self._seed, key in self._chosen, key in self._learned
        if kind == "few bits":
            return in_few_bits(tensor) if is_chosen else tensor
        if kind == "negated":
            return -tensor if is_learned else tensor
        if kind == "rearranged":
            return rearrange(tensor, seed) if is_chosen else tensor
        changed = randomise(key, tensor, self._noise) if is_chosen else tensor
        if kind in HALVES:
            return changed if key in self._half else before
        if kind in ("few changed", "few more"):
            return few_of(changed, before, self._places, FEW_MORE if kind == "few more" else None)
        if kind == "statistics":
            return changed if is_chosen and not is_learned else tensor
        if kind == "large":
            return changed * LARGE if is_chosen else changed
        if kind == "few huge":
            return _few_huge(changed, seed) if is_learned else changed
        if kind == "few close":
            return _close_rows(changed, seed) if is_learned else changed
        if kind in OFFSETS and is_learned and tensor.squeeze().dim() < 2:
            return changed + OFFSETS[kind] * _one_in(HIGH_EVERY if kind == "few high" else 1, changed, seed)
        return changed


def rearrange(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The same elements at other places; if all are equal, pairs of others with the same sum.

    Works in pieces, because a host takes a minute to shuffle a billion elements.
    """
    flat = tensor.reshape(-1).clone()
    is_level = is_constant(tensor)
    stream = torch.Generator(flat.device).manual_seed(seed)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        order = torch.randperm(piece.numel(), generator=stream, device=piece.device)
        if not is_level:
            piece.copy_(piece[order])
            continue
        half = piece.numel() // 2
        step = (0.5 * piece[:1].abs()).where(piece[:1] != 0, torch.full_like(piece[:1], 0.25))
        piece[order[:half]] += step
        piece[order[half : 2 * half]] -= step
    return flat.reshape(tensor.shape)


def _few_huge(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The tensor with a few elements of either sign, hundreds of times as large as the others."""
    stream = torch.Generator().manual_seed(seed)
    places = torch.randint(0, max(1, tensor.numel()), (min(HUGE, tensor.numel() // HUGE),), generator=stream)
    size = float(torch.linalg.vector_norm(tensor.float())) / max(1, tensor.numel()) ** 0.5
    signs = torch.randint(0, 2, places.shape, generator=stream) * 2.0 - 1.0
    flat = tensor.reshape(-1).clone()
    flat[places.to(flat.device)] = (signs * HUGE_SIZE * size).to(flat)
    return flat.reshape(tensor.shape)


def _close_rows(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The matrix with a few rows that share one row and keep a little of their own."""
    if tensor.dim() < 2 or len(tensor) < 2 * CLOSE_ROWS:
        return tensor
    places = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(seed))[:CLOSE_ROWS].to(tensor.device)
    changed = tensor.clone()
    changed[places] = tensor[places[:1]] + CLOSE_ROW * tensor[places]
    return changed


def _one_in(every: int, tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Zeros, with a one at one place in `every`, at least one."""
    order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(seed)).to(tensor.device)
    return (order.reshape(tensor.shape) % every == 0).to(tensor.dtype)


def randomise(key: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor times 1 + 0.5 N(0,1).

    A constant one (scales of one, biases of zero) gets 0.3 N(0,1) added. Running variances stay positive.
    """
    noise = torch.randn(tensor.shape, generator=generator, device=generator.device, dtype=torch.float32)
    if "var" in key.rsplit(".", 1)[-1]:
        noise = torch.rand(tensor.shape, generator=generator, device=generator.device)
        return noise.add_(0.5).mul_(tensor).to(tensor.dtype)
    if is_constant(tensor):
        return noise.mul_(0.3).add_(tensor).to(tensor.dtype)
    return noise.mul_(0.5).add_(1.0).mul_(tensor).to(tensor.dtype)  # in place: a large tensor is not copied again


def is_table(tensor: torch.Tensor) -> bool:
    """True if a tensor holds floating numbers other than a mask of zeros and one other value."""
    values = torch.unique(tensor)
    return (
        tensor.is_floating_point() and bool(tensor.numel()) and not (values.numel() == 2 and bool((values == 0).any()))
    )


def can_be_rearranged(tensor: torch.Tensor) -> bool:
    """True if a table keeps its kind when its rows change places: no zeros, no order, and different elements."""
    is_line = tensor.dim() == 1 and any(
        torch.equal(tensor, tensor.sort(descending=descending)[0]) for descending in (False, True)
    )
    return is_table(tensor) and bool((tensor != 0).all()) and not is_line and not is_constant(tensor)


def is_quantised(tensor: torch.Tensor) -> bool:
    """True if a tensor holds numbers in integers of 8 or 16 bits, like quantised weights; indices are wider."""
    is_narrow = tensor.dtype in (torch.int8, torch.uint8, torch.int16)
    return is_narrow and tensor.numel() > 1 and not is_constant(tensor)


TABLES: dict[Parameters, Callable[[torch.Tensor], bool]] = {
    "other buffers": is_table,
    "rearranged buffers": can_be_rearranged,
    "integers at their ends": is_quantised,
}


def draw_tables(kind: Parameters, seeded: Seeded, chosen: set[str], seed: int) -> Drawn:
    """Yields all tensors in pieces, with the chosen tables changed.

    They get other numbers, only their least and largest numbers, or their rows in another order. A symmetric table's
    columns change like its rows.
    """
    generator: torch.Generator | None = None
    for key, first, own in seeded.pieces():
        if key not in chosen:
            yield Piece(key, first, own)
            continue
        generator = generator or torch.Generator(own.device).manual_seed(seed)
        table = as_real(own)
        if kind == "other buffers":
            changed = _other_numbers(table, generator)
        elif kind == "integers at their ends":
            changed = _at_ends(table, seed)
        else:
            changed = _other_rows(table, seed)
        yield Piece(key, first, from_real(changed, own))


def _other_rows(table: torch.Tensor, seed: int) -> torch.Tensor:
    """The table with its rows in a random order; a symmetric matrix has its columns in the same order."""
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed)).to(table.device)
    is_symmetric = table.dim() > 1 and table.shape[-1] == table.shape[-2] and torch.equal(table, table.mT)
    return table[order][:, order] if is_symmetric and table.dim() == 2 else table[order]


def _at_ends(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Each element becomes the largest or the least that occurs, so that sums of neighbours are as large as they can
    be.

    Some rows are all largest, some all least, in the others chance decides.
    """
    rows = tensor.reshape(len(tensor), -1) if tensor.dim() > 1 else tensor.reshape(1, -1)
    stream = torch.Generator().manual_seed(seed)
    shares = torch.randint(0, 3, (len(rows), 1), generator=stream) * 0.5
    is_largest = torch.rand(rows.shape, generator=stream) < shares
    ends = torch.where(is_largest.to(tensor.device), tensor.max(), tensor.min())
    return ends.reshape(tensor.shape)


def _other_numbers(table: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every element times 0.5 to 1.5, so that zeros, signs and infinities stay.

    A table of zeros alone gets other numbers. Sorted tables stay sorted, symmetric ones symmetric.
    """
    tensor = table.float()
    factors = 0.5 + torch.rand(tensor.shape, generator=generator, device=generator.device)
    if tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] and torch.equal(tensor, tensor.mT):
        factors = (factors + factors.mT) / 2
    value = tensor * factors if bool(tensor.any()) else 0.3 * factors
    if tensor.dim() == 1 and not is_constant(tensor):
        for descending in (False, True):
            if torch.equal(tensor, tensor.sort(descending=descending)[0]):
                value = value.sort(descending=descending)[0]
    return value.to(table.dtype)


def few_of(
    changed: torch.Tensor, tensor: torch.Tensor, stream: torch.Generator, most: int | None = None
) -> torch.Tensor:
    """`tensor` with a few of its elements taken from `changed`: one in FEW_EVERY, at least one, at most `most`."""
    count = max(1, tensor.numel() // FEW_EVERY) if most is None else most
    places = torch.randint(0, max(1, tensor.numel()), (count,), generator=stream, device=stream.device)
    taken = torch.zeros(tensor.numel(), dtype=torch.bool, device=stream.device)
    taken[places[: tensor.numel()]] = True
    return torch.where(taken.reshape(tensor.shape).to(tensor.device), changed, tensor)


def is_constant(tensor: torch.Tensor) -> bool:
    """True if there are elements and all are equal."""
    return bool(tensor.numel()) and bool((tensor == tensor.reshape(-1)[0]).all())
