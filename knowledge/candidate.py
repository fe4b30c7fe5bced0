"""A candidate and the records of its path: Candidate -> Build -> Verdict -> Audit -> Timing -> Profile -> Judgement.

Each record is written once. Speed (Timing) and proof (Verdict, Audit) never share a field. Acceptance is not stored:
`ruling.rule` computes it from the records.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

from foundry.knowledge.device import TargetName
from foundry.knowledge.limits import Limiter, Rung
from foundry.knowledge.opgraph import OpGraph, ProductRun, product_size, unrounded_products
from foundry.knowledge.reasons import Reason, Refusal, refusal_of
from foundry.knowledge.task import AccuracyClass

Choice = int | str
REFERENCE = "c0"  # the task's own module, the parent of a model's first kernel
Stage = Literal["screen", "full", "final"]
Outcome = Literal[
    "correct",
    "wrong_result",
    "inaccurate",
    "nondeterministic",
    "stale_weights",  # right for earlier parameters, wrong for those loaded since
    "compile_error",
    "launch_failure",
    "crash",
    "timeout",
    "cheating",  # proven by acts
    "not_allowed",  # refused by the policy or the contract
    "not_judged",  # the grader cannot decide, or could not observe
    "unproven",  # compiled for a device that is not here
]


@dataclass(frozen=True)
class AuthoredTunable:
    """An integer constant of an author's code. `values` are all that may be tried."""

    name: str
    values: tuple[int, ...]
    default: int
    meaning: str = ""


@dataclass(frozen=True)
class AuthoredScratch:
    """Memory between launches: `count` (an expression) elements of a dtype.

    Memory that is `kept` stays between calls as long as the parameters do not change, and is filled by launches that
    run `once`.
    """

    name: str
    count: str
    dtype: str = "float32"
    kept: bool = False


@dataclass(frozen=True)
class AuthoredLaunch:
    """One call of a function of an author's code.

    Arguments are names of buffers and scratch memory, or integer expressions of sizes and tunables. A CPU has no
    grid, block and shared memory. `once`: it runs only after a parameter has changed.
    """

    function: str
    args: tuple[str, ...]
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    shared_bytes: str = "0"
    once: bool = False


