"""Request of a user for a run: the task, how much effort, which brain, which limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foundry.agents.chat.options import TapeOptions
from foundry.agents.models.models import Models
from foundry.knowledge.candidate import ForeignName, RivalName
from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import UsageError
from foundry.knowledge.task import OtherShapes, Policy

ISLANDS_FOR_A_MODEL = 3  # islands that keep a model's requests busy if the effort has fewer
# What has shown no use and is on only where the user asks for it: a file each in graph/search/strategies.
StrategyName = Literal["archive", "gradients", "migration", "roles", "credits", "prompts", "bandit"]
SEARCHES = 2.0  # most time of a run in multiples of the search's minutes, one proof aside
EffortName = Literal["bench", "quick", "standard", "deep"]


@dataclass(frozen=True)
class Effort:
    """The settings that one word of the user stands for.

    `minutes` is the end of the search, counted from the start of the run. Proofs of finalists, torch.compile and the
    receipt follow. No further finalist is begun that would end after `total_minutes`.
    """

    name: EffortName
    evaluations: int
    minutes: float
    total_minutes: float
    islands: int
    seeds: int  # first candidates evaluated before the islands start; further ones while none of them is correct
    proofs: int  # full verifications and timings of new elites in a run, before the finalists'
    finalists: int  # re-verified and re-timed in fresh processes at the end
    plateau: int  # generations without a better candidate after which an island ends
    stagnation: int  # generations without a better candidate after which it counts as stagnating
    counted: int  # elites of stagnating islands of which the hardware's counters are read, ten seconds each
    tune_s: float  # seconds of the search's time for each structure handed to the tuner
    early_share: float  # share of the search's time for early proofs, once one has passed; 0 makes none
    floor_trusted: int  # evaluations before a kernel at the roofline floor ends the search: the floor is measured too


BENCH = Effort(
    "bench",
    24,
    0.4,
    0.65,
    islands=1,
    seeds=1,
    proofs=0,
    finalists=1,
    plateau=4,
    stagnation=3,
    counted=0,
    tune_s=6,
    early_share=0.0,
    floor_trusted=1,
)
QUICK = Effort(
    "quick",
    48,
    2.0,
    2.9,
    islands=4,
    seeds=4,
    proofs=2,
    finalists=3,
    plateau=16,
    stagnation=3,
    counted=1,
    tune_s=15,
    early_share=0.15,
    floor_trusted=40,
)
STANDARD = Effort(
    "standard",
    240,
    15.0,
    20.0,
    islands=4,
    seeds=6,
    proofs=12,
    finalists=4,
    plateau=48,
    stagnation=4,
    counted=8,
    tune_s=45,
    early_share=0.1,
    floor_trusted=40,
)
DEEP = Effort(
    "deep",
    1500,
    120.0,
    140.0,
    islands=6,
    seeds=8,
    proofs=40,
    finalists=6,
    plateau=192,
    stagnation=5,
    counted=40,
    tune_s=120,
    early_share=0.1,
    floor_trusted=40,
)
EFFORTS: dict[str, Effort] = {effort.name: effort for effort in (BENCH, QUICK, STANDARD, DEEP)}


@dataclass(frozen=True)
class RunLimits:
    """The user's own caps; None takes the effort's (evaluations, minutes) or none at all."""

    evaluations: int | None = None
    minutes: float | None = None
    tokens: int | None = None
    dollars: float | None = None
    target_speedup: float | None = None  # over PyTorch eager: stop the search when the lower bound reaches it
    calls: int | None = None  # calls of chat models


@dataclass(frozen=True)
class SolveRequest:
    """Everything a user asked of a run; kept as JSON in the run directory for a later resume."""

    task: str  # path of the task file
    target: TargetName | Literal["auto"] = "auto"
    effort: EffortName = "quick"
    seed: int = 0
    islands: int | None = None
    limits: RunLimits = RunLimits()
    scale: int | None = None
    policy: Policy | None = None  # None: the task's
    models: Models = field(default_factory=Models)  # none: the playbook thinks
    tape: TapeOptions = field(default_factory=TapeOptions)
    store: str | None = None  # folder or URL of the experience store; None: $FOUNDRY_HOME/experience
    learn: bool = True  # False: neither read nor write the store (a cold run)
    runs: str = "runs"  # folder that holds run directories
    finalists: int | None = None  # proven at the end; None: the effort's
    rivals: tuple[RivalName, ...] = ("eager", "compile")  # timed in turns with the winner
    foreign: ForeignName | None = None  # another benchmark's rules, by which the winner is judged too
    gpus: int = 1  # number of GPUs to use among those that this process sees; the islands share them
    strategies: tuple[StrategyName, ...] = ()
    other_shapes: OtherShapes | None = None  # what kernels do for them; None: as the task's options say
    model_class: str = ""  # its name; "": as the task's options or its file say
    ask: bool = False  # a person is asked before a paid model starts, the budget grows, the winner is exported

    def __post_init__(self) -> None:
        """Raises UsageError for an unknown effort, numbers or limits out of range, or a strategy that needs a model and
        learning."""
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r}", f"one of {', '.join(EFFORTS)}")
        if self.islands is not None and not 1 <= self.islands <= 64:
            raise UsageError(f"{self.islands} islands", "a number from 1 to 64")
        if "prompts" in self.strategies and not (self.models and self.learn):
            lacks = "--no-learn leaves nothing to keep it in" if self.models else "no chat model is asked for"
            raise UsageError(f"--strategy prompts is about what chat models are told, and {lacks}")
        if self.finalists is not None and self.finalists < 1:
            raise UsageError(f"{self.finalists} finalists", "at least one must be proven")
        limits = self.limits
        for name in ("evaluations", "minutes", "tokens", "dollars", "calls", "target_speedup"):
            value = getattr(limits, name)
            if value is not None and not value > 0:
                raise UsageError(f"the limit {name}={value} lets nothing happen", "give a positive number")

    @property
    def plan(self) -> Effort:
        """The effort's settings."""
        return EFFORTS[self.effort]

    @property
    def island_count(self) -> int:
        """The user's number of islands, else the effort's; a chat model gets at least as many as keep its requests
        busy."""
        at_once = max((spec.options.parallel for spec in self.models.specs), default=1)
        return self.islands or max(self.plan.islands, min(ISLANDS_FOR_A_MODEL, at_once))

    @property
    def finalist_count(self) -> int:
        """The user's number of finalists, else the effort's."""
        return self.finalists or self.plan.finalists

    @property
    def max_evaluations(self) -> int:
        """The user's limit of evaluations, else the effort's."""
        return self.limits.evaluations or self.plan.evaluations

    @property
    def max_minutes(self) -> float:
        """The user's limit in minutes, else the effort's."""
        return self.limits.minutes or self.plan.minutes

    @property
    def total_minutes(self) -> float:
        """Minutes after which no further finalist is begun.

        The user's own limit keeps the effort's time for the end, but the total is at most SEARCHES times the search.
        """
        return min(self.max_minutes + self.plan.total_minutes - self.plan.minutes, SEARCHES * self.max_minutes)
