"""Plans how a task's judge, reference and candidates share a GPU's memory, before any is taken. Free of torch.

All bytes are upper bounds of what the grader's own code holds at once; what a model needs for itself was measured when
the task was taken in. The roomiest arrangement that fits is taken: less room costs time. Only the last one
leaves questions out, which the receipt names (`not-asked:...`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.errors import TooLarge

CONTEXT_BYTES = 1 << 30  # bytes of a process without tensors: 0.85 GB on an H200 once cuBLAS is loaded
RESERVE = 0.05  # share of the memory that fragmentation makes unusable
SCREEN_TRIALS = 6  # most questions of a screen
POISONED, KEPT = 2, 2  # blocks of the outputs' size in a candidate's process: filled before a call, kept after one
TIMED = 3  # copies of the outputs in a process that is timed: of the call, of one before, taken as the clock stopped
PREPARED = 2  # copies of the parameters in a candidate's process: its own, and those that it prepares
PIECE_BYTES = 256 << 20  # bytes of float64 rows in one step of a lean judge's product on a GPU
HOST_PIECE_BYTES = 32 << 20  # the same on a CPU, where they should stay in its cache
LEAST_PIECE = 768 << 20  # bytes for parameters that a lean judge draws or sends, and for its temporaries
LEAN_IDLE = 256 << 20  # bytes that a lean judge keeps for its next question
STATES = 12  # copies of the parameters that a judge holds, in two cases and while it draws more
DRAWN = 4  # copies of the inputs while they are drawn: as given, changed, and what a pattern needs
COMPARED = 5  # copies of the outputs that a judge holds: the room they come in, of two calls, now, of the trial before
LAID_OUT = 2  # copies of the inputs with other strides: what a candidate gets, and what it may make of them
LEAST_IDLE, MOST_IDLE = 1 << 30, 6 << 30  # bytes that a judge keeps for its next question
IDLE_SHARE = 1 / 8  # share of the memory left by the plan; judges of two tasks and their other needs share the rest
BESIDE = 4  # copies of the outputs while a timed call's are compared in float64: both sides, each with its room


@dataclass(frozen=True)
class Sizes:
    """Bytes of one call: inputs and outputs, both again in float64, the model's state, its temporaries in a call.

    `piece`: bytes besides the model for one use of a parameter, if each is moved to the device and widened alone.
    """

    inputs: int
    outputs: int
    wide_inputs: int
    wide_outputs: int
    parameters: int
    work: int
    piece: int = 0

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
    """An arrangement of a GPU's memory among the processes that grade one task.

    A lean judge holds one copy of the model. `resident` bytes of it stay on the device while a question is worked out;
    the other parameters come one at a time.
    """

    lanes: int = 2  # judges at once
    pairs: int = 2  # groups of a screen that are ready at once
    keeps_trials: bool = True  # a judge keeps the screen's questions and answers on the GPU for all candidates
    slots: int = 16  # most sets of inputs that a process holds
    waiting: int = 18  # processes that may have a context beside those that work
    idle: int = MOST_IDLE  # bytes that a judge may hold without using them
    is_lean: bool = False
    widens: bool = True  # answers are computed in float64
    resident: int = 0  # bytes

    def needed(self, sizes: Sizes) -> int:
        """Bytes of GPU memory that judging takes at its worst moment: verifying, auditing or timing, in all lanes at
        once."""
        own = sizes.inputs + sizes.outputs
        slots = min(self.slots, 2)
        trial = sizes.inputs + sizes.wide_outputs
        others = (SCREEN_TRIALS - 1) * trial if self.keeps_trials else 0
        asked = slots * sizes.inputs if self.keeps_trials else 0  # inputs on which the screen is timed
        besides = others + asked + CONTEXT_BYTES
        held = self._held(sizes)
        judge = held + besides
        widened = (sizes.wide_inputs + sizes.wide_outputs + int(sizes.work * sizes.widening)) if self.widens else 0
        asking = own + max(widened, own + sizes.outputs + sizes.work)
        making = max(asking, DRAWN * sizes.inputs) + 2 * sizes.outputs  # the trial before's
        sent = 0 if self.is_lean else sizes.parameters  # the copy that a process reads them from
        model = PREPARED * sizes.parameters + sent + sizes.work + CONTEXT_BYTES
        candidate = slots * sizes.inputs + (POISONED + KEPT) * sizes.outputs + model
        verifying = judge + max(making, trial + COMPARED * sizes.outputs) + candidate
        side = slots * sizes.inputs + TIMED * sizes.outputs + model
        watched = sizes.inputs + (POISONED + KEPT) * sizes.outputs + model
        at_once = 3 if self.pairs > 1 else 1  # the silent and the undone one beside it
        waiting = 2 * CONTEXT_BYTES if self.is_lean else 0  # these two processes wait for their turn
        known = trial if self.keeps_trials else sizes.inputs  # its truth waits on the host
        # The public inputs are made beside those as given, and are gone before inputs get other strides.
        auditing = judge + known + at_once * watched + waiting + max(making, LAID_OUT * sizes.inputs)
        compared = max(COMPARED * sizes.outputs, BESIDE * sizes.outputs + sizes.wide_outputs)
        timed_by, reference = judge, side
        if self.is_lean:  # the judge's model rests on the host; PyTorch prepares no weights
            timed_by, reference = besides + min(sizes.piece, LEAST_PIECE), side - sizes.parameters
        timing = timed_by + slots * sizes.inputs + compared + self.pairs * (side + reference)
        return self.lanes * max(verifying, auditing, timing)

    def _held(self, sizes: Sizes) -> int:
        """Bytes of parameters that a judge holds on the GPU, at most."""
        if not self.is_lean:
            return int((STATES + 2 * sizes.widening) * sizes.parameters)
        piece = sizes.piece if self.widens else min(sizes.piece, sizes.parameters)
        return min(self.resident, 2 * sizes.parameters) + max(piece, LEAST_PIECE)


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
    return replace(plan, lanes=1, is_lean=True, keeps_trials=False, slots=2) if is_lean else plan


def plan_memory(sizes: Sizes, free_bytes: int) -> GpuPlan:
    """The roomiest plan that fits; raises TooLarge with the bytes that the tightest one needs."""
    usable = int((1.0 - RESERVE) * free_bytes)
    for plan in _CHOICES:
        left = usable - plan.needed(sizes)
        if left >= (0 if plan.is_lean else WAITING * CONTEXT_BYTES):
            return _with_the_rest(plan, sizes, usable)
    raise TooLarge(
        f"the task needs {_CHOICES[-1].needed(sizes) / 1e9:.1f} GB of GPU memory to be judged (inputs "
        f"{sizes.inputs / 1e9:.1f}, outputs {sizes.outputs / 1e9:.1f}, parameters {sizes.parameters / 1e9:.1f}, "
        f"temporaries {sizes.work / 1e9:.1f} GB), and {usable / 1e9:.1f} GB of it are free",
        "make its sizes smaller",
    )


def _with_the_rest(plan: GpuPlan, sizes: Sizes, usable: int) -> GpuPlan:
    """The plan with the remaining memory given to a lean judge's parameters first, and then to waiting processes."""
    idle = LEAN_IDLE
    if plan.is_lean:
        plan = replace(plan, resident=_most_resident(plan, sizes, usable))
    left = usable - plan.needed(sizes)
    if not plan.is_lean:
        idle = min(MOST_IDLE, max(LEAST_IDLE, int(IDLE_SHARE * left)))
    return replace(plan, waiting=min(plan.waiting, left // CONTEXT_BYTES), idle=idle)


def _most_resident(plan: GpuPlan, sizes: Sizes, usable: int) -> int:
    """The most bytes of parameters that a lean judge can keep on the GPU: the model's, then its constructor's."""
    least, most = 0, 2 * sizes.parameters + 1
    while most - least > 1:
        middle = (least + most) // 2
        is_room = replace(plan, resident=middle).needed(sizes) <= usable
        least, most = (middle, most) if is_room else (least, middle)
    return least
