"""Draws other parameters and buffers than a model was constructed with. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from foundry.tools.grade.questions.patterns import in_few_bits
from foundry.tools.grade.questions.reals import again, as_reals
from foundry.tools.protocol.rules import Parameters

KEPT_BYTES = 256 << 20  # bytes of a state; of a smaller state all kinds are kept
PIECE = 1 << 24  # elements that are shuffled together
FEW_MORE = 3  # elements changed in each parameter, however large it is
LARGE = 4.0  # multiple of the usual parameters: activations saturate, recurrences remember
# Added to biases: clamps and ReLUs behind them act on other elements, and gates forget slowly (sigmoid(3) is 0.95).
OFFSETS: dict[Parameters, float] = {"high": 16.0, "low": -16.0, "few high": 16.0, "raised": 3.0, "lowered": -3.0}
HUGE = 8  # elements of each parameter that become huge
HUGE_SIZE = 256.0
FEW_EVERY = 512  # parameters for each changed one: a kernel that compares samples hardly meets one
HIGH_EVERY = 16  # biases for each high one
CLOSE_ROWS = 8  # rows of a matrix that nearly agree
CLOSE_ROW = 2.0**-7


State = dict[str, torch.Tensor]
# Kinds of which only a part is new, beside the parameters of the question before.
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

    Kinds other than "seeded" (as constructed) are drawn on demand. If they are large, only the last one is kept, and
    an earlier one is drawn again.
    """

    def __init__(self, seeded: State) -> None:
        self.seeded = seeded
        self.are_large = sum(tensor.nbytes for tensor in seeded.values()) > KEPT_BYTES
        self._makers: dict[Parameters, Callable[[], State]] = {}
        self._kept: dict[Parameters, State] = {}

    def plan(self, kind: Parameters, make: Callable[[], State]) -> None:
        """Sets how a kind is drawn, the same each time; replaces the kind's earlier values."""
        self._makers[kind] = make
        self._kept.pop(kind, None)

    def __contains__(self, kind: Parameters) -> bool:
        return kind == "seeded" or kind in self._makers

    def __getitem__(self, kind: Parameters) -> State:
        if kind == "seeded":
            return self.seeded
        if kind not in self._kept:
            if self.are_large:
                self._kept.clear()
            made = self._makers[kind]()  # making one may ask for others
            if self.are_large:
                self._kept.clear()
            self._kept[kind] = made
        return self._kept[kind]


def unread_counters(model: nn.Module) -> set[str]:
    """Batch counters of layers with a fixed momentum (torch.nn.BatchNorm2d): no output depends on them."""
    layers = {name: item for name, item in model.named_modules() if isinstance(item, nn.modules.batchnorm._NormBase)}
    return {f"{name}.num_batches_tracked".lstrip(".") for name, item in layers.items() if item.momentum is not None}


def clone_state(model: nn.Module, place: torch.device) -> dict[str, torch.Tensor]:
    """A copy of a model's parameters and buffers, on `place`."""
    state = {key: tensor.detach() for key, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}
    return {key: tensor.to(place, copy=True) for key, tensor in state.items()}


def draw_parameters(
    kind: Parameters,
    seeded: dict[str, torch.Tensor],
    last: dict[str, torch.Tensor],
    chosen: set[str],
    learned: set[str],
    seed: int,
) -> dict[str, torch.Tensor]:
    """Parameters of a kind.

    `chosen` names those that may change, `learned` those of them that are no statistics; `last` are the parameters
    of which only a part changes.
    """
    own = seeded
    keys = list(seeded)
    seeded, last = (dict(zip(keys, as_reals(item[key] for key in keys), strict=True)) for item in (seeded, last))
    drawn = _draw(kind, seeded, last, chosen, learned, seed=seed)
    return dict(zip(keys, again((drawn[key] for key in keys), (own[key] for key in keys)), strict=True))