@dataclass(frozen=True)
class AuthoredKernel:
    """A kernel written by an author: code, its launches as data, and tunables. Foundry writes everything around it.

    The code is trusted no more than its author, so it runs only confined. `constraints` are conditions on the
    tunables; a setting that breaks one is never built.
    """

    code: str
    launches: tuple[AuthoredLaunch, ...]
    tunables: tuple[AuthoredTunable, ...] = ()
    constraints: tuple[str, ...] = ()
    scratch: tuple[AuthoredScratch, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of the structure: everything but the chosen values."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


ROUNDED: tuple[Choice, ...] = ("tf32", "half")  # precisions of float32 products with 11 significant bits
ACCURATE: tuple[Choice, ...] = ("tf32x3", "half3", "ieee")  # those as accurate as float32, the fastest first


@dataclass(frozen=True)
class Recipe:
    """The genotype of a candidate that the compiler prints: its differences from the default lowering, or an
    author's kernel."""

    target: TargetName
    materialise: tuple[str, ...] = ()  # values written to memory although they could stay fused
    rewrites: tuple[str, ...] = ()  # exact algebraic rewrites applied, by name
    choices: dict[str, dict[str, Choice]] = field(default_factory=dict)  # kernel name -> tunable -> value
    ieee_only: bool = False  # float32 products in IEEE arithmetic, as policy strict asks
    authored: AuthoredKernel | None = None
    accurate: tuple[str, ...] = ()  # operators whose products are as accurate as float32 where no choice says otherwise

    @property
    def origin(self) -> Literal["library", "model"]:
        """The author of the kernels: our kernel compiler ("library") or a model."""
        return "library" if self.authored is None else "model"

    @property
    def rounded(self) -> tuple[str, ...]:
        """The kernels that multiply float32 numbers in TF32's 11 bits, by name; known of a complete recipe."""
        return tuple(sorted(name for name, chosen in self.choices.items() if chosen.get("precision") in ROUNDED))

    @cached_property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of a SHA-256 of the whole recipe."""
        known: dict[str, object] = {
            "target": self.target,
            "materialise": self.materialise,
            "rewrites": self.rewrites,
            "choices": self.choices,
            "ieee_only": self.ieee_only,
        }
        if self.authored is not None:
            known["authored"] = asdict(self.authored)
        if self.accurate:
            known["accurate"] = self.accurate
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Coordinates:
    """The cell of a MAP-Elites archive: memory use, algorithm, synchronisation, each 0 to 3."""

    d_mem: int
    d_algo: int
    d_sync: int


@dataclass(frozen=True)
class Candidate:
    """One kernel file. `source` is the sha256 of its text in the run's blob folder."""

    id: str  # "c17"
    island: int  # -1: seed
    generation: int
    target: TargetName
    origin: Literal["library", "model", "user"]
    source: str
    recipe: Recipe | None = None  # None for a file that the compiler cannot print
    parents: tuple[str, ...] = ()
    proposal: str = ""  # id of the Proposal that made it


@dataclass(frozen=True)
class Resources:
    """The compiler's report on a build. CPU: vector width and instruction mix; CUDA: for each kernel, from ptxas -v."""

    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    occupancy: float | None = None  # 0..1, theoretical
    vector_bytes: int = 0  # widest vector register that the hot code uses
    instruction_mix: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)  # CUDA: kernel -> its facts
    # kernel -> instructions by class, "all_..." for the whole and "hot_..." for its loops; see tools/targets
    instructions: dict[str, dict[str, float]] = field(default_factory=dict)
    # CPU: functions whose loops work on one floating-point number at a time -> number of instructions
    scalar_loops: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """The result of compiling a candidate."""

    ok: bool
    seconds: float
    cached: bool = False
    artifact: str = ""  # name of the library or cubin in the build cache of the machine that built it
    first_error: str = ""  # one line
    errors: str = ""  # the compiler's messages from the first error on, as far as an author needs them
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Gate:
    """One check: its evidence in words for people, and its reasons as data for later decisions."""

    gate: str
    passed: bool
    evidence: str
    reasons: tuple[Reason, ...] = ()  # all reasons for its failure, if another rule may still excuse it

    @property
    def refusal(self) -> Refusal:
        """The refusal that its failure amounts to."""
        return refusal_of(self.gate, self.reasons)

    @property
    def shown(self) -> dict[str, str | bool]:
        """The fields that people and receipts see."""
        return {"gate": self.gate, "passed": self.passed, "evidence": self.evidence}


