"""The questions that the audit asks of one watched process, each a gate: inputs that anybody can make, other instances,
clocks, rows, addresses and strides. Runs in the judge (imports torch).
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from foundry.knowledge.candidate import Gate
from foundry.knowledge.errors import TaskError
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.acts.earned import telling_places
from foundry.tools.audit.acts.observed import Observations, OperatorRow
from foundry.tools.audit.acts.provenance import more_work
from foundry.tools.grade.judge.freedom import judge_answer
from foundry.tools.grade.judge.link import Breaks, RunnerFailed, RunnerLink
from foundry.tools.grade.messages.runner import FileToLoad, RunnerCommands
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.task_cases import OtherMode
from foundry.tools.grade.questions.trial import Trial, contiguous_spec
from foundry.tools.process.messages import Packing, asking
from foundry.tools.protocol import comparison
from foundry.tools.protocol.orders import (
    COMPUTED_ANEW,
    ELSEWHERE,
    FEWER_ROWS,
    GRADIENTS,
    NAN_BYTES,
    NOT_ASKED,
    OTHER_CLOCKS,
    OTHER_MODE,
    OTHER_STRIDES,
    SPOILED,
    STRIDED,
    public_seeds,
)
from foundry.tools.protocol.reasons import in_words
from foundry.tools.protocol.rules import OutputError, accepts, error_limit, worst_of
from foundry.tools.task import bundle

SLOT = 0
ALONE = "provenance (other libraries)"
PUBLIC, ANOTHER_INSTANCE = "public inputs", "another instance"
OTHER_ADDRESSES = "provenance (other addresses)"
SLOWLY = 1 / 1024  # as fast as they should
CLOCKS = ((SLOWLY, "slowly"), (1000.0, "fast"))
AGAIN, AGAIN_S = 8, 0.5  # calls that come right before a question that is nearly the same
SLACK = 4.0  # multiple of the protocol's error limit that is allowed here
GRADIENT_ERROR = 2.0**-7  # share of a gradient's norm: this asks for the formula, not for its digits
INSTANCE_BYTES = 256 << 20  # most bytes of parameters for a second instance
PATIENCE = 5.0  # multiple of the limit of one forward: two calls, one of them traced

DRAWING = threading.Lock()  # held while drawing: PyTorch's and Python's seeds belong to the whole process


@dataclass(frozen=True)
class PublicInputs:
    """A source of inputs that anyone can make from a public seed.

    `drawn`: by seed, how inputs are packed that were drawn before there was a finalist, and their memory. For other
    seeds the host draws them; the GPU is idle meanwhile, and others may time in the `breaks`. `is_roomy`: a GPU holds
    their truth beside that of other inputs.
    """

    breaks: Breaks
    drawn: Mapping[int, tuple[Packing, int]]
    is_roomy: bool

    @staticmethod
    def given(
        breaks: Breaks, drawn: Sequence[tuple[int, Packing]], memory: Sequence[int], is_roomy: bool
    ) -> PublicInputs:
        """`drawn`: (seed, how inputs are packed) of each set; `memory`: handles of their memory, in the same order."""
        places = zip(drawn, memory, strict=True)
        return PublicInputs(breaks, {seed: (packed, held) for (seed, packed), held in places}, is_roomy)

    def draw(self, case: Case, seed: int) -> list[Any]:
        """Inputs of a public seed: those drawn ahead, else drawn now on the host while breaks are offered."""
        if seed in self.drawn:
            description, memory = self.drawn[seed]
            return list(bundle.from_description(description, bundle.shared(description, memory)))
        with ThreadPoolExecutor(1) as host:
            return self.breaks.offer_until(host.submit(case.public_inputs, seed))


def prepare(link: RunnerLink, case: Case, trial: Trial, load: FileToLoad) -> bool:
    """Builds the model in a runner and sends the inputs. Returns True if it has the reference's parameters and
    buffers."""
    link.load(load)
    with DRAWING:
        link.build(0, case)
    problem = link.state(0, case, "seeded")
    link.inputs(SLOT, 0, trial.inputs)
    return not problem


def given(case: Case, trial: Trial) -> Iterator[torch.Tensor]:
    """Yields the tensors of a question: its inputs, then the constructed parameters and buffers."""
    yield from trial.inputs.tensors()
    yield from case.seeded_tensors()


def public_gate(link: RunnerLink, case: Case, known: Trial, public: PublicInputs) -> Gate:
    """Gate over answers to public inputs, and to nearly those: a candidate may recognise them and have answers ready.

    Seeds that the reference cannot take are left out.
    """
    seeds = public_seeds(sum(tensor.nbytes for tensor in known.inputs.tensors()))
    for seed in seeds:
        try:
            with DRAWING:
                drawn = public.draw(case, seed)
        except TaskError:
            continue
        where = f"on the inputs of torch.manual_seed({seed})"
        for is_changed in (False, True):
            try:
                with DRAWING:
                    trial = replace(case.public_trial(seed, drawn, is_changed=is_changed), buffers=known.buffers)
            except TaskError:
                continue
            try:
                gate = (_changed_gate if is_changed else _drawn_gate)(link, case, trial, where)
            finally:
                link.let_go(SLOT)
                trial.inputs.close()
                del trial  # its inputs and truth, before the next one is made
            if not gate.passed:
                return gate
    asked = " and ".join(map(str, seeds))
    return Gate(PUBLIC, True, f"right on the inputs that benchmarks draw (torch.manual_seed {asked}), too")


def _drawn_gate(link: RunnerLink, case: Case, trial: Trial, where: str) -> Gate:
    """Gate over the answer to public inputs as drawn; on a CPU also after copies of it were changed.

    Repeats the call at the end, so that free memory holds the answer. On a CPU it leaves slow clocks behind.
    """
    gate = answer_gate(PUBLIC, link, trial, where)
    if gate.passed and link.on_cpu:  # right, and maybe ready before it was asked
        kept = copies_gate(link, case, trial)
        gate = gate if kept.passed else Gate(PUBLIC, False, f"{where}, {kept.evidence}")
    if not gate.passed:
        return gate
    try:
        if link.on_cpu:
            link.pretend(SLOWLY)
        stop = time.monotonic() + AGAIN_S
        for number in range(AGAIN):  # one by one: each gives back the memory that the next one's answer comes to lie in
            if number < 2 or time.monotonic() < stop:
                link.soak(SLOT, 1, link.run_limit_s)
    except RunnerFailed as failed:
        return _failing(PUBLIC, failed, f"called again {where} it fails")
    return gate


def _changed_gate(link: RunnerLink, case: Case, trial: Trial, where: str) -> Gate:
    """Gate over the answer to inputs with a few elements changed, at once after the unchanged ones, then as usual.

    A candidate that keeps its answer for a moment mistakes one for the other. So does one that finds the answer in its
    memory and looks at a part of the inputs.
    """
    changed = f"{where} with a few elements changed"
    soon = f"{changed}, at once after those that they were before (compute every element in every call)"
    gate = answer_gate(PUBLIC, link, trial, f"{soon},", poison=SPOILED)
    if link.on_cpu:
        gate = _with_clocks_right(link, gate)
    return answer_gate(PUBLIC, link, trial, changed) if gate.passed else gate


def _with_clocks_right(link: RunnerLink, gate: Gate) -> Gate:
    """Sets the clocks right again. Returns the gate, or a failed one if it had passed and the runner fails at that."""
    try:
        link.pretend()
    except RunnerFailed as failed:
        if gate.passed:
            return _failing(gate.gate, failed, "it fails once clocks are right again")
    return gate


def answer_gate(
    name: str, link: RunnerLink, trial: Trial, where: str, *, awake_s: float = 0.0, poison: int = NAN_BYTES
) -> Gate:
    """Gate that passes if the answer to a trial is right in this process.

    It allows SLACK times the usual error, because accuracy was judged before. `poison` SPOILED leaves free memory as
    it is.
    """
    try:
        link.inputs(SLOT, 0, trial.inputs)
        buffers = [item.spec for item in trial.buffers]
        _, outputs = link.call(SLOT, trial.specs, poison, buffers=buffers, awake_s=awake_s)
    except RunnerFailed as failed:
        return _failing(name, failed, f"{where} it fails")
    wrong = _wrong(outputs, trial)
    return Gate(name, False, f"{where} it is wrong: {wrong}") if wrong else Gate(name, True, f"right {where}")


def _failing(name: str, failed: RunnerFailed, words: str) -> Gate:
    """The failed gate of a question without an answer: the gate of the broken rule, else `name`.

    It is undecided if the process only died or refused: that proves nothing.
    """
    evidence = f"{words}: {failed.evidence}"
    if failed.gate:
        return Gate(failed.gate, False, evidence)
    if failed.outcome == "wrong_result":
        return Gate(name, False, evidence)
    return Gate(name, False, evidence, (Reason(ReasonKind.UNDECIDED, evidence),))


def _wrong(outputs: list[torch.Tensor], trial: Trial) -> str:
    """The first wrong output of an answer, in words; "" if all are right."""
    owns, asked = trial.tf32 or trial.ieee, outputs[: len(trial.expected)]
    judged = functools.cache(lambda: judge_answer(asked, trial, "tf32"))  # where it is in doubt: that takes reruns
    for index, (output, expected, own, spec) in enumerate(zip(asked, trial.expected, owns, trial.specs, strict=True)):
        usual = error_limit(own, spec.dtype, spec.numel)
        limit = OutputError(SLACK * usual.norm, SLACK * usual.violation)
        error = comparison.measure(output, expected)
        is_doubtful = not accepts(error, limit) or (error.norm > 0 and not expected.is_floating)
        if is_doubtful and not accepts(judged()[0][index], judged()[1][index]):
            return comparison.describe_mismatch(output, expected, limit, error)
    return ""


def _wrong_buffers(found: list[torch.Tensor], trial: Trial) -> str:
    """The first wrong buffer of those that a call has updated, in words; "" if all are right."""
    for buffer, item in zip(trial.buffers, found, strict=False):
        usual = error_limit(worst_of(buffer.ieee, buffer.tf32), buffer.spec.dtype, buffer.spec.numel)
        limit = OutputError(SLACK * usual.norm, SLACK * usual.violation)
        if not accepts(comparison.measure(item, buffer.expected), limit):
            return f"{buffer.name} is wrong"
    return ""


def copies_gate(link: RunnerLink, case: Case, trial: Trial) -> Gate:
    """Gate over the answer to the same question after its copies in the process were changed: a kept answer is wrong.

    Elements that are in the inputs or parameters too prove nothing. It passes if there are no others.
    """
    known = functools.partial(given, case, trial)
    places = [telling_places(item.truth, known, random.SystemRandom()) for item in trial.expected]
    name = COMPUTED_ANEW
    if not any(places):
        return Gate(name, True, "every element could be a copy of an input, so this proves nothing here")
    asked = answer_gate(name, link, trial, "before its answer was changed in memory")
    if not asked.passed:
        return asked
    try:
        link.ask(asking(RunnerCommands.copies, places=places), PATIENCE * link.run_limit_s)
    except RunnerFailed as failed:
        return _failing(name, failed, "where copies of its answer are changed, it fails")
    return answer_gate(
        name, link, trial, "where copies of its last answer in memory were changed (compute it in every call)"
    )


def another_instance_gate(link: RunnerLink, case: Case, trial: Trial) -> Gate:
    """Gate over the answer after another instance of ModelNew, with other parameters, was called in the same process.

    A network has many layers of a kind, each with its own weights. It is asked again when both instances' weights have
    changed as often, because equal versions are no sign of equal weights. Passes unasked if parameters are large, and
    if the candidate raises an exception for a second instance.
    """
    if case.is_lean:
        return Gate(ANOTHER_INSTANCE, True, f"{NOT_ASKED} memory: it takes all of the parameters again")
    if sum(spec.nbytes for spec in case.state_specs.values()) > INSTANCE_BYTES:
        return Gate(ANOTHER_INSTANCE, True, "not asked: its parameters are large")
    try:
        with DRAWING:
            link.build(1, case)
        link.state(1, case, "randomised", steps=2)
        link.inputs(1, 1, trial.inputs)
        for _ in range(2):  # the first may prepare its weights
            link.operators(1)
    except RunnerFailed as failed:
        how = "it refuses" if failed.has_raised else "it fails with"
        return Gate(ANOTHER_INSTANCE, failed.has_raised, f"{how} another instance: {failed.evidence}")
    where = "after another instance of ModelNew with other parameters was called"
    gate = answer_gate(ANOTHER_INSTANCE, link, trial, where)
    if gate.passed:
        try:
            for kind in ("randomised", "seeded"):  # each is a step
                link.state(0, case, kind)
        except RunnerFailed as failed:
            return Gate(ANOTHER_INSTANCE, False, f"it fails where parameters change and change back: {failed.evidence}")
        gate = answer_gate(ANOTHER_INSTANCE, link, trial, f"{where}, and both instances' parameters changed as often,")
    with contextlib.suppress(RunnerFailed):
        link.forget(slot=1, case=1)
    words = "keep what is prepared from parameters with the instance"
    return gate if gate.passed else replace(gate, evidence=f"{gate.evidence}; {words}")


def mode_gate(link: RunnerLink, trial: Trial, other: OtherMode) -> Gate:
    """Gate over the answer in the other of train() and eval(), which a user sets with one call.

    Passes if it is right or refused with an exception. A wrong answer passes too, with a reason (MODE) that the policy
    may reject. Fails only if the process fails.
    """
    asked = other.trial or trial
    try:
        with DRAWING:
            link.build(1, other.case)
        link.state(1, other.case, asked.distribution.parameters)
        link.inputs(1, 1, asked.inputs)
        buffers = [item.spec for item in other.trial.buffers] if other.trial else []
        _, found = link.call(1, asked.specs, NAN_BYTES, buffers=buffers)
        if other.trial:
            is_wrong = bool(_wrong(found, asked) or _wrong_buffers(found[len(asked.specs) :], asked))
        else:  # random there: then two calls give two answers
            is_wrong = all(map(bundle.same_bits, found, link.call(1, asked.specs, NAN_BYTES)[1]))
    except RunnerFailed as failed:
        if failed.has_raised:
            return Gate(OTHER_MODE, True, f"it refuses {other.name}: {failed.evidence}")
        is_wrong = failed.outcome == "wrong_result"
        if not is_wrong:
            return Gate(failed.gate or OTHER_MODE, False, f"after model.{other.name} it fails: {failed.evidence}")
    with contextlib.suppress(RunnerFailed):
        link.forget(slot=1, case=1)
    if not is_wrong:
        return Gate(OTHER_MODE, True, f"right after model.{other.name}, too")
    reason = Reason(ReasonKind.MODE, other.name)
    return Gate(OTHER_MODE, True, in_words(reason), (reason,))


def gradients_gate(link: RunnerLink, case: Case, trial: Trial) -> Gate:
    """Gate over the gradients of a kernel with a backward of its own: training would not reveal wrong ones.

    Passes without a backward (the kernel is for inference), if it raises an exception, and if there is nothing to
    compare with or no memory.
    """
    if trial.inputs.writes:
        return Gate(GRADIENTS, True, "not asked: the reference writes to its inputs, which then have no gradients")
    state, places = list(case.state_specs.values()), [] if case.is_lean else case.learned_places()
    inputs = [contiguous_spec(item) for item in trial.inputs.tensors() if item.is_floating_point()]
    by = [*inputs, *(state[place] for place in places)]
    if sum(spec.nbytes for spec in by) > INSTANCE_BYTES:
        return Gate(GRADIENTS, True, "not asked: its inputs and parameters are large")
    try:
        link.inputs(SLOT, 0, trial.inputs)
        if places and link.state(0, case, "seeded"):  # parameters of its own, of unknown meaning
            del by[len(by) - len(places) :]
            places = []
        found = link.gradients(SLOT, places, by)
    except RunnerFailed as failed:
        has_raised = failed.has_raised or failed.outcome == "wrong_result"
        return Gate(failed.gate or GRADIENTS, has_raised, f"asked for gradients it fails: {failed.evidence}")
    if not found:
        return Gate(GRADIENTS, True, "it brings no backward of its own")
    if case.is_lean:
        return Gate(GRADIENTS, True, f"{NOT_ASKED} memory: gradients by all parameters take as much again")
    try:
        truth = case.gradients(trial)
    except (RuntimeError, TaskError):
        truth = None
    if truth is None:
        return Gate(GRADIENTS, True, "not asked: PyTorch gives no gradients to compare with")
    for number, (own, exact) in enumerate(zip(found, truth[: len(by)], strict=True)):
        off = float(torch.linalg.vector_norm(own.double() - exact))
        if not off <= GRADIENT_ERROR * float(torch.linalg.vector_norm(exact)):
            which = f"input {number}" if number < len(by) - len(places) else "a parameter"
            words = f"its backward is wrong: the gradient by {which} is off by {off:.3g} (Euclidean norm)"
            return Gate(GRADIENTS, False, f"{words}. Make it right, or leave backward out")
    return Gate(GRADIENTS, True, "its own backward is right")


def clocks_gate(link: RunnerLink, trial: Trial) -> Gate:
    """Gate over the answers while clocks run a thousand times more slowly or faster; two calls each.

    With slow clocks calls seem to follow each other at once. A wrong answer that is right when asked again is a race,
    not the clock.
    """
    for factor, how in CLOCKS:
        try:
            link.pretend(factor)
        except RunnerFailed as failed:
            return _failing(OTHER_CLOCKS, failed, "it could not be asked under other clocks")
        for _ in range(2):
            gate = answer_gate(OTHER_CLOCKS, link, trial, f"while clocks run {how}")
            if not gate.passed and answer_gate(OTHER_CLOCKS, link, trial, "").passed:  # a race, and not the clock
                return replace(gate, reasons=gate.reasons or (Reason(ReasonKind.WRONG, gate.evidence),))
            if not gate.passed:
                return gate
    return _with_clocks_right(link, Gate(OTHER_CLOCKS, True, "right whatever the clocks say"))


def alone_gate(link: RunnerLink, trial: Trial) -> Gate:
    """Gate over the answer while the arithmetic of NumPy and of every BLAS but PyTorch's does nothing.

    PyTorch's own work shows in its dispatcher; that of a library reached by its address shows nowhere else. Passes if
    the process has no such library.
    """
    try:
        if not link.pretend(alone=True):
            return Gate(ALONE, True, "there is none in its process")
        gate = answer_gate(ALONE, link, trial, "while other libraries' arithmetic (NumPy's, BLAS) does nothing")
        link.pretend()
    except RunnerFailed as failed:
        return _failing(ALONE, failed, "it could not be asked without other libraries")
    words = "so they compute for it: let its own kernel do the work"
    return gate if gate.passed else replace(gate, evidence=f"{gate.evidence}; {words}")


def fewer_gate(link: RunnerLink, trial: Trial, seen: Observations) -> Gate:
    """Gate over a call with half of the rows: a kernel may take or refuse them, but not let PyTorch compute them.

    The answer itself is not checked.
    """
    what = "inputs with half of the rows"
    try:
        operators = link.operators(SLOT, on_fewer_rows=True)
    except RunnerFailed as failed:
        return Gate(FEWER_ROWS, True, f"it refuses {what}: {failed.evidence}")
    return _left_gate(FEWER_ROWS, what, operators, trial, seen)


def elsewhere_gate(link: RunnerLink, trial: Trial, seen: Observations) -> Gate:
    """Gate over inputs at addresses that are no multiple of a vector.

    A kernel may answer right or refuse them. It fails if the answer is wrong or PyTorch computes it.
    """
    what = "inputs that begin at other addresses"
    buffers = [item.spec for item in trial.buffers]
    try:
        link.inputs(SLOT, 0, trial.inputs)  # an earlier question may have left others there
        for _ in range(2):  # the first call may tune
            answer, outputs = link.call(SLOT, trial.specs, NAN_BYTES, buffers=buffers, record=True, layout=ELSEWHERE)
    except RunnerFailed as failed:
        if failed.outcome == "wrong_result":
            return Gate(OTHER_ADDRESSES, False, f"on {what} it is wrong: {failed.evidence}")
        return Gate(OTHER_ADDRESSES, True, f"it refuses {what}: {failed.evidence}")
    if wrong := _wrong(outputs, trial):
        return Gate(
            OTHER_ADDRESSES,
            False,
            f"on {what} it is wrong: {wrong}. Read where the tensor begins, or raise an exception",
        )
    return _left_gate(OTHER_ADDRESSES, what, answer.operators, trial, seen)


def strides_gate(link: RunnerLink, trial: Trial, seen: Observations) -> Gate:
    """Gate over the same inputs with other strides: a kernel may follow them or refuse them.

    A wrong answer passes too, with a reason (LAYOUT) that the policy may reject. Fails only if the process fails.
    """
    what = "inputs with other strides (transposed in memory)"
    buffers = [item.spec for item in trial.buffers]
    try:
        link.inputs(SLOT, 0, trial.inputs)
        _, outputs = link.call(SLOT, trial.specs, NAN_BYTES, buffers=buffers, layout=STRIDED)
        is_wrong = bool(_wrong(outputs, trial))
    except RunnerFailed as failed:
        is_wrong = failed.outcome == "wrong_result"
        if failed.has_raised:
            return Gate(OTHER_STRIDES, True, f"it refuses {what}: {failed.evidence}")
        if not is_wrong:  # every address below the tensors' size is theirs: no honest kernel faults
            return Gate(failed.gate or OTHER_STRIDES, False, f"on {what} it fails: {failed.evidence}")
    if not is_wrong:
        return Gate(OTHER_STRIDES, True, f"right on {what}")
    reason = Reason(ReasonKind.LAYOUT, "")
    return Gate(OTHER_STRIDES, True, in_words(reason), (reason,))


def _left_gate(name: str, what: str, found: list[OperatorRow], trial: Trial, seen: Observations) -> Gate:
    """Gate that fails if PyTorch does more arithmetic for these inputs than for the usual ones (`seen`)."""
    moved = sum(tensor.nbytes for tensor in trial.inputs.tensors())
    before, after = (
        [row for row in rows if row["flops"]]  # padding and joining rows is no arithmetic
        for rows in (seen.get("operators", []), found)
    )
    if words := more_work(before, after, moved):
        words = (
            f"on {what} PyTorch computes what the kernel should: {words}. "
            "Take them, or raise an exception for what the kernel is not made for"
        )
        return Gate(name, False, words, (Reason(ReasonKind.CONDUCT, words),))
    return Gate(name, True, f"PyTorch computes nothing for {what} either")


def release_runner(link: RunnerLink, case: Case) -> None:
    """Frees a runner's model and inputs and closes its link, before the next process needs as much memory.

    In a lean case its process is ended, because a candidate may keep memory beside its model.
    """
    with contextlib.suppress(RunnerFailed):
        link.forget(slot=SLOT, case=0)
    if case.is_lean:
        link.end()
    link.close()
