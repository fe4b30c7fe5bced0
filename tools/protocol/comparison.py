"""Measures errors of outputs against a float64 truth and describes wrong elements. Runs in the judge (imports
torch)."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import DType
from foundry.knowledge.task import TOLERANCE
from foundry.tools.protocol.rules import EPSILON, OutputError
from foundry.tools.task.form.values import as_real

CHUNK = 1 << 17  # elements compared at a time on a CPU: their float64 copies stay in the cache
GPU_CHUNK = 1 << 24  # elements compared at a time on a GPU: leaves room for their float64 copies
TINY = 1e-300  # smallest norm to divide by
MAX_PATTERN = 1 << 24  # elements of an output; of larger ones only the first wrong element is described

NAN_SPREAD = 0.25  # share of outputs that may become NaN beyond PyTorch's own, after a few infinite or NaN inputs

MOST_LOST = 0.5  # share of an output that may overflow under stress
_LARGEST = {torch.float16: float("inf")}  # no limit for float16: PyTorch carries its sums in float32


@dataclass(frozen=True)
class Expected:
    """One expected output. `truth` is flat, float64 for floating outputs; complex ones are pairs of real numbers.

    `eager` is PyTorch's own output, kept only if something is not finite: an element that overflows in just one of
    the two is not counted as an error. `spread` is the standard deviation of the finite truth, `norm` its Euclidean
    norm, `tolerance` relative. `any_nan` accepts any value where NaN is expected, and NaN where an infinity is: how
    these combine depends on the implementation, which elements they reach does not. `may_spread` lets a NaN reach a
    few elements more.
    """

    truth: torch.Tensor
    eager: torch.Tensor | None
    shape: tuple[int, ...]
    dtype: DType
    spread: float
    norm: float
    tolerance: float
    any_nan: bool = False
    may_spread: bool = False

    @property
    def is_floating(self) -> bool:
        """True if the output's dtype has a rounding error."""
        return self.dtype in EPSILON


def expect(truth: torch.Tensor, eager: torch.Tensor, dtype: DType, tolerance: float | None) -> Expected:
    """The expected output, from the float64 run (`truth`) and PyTorch's own run in the task's dtype (`eager`)."""
    truth, eager = as_real(truth), as_real(eager)
    shape = tuple(int(size) for size in eager.shape)
    flat = truth.detach().reshape(-1)
    if dtype not in EPSILON:
        return Expected(flat.contiguous(), eager=None, shape=shape, dtype=dtype, spread=0.0, norm=0.0, tolerance=0.0)
    flat = flat.double().contiguous()
    is_all_finite = math.isfinite(float(flat.sum())) and math.isfinite(float(eager.sum(dtype=torch.float64)))
    kept = None if is_all_finite else eager.detach().reshape(-1).contiguous()
    if kept is not None:
        spread, norm = _finite_spread_and_norm(flat, kept)
    else:
        spread = float(flat.std(correction=0)) if flat.numel() > 1 else 0.0
        norm = float(torch.linalg.vector_norm(flat)) if flat.numel() else 0.0
    return Expected(
        flat, eager=kept, shape=shape, dtype=dtype, spread=spread, norm=norm, tolerance=tolerance or TOLERANCE[dtype]
    )


def _finite_spread_and_norm(truth: torch.Tensor, own: torch.Tensor) -> tuple[float, float]:
    """Standard deviation and norm of the elements of a float64 `truth` that are finite in both tensors.

    Computed by pieces: gathering these elements would take three times their memory.
    """
    count, total, squares, apart = 0, 0.0, 0.0, 0.0
    spans = list(_spans(truth, CHUNK))
    masks = [torch.isfinite(truth[span]) & torch.isfinite(own[span]) for span in spans]
    for span, mask in zip(spans, masks, strict=True):
        values = truth[span].masked_fill(~mask, 0.0)
        count, total = count + int(mask.sum()), total + float(values.sum())
        squares += float(torch.dot(values, values))
    mean = total / max(1, count)
    for span, mask in zip(spans, masks, strict=True):
        off = (truth[span] - mean).masked_fill_(~mask, 0.0)
        apart += float(torch.dot(off, off))
    return (math.sqrt(apart / count) if count > 1 else 0.0), math.sqrt(squares)


@contextlib.contextmanager
def on_the_host(expected: Sequence[Expected]) -> Iterator[None]:
    """Moves the truths from the GPU to the host's memory for the `with` body, to leave room for other work."""
    moved = [(item, item.device) for one in expected for item in (one.truth, one.eager) if item is not None]
    for tensor, _ in moved:
        tensor.data = tensor.data.cpu()
    try:
        yield
    finally:
        for tensor, device in moved:
            tensor.data = tensor.data.to(device)


def finite_mean(truth: torch.Tensor) -> float:
    """Mean of the finite elements; 0 if there are none."""
    count, total = 0, 0.0
    for span in _spans(truth, CHUNK):
        values = truth[span].double()
        mask = torch.isfinite(values)
        count, total = count + int(mask.sum()), total + float(values.masked_fill(~mask, 0.0).sum())
    return total / count if count else 0.0


