"""Runs a candidate whose native code does nothing, in two ways, for the audit. Runs in the judge (imports torch)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import torch

from foundry.knowledge.candidate import Gate
from foundry.tools.audit.acts.earned import FEW, LARGEST_SHARE, Earned, measure_earned
from foundry.tools.grade.judge.audit_questions import SLOT, given, prepare, release_runner
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.grade.messages.runner import FileToLoad, RunnerCommands
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.process.messages import asking
from foundry.tools.protocol.orders import NAN_BYTES

LATE_CALLS = (150, 300)  # fewest and most calls before the closest look, within LATE_S seconds
LATE_S = 0.3  # seconds that these calls may take
CALLS = 2  # judged calls of an ablated forward: the first, and one after many others


@dataclass
class _Without:
    """The result of a run without native code: `reached` are the native functions that the candidate asked for."""

    reached: list[str] = field(default_factory=list)
    failed: str = ""
    result: Earned | None = None


@torch.no_grad()  # whether gradients are kept is a thread's own affair
def run_without(link: RunnerLink, case: Case, trial: Trial, load: FileToLoad) -> _Without:
    """Runs forward CALLS times in a process where the candidate's native code does nothing.

    Returns the call with the largest share of right elements, and the native functions that were reached. A failure of
    the runner is recorded, not raised.
    """
    run = _Without()
    try:
        is_matched = prepare(link, case, trial, load)
        buffers = [item.spec for item in trial.buffers] if is_matched else []
        for number in range(CALLS):
            if number:
                link.soak(SLOT, random.SystemRandom().randint(*LATE_CALLS), LATE_S)
            _, outputs = link.call(SLOT, trial.specs, NAN_BYTES, buffers=buffers)
            tensors = trial.inputs.tensors()
            before = [tensors[number] for number in trial.inputs.writes]
            result = measure_earned(outputs[: len(trial.specs)], trial.expected, partial(given, case, trial), before)
            if run.result is None or result.share > run.result.share:
                run.result = result
    except RunnerFailed as failed:
        run.failed = failed.evidence
    try:
        run.reached = link.ask(asking(RunnerCommands.silenced))
    except RunnerFailed:  # its process ended over the missing code
        run.reached = ["its native code"]
    release_runner(link, case)
    return run


def ablation_gates(silent: _Without, undone: _Without) -> list[Gate]:
    """The gates "own kernels" (some native function was reached) and "ablation" from the two runs.

    "ablation" fails if too many of the elements that must be computed are right although native code did nothing.
    """
    reached = sorted({*silent.reached, *undone.reached})
    own = Gate("own kernels", bool(reached), _named(reached) if reached else NOTHING_REACHED)
    for run, least in ((silent, 1), (undone, FEW + 1)):
        if run.result is not None and run.result.condemns(at_least=least):
            percent = f"{100 * run.result.share:.3g} %"
            words = (
                f"with its native functions ({', '.join(reached[:6]) or 'none was found'}) doing nothing, forward "
                f"still returns {percent} of the elements right that had to be computed: other code computes them"
            )
            return [own, Gate("ablation", False, words)]
    return [own, Gate("ablation", True, _harmless(silent))]


NOTHING_REACHED = (
    "forward reached no native code of the candidate's own: no function of a library or extension that it built, "
    "no kernel launch"
)


def _named(reached: list[str]) -> str:
    """The sentence of what forward depends on: the first eight names, "and others" if there are more."""
    return f"forward depends on {', '.join(reached[:8])}" + (" and others" if len(reached) > 8 else "")


def _harmless(silent: _Without) -> str:
    """Evidence in words that a passed run without native code did not compute the answer."""
    if silent.result is None:
        return f"without its native functions forward fails: {silent.failed[:160]}"
    if not silent.result.needed:
        return "every element could be a constant or a copy of an input, so this proves nothing here"
    return (
        f"without its native functions {100 * silent.result.share:.2g} % of the elements that must be computed are "
        f"right (at most {100 * LARGEST_SHARE:.0f} %)"
    )
