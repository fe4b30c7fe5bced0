"""Chooses the question that tells right kernels of a task from wrong ones. Runs in the judge (imports torch).

Usually the inputs as given do. But for some tasks an answer that needs no kernel is right for them: ReLU of [0, 1) is
its input, tanh of large numbers is 1. Then another distribution is looked for that refuses every such answer. It is
asked beside the others, and both sides are timed on it, because a kernel that only copies must not win by its time. One
distribution has to refuse all of them: a kernel can see at a glance which question it is asked, and could choose its
answer by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.judge.freedom import judge_answer
from foundry.tools.grade.judge.limits import limit_of
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.protocol import comparison
from foundry.tools.protocol.rules import ILL_CONDITIONED, TELLING, Distribution, Seeds, accepts, accepts_all


@dataclass(frozen=True)
class Telling:
    """The question that tells right from wrong.

    `coincidence`: the answer without a kernel that is right for the inputs as given, in words, or "".
    `told_by`: name of the distribution that refuses all such answers; "" for the inputs as given.
    `degenerate`: the reason why no question tells right from wrong, or "".
    """

    coincidence: str = ""
    told_by: str = ""
    degenerate: str = ""


def find_telling(case: Case, trial: Trial, seeds: Seeds) -> Telling:
    """Finds the question that tells right from wrong: inputs as given (`trial`) if possible, else one of TELLING."""
    worst = _worst_norm(trial)
    if worst > ILL_CONDITIONED:
        return Telling(degenerate=f"PyTorch's own output differs from the float64 truth by {worst:.2g} of its norm")
    reason = _effortless(trial, case, seeds.draw("screen", "degenerate"))
    if not reason:
        return Telling()
    for distribution in TELLING:
        if (case.limited and distribution.leaves_range) or not case.suits(distribution):
            continue
        if _tells(distribution, case, seeds):
            return Telling(coincidence=reason, told_by=distribution.name)
    return Telling(degenerate=reason)


def _tells(distribution: Distribution, case: Case, seeds: Seeds) -> bool:
    """True if inputs of this distribution refuse every answer that needs no kernel.

    False too if the reference refuses them, gives NaN or infinities, or is ill-conditioned on them.
    """
    try:
        trial = case.trial(distribution, seeds.draw("screen", f"telling: {distribution.name}"))
    except TaskError:  # the reference refuses such inputs
        return False
    try:
        if any(item.eager is not None for item in trial.expected):
            return False  # NaN or infinities, in whose handling honest kernels differ
        if _worst_norm(trial) > ILL_CONDITIONED:
            return False
        return not _effortless(trial, case, seeds.draw("screen", f"telling: {distribution.name}, another draw"))
    finally:
        trial.inputs.close()


def _effortless(trial: Trial, case: Case, seed: int) -> str:
    """An answer without a kernel that is right for this question, in words; "" if there is none.

    Such an answer may know the outputs for other inputs of the distribution, drawn with `seed`.
    """
    other = case.trial(trial.distribution, seed)
    other.inputs.close()
    for reason, outputs in _answers(trial, other):
        shapes = [output.shape for output in outputs]
        if shapes == [item.truth.shape for item in trial.expected] and _is_accepted(outputs, trial):
            return reason
    return ""


def _answers(trial: Trial, other: Trial) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yields (words, outputs) that need no kernel: known without the inputs, or a copy of one."""
    yield "zeros are accepted as its output", [torch.zeros_like(item.truth) for item in trial.expected]
    constants = [torch.full_like(item.truth, _middle(item.truth)) for item in other.expected]
    yield "a constant is accepted as its output", constants
    yield "its output does not depend on the inputs", [item.truth for item in other.expected]
    for dim, words in ((0, "over its first dimension"), (-1, "over its last dimension")):
        means = [_mean_along(item, dim) for item in other.expected]
        yield f"the mean {words} of another output is accepted as its output", means
    for index, tensor in enumerate(trial.inputs.tensors()):
        copies = [tensor.reshape(-1).to(item.truth) for item in trial.expected if item.truth.numel() == tensor.numel()]
        yield f"its output is input {index}", copies


def _is_accepted(outputs: list[torch.Tensor], trial: Trial) -> bool:
    """True if these outputs would pass as an answer to the trial, TF32 allowed."""
    is_likely = all(
        accepts(comparison.measure(output, expected), limit_of(own, trial, index))
        for index, (output, expected, own) in enumerate(zip(outputs, trial.expected, trial.ieee, strict=True))
    )
    return is_likely and accepts_all(*judge_answer(outputs, trial, "tf32")[:2])


def _worst_norm(trial: Trial) -> float:
    """PyTorch's largest norm error on a floating output, 0 without one; that of integers would be a count."""
    pairs = zip(trial.ieee, trial.expected, strict=True)
    return max((error.norm for error, expected in pairs if expected.is_floating), default=0.0)


def _mean_along(expected: comparison.Expected, dim: int) -> torch.Tensor:
    """The output's mean along one dimension, repeated; of integers and vectors the mean of all elements."""
    if not expected.is_floating or len(expected.shape) < 2:
        return torch.full_like(expected.truth, _middle(expected.truth))
    shaped = expected.truth.reshape(expected.shape)
    return shaped.mean(dim, keepdim=True).expand(expected.shape).reshape(-1)


def _middle(truth: torch.Tensor) -> Any:
    """The mean of the finite elements, rounded to the tensor's type."""
    return torch.tensor(comparison.finite_mean(truth), dtype=torch.float64).to(truth.dtype).item()
