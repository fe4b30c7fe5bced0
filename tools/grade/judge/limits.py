"""Limits of an answer's error, derived from PyTorch's own error. Runs in the judge (imports torch)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from foundry.tools.grade.questions.running_statistics import MEAN
from foundry.tools.grade.questions.trial import Trial, UpdatedBuffer
from foundry.tools.protocol import comparison
from foundry.tools.protocol.comparison import Expected
from foundry.tools.protocol.rules import (
    ALLOWED_FACTOR,
    EPSILON,
    FEW_ELEMENTS,
    OutputError,
    accepts,
    accepts_all,
    error_limit,
    norm_floor,
    stress_limit,
    worst_of,
)

ANYTHING, NOTHING = OutputError(math.inf, math.inf), OutputError(0.0, 0.0)
MOST_UNSTABLE = 1e-4  # share of an output's elements
LUCK = 2.0  # factor on the worst of PyTorch's nine draws: a kernel has one draw, with other roundings
MOST_BY_LUCK = (
    4  # elements: of two draws of the same errors, as many of one are beyond the worst of the other once in 2**4
)
STORED_UNITS = 4.0  # units in the last place of a buffer: old and new part are scaled, added and stored
TF32_BUFFER_NORM = 2.0**-15  # a sixteenth of TF32's unit, of which most averages out, where PyTorch's products use it

# Error of a running mean below which PyTorch has not rounded the weights before it to TF32, though it may. Means over
# all images show each rounded weight. In networks on an H200 our kernels in TF32 were off by 6e-5 to 3e-4, cuDNN's by
# 2.6e-5 or less. Those were convolutions of few channels, in groups, of one pixel, with strides; no rule foretells it.
UNROUNDED_MEAN = 5e-5


def unrounded_means(trial: Trial) -> tuple[str, ...]:
    """The keys of the running means that PyTorch, where it may use TF32, makes more accurate than TF32 would be."""
    means = [buffer for buffer in trial.buffers if buffer.name.rpartition(".")[2] == MEAN]
    return tuple(mean.name for mean in means if trial.tf32 is not None and mean.tf32.norm < UNROUNDED_MEAN)


def weighing(trial: Trial, index: int) -> int:
    """Number of elements that dominate the norm of output `index`; all of them, unless it is floating."""
    expected = trial.expected[index]
    return comparison.weighing_elements(expected) if expected.is_floating else trial.specs[index].numel


def limit_of(
    own: OutputError, trial: Trial, index: int, *, base: OutputError | None = None, elements: int | None = None
) -> OutputError:
    """The largest error that output `index` may have, given PyTorch's error `own` on the same inputs.

    Infinite where it only counts which elements are finite, infinite or NaN. `base`: PyTorch's error in IEEE
    arithmetic, if `own` was measured with TF32. `elements`: how many elements dominate the norm, by default all.
    """
    spec = trial.specs[index]
    elements = spec.numel if elements is None else elements
    if trial.distribution.pattern in ("non-finite", "NaN at edges") and spec.dtype not in EPSILON:
        return ANYTHING  # what is selected beside a NaN, or a difference of infinities, is an implementation's business
    if trial.exact[index]:
        return NOTHING
    if not trial.distribution.is_stress:
        return error_limit(own, spec.dtype, elements)
    plain = stress_limit(base or own, spec.dtype, elements)
    if plain is None:
        return ANYTHING
    wide = error_limit(own, spec.dtype, elements)
    return OutputError(max(plain.norm, wide.norm), max(plain.violation, wide.violation))


def with_luck(
    found: list[OutputError],
    limits: list[OutputError],
    owns: list[OutputError],
    trial: Trial,
    outputs: Sequence[torch.Tensor],
    *,
    is_tf32: bool,
) -> list[OutputError]:
    """Wider limits where an error is luck, for outputs that are refused: PyTorch's one draw `owns` may be small by it.

    In an output of few elements that large numbers cancel to, rounding draws the error anew with each order of
    summation. Of millions of elements with inputs of all magnitudes, the worst one's error is drawn anew with any other
    rounding, and is often twice that of another draw; then a few elements may be as wrong as PyTorch's on other draws.
    """
    is_few = [
        expected.is_floating and spec.numel < FEW_ELEMENTS
        for expected, spec in zip(trial.expected, trial.specs, strict=True)
    ]
    are_few_wrong = [
        expected.is_floating and _are_few_wrong(error, output, expected, limit)
        for error, output, expected, limit in zip(found, outputs, trial.expected, limits, strict=True)
    ]
    if accepts_all(found, limits) or not any([*is_few, *are_few_wrong]):
        return limits
    worst = [worst_of(*pair) for pair in zip(owns, trial.luck(is_tf32) or owns, strict=True)]
    doubled = [OutputError(LUCK * error.norm, LUCK * error.violation) for error in worst]
    wide = [error_limit(error, spec.dtype, spec.numel) for error, spec in zip(doubled, trial.specs, strict=True)]
    return [
        OutputError(
            max(limit.norm, other.norm) if is_small else limit.norm,
            max(limit.violation, other.violation) if is_small or is_rare else limit.violation,
        )
        if limit != NOTHING
        else limit
        for limit, other, is_small, is_rare in zip(limits, wide, is_few, are_few_wrong, strict=True)
    ]


def _are_few_wrong(error: OutputError, output: torch.Tensor, expected: Expected, limit: OutputError) -> bool:
    """True if an output is refused only because at most MOST_BY_LUCK elements are too far off."""
    is_refused = not accepts(error, limit) and error.norm <= limit.norm and not error.misplaced
    return is_refused and comparison.find_wrong(output, expected, limit)[1] <= MOST_BY_LUCK


def excuse_unstable(found: list[OutputError], trial: Trial) -> list[OutputError]:
    """The errors with few misplaced elements set to none if their misplacement depends on a rounding.

    Misplaced: finite, infinite or NaN where they should not be. Excused are at most LUCK times as many as PyTorch
    itself misplaces on inputs changed by one unit in the last place. In 1.6 million logarithms of sums that cancel, the
    sign of two was decided by it.
    """
    sizes = [spec.numel for spec in trial.specs]
    are_few = [0 < error.misplaced <= MOST_UNSTABLE * size for error, size in zip(found, sizes, strict=True)]
    if not any(are_few):
        return found
    try:
        owns = trial.unstable()
    except torch.OutOfMemoryError:
        return found
    return [
        replace(error, misplaced=0) if is_few and error.misplaced <= LUCK * own.misplaced else error
        for error, is_few, own in zip(found, are_few, owns or [NOTHING] * len(found), strict=True)
    ]


def uses_tf32(buffer: UpdatedBuffer, trial: Trial) -> bool:
    """True if PyTorch leaves other values in the buffer where TF32 is allowed: it is computed from products."""
    return trial.tf32 is not None and buffer.tf32 != buffer.ieee


def buffer_limit(buffer: UpdatedBuffer, own: OutputError, *, is_tf32: bool = False) -> OutputError:
    """The largest error that an updated buffer may have, given PyTorch's error `own`, with TF32 or without.

    The bound is that of the buffer's own type. For running statistics it counts the part that this call computed, and a
    few units in the last place for the part that was kept: with a momentum of 0.1 and 32,768 elements a channel, a
    variance without n / (n - 1) is off by 3e-6 of the buffer. Integers may differ where PyTorch's own do.
    """
    spec = buffer.spec
    limit = error_limit(own, spec.dtype, spec.numel)
    if spec.dtype not in EPSILON:
        return limit
    computed = norm_floor(spec.dtype, FEW_ELEMENTS) * buffer.share + STORED_UNITS * EPSILON[spec.dtype]
    norm = max(ALLOWED_FACTOR * own.norm, min(norm_floor(spec.dtype, spec.numel), computed))
    return OutputError(max(norm, TF32_BUFFER_NORM) if is_tf32 else norm, limit.violation)
