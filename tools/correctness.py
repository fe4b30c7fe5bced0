"""Correctness of one candidate by the protocol (design section 5), seen from the judge. Imports torch.

Failing facts end the examination: the first one is the evidence. Nothing a candidate does raises out of here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from foundry.knowledge.candidate import DistributionError, Gate, Outcome, Stage, Verdict
from foundry.knowledge.task import AccuracyClass
from foundry.tools import comparison
from foundry.tools.cases import Case, Trial
from foundry.tools.channel import Message
from foundry.tools.protocol import OutputError, accepts, allowed, failure
from foundry.tools.runner import LARGE_BYTES, NAN_BYTES
from foundry.tools.runner_link import RunnerFailed, RunnerLink

SLOT = 0
TrialSource = Callable[[Case], Iterable[Trial]]


class _Failed(Exception):
    """A gate that did not pass."""

    def __init__(self, gate: str, outcome: Outcome, evidence: str) -> None:
        self.gate, self.outcome, self.evidence = gate, outcome, evidence
        super().__init__(evidence)


@dataclass
class Examination:
    """One candidate behind a link. `worst_class` is the least accurate class that will do."""

    link: RunnerLink
    stage: Stage
    worst_class: AccuracyClass
    gates: list[Gate] = field(default_factory=list)
    errors: list[DistributionError] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    accuracy: AccuracyClass = "ieee"

    def run(self, load: Message, cases: Iterable[Case], trials: TrialSource) -> Verdict:
        """Loads the candidate and asks every trial of every case."""
        try:
            self._step("loads", lambda: self.link.load(load))
            for number, case in enumerate(cases):
                self._case(number, case, trials(case))
        except _Failed as failed:
            self.gates.append(Gate(failed.gate, False, failed.evidence))
            return self._verdict(failed.outcome, f"{failed.gate}: {failed.evidence}")
        return self._verdict("correct", "")

    def _verdict(self, outcome: Outcome, evidence: str) -> Verdict:
        accuracy = self.accuracy if outcome == "correct" else None
        return Verdict(outcome, self.stage, tuple(self.gates), accuracy, tuple(self.errors), evidence)

    def _step(self, gate: str, work: Callable[[], Any]) -> Any:
        """Something the runner does; its failures become the gate's."""
        try:
            return work()
        except RunnerFailed as failed:
            raise _Failed(gate, failed.outcome, failed.evidence) from failed

    def _case(self, number: int, case: Case, trials: Iterable[Trial]) -> None:
        suffix = f" ({case.name})" if case.name else ""
        is_matched = True
        for position, trial in enumerate(trials):
            if position == 0:  # the reference has run by now, so it is known which buffers it writes to
                self._step(f"builds{suffix}", lambda: self.link.build(number, case))
                is_matched = self._match_parameters(number, case, suffix)
            is_randomised = trial.distribution.parameters == "randomised"
            if is_randomised and not is_matched:
                continue
            if is_randomised:
                self._step("parameters", lambda: self.link.state(number, case, "randomised"))
            self._trial(number, case, trial, suffix, is_first=position == 0)
            if is_randomised:
                self._step("parameters", lambda: self.link.state(number, case, "seeded"))
        self._step("forget", lambda: self.link.forget(slot=SLOT, case=number))

    def _match_parameters(self, number: int, case: Case, suffix: str) -> bool:
        problem = self._step(f"parameters{suffix}", lambda: self.link.state(number, case, "seeded"))
        if not problem:
            return True
        constant = case.constant_parameter()
        if constant:
            raise _Failed(
                f"parameters{suffix}",
                "wrong_result",
                f"{problem}; so it cannot be shown that ModelNew uses {constant}, whose initial elements are all "
                "equal: keep the reference's parameter names, or its layers in the same order",
            )
        self.gates.append(Gate(f"parameters{suffix}", True, f"seeded initial values only: {problem}"))
        return False

    def _trial(self, number: int, case: Case, trial: Trial, suffix: str, *, is_first: bool) -> None:
        gate = trial.distribution.name + suffix
        self._step(gate, lambda: self.link.inputs(SLOT, number, trial.inputs))
        answer, outputs = self._step(
            gate, lambda: self.link.call(SLOT, trial.specs, NAN_BYTES, record=is_first and number == 0)
        )
        self.operators = answer.get("operators") or self.operators
        self._check_contract(answer, case, gate)
        self._check_errors(outputs, trial, gate)
        if is_first:
            first = [output.clone() for output in outputs]
            answer, outputs = self._step(gate, lambda: self.link.call(SLOT, trial.specs, LARGE_BYTES))
            self._check_contract(answer, case, gate)
            self._check_repeated(first, outputs, trial, suffix)

    def _check_contract(self, answer: Message, case: Case, gate: str) -> None:
        changed = answer.get("changed")
        if changed:
            raise _Failed(
                f"{gate}: inputs unchanged", "wrong_result", f"forward changed its input {changed[0]} in place"
            )
        if answer.get("alias") and not case.returns_views:
            raise _Failed(f"{gate}: outputs own their memory", "wrong_result", str(answer["alias"]))

    def _check_errors(self, outputs: list[torch.Tensor], trial: Trial, gate: str) -> None:
        found = [comparison.measure(output, item) for output, item in zip(outputs, trial.expected, strict=True)]
        limits = [_limit(own, trial, index) for index, own in enumerate(trial.ieee)]
        accuracy: AccuracyClass = "ieee"
        if not _all_accepted(found, limits) and trial.tf32 is not None and self.worst_class == "tf32":
            limits = [_limit(own, trial, index) for index, own in enumerate(trial.tf32)]
            accuracy = "tf32"
        own_errors = trial.tf32 if accuracy == "tf32" and trial.tf32 is not None else trial.ieee
        worst = max(range(len(found)), key=lambda index: _pressure(found[index], limits[index]))
        self.errors.append(
            DistributionError(
                gate,
                found[worst].norm,
                own_errors[worst].norm,
                found[worst].violation,
                own_errors[worst].violation,
            )
        )
        if not accepts(found[worst], limits[worst]):
            expected = trial.expected[worst]
            text = comparison.describe_mismatch(outputs[worst], expected, limits[worst], found[worst])
            name = f"output {worst}: " if len(outputs) > 1 else ""
            raise _Failed(gate, failure(found[worst], expected.dtype), name + text)
        if accuracy == "tf32":
            self.accuracy = "tf32"
        note = f"; {trial.note}" if trial.note else ""
        evidence = f"norm error {found[worst].norm:.2e} (PyTorch's own {own_errors[worst].norm:.2e}){note}"
        self.gates.append(Gate(gate, True, evidence))

    def _check_repeated(self, first: list[torch.Tensor], second: list[torch.Tensor], trial: Trial, suffix: str) -> None:
        gate = f"same answer twice{suffix}"
        for index, (one, other, expected) in enumerate(zip(first, second, trial.expected, strict=True)):
            if torch.equal(_as_bits(one), _as_bits(other)):
                continue
            limit = _limit(trial.ieee[index], trial, index)
            error = comparison.measure(other, expected)
            if not accepts(error, limit):
                text = comparison.describe_mismatch(other, expected, limit, error)
                raise _Failed(
                    gate,
                    "nondeterministic",
                    f"the second call on the same inputs gave another output {index}, with memory it did not write "
                    f"filled differently: {text}",
                )
            self.gates.append(Gate(gate, True, f"output {index} differs between calls by rounding only"))
            return
        self.gates.append(Gate(gate, True, "bit for bit, with other garbage in free memory"))


def _limit(own: OutputError, trial: Trial, index: int) -> OutputError:
    spec = trial.specs[index]
    return allowed(own, spec.dtype, spec.numel)


def _all_accepted(found: list[OutputError], limits: list[OutputError]) -> bool:
    return all(accepts(error, limit) for error, limit in zip(found, limits, strict=True))


def _pressure(error: OutputError, limit: OutputError) -> float:
    """How near (or beyond 1: how far over) an error is to its limit."""
    if error.misplaced or error.norm != error.norm:
        return float("inf")
    norm = error.norm / limit.norm if limit.norm else float("inf") if error.norm else 0.0
    violation = error.violation / limit.violation if limit.violation else float("inf") if error.violation else 0.0
    return max(norm, violation)


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def released(trials: Iterator[Trial]) -> Iterator[Trial]:
    """Trials one at a time, each one's shared memory given back after its use."""
    for trial in trials:
        yield trial
        os.close(trial.inputs[1])