def usual_size(output: torch.Tensor) -> float:
    """Root mean square of an output's finite elements."""
    flat = output.detach().reshape(-1)
    pieces = (flat[start : start + GPU_CHUNK].double() for start in range(0, flat.numel(), GPU_CHUNK))
    squares, count = 0.0, 0
    for piece in pieces:
        finite = piece[torch.isfinite(piece)]
        squares, count = squares + float(finite.square().sum()), count + finite.numel()
    return math.sqrt(squares / max(1, count))


def measure(output: torch.Tensor, expected: Expected) -> OutputError:
    """Errors of an output against the expected values: norm of the difference, worst element, misplaced ones.

    Elements that are finite, infinite or NaN where they should not be count as misplaced. For integers, the number of
    wrong elements.
    """
    flat = as_real(output).detach().reshape(-1).to(expected.truth.device)
    if not expected.is_floating:
        wrong = float((flat != expected.truth).sum())
        return OutputError(wrong, wrong)
    squares, worst, misplaced = 0.0, 0.0, 0
    for span in _spans(flat, CHUNK):
        # Large outputs are read many times: each step here is one more pass over memory.
        truth = expected.truth[span]
        difference = torch.sub(truth, flat[span])  # float64 for any dtype of the output
        square = float(torch.dot(difference, difference))
        if not math.isfinite(square):
            eager = expected.eager[span] if expected.eager is not None else truth
            wrong_kind, counted = _misplaced(flat[span], truth, eager, expected)
            misplaced += int(wrong_kind.sum())
            difference, truth = difference[counted], truth[counted]
            if not difference.numel():
                continue
            square = float(torch.dot(difference, difference))
        squares += square
        weighed = difference.div_(truth.abs().add_(expected.spread + TINY))
        worst = max(worst, float(torch.linalg.vector_norm(weighed, math.inf)))
    norm = math.sqrt(squares) / max(expected.norm, TINY)
    return OutputError(norm, worst / expected.tolerance, misplaced)


def scale_only(expected: Expected) -> Expected:
    """The expected output without its values: enough to count errors of other outputs in its units."""
    return replace(expected, truth=torch.empty(0), eager=None)


def count_in_usual_units(expected: Expected, usual: Expected) -> Expected:
    """`expected` with errors counted in units of the usual output, because under stress the output may be all zeros."""
    spread, norm = max(expected.spread, usual.spread), max(expected.norm, usual.norm)
    return replace(expected, spread=spread, norm=norm)


def weighing_elements(expected: Expected) -> int:
    """Effective number of elements that determine the norm of the truth, at most all (the participation ratio).

    As many elements of a normal distribution have the same ratio of (sum of squares)^2 to the sum of fourth powers,
    which is n / 3.
    """
    spans = list(_spans(expected.truth, expected.truth.numel()))
    size = max((float(expected.truth[span].abs().nan_to_num(posinf=0.0).max()) for span in spans), default=0.0)
    second = fourth = 0.0
    for span in spans:
        squares = (expected.truth[span] / (size or 1.0)).nan_to_num(posinf=0.0, neginf=0.0).square_()
        second, fourth = second + float(squares.sum()), fourth + float(torch.dot(squares, squares))
    return min(expected.truth.numel(), math.ceil(3.0 * second**2 / fourth)) if fourth else 0


def describe_mismatch(output: torch.Tensor, expected: Expected, limit: OutputError, error: OutputError) -> str:
    """Describes the failing elements: the first one, their share, their places, a constant factor if there is one."""
    flat = as_real(output).detach().reshape(-1).to(expected.truth.device)
    truth = expected.truth
    wrong, count = find_wrong(output, expected, limit)
    if count == 0:
        return (
            f"no single element is far off, but the norm error is {error.norm:.2e}; "
            f"the limit from PyTorch's own error is {limit.norm:.2e}"
        )
    first = int(wrong.byte().argmax())
    index = _unravel(first, expected.shape)
    got, want = flat[first].item(), truth[first].item()
    text = f"first wrong element {index}: got {got:.6g}, want {want:.6g}; {_share(count, flat.numel())} wrong"
    where = _where(wrong.reshape(expected.shape)) if 0 < flat.numel() <= MAX_PATTERN else ""
    factor = _factor(flat, expected) if expected.is_floating else ""
    return text + where + factor


def find_wrong(output: torch.Tensor, expected: Expected, limit: OutputError) -> tuple[torch.Tensor, int]:
    """(flat mask of the elements beyond their limit, number of them)."""
    flat = as_real(output).detach().reshape(-1).to(expected.truth.device)
    wrong = torch.empty(flat.numel(), dtype=torch.bool, device=flat.device)
    for span in _spans(flat, flat.numel()):
        wrong[span] = _wrong(flat[span], expected, limit, span)
    return wrong, int(wrong.sum())