@dataclass(frozen=True)
class DistributionError:
    """Errors of one input distribution against the float64 truth; `baseline_*` are PyTorch's own."""

    distribution: str
    norm_error: float
    baseline_norm_error: float
    worst_violation: float  # elementwise, in units of the tolerance
    baseline_worst_violation: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of the correctness stage, with its gates and errors."""

    outcome: Outcome
    stage: Stage
    gates: tuple[Gate, ...] = ()
    accuracy_class: AccuracyClass | None = None
    errors: tuple[DistributionError, ...] = ()
    evidence: str = ""  # first failing fact: error line, failing index pattern, signal
    seconds: float = 0.0

    @property
    def correct(self) -> bool:
        """True if the outcome is "correct"."""
        return self.outcome == "correct"


@dataclass(frozen=True)
class Audit:
    """The auditor's executable gates; a failed one vetoes. `labels` name allowed, declared practices."""

    clean: bool
    policy: str
    gates: tuple[Gate, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Paired timing against the baseline, cold cache, median; `speedup` is baseline over candidate."""

    stage: Stage
    candidate_ms: float
    baseline_ms: float
    speedup: float
    speedup_ci95: tuple[float, float]
    pairs: int
    noise: float  # relative spread of the baseline's own samples (IQR / median)
    wall_ratio: float  # grader's wall clock over the runner's own clock; far from 1 is suspicious
    seconds: float = 0.0
    samples: list[list[float]] = field(default_factory=list)  # [baseline_ms, candidate_ms] pairs
    ratios: list[float] = field(default_factory=list)  # baseline over candidate in each fresh pair of processes
    remarks: tuple[str, ...] = ()  # oddities of the samples
    problem: str = ""  # the reason why this is no timing: it crashed, hung, or a timed output was wrong
    outcome: Outcome = "correct"  # "wrong_result": a timed output was wrong although the checked ones were right
    gate: str = ""  # the rule it broke, if it is no timing


@dataclass(frozen=True)
class KernelProfile:
    """One kernel (a function with loops on a CPU) in a profile; its time is that of all its calls in one forward."""

    name: str
    ms: float = 0.0  # 0 if it was not measured
    calls: int = 0
    share: float = 0.0  # share of all kernels' time, 0 to 1
    cause: str = ""  # a cause of knowledge/limits.py, "" if unknown
    evidence: str = ""


@dataclass(frozen=True)
class Profile:
    """The limit of a correct candidate, from the highest rung of the profiler ladder that ran."""

    rung: Rung
    achieved_bytes_per_s: float
    achieved_flops_per_s: float
    fraction_of_floor: float  # floor_ms / candidate_ms, 1.0 is the roofline
    floor_ms: float  # roofline floor at the rate of the candidate's own arithmetic
    launches: int
    facts: dict[str, float | str] = field(default_factory=dict)
    allowed_floor_ms: float = 0.0  # roofline floor at the fastest rate that the policy allows; 0 if unknown
    traffic_floor_ms: float = 0.0  # time to move inputs, parameters and outputs once; 0 if unknown
    possible_bytes_per_s: float = 0.0  # the measured ceilings; 0 if unknown
    possible_flops_per_s: float = 0.0
    limiter: Limiter | None = None  # None if the rung does not tell
    cause: str = ""
    evidence: str = ""
    action: str = ""
    kernels: tuple[KernelProfile, ...] = ()  # the slowest first
    notes: tuple[str, ...] = ()  # rungs that could not be climbed, and a remedy


@dataclass(frozen=True)
class Judgement:
    """The auditor's opinion of a candidate that every other check accepts. `doubt`: a reason to veto it, or ""."""

    text: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class Evaluation:
    """All records of one candidate at one stage; later records are None if an earlier one stopped it."""

    candidate: Candidate
    build: Build
    verdict: Verdict | None = None
    audit: Audit | None = None
    timing: Timing | None = None
    profile: Profile | None = None
    judgement: Judgement | None = None  # only of finalists


MOST_NAMED = 4  # operators named in a message; "..." stands for the rest


@dataclass(frozen=True)
class Unrounded:
    """The parts of a model that PyTorch computes more accurately than TF32 although TF32 is allowed."""

    means: tuple[str, ...] = ()  # running means that forward updates, as keys of the state
    products: tuple[str, ...] = ()  # operators of the graph

    def words(self, graph: OpGraph) -> str:
        """Counts and names the products of the graph that PyTorch computes without TF32; "" if there are none."""
        if not self.products:
            return ""
        every = sum(1 for op in graph.ops if product_size(op.kind, op.flops, 1))
        named = ", ".join(self.products[:MOST_NAMED]) + (", ..." if len(self.products) > MOST_NAMED else "")
        return f"PyTorch computes {len(self.products)} of {every} products without TF32, though it may use it ({named})"


NOWHERE = Unrounded()


@dataclass(frozen=True)
class Baseline:
    """The reference on this device: eager time (with TF32 if the policy allows it), and the test that tells right
    from wrong."""

    eager_ms: float
    noise: float
    output_shapes: list[tuple[int, ...]]
    degenerate: str = ""  # why the task proves nothing, or ""
    coincidence: str = ""  # which answer without a kernel is right for the inputs as given, or ""
    told_by: str = ""  # the question that tells right from wrong then, on whose inputs everything is timed
    is_ieee: bool = False  # its float32 outputs need IEEE arithmetic: TF32, where allowed, changes nothing in them
    unrounded: tuple[str, ...] = ()  # running means that TF32, where allowed, does not show in: keys of the state
    products: tuple[ProductRun, ...] = ()  # float32 products in the order of one forward; empty if not observed

    def unrounded_in(self, graph: OpGraph) -> Unrounded:
        """The running means and operators of this graph that PyTorch computes more accurately than TF32.

        If no product was observed, the outputs' errors (`is_ieee`) decide for all products.
        """
        runs = self.products or ((ProductRun(0, 0, is_rounded=False),) if self.is_ieee else ())
        return Unrounded(self.unrounded, unrounded_products(graph, runs))

    @property
    def label(self) -> str:
        """The label of every result of a task whose inputs as given do not tell right kernels from wrong; else ""."""
        if not self.told_by:
            return ""
        return f"as given, {self.coincidence}: timed on {self.told_by!r}, which tells right from wrong"


RivalName = Literal["eager", "compile", "compile max-autotune"]
ForeignName = Literal["verified", "kernelbench"]


@dataclass(frozen=True)
class Rival:
    """A further baseline: eager in PyTorch's default arithmetic (IEEE products on a GPU), or compiled by torch.

    The compiled one has the baseline's arithmetic. `problem`: the reason why there are no times.
    """

    name: RivalName
    ms: float = 0.0
    over_baseline: float = 0.0  # the baseline's time over this one's, in pairs
    by_kernel: float | None = None  # this one's time over the kernel's, in pairs; None without a kernel
    problem: str = ""


@dataclass(frozen=True)
class ForeignVerdict:
    """The result of another benchmark's rules for the kernel (tools/protocol/foreign.py). Times are means in ms."""

    rules: ForeignName
    correct: bool
    trials: str = ""  # "9 of 9"
    evidence: str = ""  # evidence of the first trial that failed
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    eager_correct: bool | None = None  # true if the timed eager PyTorch passes the same trials

    @property
    def speedup(self) -> float | None:
        """Baseline over candidate; None without times."""
        return self.baseline_ms / self.candidate_ms if self.baseline_ms and self.candidate_ms else None


@dataclass(frozen=True)
class Contest:
    """The baseline comparison: the winning kernel timed in turns beside further baselines, with peak memory.

    It decides nothing: the speedup of a result is that of its final timing.
    """

    rivals: tuple[Rival, ...] = ()
    blocks: int = 0  # samples of each
    baseline_ms: float = 0.0
    candidate_ms: float | None = None
    baseline_peak_bytes: int | None = None  # inputs, parameters, outputs and temporaries of one call
    candidate_peak_bytes: int | None = None
    foreign: ForeignVerdict | None = None
    seconds: float = 0.0
    problem: str = ""  # the reason why it could not be made

    @property
    def peak_memory_ratio(self) -> float | None:
        """The kernel's peak over PyTorch's."""
        ours, theirs = self.candidate_peak_bytes, self.baseline_peak_bytes
        return ours / theirs if ours and theirs else None

    def rival(self, name: RivalName) -> Rival | None:
        """A further baseline that was timed, or None."""
        return next((one for one in self.rivals if one.name == name and not one.problem), None)

    def told_beside(self, name: RivalName) -> str:
        """A further baseline's time with those of the same turns, in words; "" if it has none.

        The ratios come from these times; a proof's times, of another moment, may differ.
        """
        rival = self.rival(name)
        if rival is None:
            return ""
        kernel = f", this kernel {self.candidate_ms:.4g} ms" if self.candidate_ms else ""
        return f"in the same turns {name} {rival.ms:.4g} ms, eager {self.baseline_ms:.4g} ms{kernel}"

    @property
    def notes(self) -> list[str]:
        """Further baselines that could not be timed, with the reason."""
        said = [f"{one.name} could not be timed: {one.problem}" for one in self.rivals if one.problem]
        return [*said, *([self.problem] if self.problem else [])]


def candidate_number(candidate: str) -> int:
    """The number in a candidate's name: 17 of `c17`."""
    return int(candidate[1:])
