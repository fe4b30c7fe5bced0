"""Single rule for a candidate's answer: its errors, their limits, and what PyTorch's own freedom explains of them.

PyTorch leaves open in which order equal elements come, and how a result is rounded on the way. A difference that this
explains refuses no candidate. It is asked only about answers that would be refused, or whose places and integers
differ: the reference runs again a few times then. Runs in the judge (imports torch).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import torch

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import TensorSpec
from foundry.knowledge.task import AccuracyClass
from foundry.tools.grade.judge.limits import LUCK, NOTHING, excuse_unstable, limit_of, weighing, with_luck
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.freedom.reruns import Outputs
from foundry.tools.grade.questions.freedom.selections import SelectedPlaces
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.grade.runner import timed_calls
from foundry.tools.protocol import comparison
from foundry.tools.protocol.comparison import Expected
from foundry.tools.protocol.orders import NAN_BYTES, TIMED_OUTPUTS
from foundry.tools.protocol.rules import ALLOWED_FACTOR, FEW_ELEMENTS, OutputError, accepts, accepts_all, worst_of
from foundry.tools.task import bundle, loading
from foundry.tools.task.bundle import Parcel

WAYS, MOST_RERUNS_S = 6, 30.0  # reruns with other roundings, of a unit in the last place; seconds for all of one output
# Results this near to a half, in units in the last place, may be rounded to either integer. In so many reruns one that
# lies two units from the half falls both ways with a probability of 99.6 %.
NEAR_A_HALF, HALF_WAYS = 8.0, 12
NEAR = (
    2.0**-7
)  # share of an integer (a count, a sum) by which numbers between two of PyTorch's are as right as they are
MOST_CHANCES = 0.5  # share of integers beyond which no rerun is asked: they are other numbers

Found = tuple[list[OutputError], list[OutputError], AccuracyClass]


def judge_answer(outputs: Outputs, trial: Trial, worst: AccuracyClass) -> Found:
    """(error of each output, limit of each output, accuracy class of these limits) for an answer to a trial.

    `worst` is the least accurate class that is allowed.
    """
    found, limits, accuracy = _measured(outputs, trial, worst)
    for index, (output, error, limit) in enumerate(zip(outputs, found, limits, strict=True)):
        if math.isinf(limit.norm) or (error == NOTHING and not error.misplaced):
            continue
        expected = trial.expected[index]
        if not expected.is_floating:
            found[index], limits[index] = _judge_integers(output, trial, index, error, limit)
        elif not accepts(error, limit):
            found[index], limits[index] = _judge_floats(output, trial, index, error, limit)
    return found, limits, accuracy


def _measured(outputs: Outputs, trial: Trial, worst: AccuracyClass) -> Found:
    """(errors against the truth, limits from PyTorch's own errors, accuracy class), without reruns of PyTorch.

    The limits are those of TF32 only if the answer needs them and `worst` allows them.
    """
    found = [comparison.measure(output, item) for output, item in zip(outputs, trial.expected, strict=True)]
    found = excuse_unstable(found, trial)
    limits = [limit_of(own, trial, index) for index, own in enumerate(trial.ieee)]
    if not accepts_all(found, limits):  # where few elements make the norm, their rounding is luck, not an average
        limits = [limit_of(own, trial, index, elements=weighing(trial, index)) for index, own in enumerate(trial.ieee)]
    if not accepts_all(found, limits) and trial.tf32 is not None and worst == "tf32":
        limits = [limit_of(own, trial, index, base=trial.ieee[index]) for index, own in enumerate(trial.tf32)]
        return found, with_luck(found, limits, trial.tf32, trial, outputs, is_tf32=True), "tf32"
    return found, with_luck(found, limits, trial.ieee, trial, outputs, is_tf32=False), "ieee"


def wrong_when_timed(
    case: Case, worst: AccuracyClass, parcel: Parcel, change: tuple[float, int], outputs: Sequence[torch.Tensor]
) -> str:
    """The first wrong output of a call on a parcel's inputs with changed content (`timed_calls.change`), in words.

    "" if all are right. Raises TaskError.
    """
    leaves = loading.flatten(parcel.value())
    given = bundle.tensors_in(leaves)
    changed = [item if 0 in item.stride() else item.clone() for item in given]
    timed_calls.change(changed, given, *change, parcel.writes)
    tensors = iter(changed)
    trial = case.timed_trial(bundle.map_tensors(leaves, lambda _: next(tensors)))
    try:
        found, limits, _ = judge_answer(list(outputs), trial, worst)
        for output, expected, error, limit in zip(outputs, trial.expected, found, limits, strict=True):
            if not accepts(error, limit):
                return comparison.describe_mismatch(output, expected, limit, error)
    finally:
        trial.inputs.close()
    return ""


def refuse_if_wrong(
    candidate: RunnerLink,
    slot: int,
    specs: list[TensorSpec],
    judge: Callable[[Sequence[torch.Tensor]], str],
    doubt: str,
    outputs: list[torch.Tensor],
) -> None:
    """Judges the `outputs` of the candidate's last timed call, on the inputs of a slot. Returns if they are right.

    `judge` gives the fault of outputs for these inputs in words, or "". Raises RunnerFailed if they are wrong:
    "cheating" if they still change, or if a checked call is right and a second timed one wrong again; else
    "wrong_result".
    """
    try:
        if not (wrong := judge(outputs)):
            return
        text = f"{doubt}; by the rule for checked calls: {wrong}"
        if not all(map(bundle.same_bits, outputs, candidate.collect(specs))):
            raise RunnerFailed("cheating", f"{text}; it changed after the call had returned")
        if judge(candidate.call(slot, specs, NAN_BYTES)[1]):
            raise RunnerFailed("wrong_result", text, gate=TIMED_OUTPUTS)
        candidate.run([slot])
        if judge(candidate.collect(specs)):
            raise RunnerFailed("cheating", f"{text}; on these inputs it is right when checked, and wrong when timed")
    except TaskError as error:
        raise RunnerFailed("wrong_result", f"{doubt}; {error.problem}", gate=TIMED_OUTPUTS) from error
    raise RunnerFailed("wrong_result", f"{text}; not each time on the same inputs", gate=TIMED_OUTPUTS)


# ---------------------------------------------------------------- floating outputs


def _judge_floats(
    output: torch.Tensor, trial: Trial, index: int, error: OutputError, limit: OutputError
) -> tuple[OutputError, OutputError]:
    """(error, limit) of an output that would be refused, if equal elements may come in another order.

    If the truth is no wider than PyTorch's own run, other roundings are allowed too.
    """
    error, limit = _with_ties(output, trial, index, error, limit)
    if accepts(error, limit) or not trial.is_wider or trial.is_wider[index]:
        return error, limit
    owns = [comparison.measure(item[index], trial.expected[index]) for item in trial.reruns.roundings(1.0, WAYS)]
    own = reduce(worst_of, owns, trial.ieee[index])
    if error.misplaced <= LUCK * own.misplaced:
        error = replace(error, misplaced=0)
    wide = limit_of(own, trial, index, elements=weighing(trial, index))
    return error, OutputError(max(limit.norm, wide.norm), max(limit.violation, wide.violation))


def _with_ties(
    output: torch.Tensor, trial: Trial, index: int, error: OutputError, limit: OutputError
) -> tuple[OutputError, OutputError]:
    """(error, limit) by PyTorch's answers with equal elements in other orders; unchanged if these do not explain it.

    Only the places may differ: along dimensions in which PyTorch's answers hold the same elements, the output does too.
    """
    orders = [outputs[index] for outputs in trial.reruns.orders()]
    if len(orders) < 2:
        return error, limit
    expected = trial.expected[index]
    own = reduce(worst_of, (comparison.measure(item, expected) for item in orders), trial.ieee[index])
    if own == trial.ieee[index]:
        return error, limit
    wide, in_place = (
        limit_of(own, replace(trial, exact=(False,) * len(trial.exact)), index),
        replace(error, misplaced=0),
    )
    is_likely = error.misplaced <= LUCK * own.misplaced and accepts(in_place, wide)
    if is_likely and _has_the_same_elements(output, orders, expected, limit):
        return in_place, wide
    return error, limit


def _has_the_same_elements(
    output: torch.Tensor, orders: list[torch.Tensor], expected: Expected, limit: OutputError
) -> bool:
    """True if the sorted output agrees with PyTorch's sorted answers, along each dimension along which these agree.

    The limit is doubled, because both sides have errors.
    """
    both = OutputError(2.0 * limit.norm, 2.0 * limit.violation)
    for dim in range(len(expected.shape)):
        one, other, mine = (item.reshape(expected.shape).sort(dim).values for item in (*orders, output))
        truth = one.double() if expected.is_floating else one
        scaled = replace(
            comparison.expect(truth, one, expected.dtype, expected.tolerance),
            norm=expected.norm,
            spread=expected.spread,
            any_nan=expected.any_nan,
        )
        if accepts(comparison.measure(other, scaled), both) and not accepts(comparison.measure(mine, scaled), both):
            return False
    return True


# ---------------------------------------------------------------- integers and places


def _judge_integers(
    output: torch.Tensor, trial: Trial, index: int, error: OutputError, limit: OutputError
) -> tuple[OutputError, OutputError]:
    """(number of integers that differ from the truth without a reason, number that may), both as OutputError.

    Reasons are: the place of a value that ties with the one selected; PyTorch has the same number where equal elements
    come in another order or results are rounded otherwise. For the rest as many may differ as PyTorch's own allow, by
    no more than PyTorch's do; of a few elements, and of places, none.
    """
    truth = trial.expected[index].truth
    flat = output.detach().reshape(-1).to(truth.device)
    wrong, off = flat != truth, _largest(flat, truth)
    selection = _selection_of(trial, index)
    if selection is not None:
        wrong &= ~selection.are_tied(output.to(truth.device)).reshape(-1)
        limit = OutputError(ALLOWED_FACTOR * selection.missed, ALLOWED_FACTOR * selection.missed)
    elif flat.numel() < FEW_ELEMENTS:
        limit = NOTHING
    elif int(wrong.sum()) > max(limit.norm, MOST_CHANCES * flat.numel()):
        return error, limit
    reach = math.inf if selection is not None else 0.0
    for other in _reruns(trial):
        if (accepts(_count(wrong), limit) and reach >= off) or not bool(wrong.any()):
            break
        own = other[index].reshape(-1).to(truth.device)
        wrong, reach = wrong & ~_is_between(flat, truth, own), max(reach, _largest(own, truth))
    if bool(wrong.any()) and selection is None and flat.numel() >= FEW_ELEMENTS:
        if not accepts(_count(wrong), limit):
            return _with_ties(output, trial, index, error, limit)
        limit = NOTHING if _largest(flat[wrong], truth[wrong]) > reach else limit
    return _count(wrong), limit


def _selection_of(trial: Trial, index: int) -> SelectedPlaces | None:
    """The selection whose places an output holds, None if it holds none."""
    expected = trial.expected[index]
    for selection in trial.reruns.selections():
        if (part := selection.part_for(expected.truth.reshape(expected.shape))) is not None:
            return part
    return None


def _reruns(trial: Trial) -> Iterator[Outputs]:
    """Yields answers of PyTorch: its own, then with other orders of equal elements, roundings and places of extremes.

    Ends after MOST_RERUNS_S seconds.
    """
    stop, again = time.monotonic() + MOST_RERUNS_S, trial.reruns.roundings
    orders, choices = trial.reruns.orders(), trial.reruns.choices()
    for outputs in itertools.chain(again(0.0, 1), orders, again(NEAR_A_HALF, HALF_WAYS), choices):
        yield outputs
        if time.monotonic() > stop:
            return


def _is_between(flat: torch.Tensor, truth: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """A mask of integers equal to PyTorch's own, or strictly past the truth towards it, if it is within NEAR of the
    truth, relatively."""
    mine, its = flat.double() - truth.double(), own.double() - truth.double()
    is_near = its.abs() <= NEAR * truth.double().abs()
    return (flat == own) | (is_near & (mine * its > 0) & (mine.abs() <= its.abs()))


def _count(wrong: torch.Tensor) -> OutputError:
    """The number of True elements as an OutputError, both as its norm and its violation."""
    count = float(wrong.sum())
    return OutputError(count, count)


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two flat tensors of integers or booleans."""
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
