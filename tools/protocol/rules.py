"""The definition of "correct": input distributions, tolerances, and the rule that accepts an output.

Free of torch, so that the main process and receipts can use it. The numbers come from measurements of eager PyTorch
against float64. A fixed tolerance against a float32 or TF32 reference would reject the more accurate kernel, so a
candidate's budget is set by PyTorch's own error on the same inputs.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from foundry.knowledge.candidate import Outcome, Stage
from foundry.knowledge.opgraph import DType, TensorSpec
from foundry.knowledge.task import TOLERANCE

PROTOCOL_VERSION = "foundry-27"

ALLOWED_FACTOR = 2.0  # allowed multiple of PyTorch's own error
FEW_ELEMENTS = 64  # elements of an output; in fewer, rounding errors do not average out
EPSILON: dict[DType, float] = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}
EPSILON |= {"complex128": 2**-52, "complex64": 2**-23}  # compared as pairs of real numbers
EIGHT_BITS: dict[DType, float] = {"float8_e4m3fn": 2**-3, "float8_e4m3fnuz": 2**-3}
EIGHT_BITS |= {"float8_e5m2": 2**-2, "float8_e5m2fnuz": 2**-2, "float8_e8m0fnu": 2**-3}  # a step of the last doubles
EPSILON |= EIGHT_BITS
# Elements of an 8-bit output that may be one step off, because float32 put them on the other side of a tie. Quotients
# of bfloat16 numbers meet ties: a kernel with reciprocals moves one element in 900, one in bfloat16 one in 30.
MOST_STEPS = 2.0**-8  # share of the elements
FEWEST_STEPS = 2  # elements that are always allowed
NEARLY_RIGHT = 3e-2  # norm error; below it a wrong result is called inaccurate
ILL_CONDITIONED = 0.1  # PyTorch's own norm error; above it a task proves nothing

# Stress patterns check the kind of answer, not the last digit. The error may be as large as the tolerance,
# and elements are compared only while PyTorch's own error stays below these two limits.
STEADY_NORM = 256.0  # PyTorch's norm error, in units of the dtype's epsilon
STEADY_VIOLATION = 0.2  # PyTorch's largest elementwise error, in units of the tolerance

Parameters = Literal[
    "seeded",
    "randomised",
    "every other",
    "the others",
    "few changed",
    "few more",
    "large",
    "high",
    "low",
    "few high",
    "raised",
    "lowered",
    "few close",
    "few bits",
    "few huge",
    "negated",
    "rearranged",
    "statistics",
    "other buffers",
    "rearranged buffers",
    "integers at their ends",
    "as before",
]
OF_BIASES: tuple[Parameters, ...] = ("high", "low", "few high", "raised", "lowered")
# Changed in place, as an optimiser does, without `load_state_dict`: versions move, no hook is called.
IN_PLACE: tuple[Parameters, ...] = ("few changed", "few more")

Pattern = Literal[
    "",
    "constant",
    "sparse",
    "one-hot rows",
    "few directions",
    "two groups",
    "few changed",
    "rearranged",
    "few huge",
    "half negligible",
    "sixteenths",
    "few other signs",
    "non-finite",
    "NaN at edges",
    "positive",
    "negative",
    "other masks",
    "masks of other counts",
    "empty masks",
    "other numbers",
    "other indices",
    "equal indices",
    "paired indices",
    "short lengths",
    "full lengths",
    "uneven lengths",
    "alike rows",
    "few bits",
    "no structure",
    "ordered",
    "steps",
    "largest at a stride",
    "close together",
    "task numbers",
]
INDICES: tuple[Pattern, ...] = ("other indices", "equal indices", "paired indices")
COUNTS: tuple[Pattern, ...] = ("short lengths", "full lengths", "uneven lengths")
OF_INTEGERS: tuple[Pattern, ...] = (*INDICES, *COUNTS)
GENTLER_SCALES = (1.5, 1.1)
GENTLER_EXPONENTS = (2, 1)
_KEEPS_RANGE: frozenset[Pattern] = frozenset(
    (
        *("", "constant", "few changed", "rearranged", "ordered", "steps", "largest at a stride", "close together"),
        *("other masks", "masks of other counts", "empty masks", "other numbers", *OF_INTEGERS, "alike rows"),
    )
)
_UNSTABLE: frozenset[Pattern] = frozenset(("constant", "close together", "few huge"))


@dataclass(frozen=True)
class Distribution:
    """One way of drawing the inputs of a question from those of `get_inputs`.

    Each floating element is multiplied by `scale`, and by 2**k with k uniform in -exponents..exponents. `parameters`
    says which parameters the model holds. `is_stress`: errors are judged by the wider `stress_limit`.

    Patterns of floating inputs:
    - `constant`: all elements of an input are equal.
    - `sparse`: zeros, with spikes at random places and at the first and last element.
    - `one-hot rows`: one 1 in each row.
    - `few directions`: matrices of rank one, with a little of the input as given added: singular values of different
      sizes. Shows an iteration that ends too early.
    - `two groups`: rows and columns fall into two groups each, and only elements of one group keep the distribution's
      `scale`. Asked without the wider limit: an iteration settles slowly here, and one that ends early is off by more.
    - `alike rows`: three quarters of the rows of each matrix are nearly one row, the others nearly another one. Asked
      where places of large elements (`topk`) choose what is computed: most rows go to the same experts then, and
      others get none.
    - `few changed`: the inputs of the trial "as given" with one to three elements changed.
    - `rearranged`: the inputs of the last trial with `few changed`, each tensor's elements in reverse order. No sum or
      checksum tells them from those before.
    - `few huge`: a few elements are hundreds of times as large as the others. Not asked where TF32 shows in PyTorch's
      own answer: its rounding of such elements decides a softmax.
    - `half negligible`: a random half of the elements is 2**60 times smaller.
    - `sixteenths`: whole multiples of a sixteenth of a power of two near the usual size, with few bits, so that
      thresholds, edges of bins and halves are met exactly.
    - `few other signs`: inputs of one sign (such as 0 to 1) with one to three elements of the other sign.
    - `non-finite`: infinities and NaN at random places, and a block of minus infinity.
    - `NaN at edges`: a NaN in the first column and one in the last, next to what padding replaces.
    - `positive`, `negative`: every element has this sign. Shows a wrong initial value of a maximum or minimum.
    - `few bits`: values that bfloat16 holds exactly.
    - `task numbers`: a few elements are constants of the task's text, or elements of its small tables and other inputs:
      thresholds, edges of bins and padding values are met exactly.
    - `ordered`: each row ascends. Shows a selection that relies on large elements lying apart.
    - `steps`: the longest axis has one level up to some place and another level behind it, with a quarter of the input
      as given added. The place differs in each tensor and in each of its first rows; inputs of one shape have the same
      levels. Shows a kernel that looks only at a part of a line, or near the diagonal of two.
    - `close together`: all elements of an input lie within a thousandth of each other, and differ. Asked where PyTorch
      selects and rounds nothing (a median, a sort): elsewhere honest formulas, such as a variance from the sums of x
      and of its squares, lose digits that PyTorch keeps.

    Patterns of other inputs, which stay as given under all patterns above:
    - `other masks`: each row of booleans is shuffled, so that a prefix or a triangle becomes any mask.
    - `masks of other counts`: all but a power of two of a row are true, or only so many are.
    - `empty masks`: some rows are all false and some all true. Where PyTorch has NaN then, any value counts.
    - `other numbers`: Python's floats change.
    - `other indices`: depends on how the task uses the integers. Indices of rows become any valid rows, in any order;
      offsets of bags make one bag long and others empty; integers that are only converted to floating numbers
      (positions, labels) are shuffled; 64-bit integers that are only added up grow beyond 32 bits. Integers that are
      only multiplied and added come near the largest that occurs, 64-bit ones further beyond it. They have one sign
      then, and the reference's own integers still hold the result. Integers of which only bits, remainders or divisors
      are taken become powers of two, their neighbours, and Fibonacci numbers.
    - `equal indices`, `paired indices`: indices of rows all select the same row, or the second half selects the same
      rows as the first. Threads that share the work meet there at the same time.
    - `short lengths`, `full lengths`, `uneven lengths`: integers that Python reads or that the model compares. Lengths
      become 0 or 1, the largest that the reference takes, or one long beside short ones. Parts between offsets become
      all empty but one, equal, or uneven with empty ones. Classes become all equal, two only, or one common and one
      missing. Any value counts where PyTorch has NaN, as in the mean of an empty part. Under `other indices` they are
      drawn at random.

    Parameters of the kind `other buffers`: floating buffers that load_state_dict would change get other elements. Zeros
    and infinities stay, and so do masks: a kernel may know a mask. Raising an exception is no failure here, nor for
    the next two kinds. `rearranged buffers`: their own rows in another order. `integers at their ends`: quantised
    numbers (buffers of 8 or 16 bits) are all the least or the largest that occur. `rearranged` parameters have the same
    elements at other places, or, if all are equal, others of the same sum, so that no sum or checksum tells them from
    those before.
    `high` and `low` biases put clamps and ReLUs at their ends; `raised` and `lowered` ones let gates forget slowly; of
    `few high` ones one in sixteen is large. With `few close` a few rows of each matrix nearly agree. With `few huge` a
    few elements are hundreds of times as large. `negated` parameters are the constructor's with the other sign.

    Properties that every draw of an input shares are kept: zeros at the same places (a triangle), and symmetry. Only
    `no structure` breaks them; a wrong answer to it is noted but does not reject the kernel.
    """

    name: str
    scale: float = 1.0
    exponents: int = 0
    parameters: Parameters = "seeded"
    pattern: Pattern = ""
    is_stress: bool = False

    @property
    def leaves_range(self) -> bool:
        """True if inputs with declared limits could leave them."""
        return self.exponents > 0 or self.scale != 1.0 or self.pattern not in _KEEPS_RANGE

    @property
    def only_scales(self) -> bool:
        """True if PyTorch's error in units of the outputs should be the same as for the inputs as given."""
        return not (self.pattern or self.exponents or self.is_stress) and self.parameters == "seeded"

    @property
    def enlarges(self) -> bool:
        """True if it makes values so much larger that results may overflow."""
        return self.scale > 1.0 or self.exponents > 0

    @property
    def gentler(self) -> tuple[Distribution, ...]:
        """Milder versions to try one after another if outputs of the reference overflow.

        The order of the factors decides which partial product overflows first, so overflowing inputs could reject a
        correct candidate.
        """
        if self.is_stress:
            return ()
        if self.scale > 1.0:
            return tuple(replace(self, scale=scale) for scale in GENTLER_SCALES)
        return tuple(replace(self, exponents=exponents) for exponents in GENTLER_EXPONENTS if self.exponents)

    @property
    def is_of_buffers(self) -> bool:
        """True if it changes tables, which a kernel may know and refuse to do without."""
        return self.parameters in ("other buffers", "rearranged buffers", "integers at their ends")

    @property
    def may_overflow(self) -> bool:
        """True if its parameters are so large, or its tables so strange, that some models have no answer."""
        return self.is_of_buffers or self.parameters in (*OF_BIASES, "large", "few huge", "negated")

    @property
    def may_be_unstable(self) -> bool:
        """True if rounding the inputs could change the answer by much.

        Examples: a difference of equal numbers, a tie between large scores of a softmax.
        """
        return self.parameters in (*OF_BIASES, "large", "few close", "few huge", "negated") or (
            self.is_stress and (self.pattern in _UNSTABLE or self.scale > 1.0)
        )

    @property
    def has_ties(self) -> bool:
        """True if many elements are equal, so that a selection among them depends on their order."""
        return self.pattern == "sixteenths"

    @property
    def is_lost_in_tf32(self) -> bool:
        """True if TF32 rounds some of its numbers by more than the size of the others."""
        return "few huge" in (self.pattern, self.parameters)


