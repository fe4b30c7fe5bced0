"""Correctness of one candidate by the protocol, seen from the judge. Imports torch.

The first failing fact ends the examination and is its evidence. Nothing that a candidate does raises out of here.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from foundry.knowledge.candidate import DistributionError, Gate, Outcome, Stage, Verdict
from foundry.knowledge.reasons import Refusal
from foundry.knowledge.task import AccuracyClass
from foundry.tools.audit.acts.observed import OperatorRow
from foundry.tools.grade.judge.freedom import judge_answer
from foundry.tools.grade.judge.limits import buffer_limit, uses_tf32
from foundry.tools.grade.judge.link import AS_BUILT, OPERATORS, RunnerFailed, RunnerLink
from foundry.tools.grade.judge.stale_weights import FOLDED, JUDGE_AS_BUILT, find_stale, is_right_as_built
from foundry.tools.grade.messages.runner import CallFacts, FileToLoad
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.other_parameters import STAY
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.protocol import comparison
from foundry.tools.protocol.orders import (
    DRIFT,
    IN_ITS_PROCESS,
    LARGE_BYTES,
    NAN_BYTES,
    PROCESS_EVENTS,
    PROCESSES,
    SPOILED,
)
from foundry.tools.protocol.rules import (
    Distribution,
    OutputError,
    Parameters,
    accepts,
    accepts_all,
    failure,
    pressure,
)

SLOTS = (0, 1)
REST_S = 0.06  # pause after a call, in which work that was put off beyond the call's end gets done
SOAK_S, SOAK_CALLS = 1.0, 256  # calls in a row of which only the last one is checked: seconds, and calls at most
RACE_S, RACE_CALLS = 0.5, 64  # third and further calls on the same inputs: seconds, and calls at most
AWAKE_S = 0.004  # seconds of calls in a row before every other one of them
SPOILED_CALLS = 2
FEW_VALUES, FEW_VALUES_OF = 8, 4096  # an output with so few values in its first elements may repeat by chance
TrialSource = Callable[[Case], Iterable[Trial]]


@dataclass(frozen=True)
class _Question:
    """One trial of a case, the runner's slot for its inputs, and whether the candidate has the task's parameters."""

    number: int
    case: Case
    trial: Trial
    suffix: str
    slot: int
    is_matched: bool

    @property
    def gate(self) -> str:
        """The name of this question's gate."""
        return self.trial.distribution.name + self.suffix


