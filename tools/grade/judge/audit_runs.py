"""The audit's own runs of a candidate: once watched, and once for each way of doing without its native code.

Each in a process of its own, on inputs that the candidate has not seen. Runs in the judge (imports torch).
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from foundry.knowledge.candidate import Gate
from foundry.knowledge.errors import TaskError
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import Policy
from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.acts.earned import FEW, LARGEST_SHARE, Earned, measure_earned, telling_places
from foundry.tools.audit.acts.kernels import kernel_gate, own_kernels, stream_gate
from foundry.tools.audit.acts.provenance import more_work, time_gate
from foundry.tools.audit.text.source import CandidateSource, read_source
from foundry.tools.grade.judge.correctness import operator_rows
from foundry.tools.grade.judge.link import Breaks, RunnerFailed, RunnerLink
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.process.channel import Message
from foundry.tools.protocol import comparison
from foundry.tools.protocol.orders import (
    COMPUTED_ANEW,
    ELSEWHERE,
    NAN_BYTES,
    OTHER_CLOCKS,
    OTHER_STRIDES,
    PROCESS_EVENTS,
    SPOILED,
    STRIDED,
    public_seeds,
)
from foundry.tools.protocol.reasons import in_words
from foundry.tools.protocol.rules import OutputError, accepts, error_limit
from foundry.tools.task import bundle

SLOT = 0
DISGUISED = "without a grader in sight"
ALONE = "provenance (other libraries)"
PUBLIC, ANOTHER_INSTANCE = "public inputs", "another instance"
FEWER_ROWS, OTHER_ADDRESSES = "provenance (fewer rows)", "provenance (other addresses)"
LATE_CALLS = (150, 300)  # before the closest look, if they take no longer than a fraction of a second
LATE_S = 0.3
IN_A_ROW_S = 0.2  # on a GPU, where no run changes the speed of its clocks
IN_A_ROW_BYTES = 256 << 20  # of outputs at most: a copy of them takes memory, and such calls are no moment apart
SLOWLY = 1 / 1024  # as fast as they should
CLOCKS = ((SLOWLY, "slowly"), (1000.0, "fast"))
SLACK = 4.0  # times the accuracy that the protocol asks for
CALLS = 2  # of an ablated forward that are judged: the first, and one after many others
PURPOSES = ("observe", "silent", "undone")  # of the runners, in this order
INSTANCE_BYTES = 256 << 20  # of parameters, which another instance has too
PATIENCE = 5.0  # times the limit of one forward: two calls, one of them traced

_DRAWING = threading.Lock()  # PyTorch's and Python's seeds are the whole process's


@dataclass
class _Without:
    """What a candidate did without its native code: `reached` are the native functions that it asked for."""

    reached: list[str] = field(default_factory=list)
    failed: str = ""
    result: Earned | None = None


@dataclass(frozen=True)
class PublicInputs:
    """Where inputs come from that anybody can make. `drawn`, by seed, before there was a finalist: how they are packed,
    and the memory that they lie in. Else the host draws them, nothing works on a GPU meanwhile, and others may time
    something in the `breaks`. `is_roomy`: a GPU holds their truth beside that of other inputs."""

    breaks: Breaks
    drawn: Mapping[int, tuple[Message, int]]
    is_roomy: bool

    @staticmethod
    def given(
        breaks: Breaks, drawn: Sequence[tuple[int, Message]], memory: Sequence[int], is_roomy: bool
    ) -> PublicInputs:
        """Of seeds with how their inputs are packed, and the memory of each."""
        places = zip(drawn, memory, strict=True)
        return PublicInputs(breaks, {seed: (packed, held) for (seed, packed), held in places}, is_roomy)

    def draw(self, case: Case, seed: int) -> list[Any]:
        if seed in self.drawn:
            description, memory = self.drawn[seed]
            return list(bundle.from_description(description, bundle.shared(description, memory)))
        with ThreadPoolExecutor(1) as host:
            return self.breaks.offer_until(host.submit(case.public_inputs, seed))


def audit_runs(
    links: Mapping[str, RunnerLink],
    case: Case,
    trial: Trial,
    load: Message,
    *,
    policy: Policy,
    at_once: bool,
    public: PublicInputs,
) -> tuple[list[Gate], Message]:
    """Gates of the observed run and of the ablated ones, and what was observed.

    `links` are fresh runners by purpose: "observe", "silent", "undone". With `at_once` the three run beside each other,
    which takes a second on a GPU, most of it small steps one after another; nobody else is let in meanwhile.
    """
    case.state("seeded")  # packed once for all three
    ways = ("silent", "undone") if policy != "open" else ()
    with ThreadPoolExecutor(len(ways) if at_once and ways else 1) as beside:
        work = [partial(_without, links[way], case, trial, {**load, "ablate": way}) for way in ways]
        begun = [beside.submit(one) for one in work] if at_once else []
        public.breaks.is_quiet = lambda: all(one.done() for one in begun)
        seen, gates = _watch(links["observe"], case, trial, load, policy, public)
        runs = [one.result() for one in begun] or [one() for one in work]
    if runs:
        gates += _ablation_gates(*runs)
    return gates, seen


def _watch(
    watched: RunnerLink, case: Case, trial: Trial, load: Message, policy: Policy, public: PublicInputs
) -> tuple[Message, list[Gate]]:
    """What was observed, and the gates of what that process did and of its answers."""
    on_cpu = load["device"] == "cpu"
    timed = on_cpu and policy != "open"  # a GPU's clock is not the host's
    seen, gates = _observed(watched, case, trial, load, timed=timed)
    if seen:
        gates += conduct_gates(seen, policy, on_cpu=on_cpu)
        answer = _answer_gate(DISGUISED, watched, trial, "in a process that shows no grader, after many calls,")
        gates.append(answer)
        source = read_source(load["text"])
        if timed:
            gates.append(time_gate(seen))
        if not on_cpu:
            gates.append(stream_gate(seen.get("unfinished", {})))
            if sum(spec.nbytes for spec in trial.specs) < IN_A_ROW_BYTES:
                where = "called again at once, where its last answer was,"
                gates.append(_answer_gate("in a row", watched, trial, where, awake_s=IN_A_ROW_S))
        if not on_cpu and policy != "open" and isinstance(source, CandidateSource):
            gates.append(kernel_gate(seen.get("kernels", ()), own_kernels(source)))
        if answer.passed:  # the other questions would only say it again
            with contextlib.nullcontext() if public.is_roomy else comparison.on_the_host(trial.expected):
                gates.append(_public_gate(watched, case, trial, public))
            gates += [_copies_gate(watched, case, trial), _clocks_gate(watched, trial)] if on_cpu else []
        if answer.passed and on_cpu and policy != "open":
            gates.append(_alone_gate(watched, trial))
        is_right = answer.passed
        if is_right and case.has_parameters():
            gates.append(_another_instance_gate(watched, case, trial))
            is_right = gates[-1].passed
        if is_right and policy != "open":
            # The last questions: each may end the process, and on a GPU vector loads at other addresses do.
            last = (_elsewhere_gate, _fewer_gate) if on_cpu else (_fewer_gate, _elsewhere_gate)
            bundle.give_back()  # of the public inputs: those to come are copied in the candidate's process
            gates += [way(watched, trial, seen) for way in (_strides_gate, *last)]
    _part_from(watched)
    return seen, gates


def _part_from(link: RunnerLink) -> None:
    """Its memory back, before the next process needs as much."""
    with contextlib.suppress(RunnerFailed):
        link.forget(slot=SLOT, case=0)
    link.close()


def _observed(link: RunnerLink, case: Case, trial: Trial, load: Message, *, timed: bool) -> tuple[Message, list[Gate]]:
    try:
        _prepare(link, case, trial, {**load, "observe": True, "disguise": True, "name": "kernel"})
        stream = random.SystemRandom()
        calls, late = stream.randint(8, 16), stream.randint(*LATE_CALLS)
        limit_s = (PATIENCE + calls) * link.run_limit_s
        asked = {"do": "observe", "slot": SLOT, "calls": calls, "late": late, "timed": timed}
        return link.ask(asked, [], limit_s), []
    except RunnerFailed as failed:
        return {}, [Gate(failed.gate or PROCESS_EVENTS, False, f"while it was watched, it failed: {failed.evidence}")]


def _public_gate(link: RunnerLink, case: Case, known: Trial, public: PublicInputs) -> Gate:
    """Inputs that anybody can make, and nearly those: whoever recognises them has answers, or mistakes, ready."""
    seeds = public_seeds(sum(tensor.nbytes for tensor in known.inputs.tensors()))
    for seed in seeds:
        try:
            with _DRAWING:
                drawn = public.draw(case, seed)
        except TaskError:
            continue
        where = f"on the inputs of torch.manual_seed({seed})"
        for is_changed in (False, True):
            try:
                with _DRAWING:
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
    """Inputs as they are drawn. The last call leaves its answer in free memory, and a clock that hardly moves on."""
    gate = _answer_gate(PUBLIC, link, trial, where)
    if gate.passed and link.on_cpu:  # right, and maybe ready before it was asked
        kept = _copies_gate(link, case, trial)
        gate = gate if kept.passed else Gate(PUBLIC, False, f"{where}, {kept.evidence}")
    if not gate.passed:
        return gate
    try:
        if link.on_cpu:
            link.ask({"do": "pretend", "factor": SLOWLY}, [], link.run_limit_s)
        link.soak(SLOT, 1, link.run_limit_s)
    except RunnerFailed as failed:
        return Gate(failed.gate or PUBLIC, False, f"called again {where} it fails: {failed.evidence}")
    return gate


def _changed_gate(link: RunnerLink, case: Case, trial: Trial, where: str) -> Gate:
    """A few elements changed, asked at once after the question before: whoever keeps its answer for a moment, or finds
    it in the memory that it gets and looks only at a part of it, mistakes one for the other. Then asked as usual."""
    changed = f"{where} with a few elements changed"
    soon = f"{changed}, at once after those that they were before (compute every element in every call)"
    gate = _answer_gate(PUBLIC, link, trial, f"{soon},", poison=SPOILED)
    if link.on_cpu:
        with contextlib.suppress(RunnerFailed):
            link.ask({"do": "pretend", "factor": 0}, [], link.run_limit_s)
    return _answer_gate(PUBLIC, link, trial, changed) if gate.passed else gate


def _answer_gate(
    name: str, link: RunnerLink, trial: Trial, where: str, *, awake_s: float = 0.0, poison: int = NAN_BYTES
) -> Gate:
    """Whether the answer to a trial is right in this process; accuracy was judged before, so that near its limit is not
    beyond it. SPOILED leaves free memory as it is."""
    try:
        link.inputs(SLOT, 0, trial.inputs)
        buffers = [item.spec for item in trial.buffers]
        _, outputs = link.call(SLOT, trial.specs, poison, buffers=buffers, awake_s=awake_s)
    except RunnerFailed as failed:
        return Gate(failed.gate or name, False, f"{where} it fails: {failed.evidence}")
    wrong = _wrong(outputs, trial)
    return Gate(name, False, f"{where} it is wrong: {wrong}") if wrong else Gate(name, True, f"right {where}")


def _wrong(outputs: list[torch.Tensor], trial: Trial) -> str:
    """What is wrong with the answer to a trial, in words, or ""."""
    owns = trial.tf32 or trial.ieee
    for output, expected, own, spec in zip(outputs, trial.expected, owns, trial.specs, strict=False):
        usual = error_limit(own, spec.dtype, spec.numel)
        limit = OutputError(SLACK * usual.norm, SLACK * usual.violation)
        error = comparison.measure(output, expected)
        if not accepts(error, limit):
            return comparison.describe_mismatch(output, expected, limit, error)
    return ""


def _copies_gate(link: RunnerLink, case: Case, trial: Trial) -> Gate:
    """The same question again, after some elements of the answer were changed wherever the process holds them: they are
    computed anew, or they were kept. Elements that stand in the inputs or parameters prove nothing."""
    given = _given(case, trial)
    places = [telling_places(item.truth, given, random.SystemRandom()) for item in trial.expected]
    name = COMPUTED_ANEW
    if not any(places):
        return Gate(name, True, "every element could be a copy of an input, so this proves nothing here")
    asked = _answer_gate(name, link, trial, "before its answer was changed in memory")
    if not asked.passed:
        return asked
    try:
        link.ask({"do": "copies", "places": places}, [], PATIENCE * link.run_limit_s)
    except RunnerFailed as failed:
        return Gate(name, False, f"where copies of its answer are changed, it fails: {failed.evidence}")
    return _answer_gate(
        name, link, trial, "where copies of its last answer in memory were changed (compute it in every call)"
    )


def _another_instance_gate(link: RunnerLink, case: Case, trial: Trial) -> Gate:
    """The answer after another instance of ModelNew, with other parameters, was called in the same process: a network
    has many layers of a kind, and each has weights of its own. Then once more, where both instances' weights have
    changed as often: equal versions are no sign of equal weights."""
    if sum(tensor.nbytes for tensor in case.state("seeded").parcel.tensors()) > INSTANCE_BYTES:
        return Gate(ANOTHER_INSTANCE, True, "not asked: its parameters are large")
    try:
        with _DRAWING:
            link.build(1, case)
        link.state(1, case, "randomised", steps=2)
        link.inputs(1, 1, trial.inputs)
        for _ in range(2):  # the first may prepare its weights
            link.operators(1)
    except RunnerFailed as failed:
        how = "it refuses" if failed.has_raised else "it fails with"
        return Gate(ANOTHER_INSTANCE, failed.has_raised, f"{how} another instance: {failed.evidence}")
    where = "after another instance of ModelNew with other parameters was called"
    gate = _answer_gate(ANOTHER_INSTANCE, link, trial, where)
    if gate.passed:
        try:
            for kind in ("randomised", "seeded"):  # each is a step
                link.state(0, case, kind)
        except RunnerFailed as failed:
            return Gate(ANOTHER_INSTANCE, False, f"it fails where parameters change and change back: {failed.evidence}")
        gate = _answer_gate(ANOTHER_INSTANCE, link, trial, f"{where}, and both instances' parameters changed as often,")
    with contextlib.suppress(RunnerFailed):
        link.forget(slot=1, case=1)
    words = "keep what is prepared from parameters with the instance"
    return gate if gate.passed else replace(gate, evidence=f"{gate.evidence}; {words}")


def _clocks_gate(link: RunnerLink, trial: Trial) -> Gate:
    """The answer while clocks run a thousand times more slowly, so that calls seem to follow each other at once, and
    faster. The second of two calls counts: the first may have tuned."""
    for factor, how in CLOCKS:
        try:
            link.ask({"do": "pretend", "factor": factor}, [], link.run_limit_s)
        except RunnerFailed as failed:
            return Gate(OTHER_CLOCKS, False, f"it could not be asked under other clocks: {failed.evidence}")
        for _ in range(2):
            gate = _answer_gate(OTHER_CLOCKS, link, trial, f"while clocks run {how}")
            if not gate.passed:
                return gate
    with contextlib.suppress(RunnerFailed):
        link.ask({"do": "pretend", "factor": 0}, [], link.run_limit_s)
    return Gate(OTHER_CLOCKS, True, "right whatever the clocks say")


def _alone_gate(link: RunnerLink, trial: Trial) -> Gate:
    """The answer while the arithmetic of NumPy and of every BLAS but PyTorch's does nothing. PyTorch's own shows in its
    dispatcher; a function of others that is reached by its address shows nowhere else."""
    try:
        silenced = link.ask({"do": "pretend", "alone": True}, [], link.run_limit_s).get("silenced", ())
        if not silenced:
            return Gate(ALONE, True, "there is none in its process")
        gate = _answer_gate(ALONE, link, trial, "while other libraries' arithmetic (NumPy's, BLAS) does nothing")
        link.ask({"do": "pretend"}, [], link.run_limit_s)
    except RunnerFailed as failed:
        return Gate(ALONE, False, f"it could not be asked without other libraries: {failed.evidence}")
    words = "so they compute for it: let its own kernel do the work"
    return gate if gate.passed else replace(gate, evidence=f"{gate.evidence}; {words}")


def _fewer_gate(link: RunnerLink, trial: Trial, seen: Message) -> Gate:
    """Half of the rows: a kernel may take them or refuse them aloud, and not hand them to PyTorch."""
    what = "inputs with half of the rows"
    try:
        answer = link.ask({"do": "fewer", "slot": SLOT}, [], link.run_limit_s)
    except RunnerFailed as failed:
        return Gate(FEWER_ROWS, True, f"it refuses {what}: {failed.evidence}")
    return _left_gate(FEWER_ROWS, what, answer, trial, seen)


def _elsewhere_gate(link: RunnerLink, trial: Trial, seen: Message) -> Gate:
    """Inputs that begin on no multiple of a vector: a kernel may take them or refuse them aloud, and neither hand them
    to PyTorch nor read beside them."""
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
    return _left_gate(OTHER_ADDRESSES, what, answer, trial, seen)


def _strides_gate(link: RunnerLink, trial: Trial, seen: Message) -> Gate:
    """The same inputs with other strides: a kernel may follow them or refuse them aloud. One that reads past them is
    wrong only for whoever passes it a transposed tensor, so that this is named and rejects nobody."""
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
        if not is_wrong:  # every address below the tensors' size is theirs: nobody has to die of it
            return Gate(failed.gate or OTHER_STRIDES, False, f"on {what} it fails: {failed.evidence}")
    if not is_wrong:
        return Gate(OTHER_STRIDES, True, f"right on {what}")
    reason = Reason(ReasonKind.LAYOUT, "")
    return Gate(OTHER_STRIDES, True, in_words(reason), (reason,))


def _left_gate(name: str, what: str, answer: Message, trial: Trial, seen: Message) -> Gate:
    """What PyTorch computes there, and does not for the inputs as they are."""
    moved = sum(tensor.nbytes for tensor in trial.inputs.tensors())
    before, after = (
        [row for row in rows if row["flops"]]  # padding and joining rows is no arithmetic
        for rows in (operator_rows(seen["operators"]), operator_rows(answer.get("operators")))
    )
    if words := more_work(before, after, moved):
        words = (
            f"on {what} PyTorch computes what the kernel should: {words}. "
            "Take them, or raise an exception for what the kernel is not made for"
        )
        return Gate(name, False, words)
    return Gate(name, True, f"PyTorch computes nothing for {what} either")


def _prepare(link: RunnerLink, case: Case, trial: Trial, load: Message) -> bool:
    """Model and inputs; whether the model's parameters and buffers are the reference's."""
    link.load(load)
    with _DRAWING:
        link.build(0, case)
    problem = link.state(0, case, "seeded")
    link.inputs(SLOT, 0, trial.inputs)
    return not problem


@torch.no_grad()  # whether gradients are kept is a thread's own affair
def _without(link: RunnerLink, case: Case, trial: Trial, load: Message) -> _Without:
    """Calls of forward in a process where the candidate's native code does nothing: the one with most right counts."""
    run = _Without()
    try:
        is_matched = _prepare(link, case, trial, load)
        buffers = [item.spec for item in trial.buffers] if is_matched else []
        for number in range(CALLS):
            if number:
                link.soak(SLOT, random.SystemRandom().randint(*LATE_CALLS), LATE_S)
            _, outputs = link.call(SLOT, trial.specs, NAN_BYTES, buffers=buffers)
            result = measure_earned(outputs[: len(trial.specs)], trial.expected, _given(case, trial))
            if run.result is None or result.share > run.result.share:
                run.result = result
    except RunnerFailed as failed:
        run.failed = failed.evidence
    try:
        run.reached = [str(name) for name in link.ask({"do": "observe"}, [], link.run_limit_s).get("silenced", ())]
    except RunnerFailed:  # its process ended over the missing code
        run.reached = ["its native code"]
    _part_from(link)
    return run


