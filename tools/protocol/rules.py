"""What "correct" means here: input distributions, tolerances, and the rule that accepts an output.

Free of torch, so that the main process and receipts can use it. The numbers come from measurements of eager PyTorch
against float64: a fixed tolerance against a float32 or TF32 reference rejects the more accurate kernel, so the budget
of a candidate is set by PyTorch's own error on the same inputs.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from typing import Literal

from foundry.knowledge.candidate import Outcome, Stage
from foundry.knowledge.opgraph import DType
from foundry.knowledge.task import TOLERANCE

PROTOCOL_VERSION = "foundry-8"

ALLOWED_FACTOR = 2.0  # a candidate's error over PyTorch's own
FEW_ELEMENTS = 64  # an output this small has an error that is a matter of luck, not of an average
EPSILON: dict[DType, float] = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}
NEARLY_RIGHT = 3e-2  # norm error below which a result is called inaccurate rather than wrong
ILL_CONDITIONED = 0.1  # PyTorch's own norm error above which a task proves nothing

# Stress patterns ask for the right kind of answer, not for the last digit: the budget is the tolerance itself, and only
# where PyTorch's own error stays below these are elements compared at all.
STEADY_NORM = 256.0  # PyTorch's own, in units in the last place
STEADY_VIOLATION = 0.2

Parameters = Literal["seeded", "randomised", "few changed", "few more", "large", "high", "low", "few bits", "as before"]
Pattern = Literal[
    "",
    "constant",
    "sparse",
    "one-hot rows",
    "few changed",
    "few other signs",
    "non-finite",
    "positive",
    "negative",
    "other masks",
    "other numbers",
    "other indices",
    "few bits",
    "no structure",
]
GENTLER_SCALES, GENTLER_EXPONENTS = (1.5, 1.1), (2, 1)
_KEEPS_RANGE: frozenset[Pattern] = frozenset(
    ("", "constant", "few changed", "other masks", "other numbers", "other indices")
)


@dataclass(frozen=True)
class Distribution:
    """How the floating inputs of `get_inputs` are changed. What else there is stays as given but for `other masks`,
    which shuffles each row of booleans (a mask of a prefix or a triangle becomes any mask), `other numbers`, which
    changes Python's floats, and `other indices`: integers that only say which row to take become any that there are, in
    any order; those that only become floating numbers (positions, labels) change places.

    `exponents` multiplies each element by 2**k, k uniform in -exponents..exponents. Patterns: `constant`: all elements
    of an input are equal. `sparse`: zeros with spikes at random places, the first and the last element among them.
    `one-hot rows`: one 1 in each row. `few changed`: the values of the trial "as given" with one to three others at
    random places. `few other signs`: the same with the other sign, in inputs that have one sign only (0 to 1).
    `non-finite`: infinities and NaN at random places. `positive`, `negative`: every element with this sign, where what
    a reduction starts from shows. Zeros that every draw has (a triangle) stay zeros, and a matrix that
    is symmetric in every draw stays so, but for `no structure`, where a wrong answer is noted and held against nobody.
    `is_stress` marks what is judged by its own, wider rule.
    """

    name: str
    scale: float = 1.0
    exponents: int = 0
    parameters: Parameters = "seeded"
    pattern: Pattern = ""
    is_stress: bool = False

    @property
    def leaves_range(self) -> bool:
        """Whether inputs with declared limits could leave them."""
        return self.exponents > 0 or self.scale != 1.0 or self.pattern not in _KEEPS_RANGE

    @property
    def enlarges(self) -> bool:
        """Whether it makes values larger by much, so that results may overflow."""
        return self.scale > 1.0 or self.exponents > 0

    @property
    def gentler(self) -> tuple[Distribution, ...]:
        """What is asked instead, in this order, where outputs of the reference overflow: how far a product gets
        before it does is a matter of the order of its factors."""
        if self.is_stress:
            return ()
        if self.scale > 1.0:
            return tuple(replace(self, scale=scale) for scale in GENTLER_SCALES)
        return tuple(replace(self, exponents=exponents) for exponents in GENTLER_EXPONENTS if self.exponents)

    @property
    def may_be_unstable(self) -> bool:
        """Whether a rounding of the inputs could change the answer by much: a difference of equals, a tie of large
        scores."""
        return self.parameters in ("large", "high", "low") or (
            self.is_stress and (self.pattern == "constant" or self.scale > 1.0)
        )


AS_GIVEN = Distribution("as given")
RANDOMISED = Distribution("randomised parameters", parameters="randomised")
MIXED = Distribution("mixed exponents", exponents=6)
FEW_CHANGED = Distribution("few elements changed", pattern="few changed")
OTHER_SIGNS = Distribution("few of the other sign", pattern="few other signs", is_stress=True)
TRIPLED, HUNDREDTH, NEGATED = (Distribution(f"x{scale:g}", scale=scale) for scale in (3.0, 0.01, -1.0))
DISTRIBUTIONS = (
    AS_GIVEN,
    FEW_CHANGED,
    TRIPLED,
    HUNDREDTH,
    NEGATED,
    MIXED,
    RANDOMISED,
    Distribution("few parameters changed", parameters="few changed"),
    Distribution("few more parameters changed", parameters="few more"),
    Distribution("few bits", parameters="few bits", pattern="few bits"),
    Distribution("large parameters", parameters="large"),
    Distribution("other masks", pattern="other masks"),
    Distribution("other numbers", pattern="other numbers"),
    Distribution("other indices", pattern="other indices"),
    Distribution("no structure", pattern="no structure"),
    Distribution("high biases", parameters="high", is_stress=True),
    Distribution("low biases", parameters="low", is_stress=True),
    Distribution("x100", scale=100.0, is_stress=True),
    Distribution("x2**17", scale=2.0**17, is_stress=True),  # beyond what 16-bit numbers can hold
    Distribution("x2**-12", scale=2.0**-12, is_stress=True),  # a variance below the usual eps of 1e-5
    Distribution("constant", pattern="constant", is_stress=True),
    Distribution("sparse", pattern="sparse", is_stress=True),
    Distribution("one-hot rows", pattern="one-hot rows", is_stress=True),
    Distribution("positive", pattern="positive", is_stress=True),
    Distribution("negative", pattern="negative", is_stress=True),
    OTHER_SIGNS,
    Distribution("non-finite", pattern="non-finite", is_stress=True),
    Distribution("few elements changed again", pattern="few changed"),
)
SCREEN = (AS_GIVEN, RANDOMISED, MIXED)
# What may tell right from wrong where inputs as given do not, the least changed first. The parameters stay as given:
# they are what is timed, and a kernel can see once and for all that they are zeros or ones.
TELLING = (FEW_CHANGED, OTHER_SIGNS, NEGATED, TRIPLED, HUNDREDTH, MIXED)


def distributions(stage: Stage, *, limited: bool) -> tuple[Distribution, ...]:
    """What a stage tries; `limited` when the task declares a range that its inputs may not leave."""
    chosen = SCREEN if stage == "screen" else DISTRIBUTIONS
    return tuple(item for item in chosen if not (limited and item.leaves_range))


def told_by(name: str) -> Distribution:
    """The question that tells, by its name; inputs as given for ""."""
    return next((item for item in TELLING if item.name == name), AS_GIVEN)


class Seeds:
    """Seeds that no candidate can know, noted for the receipt.

    The screen's follow from the run's seed, because its truths are computed once for a whole run; those of the other
    stages come from the system's entropy, after the candidate exists.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.drawn: dict[str, int] = {}

    def draw(self, stage: Stage, purpose: str) -> int:
        """A seed below 2**31, noted under its purpose."""
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
    """Norm error that is never held against a candidate: a few units in the last place.

    64 of them for float32: what a plain serial sum over a hundred thousand elements loses, where PyTorch sums pairwise
    or in float64 (1.6e-6 measured over 16384), and exp(x) - 1 of small x where PyTorch calls expm1 (2.7e-6 measured on
    SELU of 0.01 * randn). It is IEEE arithmetic all the same, and 64 times better than TF32's 2**-11.
    """
    if dtype not in EPSILON:
        return 0.0
    units = 0.5 if dtype in ("float16", "bfloat16") else 64.0
    return EPSILON[dtype] * units * (4.0 if elements < FEW_ELEMENTS else 1.0)