class _Failed(Exception):
    """A gate failed. `has_raised`: because forward raised an exception."""

    def __init__(self, gate: str, outcome: Outcome, evidence: str, *, has_raised: bool = False) -> None:
        """Keeps gate, outcome and evidence of the failure for the verdict."""
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
    operators: list[OperatorRow] = field(default_factory=list)
    accuracy: AccuracyClass = "ieee"
    last: list[torch.Tensor] = field(default_factory=list)  # outputs of the trial before
    held: list[Parameters] = field(default_factory=list)  # kinds of parameters that the case's model held so far
    in_force: Parameters = "seeded"  # the kind that it holds now

    def run(self, load: FileToLoad, cases: Iterable[Case], trials: TrialSource) -> Verdict:
        """Loads the candidate and asks every trial of every case; the verdict. The first failure ends it.

        The process's state is inspected after loading and at the end.
        """
        try:
            self._step("loads", lambda: self.link.load(load))
            self._inspect(is_last=False, may_build=True)
            for number, case in enumerate(cases):
                self._case(number, case, trials(case))
            self._inspect(is_last=True)
        except _Failed as failed:
            self.gates.append(Gate(failed.gate, False, failed.evidence))
            return self._verdict(failed.outcome, f"{failed.gate}: {failed.evidence}")
        return self._verdict("correct", "")

    def _verdict(self, outcome: Outcome, evidence: str) -> Verdict:
        """The record with the gates and errors so far; the accuracy class only if the outcome is correct."""
        accuracy = self.accuracy if outcome == "correct" else None
        gates, errors = tuple(self.gates), tuple(self.errors)
        return Verdict(outcome, self.stage, gates, accuracy, errors=errors, evidence=evidence)

    def _step(self, gate: str, work: Callable[[], Any]) -> Any:
        """Lets the runner do `work`; its failure becomes the failure of `gate`."""
        try:
            return work()
        except RunnerFailed as failed:
            where = failed.gate or gate
            raise _Failed(where, failed.outcome, failed.evidence, has_raised=failed.has_raised) from failed

    def _inspect(self, *, is_last: bool, may_build: bool = False) -> None:
        """Raises _Failed if the candidate changed a function, a setting, its threads or its parameters in its process.

        `is_last`: looks thoroughly, except in a screen, and records that these gates passed. `may_build`: other
        processes are no fault yet, because the candidate may still compile.
        """
        thorough = is_last and self.stage != "screen"
        found = self._step("global state", lambda: self.link.inspect(thorough=thorough))
        self._refuse([item for item in found if not (may_build and item[0] == PROCESSES)])
        if is_last:
            self.gates += [Gate(gate, True, "as before the file was loaded") for gate in IN_ITS_PROCESS]

    def _refuse(self, found: Sequence[tuple[str, str, Refusal]]) -> None:
        """Raises _Failed with the first of the changes found; returns if there is none."""
        for gate, what, refusal in found:
            known = (*IN_ITS_PROCESS, PROCESS_EVENTS, DRIFT)
            raise _Failed(gate if gate in known else "global state", refusal, what)

    def _case(self, number: int, case: Case, trials: Iterable[Trial]) -> None:
        """Builds the model of one case in the runner and asks each of its trials there; frees inputs and model
        afterwards.

        A lean case is also checked for parameters that forward changed, except in a screen.
        """
        suffix = f" ({case.name})" if case.name else ""
        is_matched = True
        self.last, self.held, self.in_force = [], ["seeded"], "seeded"
        numbers = itertools.count()
        for trial in trials:
            position = next(numbers)
            if position == 0:  # the reference has run by now, so it is known which buffers it writes to
                self._step(f"builds{suffix}", lambda: self.link.build(number, case))
                is_matched = self._match_parameters(number, case, suffix)
            slot = self.slots[position // 2 % len(self.slots)]
            question = _Question(number, case, trial, suffix, slot=slot, is_matched=is_matched)
            self._with_parameters(question, is_first=position == 0)
            del question, trial  # their memory first, then the next one's: `enumerate` would hold it meanwhile
        self._load(number, case, "seeded")
        if case.is_lean and is_matched and self.stage != "screen":
            self._refuse(self._step(DRIFT, lambda: self.link.find_drift(number, case)))
        for slot in self.slots:
            self._step("forget", lambda: self.link.forget(slot=slot, case=number))  # noqa: B023

    def _with_parameters(self, question: _Question, *, is_first: bool) -> None:
        """Asks one question after its parameters are loaded; skips it if they cannot be matched."""
        number, case, kind = question.number, question.case, question.trial.distribution.parameters
        if kind != self.in_force and (question.is_matched or kind == "seeded"):
            self._load(number, case, kind)
        if kind == self.in_force:
            self._trial(question, is_first=is_first)
        if self.in_force not in STAY:
            self._load(number, case, "seeded")
        self.link.let_go(question.slot)

    def _load(self, number: int, case: Case, kind: Parameters) -> None:
        """Gives the runner's model another kind of parameters, unless it holds that kind."""
        if kind != self.in_force:
            self._step("parameters", lambda: self.link.state(number, case, kind))
            self.held += [] if kind == "seeded" else [kind]
            self.in_force = kind

    def _match_parameters(self, number: int, case: Case, suffix: str) -> bool:
        """True if the runner's model took the task's parameters.

        False if they cannot be matched: then only the initial values are checked. Raises _Failed if those could not
        show whether the model uses its parameters (one is constant).
        """
        problem = self._step(f"parameters{suffix}", lambda: self.link.state(number, case, "seeded"))[:400]
        if not problem:
            return True
        constant = case.constant_parameter() if case.task.parameters == "loaded" else ""
        if constant:
            raise _Failed(
                f"parameters{suffix}",
                "not_judged",
                f"{problem}. So other parameters cannot be loaded, and with the initial ones, where all elements of "
                f"{constant} are equal, it does not show whether ModelNew uses them. Keep the reference's parameter "
                f"names, or its layers in the same order; {JUDGE_AS_BUILT}",
            )
        self.gates.append(Gate(f"parameters{suffix}", True, f"checked with the initial values only: {problem}"))
        return False

    def _trial(self, question: _Question, *, is_first: bool) -> None:
        """Asks one question and checks the answer. Raises _Failed.

        The first of a case is asked several times, and checked for more than its values. A failure that has an excuse
        becomes a passed gate.
        """
        self._step(question.gate, lambda: self.link.inputs(question.slot, question.number, question.trial.inputs))
        try:
            outputs = self._call(question, NAN_BYTES)
        except _Failed as failed:
            excuse = _excuse(failed, question.trial.distribution)
            if not excuse:
                raise
            self.gates.append(Gate(question.gate, True, f"{excuse}: {failed.evidence}"))
            return
        if is_first:
            returned = time.monotonic()
            # What PyTorch runs is seen here: a first call may lay out weights, which no later one does.
            second = self._call(question, LARGE_BYTES, is_repeated=True, record=question.number == 0)
            self._check_repeated(outputs, second, question)
            self._check_kept(outputs, question, returned)
            self._check_races(outputs, question)
            self._soak(outputs, question)
            self._check_spoiled(question)
            if question.number == 0:
                self._inspect(is_last=False)
        elif question.trial.distribution.pattern in (
            "other indices",
            "paired indices",
        ):  # places that threads may write to at once
            self._check_races(outputs, question)
        self.last = outputs

    def _call(
        self,
        question: _Question,
        poison: int,
        *,
        record: bool = False,
        is_repeated: bool = False,
        awake_s: float = 0.0,
    ) -> list[torch.Tensor]:
        """The outputs of one call on a trial's inputs.

        Raises _Failed unless inputs are unchanged and updated buffers and outputs are right. With `is_repeated` the
        caller checks the outputs, by those of the first call.
        """
        trial, gate = question.trial, question.gate
        buffers = [item.spec for item in trial.buffers] if question.is_matched else []
        how: dict[str, Any] = {"record": record, "buffers": buffers, "awake_s": awake_s}
        answer, found = self._step(gate, lambda: self.link.call(question.slot, trial.specs, poison, **how))
        if record:
            self.operators = answer.operators[:OPERATORS]
        outputs: list[torch.Tensor] = found[: len(trial.specs)]
        updated = found[len(trial.specs) :]
        self._check_contract(answer, question.case, gate)
        if not is_repeated:
            self._check_errors(outputs, question)
        self._check_buffers(updated, question)
        return outputs

    def _check_contract(self, answer: CallFacts, case: Case, gate: str) -> None:
        """Raises _Failed if the call changed its inputs, returned a view of them, other keys, or outputs that share
        memory."""
        if answer.changed:
            words = f"forward changed its input {answer.changed[0]} in place"
            raise _Failed(f"{gate}: inputs unchanged", "wrong_result", words)
        if answer.alias and not case.returns_views:
            raise _Failed(f"{gate}: outputs own their memory", "wrong_result", answer.alias)
        if (keys := answer.keys) is not None and keys != case.keys:
            raise _Failed(
                f"{gate}: keys",
                "wrong_result",
                f"forward returned {_keys_text(keys)}, the reference {_keys_text(case.keys)}: return the same keys in "
                "the same order",
            )
        for index, (shared, usual) in enumerate(zip(answer.shared, case.shared_elements, strict=False)):
            if shared > usual:
                raise _Failed(
                    f"{gate}: outputs own their memory",
                    "wrong_result",
                    f"{shared} elements of output {index} have no memory of their own ({usual} of PyTorch's): it is a "
                    "view that repeats itself (stride 0), or lies in another output. Write every element of each",
                )

    def _check_buffers(self, updated: list[torch.Tensor], question: _Question) -> None:
        """Raises _Failed unless buffers that the reference's forward updates (running statistics) are right."""
        for tensor, buffer in zip(updated, question.trial.buffers, strict=False):
            error, limit = comparison.measure(tensor, buffer.expected), buffer_limit(buffer, buffer.ieee)
            may_be_tf32 = self.worst_class == "tf32" and uses_tf32(buffer, question.trial)
            if may_be_tf32 and not accepts(error, limit):  # a mean of products has their error
                limit, self.accuracy = buffer_limit(buffer, buffer.tf32, is_tf32=True), "tf32"
            if not accepts(error, limit):
                text = comparison.describe_mismatch(tensor, buffer.expected, limit, error)
                raise _Failed(
                    f"{question.gate}: updated buffers",
                    "wrong_result",
                    f"the reference's forward updates {buffer.name}; after the candidate's call it is wrong: {text}",
                )

    def _check_spoiled(self, question: _Question) -> None:
        """Calls while free memory holds the answer with a few elements changed; _Failed if the call returns these."""
        gate = f"computed anew{question.suffix}"
        for _ in range(SPOILED_CALLS):
            self._step(gate, lambda: self.link.spoil(question.slot))
            self._compare_spoiled(gate, self._call(question, SPOILED, is_repeated=True), question.trial)
        self.gates.append(Gate(gate, True, "did not return an old answer that was left in free memory"))

    def _compare_spoiled(self, gate: str, outputs: list[torch.Tensor], trial: Trial) -> None:
        """Raises _Failed (cheating) if an output is wrong after free memory held a changed copy of the answer."""
        found, limits, _ = self._errors(outputs, trial)
        for index, (error, limit) in enumerate(zip(found, limits, strict=True)):
            if not accepts(error, limit):
                text = comparison.describe_mismatch(outputs[index], trial.expected[index], limit, error)
                raise _Failed(
                    gate,
                    "cheating",
                    f"it returns what lies in free memory: that held the answer of the call before with a few elements "
                    f"changed, and {trial.name_of(index)} has changed elements too: {text}",
                )

    def _check_kept(self, outputs: list[torch.Tensor], question: _Question, returned: float) -> None:
        """Raises _Failed if the first call's outputs changed during the second call or the pause after it."""
        if self.stage != "screen":
            self.link.wait_idle(max(0.0, REST_S - (time.monotonic() - returned)))
        self._compare_again(outputs, question, back=2)
        self.gates.append(Gate(f"finished on return{question.suffix}", True, "outputs did not change after the return"))

    def _compare_again(self, outputs: list[torch.Tensor], question: _Question, *, back: int) -> None:
        """Raises _Failed (cheating) if outputs of the call `back` calls ago differ now from the copies `outputs`."""
        gate = f"finished on return{question.suffix}"
        now = self._step(gate, lambda: self.link.look(question.trial.specs, back))
        for index, (before, after) in enumerate(zip(outputs, now, strict=True)):
            if not torch.equal(_as_bits(before), _as_bits(after)):
                raise _Failed(gate, "cheating", f"output {index} changed after forward had returned it")

    def _check_errors(self, outputs: list[torch.Tensor], question: _Question) -> None:
        """Raises _Failed if an output's error is above its limit, after a search for the cause; else adds the passed
        gate."""
        trial, gate = question.trial, question.gate
        found, limits, accuracy = self._errors(outputs, trial)
        own_errors = trial.tf32 if accuracy == "tf32" and trial.tf32 is not None else trial.ieee
        worst = max(range(len(found)), key=lambda index: pressure(found[index], limits[index]))
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
            self._explain(outputs, wrong, question)
            stale = self._check_prepared(outputs, question)
            self._check_folded(question)
            expected = trial.expected[worst]
            text = comparison.describe_mismatch(outputs[worst], expected, limits[worst], found[worst])
            name = f"{trial.name_of(worst)}: " if len(outputs) > 1 or trial.inputs.writes else ""
            outcome = failure(found[worst], expected.dtype)
            arithmetic = _arithmetic_words(trial, worst) if outcome == "inaccurate" and not stale else ""
            raise _Failed(gate, outcome, f"{name}{text}{stale}{arithmetic}")
        if accuracy == "tf32":
            self.accuracy = "tf32"
        self.gates.append(
            Gate(gate, True, _evidence_of_pass(found[worst], own_errors[worst], limits[worst], trial.note))
        )

    def _errors(
        self, outputs: list[torch.Tensor], trial: Trial
    ) -> tuple[list[OutputError], list[OutputError], AccuracyClass]:
        """(error of each output, limit of each output, accuracy class of these limits)."""
        return judge_answer(outputs, trial, self.worst_class)

    def _check_prepared(self, outputs: list[torch.Tensor], question: _Question) -> str:
        """Raises _Failed if wrong outputs are right for parameters that have been replaced since.

        Returns words for the evidence if that is likely but not certain, or if the task is judged as built; else "".
        """
        if question.case.task.parameters == "as-built":
            return f"; {AS_BUILT}, which must draw them as the reference's does"
        now = question.trial.distribution.parameters
        earlier = list(dict.fromkeys(kind for kind in ("seeded", *reversed(self.held)) if kind != now))
        if not question.is_matched or not earlier:
            return ""
        stale = find_stale(
            outputs, question.trial, question.case, earlier, lambda *then: accepts_all(*self._errors(*then)[:2])
        )
        if stale is None:
            return ""
        if stale.is_certain:
            raise _Failed(f"{question.gate}: prepared weights", "stale_weights", stale.words)
        return f"; {stale.words}"

    def _check_folded(self, question: _Question) -> None:
        """Raises _Failed (FOLDED) if the first answer is right with the parameters that the constructor makes."""
        is_first = self.held == ["seeded"] and not self.last and question.is_matched
        if is_first and question.case.task.parameters == "loaded":
            asked = self.link, question.number, question.slot, question.case, question.trial
            if is_right_as_built(*asked, lambda *then: accepts_all(*self._errors(*then)[:2])):
                raise _Failed(f"parameters{question.suffix}", "not_allowed", FOLDED)

    def _explain(self, outputs: list[torch.Tensor], wrong: list[int], question: _Question) -> None:
        """Raises _Failed as cheating if a wrong output equals that of the call before, or is still being written."""
        for index in wrong:
            is_kept = index < len(self.last) and torch.equal(_as_bits(self.last[index]), _as_bits(outputs[index]))
            if is_kept and _count_values(outputs[index].reshape(-1)[:FEW_VALUES_OF]) > FEW_VALUES:
                raise _Failed(
                    f"{question.gate}: computed anew",
                    "cheating",
                    f"output {index} equals that of the call before bit for bit, although the inputs hold other values",
                )
        self.link.wait_idle(REST_S)
        self._compare_again(outputs, question, back=1)

    def _check_repeated(self, first: list[torch.Tensor], second: list[torch.Tensor], question: _Question) -> None:
        """Raises _Failed if the second answer on the same inputs differs from the first by more than rounding; else
        adds a gate."""
        trial, gate = question.trial, f"same answer twice{question.suffix}"
        for index, (one, other, expected) in enumerate(zip(first, second, trial.expected, strict=True)):
            if torch.equal(_as_bits(one), _as_bits(other)):
                continue
            found, limits, _ = self._errors(second, trial)
            error, limit = found[index], limits[index]
            if not accepts(error, limit):
                text = comparison.describe_mismatch(other, expected, limit, error)
                self.link.wait_idle(REST_S)
                self._compare_again(second, question, back=1)
                raise _Failed(
                    gate,
                    "nondeterministic",
                    f"a second call on the same inputs gave another {trial.name_of(index)}; before it, free memory was "
                    "filled with other bytes, so it may read memory that it did not write, or its threads use the same "
                    f"memory at the same time: {text}",
                )
            self.gates.append(Gate(gate, True, f"output {index} differs between calls by rounding only"))
            return
        self.gates.append(Gate(gate, True, "bit for bit, although free memory held other bytes"))

    def _check_races(self, first: list[torch.Tensor], question: _Question) -> None:
        """Repeats the call for RACE_S seconds, not in a screen: a race of threads often gives the right answer by luck.

        On a CPU every other call comes at the end of calls in a row, because threads that must be woken first do not
        meet. Raises _Failed.
        """
        stop, awake_s = time.monotonic() + RACE_S, AWAKE_S if self.link.on_cpu else 0.0
        for number in range(0 if self.stage == "screen" else RACE_CALLS):
            if time.monotonic() > stop:
                break
            again = self._call(question, LARGE_BYTES, is_repeated=True, awake_s=awake_s * (number % 2))
            noted = len(self.gates)
            self._check_repeated(first, again, question)
            del self.gates[noted:]  # one gate says it for all calls

    def _soak(self, first: list[torch.Tensor], question: _Question) -> None:
        """Makes many calls in a row, as a user's loop does, not in a screen. Raises _Failed if the answer changes."""
        if self.stage == "screen":
            return
        gate = f"many calls{question.suffix}"
        calls, shared = self._step(gate, lambda: self.link.soak(question.slot, SOAK_CALLS, SOAK_S))
        if shared and not question.case.returns_views:
            raise _Failed(gate, "wrong_result", f"after {calls} calls in a row, {shared}")
        again = self._call(question, LARGE_BYTES, is_repeated=True)
        noted = len(self.gates)
        self._check_repeated(first, again, question)
        del self.gates[noted:]
        self.gates.append(Gate(gate, True, f"after {calls} calls in a row the answer is still the same"))


def _excuse(failed: _Failed, distribution: Distribution) -> str:
    """The reason why a failure does not reject the candidate; "" if it does."""
    if distribution.pattern == "other numbers" and failed.has_raised:
        return "made for the numbers of get_inputs: with others it raises an error"
    if distribution.is_of_buffers and failed.has_raised:
        return "made for the buffers that the constructor registers: with others it raises an error"
    if distribution.pattern == "no structure" and (
        failed.has_raised or failed.outcome in ("wrong_result", "inaccurate")
    ):
        return "relies on what every draw of get_inputs has in common (zeros, symmetry)"
    return ""


def _arithmetic_words(trial: Trial, index: int) -> str:
    """PyTorch's own norm errors without and with TF32 in words; "" if TF32 was not measured."""
    if trial.tf32 is None:
        return ""
    ieee, tf32 = trial.ieee[index].norm, trial.tf32[index].norm
    return f"; PyTorch's own norm error is {ieee:.1e}, and {tf32:.1e} with TF32 allowed"


def _keys_text(keys: list[str]) -> str:
    """The keys of a result in words."""
    return f"the keys {', '.join(keys)[:200]}" if keys else "no dict"


def _evidence_of_pass(found: OutputError, own: OutputError, limit: OutputError, note: str) -> str:
    """The evidence of a passed question: its error beside PyTorch's own, or that only finiteness was compared."""
    if math.isinf(limit.norm):
        text = f"finite where it should be; not compared further, because PyTorch's own error is {own.norm:.2e}"
    else:
        text = f"norm error {found.norm:.2e} (PyTorch's own {own.norm:.2e})"
    return text + (f"; {note}" if note else "")


def _count_values(flat: torch.Tensor) -> int:
    """Number of different values in a flat tensor of any type, by their bits."""
    return len(torch.unique(flat.contiguous().view(torch.uint8).view(flat.numel(), flat.element_size()), dim=0))


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of the tensor's bytes (uint8)."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def release_each(trials: Iterator[Trial]) -> Iterator[Trial]:
    """Yields each trial and frees its shared memory once the caller is done with it."""
    for trial in trials:
        yield trial
        trial.inputs.close()
        del trial
