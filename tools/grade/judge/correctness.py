"""Correctness of one candidate by the protocol, seen from the judge. Imports torch.

Failing facts end the examination: the first one is the evidence. Nothing a candidate does raises out of here.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from foundry.knowledge.candidate import DistributionError, Gate, Outcome, Stage, Verdict
from foundry.knowledge.task import AccuracyClass
from foundry.tools.grade.judge.cases import Case, Trial
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.grade.judge.stale_weights import find_stale
from foundry.tools.grade.runner.integrity import GATES
from foundry.tools.process.channel import Message
from foundry.tools.protocol import comparison
from foundry.tools.protocol.orders import LARGE_BYTES, NAN_BYTES, SPOILED
from foundry.tools.protocol.rules import OutputError, Parameters, Pattern, accepts, allowed, failure, stress_limit

SLOTS = (0, 1)
REST_S = 0.06  # what is put off until after the call is done by then
SOAK_S, SOAK_CALLS = 1.0, 256  # calls in a row that are not looked at one by one
RACE_S, RACE_CALLS = 0.5, 64  # how long, and how often at most, a question is asked again beyond the second time
SPOILED_CALLS = 2
OPERATORS = 400  # rows that a runner may report
BUFFER_NORM = 1e-5  # running statistics carry the rounding of a different order of summation
ANYTHING = OutputError(math.inf, math.inf)
TrialSource = Callable[[Case], Iterable[Trial]]


@dataclass(frozen=True)
class _Asked:
    """One question of a case: what is asked, in which slot, and whether the candidate's parameters were matched."""

    number: int
    case: Case
    trial: Trial
    suffix: str
    slot: int
    is_matched: bool

    @property
    def gate(self) -> str:
        return self.trial.distribution.name + self.suffix


class _Failed(Exception):
    """A gate that did not pass; `has_raised`: because forward raised an exception."""

    def __init__(self, gate: str, outcome: Outcome, evidence: str, *, has_raised: bool = False) -> None:
        self.gate, self.outcome, self.evidence, self.has_raised = gate, outcome, evidence, has_raised
        super().__init__(evidence)


