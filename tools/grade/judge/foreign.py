"""Judges a kernel by another benchmark's rules (tools/protocol/foreign.py). Runs in the judge; it decides nothing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import torch

from foundry.knowledge import codec
from foundry.knowledge.candidate import ForeignName, ForeignVerdict
from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.grade.judge.paired_timing import ColdCache
from foundry.tools.grade.questions.cases import Case
from foundry.tools.process.channel import Message
from foundry.tools.protocol.foreign import DEFAULT_TF32, FOREIGN, SEED, ForeignRules, Tf32
from foundry.tools.protocol.rules import Distribution
from foundry.tools.task.form.values import as_real

CASE, SLOT = 1, 0
COMPARED, TIMED = "compared", "timed"  # variants of the reference
PIECE = 1 << 26  # elements compared at once
BUDGET_S, FEWEST_CALLS = 5.0, 10  # one side's timing: seconds, and calls even if they take longer


def answer_by(
    name: ForeignName,
    case: Case,
    reference: RunnerLink,
    kernel: RunnerLink,
    specs: list[TensorSpec],
    tf32: Tf32,
    cache: ColdCache,
) -> Message:
    """{"foreign": verdict of `judge_by`}, or {"foreign_problem": why there is none}; a part of the judge's answer."""
    try:
        return {"foreign": codec.to_plain(judge_by(name, case, reference, kernel, specs, tf32=tf32, cache=cache))}
    except RunnerFailed as failed:
        return {"foreign_problem": f"not judged by the rules of {name}: {failed.evidence}"}


def judge_by(
    name: ForeignName,
    case: Case,
    reference: RunnerLink,
    kernel: RunnerLink,
    specs: list[TensorSpec],
    tf32: Tf32,
    cache: ColdCache,
) -> ForeignVerdict:
    """The verdict by the rules of another benchmark: close answers for each scale of inputs, then mean times.

    Neither process may hold another model or inputs. `case` was made from SEED, and `tf32` is the most that the user's
    policy allows. Times are None if an answer is not close. Raises RunnerFailed if the reference fails.
    """
    rules = FOREIGN[name]
    for link in (kernel, reference):  # a candidate that calls PyTorch is under its flags too
        link.build(CASE, case)
        link.vary(COMPARED, CASE, tf32=_at_most(DEFAULT_TF32, tf32))
        link.vary(TIMED, CASE, tf32=_at_most(rules.timed_tf32, tf32))
    passed, asked, is_eager_right, evidence = 0, 0, True, ""
    stream = random.Random(SEED)
    for factor in rules.factors:
        drawn = Distribution(f"x{factor:g}", scale=factor)
        given = case.inputs(stream.getrandbits(31), drawn)
        for link in (reference, kernel):
            link.inputs(SLOT, CASE, given)
        given.close()
        wanted = _wanted(reference, specs, is_needed=factor == 1.0)
        if wanted is None:
            continue
        asked += 1
        problem = _problem(kernel, specs, wanted, rules, variant=COMPARED)
        passed += not problem
        evidence = evidence or (f"inputs {drawn.name}: {problem}" if problem else "")
        if rules.timed_tf32 != DEFAULT_TF32:
            is_eager_right &= not _problem(reference, specs, wanted, rules, variant=TIMED)
        del wanted
    ours_ms, theirs_ms = None, None
    if not evidence:
        ours_ms, theirs_ms = (_mean_ms(link, rules, cache, TIMED) for link in (kernel, reference))
    counted = f"{passed} of {asked}"
    return ForeignVerdict(
        name, not evidence, counted, evidence, theirs_ms, candidate_ms=ours_ms, eager_correct=is_eager_right
    )


def _at_most(wanted: Tf32, allowed: Tf32) -> Tf32:
    """The lesser use of TF32 of both: none < convolutions < all."""
    order: tuple[Tf32, ...] = ("none", "convolutions", "all")
    return min(wanted, allowed, key=order.index)


def _wanted(reference: RunnerLink, specs: list[TensorSpec], *, is_needed: bool) -> list[torch.Tensor] | None:
    """The reference's outputs. None unless `is_needed` if it refuses the inputs or an output is not finite."""
    try:
        reference.run([SLOT], variant=COMPARED)
        found = reference.collect(specs)
    except RunnerFailed as failed:
        if is_needed or not failed.has_raised:
            raise
        return None
    is_finite = all(bool(torch.isfinite(item).all()) for item in map(as_real, found) if item.is_floating_point())
    return found if is_needed or is_finite else None


def _problem(
    link: RunnerLink, specs: list[TensorSpec], wanted: Sequence[torch.Tensor], rules: ForeignRules, *, variant: str
) -> str:
    """The reason why a side's answer is not close to `wanted` (or fails), "" if it is close."""
    try:
        link.run([SLOT], variant=variant)
        given = link.collect(specs)
    except RunnerFailed as failed:
        return failed.evidence
    for index, (one, other, spec) in enumerate(zip(given, wanted, specs, strict=True)):
        tolerance, one, other = rules.tolerance_of(spec.dtype), as_real(one), as_real(other)
        if not _is_close(one, other, tolerance):
            off = float((one.double() - other.double()).abs().max()) if one.numel() <= PIECE else float("nan")
            return f"output {index} is not within {tolerance:g} of PyTorch's: off by {off:.3g} at most"
    return ""


def _is_close(given: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    """True if torch.allclose holds, for integers torch.equal. Compares pieces, because allclose needs much memory."""
    given, wanted = as_real(given), as_real(wanted)
    if not wanted.is_floating_point():
        return torch.equal(given, wanted)
    ours, theirs = given.reshape(-1), wanted.reshape(-1)
    starts = range(0, theirs.numel(), PIECE)
    pieces = ((ours[start : start + PIECE], theirs[start : start + PIECE]) for start in starts)
    return all(torch.allclose(one, other, atol=tolerance, rtol=tolerance) for one, other in pieces)


def _mean_ms(link: RunnerLink, rules: ForeignRules, cache: ColdCache, variant: str = "") -> float:
    """Mean ms of the cold calls by these rules, after warm ones that do not count. Stops after BUDGET_S, but not before
    FEWEST_CALLS."""
    for _ in range(rules.warm_calls):
        link.run([SLOT], variant=variant)
    samples: list[float] = []
    start = time.monotonic()
    while len(samples) < rules.calls and (len(samples) < FEWEST_CALLS or time.monotonic() - start < BUDGET_S):
        cache.evict()
        samples.append(link.run([SLOT], variant=variant).own_ms)
    return statistics.fmean(samples)