AS_GIVEN = Distribution("as given")
TIMED = Distribution("timed call")
RANDOMISED = Distribution("randomised parameters", parameters="randomised")
MIXED = Distribution("mixed exponents", exponents=6)
FEW_CHANGED = Distribution("few elements changed", pattern="few changed")
OTHER_SIGNS = Distribution("few of the other sign", pattern="few other signs", is_stress=True)
TRIPLED, HUNDREDTH, NEGATED = (Distribution(f"x{scale:g}", scale=scale) for scale in (3.0, 0.01, -1.0))
DISTRIBUTIONS = (
    AS_GIVEN,
    FEW_CHANGED,
    Distribution("elements rearranged", pattern="rearranged"),  # directly after inputs with the same sums
    TRIPLED,
    HUNDREDTH,
    NEGATED,
    MIXED,
    # Directly after calls with the parameters as given, which a fold may have seen: only buffers have changed since.
    Distribution("running statistics changed", parameters="statistics"),
    Distribution("other buffers", parameters="other buffers"),
    Distribution("buffers rearranged", parameters="rearranged buffers"),
    Distribution("integer buffers at their ends", parameters="integers at their ends"),
    Distribution("parameters rearranged", parameters="rearranged"),  # runs after a call with the same sums
    RANDOMISED,
    Distribution("every other parameter changed", parameters="every other"),  # directly after RANDOMISED
    Distribution("the other parameters changed", parameters="the others"),
    Distribution("few parameters changed", parameters="few changed"),
    Distribution("few more parameters changed", parameters="few more"),
    Distribution("few parameters changed again", parameters="few changed"),  # other elements than before
    Distribution("few bits", parameters="few bits", pattern="few bits"),
    Distribution("large parameters", parameters="large"),
    Distribution("two groups", scale=8.0, pattern="two groups"),
    Distribution("other masks", pattern="other masks"),
    Distribution("masks of other counts", pattern="masks of other counts"),
    Distribution("empty and full masks", pattern="empty masks", is_stress=True),
    Distribution("other numbers", pattern="other numbers"),
    Distribution("other indices", pattern="other indices"),
    Distribution("equal indices", pattern="equal indices"),
    Distribution("paired indices", pattern="paired indices"),
    *(Distribution(pattern, pattern=pattern) for pattern in COUNTS),
    Distribution("no structure", pattern="no structure"),
    Distribution("high biases", parameters="high", is_stress=True),
    Distribution("low biases", parameters="low", is_stress=True),
    Distribution("few high biases", parameters="few high", is_stress=True),
    Distribution("raised biases", parameters="raised", is_stress=True),
    Distribution("lowered biases", parameters="lowered", is_stress=True),
    Distribution("few close rows of parameters", parameters="few close", is_stress=True),
    Distribution("few huge parameters", parameters="few huge", is_stress=True),
    Distribution("parameters negated", parameters="negated", is_stress=True),
    Distribution("x100", scale=100.0, is_stress=True),
    Distribution("x2**17", scale=2.0**17, is_stress=True),  # larger than 16-bit floats
    Distribution("x2**-12", scale=2.0**-12, is_stress=True),  # variance below the usual eps of 1e-5
    Distribution("x2**-44", scale=2.0**-44, is_stress=True),  # lengths near the usual eps of 1e-12
    Distribution("few huge elements", pattern="few huge", is_stress=True),
    Distribution("half negligible", pattern="half negligible", is_stress=True),
    Distribution("sixteenths", pattern="sixteenths", is_stress=True),
    Distribution("numbers of the task", pattern="task numbers", is_stress=True),
    Distribution("constant", pattern="constant", is_stress=True),
    Distribution("close together", pattern="close together", is_stress=True),
    Distribution("ordered", pattern="ordered", is_stress=True),
    Distribution("steps", pattern="steps", is_stress=True),
    Distribution("largest at a stride", pattern="largest at a stride", is_stress=True),
    Distribution("sparse", pattern="sparse", is_stress=True),
    Distribution("one-hot rows", pattern="one-hot rows", is_stress=True),
    Distribution("few directions", pattern="few directions", is_stress=True),
    Distribution("alike rows", pattern="alike rows", is_stress=True),
    Distribution("positive", pattern="positive", is_stress=True),
    Distribution("negative", pattern="negative", is_stress=True),
    OTHER_SIGNS,
    Distribution("non-finite", pattern="non-finite", is_stress=True),
    Distribution("NaN at edges", pattern="NaN at edges", is_stress=True),
    Distribution("few elements changed again", pattern="few changed"),
)
SCREEN = (AS_GIVEN, RANDOMISED, MIXED)
# Questions that may tell right kernels from wrong ones if the inputs as given do not; the least changed first. The
# parameters stay as given: timing uses them, and a kernel could see that they are zeros or ones and rely on it.
TELLING = (FEW_CHANGED, OTHER_SIGNS, NEGATED, TRIPLED, HUNDREDTH, MIXED)