def _draw(kind: Parameters, seeded: State, last: State, chosen: set[str], learned: set[str], seed: int) -> State:
    """A new state for kinds that draw numbers at random."""
    changed = iterate_randomised(seeded, chosen, seed)  # one at a time: all of them take as much memory again
    if kind in HALVES:
        new = set(sorted(chosen)[HALVES.index(kind) == 0 :: 2])
        return {key: tensor if key in new else last[key] for key, tensor in changed}
    if kind in ("few changed", "few more"):
        stream = torch.Generator(_place_of(seeded)).manual_seed(seed ^ 0xFE3)
        most = FEW_MORE if kind == "few more" else None
        return {key: few_of(tensor, last[key], stream, most) for key, tensor in changed}
    if kind == "statistics":
        return {key: tensor if key in chosen - learned else seeded[key] for key, tensor in changed}
    if kind == "few bits":
        return {key: in_few_bits(item) if key in chosen else item for key, item in seeded.items()}
    if kind == "large":
        return {key: tensor * LARGE if key in chosen else tensor for key, tensor in changed}
    if kind == "negated":
        return {key: -tensor if key in learned else tensor for key, tensor in seeded.items()}
    if kind == "few huge":
        return {key: _few_huge(item, seed) if key in learned else item for key, item in changed}
    if kind == "rearranged":
        return {key: rearrange(item, seed) if key in chosen else item for key, item in seeded.items()}
    if kind == "few close":
        return {key: _close_rows(item, seed) if key in learned else item for key, item in changed}
    if kind in OFFSETS:
        offset = OFFSETS[kind]
        vectors = {key for key in learned if seeded[key].squeeze().dim() < 2}
        every = HIGH_EVERY if kind == "few high" else 1
        return {
            key: tensor + offset * _one_in(every, tensor, seed) if key in vectors else tensor for key, tensor in changed
        }
    return dict(changed)


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


def iterate_randomised(state: State, chosen: set[str], seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every tensor; chosen ones times 1 + 0.5 N(0,1) plus an offset of their own size.

    Constant ones (scales of one, biases of zero) become different elements. Running variances stay positive.
    """
    generator = torch.Generator(_place_of(state)).manual_seed(seed)
    for key, tensor in state.items():
        if key not in chosen:
            yield key, tensor
            continue
        noise = torch.randn(tensor.shape, generator=generator, device=generator.device, dtype=torch.float32)
        if "var" in key.rsplit(".", 1)[-1]:
            noise = torch.rand(tensor.shape, generator=generator, device=generator.device)
            noise.add_(0.5).mul_(tensor)
        elif is_constant(tensor):
            noise.mul_(0.3).add_(tensor)
        else:
            noise.mul_(0.5).add_(1.0).mul_(tensor)  # avoids copies of a large tensor
        yield key, noise.to(tensor.dtype)


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


def draw_tables(
    kind: Parameters, state: dict[str, torch.Tensor], chosen: set[str], seed: int
) -> dict[str, torch.Tensor]:
    """The chosen tables with other numbers, with only their least and largest numbers, or with their rows in another
    order.

    A symmetric table's columns change like its rows.
    """
    drawn = _draw_tables(kind, dict(zip(state, as_reals(state.values()), strict=True)), chosen, seed)
    return dict(zip(state, again((drawn[key] for key in state), state.values()), strict=True))


def _draw_tables(kind: Parameters, state: State, chosen: set[str], seed: int) -> State:
    """A new state for kinds that change buffers, integers or tables."""
    if kind == "other buffers":
        return other_buffers(state, chosen, seed)
    changed = dict(state)
    if kind == "integers at their ends":
        return changed | {key: _at_ends(state[key], seed) for key in chosen}
    for key in sorted(chosen):
        table = state[key]
        order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed)).to(table.device)
        is_symmetric = table.dim() > 1 and table.shape[-1] == table.shape[-2] and torch.equal(table, table.mT)
        changed[key] = table[order][:, order] if is_symmetric and table.dim() == 2 else table[order]
    return changed


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


def other_buffers(state: dict[str, torch.Tensor], chosen: set[str], seed: int) -> dict[str, torch.Tensor]:
    """Every element of the chosen buffers times 0.5 to 1.5, so that zeros, signs and infinities stay.

    A buffer of zeros alone gets other numbers. Sorted buffers stay sorted, symmetric ones symmetric.
    """
    generator = torch.Generator(_place_of(state)).manual_seed(seed)
    changed = dict(state)
    for key in sorted(chosen):
        tensor = state[key].float()
        factors = 0.5 + torch.rand(tensor.shape, generator=generator, device=generator.device)
        if tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] and torch.equal(tensor, tensor.mT):
            factors = (factors + factors.mT) / 2
        value = tensor * factors if bool(tensor.any()) else 0.3 * factors
        for descending in (False, True):
            if (
                tensor.dim() == 1
                and not is_constant(tensor)
                and torch.equal(tensor, tensor.sort(descending=descending)[0])
            ):
                value = value.sort(descending=descending)[0]
        changed[key] = value.to(state[key].dtype)
    return changed


def _place_of(state: dict[str, torch.Tensor]) -> torch.device:
    """The device of a state's tensors."""
    return next((tensor.device for tensor in state.values()), torch.device("cpu"))


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
