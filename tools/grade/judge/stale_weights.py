"""Tests whether wrong outputs are right for parameters that the model held before: weights that were prepared once.

A kernel that packs, transposes or folds its weights in the constructor, or at the first call only, answers for those
values after `load_state_dict` too. That shows in what it computes: its outputs are the reference's, with some of the
parameters as they were. Runs in the judge (imports torch).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.grade.questions.case_parameters import Differing
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.protocol.orders import NAN_BYTES
from foundry.tools.protocol.rules import Parameters

BUDGET_S = 5.0  # seconds for running the reference with earlier parameters
SINGLES = 12  # most layers, and most parameters, that are tried one by one
NAMED = 3  # most names in a sentence

JUDGE_AS_BUILT = "`foundry verify --parameters as-built` judges it with those that it builds (label own-parameters)"
FOLDED = (
    "it is right with the parameters that its constructor makes, and wrong once the reference's are loaded under the "
    "same names: it folds something into them. Leave the reference's and prepare others when they change; "
    + JUDGE_AS_BUILT
)
Accepts = Callable[[list[torch.Tensor], Trial], bool]


@dataclass(frozen=True)
class Stale:
    """The parameters whose earlier values explain the outputs.

    `is_certain`: the kernel must have read those values. Of ones and zeros that is not certain: a kernel may assume
    them.
    """

    names: tuple[str, ...]
    is_certain: bool

    @property
    def words(self) -> str:
        """The evidence in words: which parameters are stale, or perhaps unread, and when to prepare weights."""
        they, them = ("it was", "it") if len(self.names) == 1 else ("they were", "them")
        right = f"the outputs are right with {_list_names(self.names)} as {they}"
        if self.is_certain:
            return (
                f"they are stale: {right} before load_state_dict or an optimiser changed {them}, and wrong for "
                f"the values that the model holds now. Prepare weights {_WHEN} (no hook sees a step)"
            )
        return (
            f"{right} when the model was constructed: {they} not read, or what was prepared from {them} is stale "
            f"(prepare it {_WHEN})"
        )


_WHEN = "in the first forward, and again whenever a parameter's `_version` or `data_ptr()` is another"


def find_stale(
    outputs: list[torch.Tensor], trial: Trial, case: Case, earlier: Sequence[Parameters], accepts: Accepts
) -> Stale | None:
    """Parameters whose earlier values would make the outputs right; None if none are found within BUDGET_S seconds.

    Takes earlier values for groups of parameters, one group after another, and asks `accepts`. `earlier` are the kinds
    of parameters that the model held before; the likeliest comes first.
    """
    stop = time.monotonic() + BUDGET_S
    for kind in earlier:
        before = case.other_parameters(kind, trial.distribution.parameters)
        for names in _groups(before):
            if time.monotonic() > stop:
                return None
            try:
                then = case.trial_as_before(trial, kind, names)
            except TaskError:
                continue
            if accepts(outputs, then):
                is_certain = any(not before[name].is_constant for name in names)
                return Stale(tuple(names), is_certain)
    return None


def _groups(before: dict[str, Differing]) -> Iterator[list[str]]:
    """Yields groups of parameters to try: all that differ, matrices, vectors, those of each layer, each one alone.

    Only the first SINGLES layers and parameters have a group.
    """
    matrices = [name for name, tensor in before.items() if tensor.dims > 1]
    vectors = [name for name, tensor in before.items() if tensor.dims < 2]
    layers = [
        [name for name in before if name.rpartition(".")[0] == layer]
        for layer in list(dict.fromkeys(name.rpartition(".")[0] for name in before))[:SINGLES]
    ]
    groups = [list(before), matrices, vectors, *layers, *([name] for name in list(before)[:SINGLES])]
    seen: list[list[str]] = []
    for names in groups:
        if names and names not in seen:
            seen.append(names)
            yield names


def _list_names(names: Sequence[str]) -> str:
    """The names as words: all of up to NAMED, else the first ones "and N more"."""
    if len(names) == 1:
        return names[0]
    shown = list(names[:NAMED])
    rest = len(names) - len(shown)
    return ", ".join(shown) + f" and {rest} more" if rest else ", ".join(shown[:-1]) + f" and {shown[-1]}"


def is_right_as_built(link: RunnerLink, number: int, slot: int, case: Case, trial: Trial, accepts: Accepts) -> bool:
    """True if a candidate is right with the parameters that it builds from the reference's seed; False if it fails."""
    try:
        link.build(number, case)
        link.inputs(slot, number, trial.inputs)
        _, found = link.call(slot, trial.specs, NAN_BYTES)
    except RunnerFailed:
        return False
    return accepts(found, trial)