def distributions(stage: Stage, *, limited: bool) -> tuple[Distribution, ...]:
    """The distributions of a stage; `limited` if the task declares a range that its inputs may not leave."""
    chosen = SCREEN if stage == "screen" else DISTRIBUTIONS
    return tuple(item for item in chosen if not (limited and item.leaves_range))


def distribution_named(name: str) -> Distribution:
    """The distribution of TELLING with this name; AS_GIVEN for any other name, "" included."""
    return next((item for item in TELLING if item.name == name), AS_GIVEN)


class Seeds:
    """Seeds that no candidate can know, recorded for the receipt.

    The screen's seeds are derived from the run's seed, because its truths are computed once for a whole run. The
    seeds of the other stages come from the system's entropy after the candidate was written.
    """

    def __init__(self, seed: int) -> None:
        """`seed` is the run's; no seed is drawn yet."""
        self._seed = seed
        self.drawn: dict[str, int] = {}

    def draw(self, stage: Stage, purpose: str) -> int:
        """A seed below 2**31, recorded in `drawn` under its purpose."""
        text = f"{self._seed}:{purpose}"
        derived = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1
        self.drawn[purpose] = derived if stage == "screen" else secrets.randbits(31)
        return self.drawn[purpose]


@dataclass(frozen=True)
class OutputError:
    """Error of one output tensor against the float64 truth.

    Floating: `norm` = |out - truth| / |truth| (Euclidean), `violation` = the largest |out - truth| in units of
    tolerance * (|truth| + standard deviation of the truth). Integer: both are the number of elements that differ.
    `misplaced` counts elements whose non-finite kind differs from what is expected.
    """

    norm: float
    violation: float
    misplaced: int = 0


