"""Judge's end of the link to one runner: sends commands with a time limit, returns failures as data. In the judge."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from foundry.knowledge.candidate import Outcome
from foundry.knowledge.opgraph import TensorSpec
from foundry.knowledge.reasons import Refusal
from foundry.tools.audit.acts.looks import proves
from foundry.tools.audit.acts.observed import OperatorRow
from foundry.tools.grade.judge.carriers import PartedState, Sent, carrier_for, describe_difference
from foundry.tools.grade.messages.runner import Block, CallFacts, FileToLoad, ModelForm, SharedImports, StateForm
from foundry.tools.grade.messages.runner import RunnerCommands as Runner
from foundry.tools.grade.messages.runner import Written as WrittenFacts
from foundry.tools.grade.questions.cases import Case
from foundry.tools.process import procfs
from foundry.tools.process.channel import (
    PAUSE,
    Channel,
    ChannelClosed,
    ChannelGarbled,
    ChannelTimeout,
    close_all,
)
from foundry.tools.process.idleness import Idleness
from foundry.tools.process.messages import LINE_CHARS, A, Malformed, NotDone, Question, asking
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.process.turns import Turns
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.protocol.orders import DRIFT, Layout
from foundry.tools.protocol.rules import IN_PLACE, Parameters
from foundry.tools.task.bundle import Parcel

_FORWARDS = ("call", "run")
_MAY_LINGER = ("load", "build", "forget")  # a candidate's process may work on only after these commands
_DOING = {
    "load": "loading the file",
    "build": "building the model",
    "token": "starting the process",
    **dict.fromkeys(("state", "match", "part"), "taking the parameters"),
    "inputs": "taking the inputs",
    "restore": "taking the inputs",
}

OUTCOMES: dict[str, Outcome] = {
    "compile_error": "compile_error",
    "launch_failure": "launch_failure",
    "wrong_result": "wrong_result",
}
SELF_BUILDING_S = 60.0  # a load limit beyond this is that of a file that compiles itself, maybe in its first call
ANSWER_BYTES = 16 << 20
KERNEL = "kernel"  # name of the candidate among what runs by a name
ANOTHER_ANSWER = "the process answered another question than the one asked"
LINES = 20  # most lines of evidence from a runner
OPERATORS = 400  # rows of a runner's report of operators
Result = TypeVar("Result")
Written = TypeVar("Written", bound=WrittenFacts)
_OF_RESULTS = ("peek", "call", "collect", "look", "gradients")  # commands whose malformed answer is a wrong result
BREAK_S = 0.03  # seconds between two offers to wait, each of which costs a message
SPOILING_CALLS, SPOILING_S = 6, 0.3  # most calls, and their seconds, that leave spoiled answers in free memory
AS_BUILT = "it was judged with the parameters that its own constructor makes (--parameters as-built)"
CALLS_IN_A_LIMIT = 30.0  # calls of the baseline that take as long as the limit of one forward
END_S = 5.0  # most seconds until an ended process has given its memory back
SLICE_S = 0.5  # seconds between two offers within a call in which PyTorch compiles


@dataclass(frozen=True)
class Sample:
    """One timed sample in ms a call: by the runner's own clock, and by the judge's with the message in it. `faults`:
    pages that the runner touched for the first time, as it says itself."""

    own_ms: float
    wall_ms: float
    faults: int = 0


class RunnerFailed(Exception):
    """The runner raised, died, hung or sent an invalid answer.

    `side`: "reference" or "candidate". `gate`: which rule it broke, or "". `has_raised`: code in it raised an exception
    and the process is still alive.
    """

    def __init__(
        self, outcome: Outcome, evidence: str, *, side: str = "candidate", gate: str = "", has_raised: bool = False
    ) -> None:
        """Keeps the outcome, its evidence and where it happened; the evidence is the exception's text."""
        self.outcome = outcome
        self.evidence = evidence
        self.side = side
        self.gate = gate
        self.has_raised = has_raised
        super().__init__(evidence)

    def answer(self) -> dict[str, Any]:
        """The judge's answer to a request that ended in this failure."""
        return {"failed": [self.outcome, self.evidence], "side": self.side, "gate": self.gate}