def allowed(baseline: OutputError, dtype: DType, elements: int) -> OutputError:
    """The largest errors a candidate may have, given PyTorch's own on the same inputs."""
    if dtype not in EPSILON:
        return OutputError(ALLOWED_FACTOR * baseline.norm, ALLOWED_FACTOR * baseline.violation)
    return OutputError(
        max(ALLOWED_FACTOR * baseline.norm, norm_floor(dtype, elements)),
        max(ALLOWED_FACTOR * baseline.violation, 1.0),
    )


def stress_limit(baseline: OutputError, dtype: DType, elements: int) -> OutputError | None:
    """The largest errors under a stress pattern; None where PyTorch itself is too far off to be asked."""
    plain = allowed(baseline, dtype, elements)
    if dtype not in EPSILON:
        return plain
    is_steady = baseline.norm <= STEADY_NORM * EPSILON[dtype] and baseline.violation <= STEADY_VIOLATION
    return OutputError(max(plain.norm, TOLERANCE[dtype]), plain.violation) if is_steady else None


def accepts(error: OutputError, limit: OutputError) -> bool:
    """Written so that NaN errors are refused."""
    return error.misplaced == 0 and error.norm <= limit.norm and error.violation <= limit.violation


def failure(error: OutputError, dtype: DType) -> Outcome:
    """What a refused output is called."""
    nearly = dtype in EPSILON and error.misplaced == 0 and error.norm <= NEARLY_RIGHT
    return "inaccurate" if nearly else "wrong_result"