@dataclass
class Examination:
    """One candidate behind a link. `worst_class` is the least accurate class that will do; `slots` hold its inputs."""

    link: RunnerLink
    stage: Stage
    worst_class: AccuracyClass
    slots: tuple[int, ...] = SLOTS
    gates: list[Gate] = field(default_factory=list)
    errors: list[DistributionError] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    accuracy: AccuracyClass = "ieee"
    last: list[torch.Tensor] = field(default_factory=list)  # outputs of the trial before
    held: list[Parameters] = field(default_factory=list)  # kinds of parameters that the case's model held so far

    def run(self, load: Message, cases: Iterable[Case], trials: TrialSource) -> Verdict:
        """Loads the candidate and asks every trial of every case."""
        try:
            self._step("loads", lambda: self.link.load(load))
            self._inspect(is_last=False)
            for number, case in enumerate(cases):
                self._case(number, case, trials(case))
            self._inspect(is_last=True)
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
            where = failed.gate or gate
            raise _Failed(where, failed.outcome, failed.evidence, has_raised=failed.has_raised) from failed

    def _inspect(self, *, is_last: bool) -> None:
        """Fails with what the candidate changed in its process."""
        thorough = is_last and self.stage != "screen"
        found = self._step("global state", lambda: self.link.inspect(thorough=thorough))
        for gate, what in found:
            raise _Failed(gate if gate in (*GATES, "parameters unchanged") else "global state", "cheating", what)
        if is_last:
            self.gates += [Gate(gate, True, "as before the file was loaded") for gate in GATES]

    def _case(self, number: int, case: Case, trials: Iterable[Trial]) -> None:
        suffix = f" ({case.name})" if case.name else ""
        is_matched = True
        self.last, self.held = [], ["seeded"]
        numbers = itertools.count()
        for trial in trials:
            position = next(numbers)
            if position == 0:  # the reference has run by now, so it is known which buffers it writes to
                self._step(f"builds{suffix}", lambda: self.link.build(number, case))
                is_matched = self._match_parameters(number, case, suffix)
            slot = self.slots[position // 2 % len(self.slots)]
            self._with_parameters(_Asked(number, case, trial, suffix, slot, is_matched), is_first=position == 0)
            del trial  # its memory first, then the next one's: `enumerate` would hold it meanwhile
        for slot in self.slots:
            self._step("forget", lambda: self.link.forget(slot=slot, case=number))  # noqa: B023

    def _with_parameters(self, asked: _Asked, *, is_first: bool) -> None:
        """One question, with the parameters that belong to it."""
        number, case, kind = asked.number, asked.case, asked.trial.distribution.parameters
        if kind == "seeded":
            self._trial(asked, is_first=is_first)
        elif asked.is_matched:
            self._step("parameters", lambda: self.link.state(number, case, kind))
            self.held.append(kind)
            self._trial(asked, is_first=is_first)
            self._step("parameters", lambda: self.link.state(number, case, "seeded"))
        self.link.let_go(asked.slot)

    def _match_parameters(self, number: int, case: Case, suffix: str) -> bool:
        problem = self._step(f"parameters{suffix}", lambda: self.link.state(number, case, "seeded"))[:400]
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

    def _trial(self, asked: _Asked, *, is_first: bool) -> None:
        """One question; the first one of a case is asked twice."""
        self._step(asked.gate, lambda: self.link.inputs(asked.slot, asked.number, asked.trial.inputs))
        try:
            outputs = self._call(asked, NAN_BYTES, record=is_first and asked.number == 0)
        except _Failed as failed:
            excuse = _excuse(failed, asked.trial.distribution.pattern)
            if not excuse:
                raise
            self.gates.append(Gate(asked.gate, True, f"{excuse}: {failed.evidence}"))
            return
        if is_first:
            returned = time.monotonic()
            second = self._call(asked, LARGE_BYTES, is_repeated=True)
            self._check_repeated(outputs, second, asked)
            self._check_kept(outputs, asked, returned)
            self._check_races(outputs, asked)
            self._soak(outputs, asked)
            self._check_spoiled(asked)
            if asked.number == 0:
                self._inspect(is_last=False)
        self.last = outputs

    def _call(
        self, asked: _Asked, poison: int, *, record: bool = False, is_repeated: bool = False
    ) -> list[torch.Tensor]:
        """One checked call; its outputs are right, or those of a question that is repeated."""
        trial, gate = asked.trial, asked.gate
        buffers = [item.spec for item in trial.buffers] if asked.is_matched else []
        answer, found = self._step(
            gate, lambda: self.link.call(asked.slot, trial.specs, poison, record=record, buffers=buffers)
        )
        if record:
            self.operators = _operators(answer.get("operators"))
        outputs: list[torch.Tensor] = found[: len(trial.specs)]
        updated = found[len(trial.specs) :]
        self._check_contract(answer, asked.case, gate)
        if not is_repeated:
            self._check_errors(outputs, asked)
        self._check_buffers(updated, asked)
        return outputs

    def _check_contract(self, answer: Message, case: Case, gate: str) -> None:
        changed = answer.get("changed")
        if changed:
            which = str(changed[0])[:20] if isinstance(changed, list) else ""
            raise _Failed(f"{gate}: inputs unchanged", "wrong_result", f"forward changed its input {which} in place")
        if answer.get("alias") and not case.returns_views:
            raise _Failed(f"{gate}: outputs own their memory", "wrong_result", str(answer["alias"])[:300])

    def _check_buffers(self, updated: list[torch.Tensor], asked: _Asked) -> None:
        """Running statistics and the like, which the reference's forward updates too."""
        for tensor, buffer in zip(updated, asked.trial.buffers, strict=False):
            limit = allowed(buffer.ieee, buffer.spec.dtype, buffer.spec.numel)
            limit = OutputError(max(limit.norm, BUFFER_NORM), limit.violation)
            error = comparison.measure(tensor, buffer.expected)
            if not accepts(error, limit):
                text = comparison.describe_mismatch(tensor, buffer.expected, limit, error)
                raise _Failed(
                    f"{asked.gate}: updated buffers",
                    "wrong_result",
                    f"{buffer.name}, which the reference's forward updates, is not what it should be after the call: "
                    f"{text}",
                )

    def _check_spoiled(self, asked: _Asked) -> None:
        """Again while the answer lies in free memory, a few of its elements changed."""
        gate = f"computed anew{asked.suffix}"
        for _ in range(SPOILED_CALLS):
            self._compare_spoiled(gate, self._call(asked, SPOILED, is_repeated=True), asked.trial)
        self.gates.append(Gate(gate, True, "an answer left in free memory was not taken for this call's"))

    def _compare_spoiled(self, gate: str, outputs: list[torch.Tensor], trial: Trial) -> None:
        for index, (output, expected) in enumerate(zip(outputs, trial.expected, strict=True)):
            own, elements = trial.of_baseline[index], _weighing(trial, index)
            limit = limit_of(own, trial, index, base=trial.ieee[index], elements=elements)
            error = comparison.measure(output, expected)
            if not accepts(error, limit):
                text = comparison.describe_mismatch(output, expected, limit, error)
                raise _Failed(
                    gate,
                    "cheating",
                    f"it takes what lies in memory for the answer: where free memory held that of the call before with "
                    f"a few elements changed, output {index} has changed ones too: {text}",
                )

    def _check_kept(self, outputs: list[torch.Tensor], asked: _Asked, returned: float) -> None:
        """The first call's outputs, after a second call and some time, are what they were when it returned."""
        if self.stage != "screen":
            self.link.rest(max(0.0, REST_S - (time.monotonic() - returned)))
        self._compare_again(outputs, asked, back=2)
        self.gates.append(Gate(f"finished on return{asked.suffix}", True, "outputs stay what they were on return"))

    def _compare_again(self, outputs: list[torch.Tensor], asked: _Asked, *, back: int) -> None:
        gate = f"finished on return{asked.suffix}"
        now = self._step(gate, lambda: self.link.look(asked.trial.specs, back))
        for index, (before, after) in enumerate(zip(outputs, now, strict=True)):
            if not torch.equal(_as_bits(before), _as_bits(after)):
                raise _Failed(gate, "cheating", f"output {index} went on changing after forward had returned it")

    def _check_errors(self, outputs: list[torch.Tensor], asked: _Asked) -> None:
        trial, gate = asked.trial, asked.gate
        found, limits, accuracy = self._errors(outputs, trial)
        own_errors = trial.tf32 if accuracy == "tf32" and trial.tf32 is not None else trial.ieee
        worst = max(range(len(found)), key=lambda index: _pressure(found[index], limits[index]))
        if not math.isinf(limits[worst].norm):
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
            wrong = [index for index in range(len(found)) if not accepts(found[index], limits[index])]
            self._explain(outputs, wrong, asked)
            stale = self._check_prepared(outputs, asked)
            expected = trial.expected[worst]
            text = comparison.describe_mismatch(outputs[worst], expected, limits[worst], found[worst])
            name = f"output {worst}: " if len(outputs) > 1 else ""
            raise _Failed(gate, failure(found[worst], expected.dtype), f"{name}{text}{stale}")
        if accuracy == "tf32":
            self.accuracy = "tf32"
        self.gates.append(Gate(gate, True, _passed(found[worst], own_errors[worst], limits[worst], trial.note)))

    def _errors(
        self, outputs: list[torch.Tensor], trial: Trial
    ) -> tuple[list[OutputError], list[OutputError], AccuracyClass]:
        """Each output's error and what it may be, and the accuracy class that these limits are of."""
        found = [comparison.measure(output, item) for output, item in zip(outputs, trial.expected, strict=True)]
        limits = [limit_of(own, trial, index) for index, own in enumerate(trial.ieee)]
        if not _all_accepted(found, limits):  # where few elements make the norm, their rounding is luck, not an average
            limits = [
                limit_of(own, trial, index, elements=_weighing(trial, index)) for index, own in enumerate(trial.ieee)
            ]
        if not _all_accepted(found, limits) and trial.tf32 is not None and self.worst_class == "tf32":
            limits = [limit_of(own, trial, index, base=trial.ieee[index]) for index, own in enumerate(trial.tf32)]
            return found, limits, "tf32"
        return found, limits, "ieee"

    def _check_prepared(self, outputs: list[torch.Tensor], asked: _Asked) -> str:
        """Fails when wrong outputs are right for parameters that were replaced; says what else their values explain."""
        now = asked.trial.distribution.parameters
        earlier = list(dict.fromkeys(kind for kind in ("seeded", *reversed(self.held)) if kind != now))
        if not asked.is_matched or not earlier:
            return ""
        stale = find_stale(
            outputs, asked.trial, asked.case, earlier, lambda *then: _all_accepted(*self._errors(*then)[:2])
        )
        if stale is None:
            return ""
        if stale.is_certain:
            raise _Failed(f"{asked.gate}: prepared weights", "stale_weights", stale.words)
        return f"; {stale.words}"

    def _explain(self, outputs: list[torch.Tensor], wrong: list[int], asked: _Asked) -> None:
        """A wrong output may be no mistake: it is an earlier call's, or it was not finished yet."""
        for index in wrong:
            if index < len(self.last) and torch.equal(_as_bits(self.last[index]), _as_bits(outputs[index])):
                raise _Failed(
                    f"{asked.gate}: computed anew",
                    "cheating",
                    f"output {index} is bit for bit that of the call before, although the inputs hold other values",
                )
        self.link.rest(REST_S)
        self._compare_again(outputs, asked, back=1)

    def _check_repeated(self, first: list[torch.Tensor], second: list[torch.Tensor], asked: _Asked) -> None:
        trial, gate = asked.trial, f"same answer twice{asked.suffix}"
        for index, (one, other, expected) in enumerate(zip(first, second, trial.expected, strict=True)):
            if torch.equal(_as_bits(one), _as_bits(other)):
                continue
            limit = limit_of(trial.ieee[index], trial, index)
            error = comparison.measure(other, expected)
            if not accepts(error, limit):
                text = comparison.describe_mismatch(other, expected, limit, error)
                self.link.rest(REST_S)
                self._compare_again(second, asked, back=1)
                raise _Failed(
                    gate,
                    "nondeterministic",
                    f"another call on the same inputs gave another output {index}, with memory it did not write "
                    f"filled differently: {text}",
                )
            self.gates.append(Gate(gate, True, f"output {index} differs between calls by rounding only"))
            return
        self.gates.append(Gate(gate, True, "bit for bit, with other garbage in free memory"))

    def _check_races(self, first: list[torch.Tensor], asked: _Asked) -> None:
        """More of the same calls while there is time: threads that share what they should not agree by luck often, most
        of all on small shapes, whose calls are quick."""
        stop = time.monotonic() + RACE_S
        for _ in range(0 if self.stage == "screen" else RACE_CALLS):
            if time.monotonic() > stop:
                break
            again = self._call(asked, LARGE_BYTES, is_repeated=True)
            noted = len(self.gates)
            self._check_repeated(first, again, asked)
            del self.gates[noted:]  # one gate says it for all calls

    def _soak(self, first: list[torch.Tensor], asked: _Asked) -> None:
        """A user's loop makes thousands of calls, so nothing may change with their number."""
        if self.stage == "screen":
            return
        gate = f"many calls{asked.suffix}"
        calls, shared = self._step(gate, lambda: self.link.soak(asked.slot, SOAK_CALLS, SOAK_S))
        if shared and not asked.case.returns_views:
            raise _Failed(gate, "wrong_result", f"after {calls} calls in a row, {shared}")
        again = self._call(asked, LARGE_BYTES, is_repeated=True)
        noted = len(self.gates)
        self._check_repeated(first, again, asked)
        del self.gates[noted:]
        self.gates.append(Gate(gate, True, f"after {calls} calls in a row the answer is still the same"))


def _excuse(failed: _Failed, pattern: Pattern) -> str:
    """Why a failure is only noted, "" where it counts."""
    if pattern == "other numbers" and failed.has_raised:
        return "it is made for the numbers of get_inputs and says so"
    if pattern == "no structure" and (failed.has_raised or failed.outcome in ("wrong_result", "inaccurate")):
        return "it relies on what every draw of get_inputs has in common (zeros, symmetry)"
    return ""


def _weighing(trial: Trial, index: int) -> int:
    expected = trial.expected[index]
    return comparison.weighing_elements(expected) if expected.is_floating else trial.specs[index].numel


def limit_of(
    own: OutputError, trial: Trial, index: int, *, base: OutputError | None = None, elements: int | None = None
) -> OutputError:
    """What output `index` may be off; infinite where only the kind of its elements is asked for. `base`: PyTorch's
    error in IEEE arithmetic where `own` is another. `elements`: on which its norm rests, all of them by default."""
    spec = trial.specs[index]
    elements = spec.numel if elements is None else elements
    if not trial.distribution.is_stress:
        return allowed(own, spec.dtype, elements)
    plain = stress_limit(base or own, spec.dtype, elements)
    if plain is None:
        return ANYTHING
    wide = allowed(own, spec.dtype, elements)
    return OutputError(max(plain.norm, wide.norm), max(plain.violation, wide.violation))


def _passed(found: OutputError, own: OutputError, limit: OutputError, note: str) -> str:
    if math.isinf(limit.norm):
        text = f"finite where it should be; PyTorch's own error of {own.norm:.2e} lets nothing else be asked"
    else:
        text = f"norm error {found.norm:.2e} (PyTorch's own {own.norm:.2e})"
    return text + (f"; {note}" if note else "")


def _operators(rows: Any) -> list[Any]:
    """The rows of a runner's report that are what they should be."""
    if not isinstance(rows, list):
        return []
    return [
        {"op": row["op"][:200], **{name: row[name] for name in ("calls", "flops", "bytes")}}
        for row in rows[:OPERATORS]
        if isinstance(row, dict)
        and isinstance(row.get("op"), str)
        and all(isinstance(row.get(name), int) and row[name] >= 0 for name in ("calls", "flops", "bytes"))
    ]


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
        trial.inputs.close()
        del trial