class Breaks:
    """Points at which a request that shares the GPU lets others time: between two commands, when it is idle.

    A proof needs the GPU alone for some tenths of a second at a time. Without breaks it would wait for the whole
    verification of each kernel that other islands, or other runs, examine on the same GPU. `are_allowed`: the main
    process answers the offers. `is_quiet`: no other thread of the request is at work with a process.
    """

    def __init__(self, control: Channel) -> None:
        """Sends the offers over `control`, the main process's channel; makes none until `are_allowed`."""
        self._control = control
        self.are_allowed = False
        self.is_quiet: Callable[[], bool] = lambda: True
        self._last = 0.0

    def offer(self) -> None:
        """Asks the main process, every BREAK_S seconds, and waits for its answer, which comes at once if none waits."""
        if not self.are_allowed or time.monotonic() - self._last < BREAK_S or not self.is_quiet():
            return
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # its own work on a truth would go on
            torch.cuda.synchronize()
        self._control.send_text(PAUSE)
        self._control.receive()
        self._last = time.monotonic()

    def offer_until(self, done: Future[Result]) -> Result:
        """Waits for a future that only the host works on, and offers breaks meanwhile. Returns its result."""
        while not done.done():
            wait([done], timeout=BREAK_S)
            self.offer()
        return done.result()