def _wrong(output: torch.Tensor, expected: Expected, limit: OutputError, span: slice) -> torch.Tensor:
    """Mask of the elements beyond their limit, for one slice of an output."""
    truth = expected.truth[span]
    output = output.to(truth.dtype)
    if not expected.is_floating:
        return output != truth
    eager = truth if expected.eager is None else expected.eager[span]
    wrong_kind, counted = _misplaced(output, truth, eager, expected)
    bound = limit.violation * expected.tolerance * (truth.abs() + expected.spread)
    return wrong_kind | (counted & ((output - truth).abs() > bound))


def _misplaced(
    output: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor, expected: Expected
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mask of elements of the wrong kind: finite, infinite or NaN; mask of elements whose difference counts)."""
    finite_truth, finite_eager, finite = torch.isfinite(truth), torch.isfinite(eager), torch.isfinite(output)
    same_kind = _is_same(output, truth) | _is_same(output, eager)
    if expected.any_nan:
        has_nan = torch.isnan(truth) | torch.isnan(eager) | torch.isnan(output)
        same_kind |= has_nan
    wrong = (finite_truth & finite_eager & ~finite) | (~finite_truth & ~finite_eager & ~same_kind)
    # Compensated and online sums turn an infinity into NaN in places where others still find a limit.
    if expected.may_spread:
        spread = wrong & torch.isnan(output)
        if int(spread.sum()) <= NAN_SPREAD * output.numel():
            wrong &= ~spread
    return wrong, finite_truth & finite_eager & finite


def _is_same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Elementwise equality in which NaN equals NaN."""
    return (one.double() == other.double()) | (torch.isnan(one) & torch.isnan(other))


def _spans(flat: torch.Tensor, length: int) -> Iterator[slice]:
    """Slices of `length` elements; on a GPU, slices as long as leave room for float64 copies."""
    step = GPU_CHUNK if flat.is_cuda else max(1, length)
    for start in range(0, flat.numel(), step):
        yield slice(start, min(start + step, flat.numel()))


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index in each dimension of a row-major position."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))


def _share(count: int, total: int) -> str:
    """ "N of M elements (share) are", or "all elements are"."""
    return "all elements are" if count == total else f"{count} of {total} elements ({count / total:.2g}) are"


def _where(wrong: torch.Tensor) -> str:
    """Describes the places of wrong elements, for each dimension in which not all positions are wrong; "" if none."""
    found: list[str] = []
    for dim, size in enumerate(wrong.shape):
        others = [other for other in range(wrong.dim()) if other != dim]
        line = wrong.any(dim=others) if others else wrong
        places = torch.nonzero(line).reshape(-1).tolist()
        if len(places) == size:
            continue
        low, high = places[0], places[-1]
        steps = {later - earlier for earlier, later in itertools.pairwise(places)}
        if high - low + 1 == len(places):
            text = (
                f"the last {len(places)}" if high == size - 1 else f"{low} to {high}" if high > low else f"only {low}"
            )
        elif len(steps) == 1:
            text = f"every {steps.pop()} from {low}"
        else:
            text = f"{len(places)} places between {low} and {high}"
        found.append(f"dimension {dim} (of {size}): {text}")
    return "; " + ", ".join(found) if found else ""


def _factor(output: torch.Tensor, expected: Expected) -> str:
    """Names a constant factor between output and truth; "" if there is none."""
    output = output[:GPU_CHUNK].to(expected.truth.dtype)
    own = expected.truth[:GPU_CHUNK]
    usable = torch.isfinite(output) & torch.isfinite(own)
    given, truth = output[usable][:CHUNK], own[usable][:CHUNK]
    large = truth.abs() > 0.1 * expected.spread
    if int(large.sum()) < 8:
        return ""
    middle = float((given[large] / truth[large]).median())
    is_constant = float((given - middle * truth).abs().max()) <= expected.tolerance * abs(middle) * expected.spread
    return f"; everything is {middle:.4g} times the truth" if is_constant and abs(middle - 1) > 1e-3 else ""


# ---------------------------------------------------------------- outputs that overflow their dtype, or nearly do
# They prove nothing: the order of the operations decides which intermediate result becomes infinite.


class Overflow(TaskError):
    """The reference's outputs overflow, or nearly do, on these inputs."""


def overflowing(outputs: Sequence[torch.Tensor]) -> float:
    """The largest share (0 to 1) of an output's elements that overflow or nearly do.

    Infinite, NaN, and so large that partial results in another order may be infinite.
    """
    floating = [item for item in outputs if item.is_floating_point() and item.numel()]
    return max((1.0 - int(_is_moderate(item).sum()) / item.numel() for item in floating), default=0.0)


def _is_moderate(output: torch.Tensor) -> torch.Tensor:
    """Mask of elements far enough from overflow."""
    return output.abs() < _LARGEST.get(output.dtype, 2.0**96)


def excuse_overflow(truth: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Truth and PyTorch's output, changed so that any value is accepted for elements that overflow, or nearly do."""
    if not own.is_floating_point():
        return truth, own
    left_out = ~_is_moderate(own)
    return truth.masked_fill(left_out, float("inf")), own.masked_fill(left_out, 0.0)