def norm_floor(dtype: DType, elements: int) -> float:
    """The norm error that every candidate may have: a few units in the last place of the output's type; 0 for exact
    types.

    For float32 these are 64 units, for 16 bits half a unit, four times as many for few `elements`. Eight bits allow a
    few steps, more for few elements. A plain serial sum over a hundred thousand elements loses as much as 64 units if
    PyTorch sums pairwise or in float64 (1.6e-6 measured over 16384). So does exp(x) - 1 of small x if PyTorch calls
    expm1 (2.7e-6 measured on SELU of 0.01 * randn). It is IEEE arithmetic all the same, and 64 times better than TF32's
    2**-11.
    """
    if dtype not in EPSILON:
        return 0.0
    if dtype in EIGHT_BITS:  # the truth is rounded to the type too: an error is a step of 0.7 units, or none
        return 0.7 * EPSILON[dtype] * math.sqrt(max(MOST_STEPS, FEWEST_STEPS / max(1, elements)))
    units = 0.5 if dtype in ("float16", "bfloat16") else 64.0
    return EPSILON[dtype] * units * (4.0 if elements < FEW_ELEMENTS else 1.0)


def error_limit(baseline: OutputError, dtype: DType, elements: int) -> OutputError:
    """The largest errors a candidate may have, given PyTorch's own on the same inputs."""
    if dtype not in EPSILON:
        return OutputError(ALLOWED_FACTOR * baseline.norm, ALLOWED_FACTOR * baseline.violation)
    return OutputError(
        max(ALLOWED_FACTOR * baseline.norm, norm_floor(dtype, elements)),
        max(ALLOWED_FACTOR * baseline.violation, 1.0),
    )