class RunnerLink:
    """Commands of the judge to a runner.

    `run_limit_s` is the time a single forward may take, `device` the kind of device that its tensors lie on. `pause` is
    called before each command.
    """

    def __init__(
        self,
        handle: int,
        *,
        load_limit_s: float,
        run_limit_s: float,
        side: str = "candidate",
        device: str = "cpu",
        pause: Callable[[], None] = lambda: None,
        imports: Callable[[str], SharedImports] = lambda _: SharedImports(),
    ) -> None:
        """Takes over the open socket `handle`; sends nothing. `imports` gives the modules that a candidate's text may
        import."""
        self._side, self._pause, self._imports = side, pause, imports
        self.on_cpu = torch_device_of(device).is_host
        self._channel = Channel.from_handle(handle)
        self._channel.ask_for_senders()
        self._runner = 0  # its process, known from its first answer
        self._idleness = Idleness()
        self._first_call_s = SELF_BUILDING_S if load_limit_s > SELF_BUILDING_S else 0.0
        self._load_limit_s = load_limit_s
        self._run_limit_s = self.run_limit_s = run_limit_s
        self._usual_variant = ""
        self._device = device
        self._carrier = carrier_for(device)
        self._parts = PartedState(self._ask_to_load, self._carrier, device)
        self.seconds: dict[str, float] = {}
        self._runs_s = 0.0
        self.turns: Turns | None = None  # CPU time and scheduling of the runner, while it is timed
        self._asked_ns = 0
        self._unanswered = ""  # the time limit that a command ran into: its answer may come later
        self.gpu_kernels_refused = False  # the grader's own: shared memory cannot be filled, nor the device held

    def _ask_to_load(self, question: Question[A], handles: Sequence[int] = ()) -> A:
        return self.ask(question, self._load_limit_s, handles)

    def ask(self, question: Question[A], limit_s: float | None = None, handles: Sequence[int] = ()) -> A:
        """One command and its answer, by default within the limit of one forward; raises RunnerFailed.

        Each command carries a random number that its answer repeats: an answer written ahead of time in the runner's
        process, or one too many, does not pass. A candidate whose process works on while it has nothing to do fails
        too: a call is over when it returns. After a command ran into its time limit every other one fails for the same
        reason: the late answer would pass for a forged one.
        """
        if self._unanswered:
            raise RunnerFailed("timeout", self._unanswered, side=self._side)
        self._pause()
        start = time.perf_counter()
        limit_s = self._run_limit_s if limit_s is None else limit_s
        number, compiles = secrets.randbits(60), False
        if question.do in _FORWARDS:
            compiles = self._first_call_s > 0.0 and self._side == "reference"
            limit_s, self._first_call_s = max(limit_s, self._first_call_s), 0.0
        try:
            self._check_silence()
            if self.turns is not None:
                self.turns.begin()
            self._asked_ns = time.time_ns()
            self._channel.send_text(question.encoded(number), handles)
            if compiles:
                limit_s = self._wait_letting_others_time(limit_s)
            text, extra = self._channel.receive_text(limit_s, limit_bytes=ANSWER_BYTES)
            if self.turns is not None:
                self.turns.end(timed=question.do == "run")
            close_all(extra)  # a runner has no files to give
            answer = question.read(text)
        except ChannelTimeout:
            what = _DOING.get(question.do, "forward")
            self._unanswered = f"{what} did not finish in {limit_s:g} s"
            raise RunnerFailed("timeout", self._unanswered, side=self._side) from None
        except ChannelClosed as error:
            raise RunnerFailed("crash", "the process died", side=self._side) from error
        except ChannelGarbled as error:
            raise RunnerFailed("crash", f"the process sent {error}", side=self._side) from error
        except Malformed as error:
            if not error.field:  # of no known kind
                raise self._forgery(ANOTHER_ANSWER) from error
            evidence = f"the process gave an answer that is none: {error}"
            if question.do in _OF_RESULTS:
                raise RunnerFailed("wrong_result", evidence, side=self._side) from error
            raise self._forgery(evidence) from error
        finally:
            self.seconds[question.do] = self.seconds.get(question.do, 0.0) + time.perf_counter() - start
        if answer.number != number:
            raise self._forgery(ANOTHER_ANSWER)
        self._runner = self._runner or self._channel.sender
        if self._channel.sender != self._runner:
            raise self._forgery("another process answered in the runner's place")
        self._idleness.begin(self._runner if question.do not in _MAY_LINGER and self._side == "candidate" else 0)
        if isinstance(answer, NotDone):
            kind = OUTCOMES.get(answer.kind, "crash")
            raise RunnerFailed(kind, answer.line[:LINE_CHARS], side=self._side, has_raised=kind == "crash")
        return answer.answer

    def _wait_letting_others_time(self, limit_s: float) -> float:
        """Waits for an answer until at most SLICE_S of the limit is left. Returns the seconds left.

        A compiler takes half a minute for a network and hardly uses the GPU. After each slice the process is stopped,
        so that others may time.
        """
        while limit_s > SLICE_S and not self._channel.ready(SLICE_S):
            limit_s -= SLICE_S
            with procfs.stopped(self._runner) as is_stopped:
                if is_stopped:
                    self._pause()
        return limit_s

    def _check_silence(self) -> None:
        """Raises RunnerFailed if the runner sent a message or computed between two commands."""
        busy = self._idleness.end()
        if busy:
            raise RunnerFailed("cheating", busy, side=self._side, gate="threads and processes")
        if self._channel.ready(0.0):
            _, extra = self._channel.receive_text(0.0, limit_bytes=ANSWER_BYTES)
            close_all(extra)
            raise self._forgery("the process sent a message without being asked")

    def _forgery(self, evidence: str) -> RunnerFailed:
        """The failure "cheating" of an answer that breaks the rule of one answer to each question."""
        return RunnerFailed("cheating", evidence, side=self._side, gate="one answer to each question")

    def wait_idle(self, seconds: float) -> None:
        """Waits without sending a command; the runner should not compute meanwhile."""
        time.sleep(seconds)

    def inspect(self, *, thorough: bool = False) -> list[tuple[str, str, Refusal]]:
        """(gate, what the candidate changed in its process although the gate forbids it, what that proves), one for
        each change."""
        found = self._ask_to_load(asking(Runner.inspect, thorough=thorough))
        return [(gate, what, proves(gate, event)) for gate, what, event in found[:LINES]]

    def check_state(self) -> None:
        """Raises RunnerFailed with what the candidate changed in its process."""
        for gate, what, refusal in self.inspect():
            raise RunnerFailed(refusal, what, side=self._side, gate=gate)

    def load(self, what: FileToLoad) -> None:
        """Loads a file, a candidate's after the imports that it shares with the task."""
        imports = SharedImports() if what.task else self._imports(what.text)
        self.gpu_kernels_refused = self._ask_to_load(asking(Runner.load, what=what, imports=imports))

    def token(self, given: str = "") -> str:
        """The token of the runner's preparation, "" if there is none; sets it first if one is given."""
        return self._ask_to_load(asking(Runner.token, given=given))

    def build(self, number: int, case: Case) -> None:
        """Constructs the model of a case and gives it the reference's seeded state; raises RunnerFailed."""
        arguments = case.init
        try:
            form = ModelForm(case.seed, case.mode, case.overrides, case.dtype, case.drawn_on)
            question = asking(Runner.build, case=number, form=form, init=arguments.description)
            self._ask_to_load(question, [arguments.handle])
        finally:
            arguments.close()

    def state(self, number: int, case: Case, kind: Parameters, *, steps: int = 1) -> str:
        """Copies parameters in, `steps` times. Returns the reason why they could not be matched, "" if they were.

        More than one step copies as an optimiser does, without load_state_dict. A candidate that is judged as built
        keeps its own; the answer is then AS_BUILT.
        """
        if case.task.parameters == "as-built" and self._side == "candidate":
            return AS_BUILT
        if case.is_lean:
            return self._parts.send(number, case, kind)
        packed = case.state(kind)
        form = StateForm(packed.keys, packed.mutable, loads=kind not in IN_PLACE and steps == 1)
        sent, content = self._carrier.place(f"state {number}", packed.parcel), packed.parcel.description
        question = asking(Runner.state, case=number, form=form, steps=steps, content=content, memory=sent.memory)
        return self._give(question, sent).unmatched

    def find_drift(self, number: int, case: Case) -> list[tuple[str, str, Refusal]]:
        """Parameters that the candidate of a lean case has changed in place, in the form of `inspect`.

        They should hold the constructed values.
        """
        changed = self._parts.find_changed(number, case)
        return [(DRIFT, f"forward changed {key} in place", proves(DRIFT)) for key in changed[:LINES]]

    def inputs(self, slot: int, number: int, parcel: Parcel) -> None:
        """Sends a set of inputs to a slot, and replaces the set that was there."""
        self._give_inputs(slot, number, parcel, self._carrier.place(_key(slot), parcel))

    def _give_inputs(self, slot: int, number: int, parcel: Parcel, sent: Sent) -> None:
        """Sends a slot's inputs for a case, with the files and memory that a carrier made of the parcel."""
        content = parcel.description
        self._give(asking(Runner.inputs, slot=slot, case=number, content=content, memory=sent.memory), sent)

    def let_go(self, slot: int) -> None:
        """Marks the inputs of a slot as no longer needed; their memory may be reused."""
        self._carrier.let_go(_key(slot))

    def restore(self, slot: int, number: int, parcel: Parcel) -> None:
        """Resets the inputs of a slot to the content that was sent, by this link or an earlier one."""
        sent = self._carrier.restore(_key(slot), parcel)
        if sent is None:
            self._ask_to_load(asking(Runner.restore, slot=slot))
        else:
            self._give_inputs(slot, number, parcel, sent)

    def _give(self, question: Question[A], sent: Sent) -> A:
        """Asks a question with the files that a carrier made, within the limit of loading; closes them and returns the
        answer."""
        try:
            return self._ask_to_load(question, sent.handles)
        finally:
            close_all(sent.handles)

    def call(
        self,
        slot: int,
        specs: list[TensorSpec],
        poison: int,
        *,
        record: bool = False,
        buffers: Sequence[TensorSpec] = (),
        awake_s: float = 0.0,
        layout: Layout = "",
    ) -> tuple[CallFacts, list[torch.Tensor]]:
        """Makes one checked call. Returns (the runner's remarks, copies of the outputs and then of updated `buffers`).

        With `awake_s` the call follows unchecked ones that take as long, and memory is not poisoned before it. With a
        `layout` the inputs are copied into it first.

        Raises RunnerFailed with wrong_result when shapes or dtypes differ.
        """

        def question(expect: list[TensorSpec], memory: Block) -> Question[CallFacts]:
            """The command of this call, with the outputs that are expected and the memory for them."""
            return asking(
                Runner.call,
                slot=slot,
                poison=poison,
                record=record,
                buffers=bool(buffers),
                awake_s=awake_s,
                layout=layout,
                expect=expect,
                memory=memory,
            )

        facts, outputs = self._fetch(question, specs, buffers)
        changed = self._carrier.changed(_key(slot))
        return facts if changed is None else replace(facts, changed=changed), outputs

    def spoil(self, slot: int) -> None:
        """Writes the last checked answer, with a few elements changed, to the candidate's free memory.

        Repeats this until its outputs come to addresses that were seen, or SPOILING_S or SPOILING_CALLS are used up.
        """
        seen: list[list[int]] = []
        stop = time.monotonic() + SPOILING_S
        while not seen or (len(seen) < SPOILING_CALLS and time.monotonic() < stop):
            places = self.ask(asking(Runner.spoil, slot=slot, blocks=not seen))
            if places in seen:
                break
            seen.append(places)

    def operators(self, slot: int, *, on_fewer_rows: bool = False) -> list[OperatorRow]:
        """The operators that PyTorch runs in one more call, OPERATORS of them at most."""
        return self.ask(asking(Runner.operators, slot=slot, on_fewer_rows=on_fewer_rows))[:OPERATORS]

    def pretend(self, factor: float = 0.0, *, alone: bool = False) -> list[str]:
        """Sets the speed of the runner's clocks (0: as usual), or disables other libraries and returns which."""
        return self.ask(asking(Runner.pretend, factor=factor, alone=alone))

    def watch(self) -> None:
        """Records the runner's CPU time at every later command. Does nothing if the runner has not answered yet."""
        self.turns = Turns(self._runner) if self._runner else None

    def vary(self, name: str, number: int, *, compile_mode: str = "", tf32: Tf32) -> None:
        """Adds a variant of a case's model, named for `run`: compiled in its first call, or with other arithmetic."""
        self._ask_to_load(asking(Runner.vary, name=name, case=number, compile_mode=compile_mode, tf32=tf32))

    def lay_out(self, slot: int, number: int, strides: Sequence[Sequence[int]]) -> None:
        """Makes timed calls of a case's model return results in PyTorch's `strides`; these are copied if they differ.

        Nothing changes if they have them already or are row-major. Calls the model once, the reference's too: the side
        with one call more before its first timed one seems faster. PyTorch against itself (15 us, H200) came out 5 %
        faster so. 1 was outside the interval in 28 of 50 screens, and in 1 of 57 with equal calls.
        """
        wanted = [tuple(item) for item in strides]
        question = asking(Runner.lay_out, name=KERNEL, case=number, slot=slot, strides=wanted)
        limit_s, self._first_call_s = max(self._run_limit_s, self._first_call_s), 0.0
        self._usual_variant = KERNEL if self.ask(question, limit_s) else ""

    def may_build(self, seconds: float) -> None:
        """Sets the limit in seconds of the next forward, which compiles."""
        self._first_call_s = seconds

    def peak_bytes(self, slot: int) -> int | None:
        """Peak bytes of memory in one call: inputs, parameters, outputs and temporaries.

        On a GPU this is all memory that PyTorch manages. On a CPU it follows the kernel's account of the process; None
        if that cannot be read.
        """
        held = self._ask_to_load(asking(Runner.memory, slot=slot, forget=True))
        before = procfs.forget_peak(self._runner)
        self.run([slot])
        if not self.on_cpu:
            return self._ask_to_load(asking(Runner.memory, slot=slot, forget=False))
        peak = procfs.peak_bytes(self._runner)
        return None if before is None or peak is None else held + max(0, peak - before)

    def run(self, slots: Sequence[int], keep: int = 0, *, take: bool = False, variant: str = "") -> Sample:
        """Makes one timed sample, a call on each slot. Returns ms of a call by both clocks, and page faults.

        `collect` then gives the outputs of call number `keep`; with `take` as they were when the runner's clock
        stopped. The judge's time ends when the kernel saw the answer sent, so that its own wake-up is not in it.
        Raises RunnerFailed.
        """
        question = asking(Runner.run, slots=list(slots), keep=keep, take=take, variant=variant or self._usual_variant)
        # The limit is many times the baseline's time: a sample of n calls needs one of it, and n such times.
        answer = self.ask(question, self._run_limit_s * (1 + len(slots) / CALLS_IN_A_LIMIT))
        waited_ns = time.time_ns() - self._asked_ns
        stamped_ns = self._channel.sent_ns - self._asked_ns
        if answer.ns <= 0:
            raise RunnerFailed("cheating", f"the runner reported a time of {answer.ns} ns", gate="clock")
        wall_ns = stamped_ns if 0 < stamped_ns < waited_ns else waited_ns
        self._runs_s += max(0, min(answer.device_ns, waited_ns)) / 1e9
        return Sample(answer.ns / 1e6 / len(slots), wall_ns / 1e6 / len(slots), answer.faults)

    @property
    def device_s(self) -> float:
        """Seconds of GPU work in timed samples so far, copies of their inputs included.

        The runner reports them; each sample counts at most the time until its answer.
        """
        return self._runs_s + self._carrier.device_s

    def collect(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Outputs of the last timed sample."""
        return self._fetch(lambda *room: asking(Runner.collect, expect=room[0], memory=room[1]), specs)[1]

    def look(self, specs: list[TensorSpec], back: int) -> list[torch.Tensor]:
        """The outputs of an earlier checked call as they are now; `back` = 1 is the last one."""
        return self._fetch(lambda *room: asking(Runner.look, back=back, expect=room[0], memory=room[1]), specs)[1]

    def gradients(self, slot: int, learned: Sequence[int], specs: list[TensorSpec]) -> list[torch.Tensor]:
        """The gradients of a forward with a backward of its own, [] without one.

        They are by its floating inputs, then by the `learned` tensors of the state.
        """

        def question(expect: list[TensorSpec], memory: Block) -> Question[WrittenFacts]:
            return asking(Runner.gradients, slot=slot, learned=list(learned), expect=expect, memory=memory)

        answer, found = self._fetch(question, specs)
        return found if answer.is_own else []

    def soak(self, slot: int, calls: int, seconds: float) -> tuple[int, str]:
        """Makes many calls in a row. Returns (number of calls, outputs that shared memory or "")."""
        return self.ask(asking(Runner.soak, slot=slot, calls=calls, seconds=seconds), self._run_limit_s + seconds)

    def peek(self, places: Sequence[Sequence[int]]) -> list[list[float]]:
        """Some elements of each output of the last timed sample; `places`: row-major positions for each output.

        Raises RunnerFailed if an output has other elements.
        """
        found = self.ask(asking(Runner.peek, places=[list(item) for item in places]))
        if [len(item) for item in found] != [len(item) for item in places]:
            raise RunnerFailed("wrong_result", "a timed call gave other outputs than a checked one", side=self._side)
        return found

    def perturb(self, slots: Sequence[int], factor: float, shift: int) -> None:
        """Changes the content of the floating inputs of these slots by `timed_calls.change`."""
        for slot in slots:
            self._carrier.change(_key(slot), factor, shift)
        self.ask(asking(Runner.perturb, slots=list(slots), factor=factor, shift=shift))

    def forget(self, *, slot: int, case: int) -> None:
        """Drops a set of inputs and a case in the runner, and frees the memory shared for them."""
        self.ask(asking(Runner.forget, slot=slot, case=case))
        for key in (_key(slot), f"state {case}"):
            self._carrier.forget(key)

    def end(self) -> None:
        """Ends the runner's process; returns when its memory is free, or after END_S seconds."""
        procfs.end(self._runner, END_S)

    def close(self) -> None:
        """Frees the memory shared with the runner and closes the socket."""
        self._carrier.close()
        self._channel.close()

    def _fetch(
        self,
        question: Callable[[list[TensorSpec], Block], Question[Written]],
        specs: list[TensorSpec],
        buffers: Sequence[TensorSpec] = (),
    ) -> tuple[Written, list[torch.Tensor]]:
        """The answer to a question that asks for tensors in some memory, and the tensors."""
        wanted = [*specs, *buffers]
        room = self._carrier.room(wanted)
        try:
            answer = self.ask(question(wanted, room.sent.memory), handles=room.sent.handles)
        finally:
            close_all(room.sent.handles)
        if not answer.written:
            raise RunnerFailed("wrong_result", describe_difference(specs, answer.specs))
        # The runner's process can write to the shared memory as long as it likes: what counts is a copy of now.
        return answer, [view.clone().view(spec.shape) for view, spec in zip(room.views, wanted, strict=True)]


def _key(slot: int) -> str:
    """The carrier's key for the inputs of a slot."""
    return f"inputs {slot}"
