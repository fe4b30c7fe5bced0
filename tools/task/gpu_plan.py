"""Plans how a task's judge, reference and candidates share a GPU's memory, before any is taken. Free of torch.

All bytes are upper bounds of what the grader's own code holds at once; a model's own need was measured at intake.
The roomiest plan that fits is taken, because less room costs time. Only the last two plans leave questions out,
which the receipt names (`not-asked:...`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.errors import TooLarge

CONTEXT_BYTES = 1 << 30  # bytes of a process before it holds a tensor: 0.85 GB on an H200 once cuBLAS is loaded
RESERVE = 0.05  # share of the memory that allocators cannot reuse
SCREEN_TRIALS = 6  # questions of a screen, at most
# Blocks of the outputs' size in a candidate's process: filled before a call, and kept after one.
FILLED = 2
KEPT = 2
TIMED = 3  # copies of the outputs in a timed process: this call's, the last one's, and those taken as the clock stopped
STATES = 12  # copies of the parameters in a judge, in two cases and while it draws more
DRAWN = 4  # copies of the inputs while they are drawn: as given, changed, and temporaries of a pattern
COMPARED = 5  # copies of the outputs in a judge: receive buffer, two calls, the present one, the trial before
LAID_OUT = 2  # copies of the inputs with other strides: the candidate's inputs, and its own copies of them
# Bytes that a judge keeps for its next question.
LEAST_IDLE = 1 << 30
MOST_IDLE = 6 << 30
IDLE_SHARE = 1 / 8  # share of the memory beside the plan: judges of this and of other tasks need some too
BESIDE = 4  # copies of both sides, with their room, while a timed call's outputs are compared in float64


@dataclass(frozen=True)
class Sizes:
    """Bytes of one call: inputs and outputs, both again in float64, the model's state, its temporaries."""

    inputs: int
    outputs: int
    wide_inputs: int
    wide_outputs: int
    parameters: int
    work: int

    @staticmethod
    def largest(found: Sequence[Sizes]) -> Sizes:
        """The largest need of any case, field by field."""
        return Sizes(*(max(getattr(one, name) for one in found) for name in Sizes.__dataclass_fields__))

    @property
    def widening(self) -> float:
        """Bytes in float64 for each byte of the model's own inputs and outputs."""
        own = self.inputs + self.outputs
        return (self.wide_inputs + self.wide_outputs) / own if own else 2.0


@dataclass(frozen=True)
class GpuPlan:
    """A division of the GPU's memory.

    - `lanes`: judges at once.
    - `keeps_trials`: a judge keeps the screen's questions and answers on the GPU for all candidates.
    - `slots`: most sets of inputs that a process holds.
    - `pairs`: groups of a screen that are ready at once.
    - `waiting`: processes that may have a context beside those that work.
    - `idle`: bytes that a judge may hold unused.
    - `is_lean`: a judge holds one copy of the model on the device and other kinds of parameters on the host, and asks
      fewer questions about them.
    - `widens`: answers are computed in float64.
    """

    lanes: int = 2
    pairs: int = 2
    keeps_trials: bool = True
    slots: int = 16
    waiting: int = 18
    idle: int = MOST_IDLE
    is_lean: bool = False
    widens: bool = True

    def needed(self, sizes: Sizes) -> int:
        """Bytes at the worst moment."""
        own = sizes.inputs + sizes.outputs
        slots = min(self.slots, 2)
        trial = sizes.inputs + sizes.wide_outputs
        others = (SCREEN_TRIALS - 1) * trial if self.keeps_trials else 0
        asked = slots * sizes.inputs if self.keeps_trials else 0  # inputs on which the screen is timed
        besides = others + asked + CONTEXT_BYTES
        judge = int(self._models_held(sizes.widening) * sizes.parameters) + besides
        widened = (sizes.wide_inputs + sizes.wide_outputs + int(sizes.work * sizes.widening)) if self.widens else 0
        asking = own + max(widened, own + sizes.outputs + sizes.work)
        making = max(asking, DRAWN * sizes.inputs) + 2 * sizes.outputs  # outputs of the trial before
        model = 3 * sizes.parameters + sizes.work + CONTEXT_BYTES
        candidate = slots * sizes.inputs + (FILLED + KEPT) * sizes.outputs + model
        verifying = judge + max(making, trial + COMPARED * sizes.outputs) + candidate
        side = slots * sizes.inputs + TIMED * sizes.outputs + model
        watched = sizes.inputs + (FILLED + KEPT) * sizes.outputs + model
        at_once = 3 if self.pairs > 1 else 1  # both ablated runs beside it
        known = trial if self.keeps_trials else sizes.inputs  # its truth waits on the host
        # The public inputs are made beside those as given, and are freed before inputs get other strides.
        auditing = judge + known + at_once * watched + max(making, LAID_OUT * sizes.inputs)
        compared = max(COMPARED * sizes.outputs, BESIDE * sizes.outputs + sizes.wide_outputs)
        timed_by, reference = judge, side
        if self.is_lean:  # the judge's model stays on the host; PyTorch prepares no weights
            timed_by = besides
            reference = side - sizes.parameters
        timing = timed_by + slots * sizes.inputs + compared + self.pairs * (side + reference)
        return self.lanes * max(verifying, auditing, timing)

    def _models_held(self, widening: float) -> float:
        """Copies of the parameters that a judge holds on the GPU."""
        if not self.is_lean:
            return STATES + 2 * widening
        return max(1.0, widening) if self.widens else 1.0


ROOMIEST = GpuPlan()
_CHOICES = (
    ROOMIEST,
    GpuPlan(pairs=1),
    GpuPlan(lanes=1, pairs=1),
    GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=2),
    GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1),
    GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1, is_lean=True),
    GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1, is_lean=True, widens=False),
)
WAITING = 4  # contexts for two groups' processes; below it the sets of inputs or the trials are reduced first


def plan_host(plan: GpuPlan, sizes: Sizes, limit_bytes: int) -> GpuPlan:
    """The plan for a CPU: lean if the judge's copies of a model would exceed the limit (FOUNDRY_TASK_GB)."""
    held = int((STATES + 2 * sizes.widening) * sizes.parameters)
    is_lean = held > (1.0 - RESERVE) * limit_bytes
    return replace(plan, is_lean=True, keeps_trials=False, slots=2) if is_lean else plan


def plan_memory(sizes: Sizes, free_bytes: int) -> GpuPlan:
    """The roomiest plan that fits; raises TooLarge with the bytes that the tightest one needs."""
    usable = int((1.0 - RESERVE) * free_bytes)
    tightest = _CHOICES[-1]
    for plan in _CHOICES:
        left = usable - plan.needed(sizes)
        waiting = left // CONTEXT_BYTES
        if waiting >= (0 if plan is tightest else WAITING):
            idle = min(MOST_IDLE, max(LEAST_IDLE, int(IDLE_SHARE * left)))
            return replace(plan, waiting=min(plan.waiting, waiting), idle=idle)
    raise TooLarge(
        f"the task needs {tightest.needed(sizes) / 1e9:.1f} GB of GPU memory to be judged (inputs "
        f"{sizes.inputs / 1e9:.1f}, outputs {sizes.outputs / 1e9:.1f}, parameters {sizes.parameters / 1e9:.1f}, "
        f"temporaries {sizes.work / 1e9:.1f} GB), and {usable / 1e9:.1f} GB of it are free",
        "make its sizes smaller",
    )