def is_ieee(baseline: OutputError, without_tf32: OutputError, spec: TensorSpec) -> bool:
    """True if a float32 output needs IEEE arithmetic.

    That holds if PyTorch's own error leaves a kernel no more room than IEEE arithmetic needs, and is no larger than
    without TF32. If TF32 enlarges PyTorch's error and it is still small (a sum, a softmax after the product), a
    kernel in TF32 has an error as small.
    """
    has_no_room = ALLOWED_FACTOR * baseline.norm <= norm_floor(spec.dtype, spec.numel)
    return spec.dtype == "float32" and has_no_room and baseline.norm <= ALLOWED_FACTOR * without_tf32.norm


def stress_limit(baseline: OutputError, dtype: DType, elements: int) -> OutputError | None:
    """The largest errors that a candidate may have under a stress pattern.

    None if PyTorch's own error is so large that elements are not compared.
    """
    plain = error_limit(baseline, dtype, elements)
    if dtype not in EPSILON:
        return plain
    is_steady = baseline.norm <= STEADY_NORM * EPSILON[dtype] and baseline.violation <= STEADY_VIOLATION
    return OutputError(max(plain.norm, TOLERANCE[dtype]), plain.violation) if is_steady else None


def worst_of(one: OutputError, other: OutputError) -> OutputError:
    """The larger error of each kind."""
    return OutputError(
        max(one.norm, other.norm), max(one.violation, other.violation), max(one.misplaced, other.misplaced)
    )


def accepts(error: OutputError, limit: OutputError) -> bool:
    """True if an error is within its limit. A NaN error is not: every comparison with it is false."""
    return error.misplaced == 0 and error.norm <= limit.norm and error.violation <= limit.violation


def accepts_all(errors: Sequence[OutputError], limits: Sequence[OutputError]) -> bool:
    """True if every error is within its limit."""
    return all(accepts(error, limit) for error, limit in zip(errors, limits, strict=True))


def pressure(error: OutputError, limit: OutputError) -> float:
    """The error as a multiple of its limit; above 1 it is refused, infinite for misplaced elements."""
    if error.misplaced or error.norm != error.norm:
        return float("inf")
    norm = error.norm / limit.norm if limit.norm else float("inf") if error.norm else 0.0
    violation = error.violation / limit.violation if limit.violation else float("inf") if error.violation else 0.0
    return max(norm, violation)


def failure(error: OutputError, dtype: DType) -> Outcome:
    """The outcome of an output that was refused: "inaccurate" if it is nearly right, else "wrong_result"."""
    nearly = dtype in EPSILON and error.misplaced == 0 and error.norm <= NEARLY_RIGHT
    return "inaccurate" if nearly else "wrong_result"