def _given(case: Case, trial: Trial) -> list[torch.Tensor]:
    return [*trial.inputs.tensors(), *case.state("seeded").parcel.tensors()]


def _ablation_gates(silent: _Without, undone: _Without) -> list[Gate]:
    reached = sorted({*silent.reached, *undone.reached})
    own = Gate("own kernels", bool(reached), _named(reached) if reached else NOTHING_REACHED)
    for run, least in ((silent, 1), (undone, FEW + 1)):
        if run.result is not None and run.result.condemns(at_least=least):
            percent = f"{100 * run.result.share:.3g} %"
            words = (
                f"with its native functions ({', '.join(reached[:6]) or 'none was found'}) doing nothing, forward "
                f"still returns {percent} of the elements right that had to be computed: somebody else computes them"
            )
            return [own, Gate("ablation", False, words)]
    return [own, Gate("ablation", True, _harmless(silent))]


NOTHING_REACHED = (
    "forward reached no native code of the candidate's own: no function of a library or extension that it built, "
    "no kernel launch"
)


def _named(reached: list[str]) -> str:
    return f"forward depends on {', '.join(reached[:8])}" + (" and others" if len(reached) > 8 else "")


def _harmless(silent: _Without) -> str:
    if silent.result is None:
        return f"without its native functions forward fails: {silent.failed[:160]}"
    if not silent.result.needed:
        return "every element could be a constant or a copy of an input, so this proves nothing here"
    return (
        f"without its native functions {100 * silent.result.share:.2g} % of the elements that must be computed are "
        f"right (at most {100 * LARGEST_SHARE:.0f} %)"
    )
