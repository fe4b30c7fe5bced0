"""The single interface to the machine: everything a search does with a task and its candidates. Free of torch.

A workbench belongs to one run and one target. It holds the device lock while it times. It shares the lock while it
checks, and on a CPU while it compiles. So any number of islands may call it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Contest,
    ForeignName,
    Gate,
    Profile,
    Recipe,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler.algebra.rewrites import as_labelled
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OperatorRun, OpGraph, TensorSpec
from foundry.knowledge.roofline import Floors, floors
from foundry.knowledge.ruling import is_possible
from foundry.knowledge.task import OWN_PARAMETERS, Policy, Task
from foundry.tools.grade.host.answers import (
    are_doubtful,
    ask_again,
    declared_labels,
    digest_of,
    no_timing,
)
from foundry.tools.grade.host.grader import Allowance, Grader, thread_count
from foundry.tools.grade.host.observing import count, counting_means, observe
from foundry.tools.grade.host.sanitizing import Sanitizer, with_gates
from foundry.tools.grade.host.timed_groups import is_doubtful
from foundry.tools.machine.ceilings import ceilings, measure_alone
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.lock import DeviceLock, LockUse
from foundry.tools.process.zygote import Zygote
from foundry.tools.profiling.gather import Seen, seen_launches
from foundry.tools.targets.base import Target, built_file
from foundry.tools.targets.registry import target_of
from foundry.tools.task.intake_messages import CheckedTask
from foundry.tools.task.limits import check_limits
from foundry.tools.tune.session import Crew
from foundry.tools.tune.tuner import TunedPlan, tune

Result = TypeVar("Result")
SMALL_BYTES = 4 << 30  # bytes of a call's inputs and outputs that fit any GPU twice
LOOKS = 3  # timings before times alone convict: beside two compilers, two spoke against an honest one
FLOOR_LOOKS = 3  # measurements of the ceilings before a timing is called impossible


@dataclass(frozen=True)
class Intake:
    """Inputs, outputs and graphs of a task.

    `graphs` has one for each case (own shapes, extra shapes, dtypes). If the task could not be captured it is empty,
    `capture_note` says why, `ran` holds what PyTorch ran instead, and `work` how much that is. `work` is FLOPs plus
    bytes, 0 if unknown.
    """

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    graphs: list[OpGraph]
    capture_note: str
    ran: list[OperatorRun] = field(default_factory=list)
    work: int = 0


@dataclass(frozen=True)
class BenchNotes:
    """Facts that a workbench knows besides its answers, for receipts and traces."""

    isolation: tuple[str, ...] = ()  # the system's means that are active around candidates
    seeds: dict[str, int] = field(default_factory=dict)  # drawn so far, by purpose
    lock: LockUse = field(default_factory=LockUse)


class Workbench(Protocol):
    """One run on one target. The methods from build to profile never raise for a bad candidate: its failure is data."""

    device: Device

    @property
    def notes(self) -> BenchNotes: ...

    async def intake(self) -> Intake:
        """Raises TaskError."""

    async def baseline(self) -> Baseline:
        """PyTorch eager on this device; raises TaskError."""

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        """Announces a baseline comparison, so that its slow preparation may be done meanwhile."""

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        """Times the winning kernel beside other ways to run the reference, and by another benchmark's rules
        (`foreign`).

        If `text` is "", there is no kernel: only the reference and its variants are timed.
        """

    async def build(self, text: str) -> Build: ...

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict: ...

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit: ...

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        """Times a candidate; Timing.problem says why it could not be timed.

        With `beside`, the text of another candidate, both are timed in turns, and the other is the baseline. Such a
        timing is no record of either.
        """

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        """A timed candidate beside its roofline: achieved rates, hardware counters, the cause that limits it."""
        ...

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen: ...

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        """Better numbers for the same structure. `hints`: the gain that earlier runs saw of a setting, by a move's key.

        The measurements propose a candidate and prove nothing. Raises CannotLower.
        """

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        """Gates of compute-sanitizer on a winner; empty on a CPU."""

    async def aclose(self) -> None: ...


class LocalWorkbench:
    """A workbench on this machine."""

    def __init__(self, task: Task, device: Device, grader: Grader) -> None:
        """Starts no process and asks nothing yet."""
        self.device = device
        self._task = task
        self._grader = grader
        self._lock, self._is_closed, self._timings = DeviceLock(device), False, 0  # timings under way
        self._threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="workbench")  # many wait for the device
        self._target: Target | None = None
        self._measured: Device | None = None  # the device and its ceilings
        self._built, self._compiled = set[str](), set[str]()  # texts; those that compile themselves, and have
        self._intake: asyncio.Future[Intake] | None = None
        self._readying: dict[str, asyncio.Future[None]] = {}  # processes for a timing, by the candidate's text
        self._coming: dict[str, asyncio.Event] = {}  # the first of them is
        self._baseline: asyncio.Future[Baseline] | None = None
        self._sanitizer = Sanitizer(task, device.traits)
        self._stocking: asyncio.Future[None] | None = None
        self._proving = set[str]()  # texts under proof
        self._contest: asyncio.Future[None] | None = None  # the preparation of its variants

    @property
    def notes(self) -> BenchNotes:
        """The grader's isolation and seeds, and the total use of the device's lock."""
        return BenchNotes(self._grader.notes.isolation, dict(self._grader.notes.seeds), self._lock.use.total)

    @property
    def _is_apart(self) -> bool:
        """True if a device is here whose timings the host's cores do not disturb."""
        return self.device.present and not self.device.traits.uses_host_cores

    # ------------------------------------------------------------ the task

    async def intake(self) -> Intake:
        """Checks and captures the task once; later calls share the result. Raises TaskError."""
        if self._intake is None:
            self._intake = asyncio.ensure_future(self._take_in())
        return await asyncio.shield(self._intake)

    async def baseline(self) -> Baseline:
        """Times the reference once; later calls share the result. Raises TaskError."""
        if self._baseline is None:
            self._baseline = asyncio.ensure_future(self._time_reference())
        return await asyncio.shield(self._baseline)

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        """Begins to compile the variants of a later `contest` in the background, if that disturbs no timing.

        Not on a CPU, where compilers would take the cores that are timed. Not with max-autotune, which would take the
        GPU. Not for large tasks.
        """
        is_idle = self._is_apart and "compile max-autotune" not in rivals
        if is_idle and self._contest is None and self._is_small(await self.intake()):
            baseline = await self.baseline()
            ready = self._in_thread(lambda: self._grader.ready_contest(baseline, rivals, self._holds()))
            self._contest = asyncio.ensure_future(ready)

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        """The baseline comparison; a problem in the record if the device is absent. Leaves out "eager" on targets
        without TF32."""
        if not self.device.present:
            return Contest(problem=self._absent("hold a contest on"))
        baseline = await self.baseline()
        chosen = [name for name in rivals if name != "eager" or self.device.traits.has_tf32]  # else the same
        if self._contest is not None:
            await asyncio.gather(self._contest, return_exceptions=True)
        asked = (text, build, baseline, chosen, foreign, self._holds())
        return await self._in_thread(lambda: self._grader.contest(*asked))

    # ------------------------------------------------------------ one candidate

    async def build(self, text: str) -> Build:
        """Compiles a candidate. Meanwhile starts the processes that will check and time it; gives them up if it
        fails."""
        if self._baseline is not None and self._baseline.done() and digest_of(text) not in self._built:
            self._begin(text, "screen")  # not for a later build of the same text, which needs no processes
        self._built.add(digest_of(text))
        built = await self._compile(text)
        if not built.ok:
            await self._give_up(text)
        return built

    async def _compile(self, text: str) -> Build:
        """Compiles a text with the target's compiler; a text compiled before costs nothing. Shares the lock on a
        CPU."""
        if self._target is None:
            self._target = target_of(self.device)
        async with self._lock.compiling():
            return await self._in_thread(partial(self._target.build, text))

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        """Checks a candidate's correctness in a fresh process; asks again if only its idle CPU time spoke against it.

        A failed build or an absent device is a verdict too. An incorrect candidate loses the processes made ready for
        it.
        """
        if not build.ok:
            return Verdict("compile_error", stage, evidence=build.first_error)
        if not self.device.present:
            return Verdict("unproven", stage, evidence=self._absent("run it on"))
        if build.artifact and not built_file(build).exists():  # it was built on another machine
            await self.build(text)
        baseline, _ = await asyncio.gather(self.baseline(), self._compile_ahead(text, build))
        await self._begin(text, stage).wait()
        if stage != "screen":
            self._threads.submit(self._begin_sanitizer)

        def work() -> Verdict:
            """Judges once, with the device shared."""
            return self._grader.verify(text, build, stage, baseline, self._holds())

        verdict = await self._in_thread(lambda: ask_again(work, lambda found: are_doubtful(found.gates)))
        if not verdict.correct:
            await self._give_up(text)
        return verdict

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        """Audits a candidate; a clean one in the final stage also by compute-sanitizer. One that is not clean is given
        up."""
        found = await self._audit(text, build, verdict, policy)
        if verdict.stage == "final" and found.clean:
            # Not beside the audit's own runs: on an H200 those of a softmax found something in both of two proofs then,
            # and in none of three without.
            found = with_gates(found, await self.sanitize(text, build))
        if not found.clean:
            await self._give_up(text)
        return found

    async def _audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        """The audit without compute-sanitizer: text, binary and operators, and in a proof or if needed the audit's own
        runs."""
        from foundry.tools.audit import audit, heavier, needs_watching

        operators: Sequence[Any] | None = await self._operators(text, build) if verdict.correct else None
        intake, source = await self.intake(), self._task.text
        watched: list[Gate] | None = None
        is_proof = verdict.stage != "screen"  # the screen steers a search: there, runs of the audit's own cost too much
        if verdict.correct and (is_proof or needs_watching(text, task_source=source)):
            baseline = await self.baseline()
            run = partial(self._grader.ablate, text, build, baseline, policy)
            watched, seen = await self._in_thread(
                lambda: ask_again(lambda: run(self._holds()), lambda found: are_doubtful(found[0]))
            )
            operators = heavier(operators, seen.get("operators"))
            if launches := seen_launches(seen.get("kernels", ())):
                self._grader.notes.seen[digest_of(text)] = Seen(launches=launches)
        asked = text, build, operators, next(iter(intake.graphs), None), policy
        known: dict[str, Any] = {"task_source": source, "reference_work": intake.work or None, "watched": watched}
        declared = declared_labels(await self.baseline(), verdict, watched or ())
        declared += [OWN_PARAMETERS] if self._task.parameters == "as-built" else []
        known |= {"declared": declared, "accuracy": verdict.accuracy_class, "other_shapes": self._task.other_shapes}
        return await self._in_thread(lambda: audit(*asked, **known))

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        """Times a candidate, up to LOOKS times if only measured times speak against it. An absent device is a problem
        in the record.

        After a screen it begins what a later proof will need.
        """
        if not self.device.present:
            return no_timing(stage, self._absent("time it on"))
        baseline = await self.baseline()
        other = (beside, await self._compile(beside)) if beside else None

        incumbents = iter([incumbent_ms])  # once: what is asked again is not given up early

        def work() -> Timing:
            """Times once; only the first time may end early because of a faster incumbent."""
            return self._grader.time(
                text, build, stage, baseline, next(incumbents, None), holds=self._holds(), beside=other
            )

        self._begin(text, stage)
        self._timings += 1
        try:
            if begun := self._readying.pop(text, None):
                await begun
            return await self._in_thread(lambda: ask_again(work, is_doubtful, LOOKS))
        finally:
            self._timings -= 1
            self._proving.discard(text)
            if stage == "screen":
                self._look_ahead()

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        """The candidate's profile: its roofline from graph and timing, and what was observed of its process, if it
        was."""
        from foundry.tools.grade.host.roofline import profile

        graphs = (await self.intake()).graphs
        graph = as_labelled(graphs[0], audit.labels) if graphs else None
        found = await self._floors(graph, audit, timing) if graph else None
        device, seen = self._measured or self.device, self._grader.notes.seen.get(digest_of(text))
        look = partial(profile, text, build, audit, timing, device, graph, lowered, floors=found, seen=seen)
        return await self._in_thread(look)

    async def tune(
        self,
        recipe: Recipe,
        seconds: float,
        *,
        seed: int,
        hints: Mapping[str, float],
        say: Callable[[str], None] = lambda line: None,
    ) -> TunedPlan:
        """Tunes the recipe's numbers on this device for `seconds`. `say` gets the log line by line."""
        graph = (await self.intake()).graphs[0]
        device = self._measured or self.device
        crew = Crew(
            graph,
            recipe,
            device,
            self._grader.zygote,
            lock=self._lock,
            threads=thread_count(device),
            cell=self._grader.cell,
        )
        return await tune(crew, seconds, seed=seed, hints=hints, say=say)

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        """Runs compute-sanitizer's checks on a file; a gate for each, none if the target has no such tool. Small tasks'
        checks run side by side."""
        if not self._sanitizer.is_asked:  # so it need not wait for the device
            return []
        is_small, look = self._is_small(await self.intake()), partial(self._sanitizer.check, text, build)
        return await self._in_thread(lambda: look(self.notes.isolation, at_once=is_small, holds=self._holds))

    @staticmethod
    def _is_small(known: Intake) -> bool:
        """True if inputs and outputs of a call take less than SMALL_BYTES, so that several calls at once fit any
        GPU."""
        return sum(spec.nbytes for spec in (*known.inputs, *known.outputs)) < SMALL_BYTES

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
        """Observes a candidate's forward for `seconds`, kernel by kernel, and if `counted` the hardware's counters.

        `profile` uses the result from then on. It proves nothing about the candidate.
        """
        baseline, means = await self.baseline(), self.notes.isolation

        def look() -> Seen:
            """Observes, then counts if asked; the second alone on the device."""
            seen = observe(
                self._grader, self.device, text, build, baseline=baseline, seconds=seconds, holds=self._holds()
            )
            if not counted or seen.problem:
                return seen
            with self._holds().shared():
                counting_means(means)  # known from then on
            with self._holds().alone():
                return count(seen, self._task, text, self.device, means)

        seen = await self._in_thread(look)
        self._grader.notes.seen[digest_of(text)] = seen
        return seen

    async def aclose(self) -> None:
        """Waits for what is being prepared, ends every process and removes their directories."""
        self._is_closed = True
        begun = [*self._readying.values(), *([self._stocking] if self._stocking else [])]
        await asyncio.gather(*begun, return_exceptions=True)
        await asyncio.gather(self._in_thread(self._sanitizer.close), self._in_thread(self._grader.close))
        asked = [request for request in (self._intake, self._baseline, self._contest) if request is not None]
        await asyncio.gather(*asked, return_exceptions=True)  # their results are not needed any more
        self._threads.shutdown(wait=True)

    # ------------------------------------------------------------ inside

    async def _floors(self, graph: OpGraph, audit: Audit, timing: Timing) -> Floors:
        """The least possible times for a candidate, from the graph as its labels say that it computes it.

        If its timing lies below them, the device's ceilings are measured again first: they may have been taken while
        the machine was busy. Keeps the measured device.
        """
        device = self._measured or await measure_alone(self.device)
        found = floors(device, graph, self._task.options.policy, audit.labels)
        for _ in range(FLOOR_LOOKS):
            if not timing.candidate_ms or is_possible(timing.candidate_ms, found.traffic_ms):
                break
            async with self._lock.exclusive():
                fresh = await asyncio.to_thread(ceilings, device, again=True)  # the best ever seen
            device = replace(device, ceilings=fresh)
            found = floors(device, graph, self._task.options.policy, audit.labels)
        self._measured = device
        return found

    async def _operators(self, text: str, build: Build) -> list[Any] | None:
        """The operators that PyTorch ran in the candidate's forward; verifies it again if the verdict came from before
        a resume."""
        if digest_of(text) not in self._grader.notes.operators:
            await self.verify(text, build, "screen")
        return self._grader.notes.operators.get(digest_of(text))

    async def _compile_ahead(self, text: str, build: Build) -> None:
        """Has a text that compiles itself do so, once, while the device is not held."""
        if digest_of(text) not in self._compiled:
            self._compiled.add(digest_of(text))
            await self._in_thread(lambda: self._grader.compile_ahead(text, build))

    async def _take_in(self) -> Intake:
        """Checks the task, captures its graphs and prepares a judge; on a GPU at the same time, on a CPU in order."""
        if self._is_apart:  # the host's cores have nothing else to do
            checked, captured = await asyncio.gather(self._check(), self._sharing(self._grader.capture))
        else:
            checked = await self._sharing(self._grader.check)
            ready = self._sharing(self._grader.prepare) if self.device.present else asyncio.sleep(0)
            captured, _ = await asyncio.gather(self._sharing(self._grader.capture), ready)
        return Intake(
            inputs=checked.inputs,
            outputs=checked.outputs,
            graphs=captured.graphs,
            capture_note=captured.note,
            ran=captured.ran.rows,
            work=captured.ran.work,
        )

    def _begin(self, text: str, stage: Stage) -> asyncio.Event:
        """Starts the processes that will check and time a candidate, in the background. The event is set once the first
        is coming.

        A caller that needs one waits for the event and starts none of its own. On a CPU it starts none and the event is
        set.
        """
        if stage != "screen":
            self._proving.add(text)
        if text in self._readying:
            return self._coming[text]
        is_coming = self._coming[text] = asyncio.Event()
        if self._is_apart:
            begins = partial(asyncio.get_running_loop().call_soon_threadsafe, is_coming.set)
            work = partial(self._grader.make_ready, text, stage, begins, self._holds())
            self._readying[text] = asyncio.ensure_future(self._in_thread(work))
            self._readying[text].add_done_callback(lambda _: is_coming.set())
        else:
            is_coming.set()
        return is_coming

    def _look_ahead(self) -> None:
        """On a GPU, begins to stock processes for a later proof in the background, unless that is under way."""
        is_idle = self._stocking is None or self._stocking.done()
        if is_idle and not self.device.traits.uses_host_cores and not self._is_closed:
            self._stocking = asyncio.ensure_future(self._stock())

    async def _stock(self) -> None:
        """Starts processes for a later proof in small batches until there are enough, or a timing or a proof begins.
        Then readies the sanitizer."""
        is_missing = True
        while is_missing and not self._timings and not self._proving and not self._is_closed:
            is_missing = await self._in_thread(lambda: self._grader.stock(self._holds()))
        if not self._is_closed:
            await self._in_thread(self._begin_sanitizer)

    def _begin_sanitizer(self) -> None:
        """Starts a waiting process for each of the sanitizer's checks, in the grader's isolation."""
        self._sanitizer.begin(self.notes.isolation, self._holds())

    async def _give_up(self, text: str) -> None:
        """Forgets a candidate that will not be timed: its processes serve the next one, or end."""
        self._proving.discard(text)
        begun = self._readying.pop(text, None)
        if begun is not None:
            await begun
            await self._in_thread(lambda: self._grader.dismiss(text))

    async def _check(self) -> CheckedTask:
        """Checks the task while a judge warms up, then has the judge prepare the baseline. Other runs' timings come in
        between."""
        warmed = self._in_thread(partial(self._holds().start, self._grader.warm_judge))
        checked, _ = await asyncio.gather(self._sharing(self._grader.check), warmed)
        await self._sharing(self._grader.prepare)
        return checked

    async def _time_reference(self) -> Baseline:
        """Times the reference with the device held; on an absent device only the outputs' shapes. Then readies the
        sanitizer."""
        intake = await self.intake()
        if not self.device.present:
            return Baseline(0.0, 0.0, [spec.shape for spec in intake.outputs])
        found = await self._in_thread(lambda: self._grader.baseline(self._holds()))
        self._threads.submit(self._begin_sanitizer)  # the GPU is idle while the first candidates are compiled
        return found

    def _absent(self, purpose: str) -> str:
        """The sentence that there is no such device here for this purpose."""
        return f"there is no {self.device.target} device here to {purpose}"

    async def _sharing(self, work: Callable[[], Result]) -> Result:
        """Runs `work` in a thread with the device's lock shared: it would disturb another run's timing."""
        async with self._lock.shared():
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Runs blocking work in one of the workbench's threads and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _holds(self) -> Holds:
        """How one request of the grader holds the device."""
        return Holds(self._lock, on_cpu=self.device.traits.uses_host_cores, is_over=lambda: self._is_closed)


async def open_workbench(
    task: Task,
    device: Device,
    scratch: Path,
    *,
    seed: int,
    allowance: Allowance | None = None,
    zygote: Zygote | None = None,
) -> LocalWorkbench:
    """A workbench for one task. Starts the warm process (a second or more), or uses the caller's `zygote`, which
    outlives it.

    Raises MissingTool if torch cannot be imported there, UsageError for limits in the environment that are no numbers.
    """
    check_limits()
    allowed, is_shared = vars(allowance or Allowance()), zygote is not None
    zygote = zygote or Zygote.begin(threads=thread_count(device))
    await asyncio.to_thread(zygote.wait, device.uuid)
    grader = Grader(task, device, scratch, seed=seed, zygote=zygote, owns_zygote=not is_shared, **allowed)
    return LocalWorkbench(task, device, grader)
