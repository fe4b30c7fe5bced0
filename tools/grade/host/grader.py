"""Main process's side of grading: asks judges, and starts fresh processes for reference and candidate. Free of torch.

Blocking and thread-safe; the workbench calls it from threads. A candidate that hangs, crashes, floods or forks costs
its own process and one answer.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Concatenate

from foundry.knowledge import codec
from foundry.knowledge.candidate import (
    Baseline,
    Build,
    Contest,
    ForeignName,
    Gate,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.device import Device
from foundry.knowledge.errors import FoundryError, TaskError
from foundry.knowledge.ruling import AUDIT_RUNS
from foundry.knowledge.task import Policy, Task
from foundry.tools.audit.acts.provenance import later_work
from foundry.tools.grade.host.answers import (
    OUTCOMES,
    Notes,
    ask_about_task,
    ask_intake,
    decode_record,
    digest_of,
    name_death,
    no_timing,
    problem_in,
    raise_error,
)
from foundry.tools.grade.host.comparisons import PreparedContest
from foundry.tools.grade.host.folders import LOAD_S, TASK, compiles_itself, load_seconds, prepare_folders
from foundry.tools.grade.host.judge_pool import DrawnAhead, Judges
from foundry.tools.grade.host.pairs import PairedRun
from foundry.tools.grade.host.runner_pool import CANDIDATE, REFERENCE, Runners, pool_key
from foundry.tools.grade.host.timed_groups import Groups
from foundry.tools.machine.holds import Holds
from foundry.tools.process.channel import ChannelClosed, Message
from foundry.tools.process.child import Limits, machine_memory_bytes
from foundry.tools.process.messages import A, asking
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker, WorkerDied, Zygote
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.protocol.statistics import ScreenHistory, effort_of
from foundry.tools.task.gpu_plan import ROOMIEST, plan_host, plan_memory
from foundry.tools.task.intake_messages import Captured, CheckedTask, TaskPlace, TaskQuestions
from foundry.tools.task.limits import TimeLimits, gpu_limit_bytes, gpu_memory_bytes, task_memory_bytes, task_seconds
from foundry.tools.tune.session import Cell

CANDIDATE_MEMORY_SHARE = 0.35  # share of the machine's memory
AUDITED = 3  # processes of the audit's own runs
CONTESTED = 1  # processes of the kernel in the baseline comparison, should it win
OTHER_THREADS = (7,)  # threads of the watched process: few shapes divide by 7, and a kernel may need no special number
HOST_BYTES = 4 << 30  # bytes of the machine's memory for each waiting process: a context takes a tenth of it
LANES = 2  # judges: one evaluation that hangs does not stop the others
_ANY_CANDIDATE = "ModelNew"  # a text that compiles nothing: its processes serve all such texts

Watch = Callable[[int], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Allowance:
    """Limits of candidates that differ from the defaults, and how many candidates are judged at once."""

    lanes: int = LANES
    run_limit_s: float | None = None  # one forward; by default a multiple of the baseline's time, with a floor
    load_limit_s: float | None = None  # import of the file and construction of the model
    memory_bytes: int | None = None


class Grader:
    """Everything that needs the warm process (zygote), for one task on one device. Limits as in `Allowance`."""

    def __init__(
        self,
        task: Task,
        device: Device,
        scratch: Path,
        *,
        seed: int,
        zygote: Zygote,
        owns_zygote: bool = True,
        run_limit_s: float | None = None,
        load_limit_s: float | None = None,
        memory_bytes: int | None = None,
        lanes: int = LANES,
    ) -> None:
        """Makes a scratch folder and the pools of judges and runners; starts no process. `seed`: the judges' stream of
        inputs."""
        self._notes, self._times = Notes(), TimeLimits()
        self._task, self._device, self._seed = task, device, seed
        self._zygote, self._owns_zygote = zygote, owns_zygote
        self._scratch = scratch / f"workers-{os.getpid()}"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._limits: Message = {} if run_limit_s is None else {"run_limit_s": run_limit_s}
        self._load_limit_s = load_limit_s
        self._tf32: Tf32 = "all" if device.traits.has_tf32 and task.options.policy != "strict" else "none"
        self._runners = Runners(
            self._fork,
            self._scratch,
            memory_bytes=memory_bytes or int(CANDIDATE_MEMORY_SHARE * machine_memory_bytes()),
            threads=thread_count(device),
            tf32=self._tf32 == "all",
            target=device.traits,
            await_dying=zygote.await_dying,
        )
        self._forked: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._closed = False
        self._own_errors: list[list[float]] = []
        self._contest: PreparedContest | None = None  # readied before there was a winner
        self._screens = ScreenHistory(device.traits)
        self._judges = Judges(self._start_judge, self._open_judge, lanes)
        self._public = DrawnAhead(lambda: self._start_intake(task_seconds()), task)
        # Of the GPU's memory, until the task's sizes are known. On a CPU a group is prepared right before it is timed.
        self._plan = replace(ROOMIEST, pairs=1) if device.traits.uses_host_cores else ROOMIEST

    @property
    def notes(self) -> Notes:
        """The facts that evaluations yielded besides their records."""
        if not self._notes.isolation:
            self._notes.isolation = self._zygote.isolation
        return self._notes

    @property
    def zygote(self) -> Zygote:
        """The warm process, for work that belongs to no task."""
        return self._zygote

    def cell(self) -> Cell:
        """A new folder, environment and sandbox for one process of the tuner that runs an author's code; confined as a
        candidate's."""
        folder = Path(tempfile.mkdtemp(prefix="tuner-", dir=self._scratch)).absolute()
        own = prepare_folders("", folder)
        return Cell(folder, own.environment, own.sandbox)

    def close(self) -> None:
        """Ends every process of this grader and removes its scratch folder. A warm process that others use too goes
        on."""
        self._closed = True
        if self._owns_zygote:
            self._zygote.close()
        else:
            for worker in tuple(self._forked):
                if worker.alive:
                    self._zygote.end(worker.pid, waits=False)
            self._zygote.await_dying()  # all together: the next grader asks how much of the GPU's memory is free
        self._runners.close()
        self._public.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ------------------------------------------------------------ requests

    def check(self) -> CheckedTask:
        """Runs the task in a confined process: shapes of its inputs and outputs, and its sizes. Raises TaskError.

        Plans the memory and the number of judges by these sizes, and begins to draw benchmarks' inputs on a GPU.
        """
        found = self._about_task(TaskQuestions.check, task_seconds(), early=True)  # which traces nothing
        self._runners.cpu_s = self._times.runner_cpu_s(thread_count(self._device))
        if not found.free_bytes:
            self._plan = plan_host(self._plan, found.sizes, task_memory_bytes())
        else:
            self._plan = plan_memory(found.sizes, gpu_memory_bytes(found.free_bytes))
            self._public.begin(found.sizes.inputs)
        self._judges.limit_lanes(self._plan.lanes)
        return found

    def capture(self) -> Captured:
        """The task's operator graphs. If there are none, a note says why, and the answer has the operators that PyTorch
        runs."""
        try:
            return self._about_task(TaskQuestions.capture, self._times.capture_s)
        except TaskError as error:
            found = Captured([], f"tracing it failed: {error}")
        with contextlib.suppress(TaskError):  # from a process that traces nothing
            found = replace(found, ran=self._about_task(TaskQuestions.ran, self._times.capture_s))
        return found

    def prepare(self) -> None:
        """Has a judge compute the inputs and truths that `baseline` needs, so that it only has to time later. Raises
        TaskError.

        On a GPU the first processes to be timed and checked get their contexts meanwhile.
        """
        with self._judges.one() as judge, ThreadPoolExecutor(1) as beside:
            first = {REFERENCE: 1, CANDIDATE: 1}
            ready = beside.submit(self._runners.pool.want, _ANY_CANDIDATE, first, self._waiting)
            ask_about_task(judge, {"do": "prepare"}, self._times.baseline_s, limits=self._times)
            ready.result()
        self._runners.pool.forget(_ANY_CANDIDATE)

    def warm_judge(self) -> None:
        """On a GPU, starts a judge and makes its context before it knows the task."""
        if not self._device.traits.uses_host_cores:
            self._judges.warm(lambda judge: ask_about_task(judge, {"do": "warm"}, task_seconds()))

    def baseline(self, holds: Holds | None = None) -> Baseline:
        """Times the reference in a fresh process and measures its own error against the truth. Raises TaskError."""
        holds = holds or Holds()
        reference = self._runners.take()
        try:
            with self._judges.one() as judge, holds.whole():
                with holds.shared(), self._runners.links([reference]) as handles:
                    asked = {"do": "ready_baseline", "eager_ms": 1e3 * self._times.forward_s}
                    ask_about_task(judge, asked, self._times.baseline_s, handles)
                with holds.alone():
                    answer = ask_about_task(judge, {"do": "baseline"}, self._times.baseline_s)
                    holds.count(answer)
        finally:
            self._runners.discard(reference)
        self._own_errors = answer["errors"]
        self._notes.seeds.update(answer["seeds"])
        return decode_record(Baseline, answer["baseline"])

    def contest(
        self,
        text: str,
        build: Build | None,
        baseline: Baseline,
        rivals: Sequence[RivalName],
        foreign: ForeignName | None,
        holds: Holds | None = None,
    ) -> Contest:
        """Times the winning kernel (none if `text` is "") in turns with other ways to run the reference.

        Uses the processes of `ready_contest` if they are alive and have the same variants. A failure is data in the
        record.
        """
        holds = holds or Holds()
        message: Message = {"text": text, "foreign": foreign or ""}
        message["load_limit_s"] = self._load_limit(text, build) if build else LOAD_S
        known, self._contest = self._contest, None
        with contextlib.ExitStack() as stack:
            if known is not None:
                stack.callback(known.close)
                if known.is_ready and known.rivals == list(rivals):
                    return known.hold(message, holds)
            stack.enter_context(holds.whole())
            made = self._new_contest(baseline, rivals)
            stack.callback(made.close)
            made.ready(self._judges.one(), holds)
            return made.hold(message, holds)

    def ready_contest(self, baseline: Baseline, rivals: Sequence[RivalName], holds: Holds | None = None) -> None:
        """Compiles the variants of a later `contest` in a process of its own, with a judge beside the lanes."""
        made = self._new_contest(baseline, rivals)
        made.ready(self._judges.apart(), holds or Holds())
        self._contest = made

    def _new_contest(self, baseline: Baseline, rivals: Sequence[RivalName]) -> PreparedContest:
        """An unprepared baseline comparison, with the requests' common fields filled in."""
        message: Message = {**self._limits, "stage": "screen", "errors": self._own_errors, "series": "contest"}
        message |= {"told_by": baseline.told_by, "eager_ms": baseline.eager_ms, "tf32": self._tf32}
        return PreparedContest(self._runners, message, rivals, self._scratch / "inductor", self._times.contest_s)

    def verify(self, text: str, build: Build, stage: Stage, baseline: Baseline, holds: Holds | None = None) -> Verdict:
        """Judges the correctness of one candidate in a fresh process of its own. A crash is a verdict.

        Notes the operators that ran, and the seconds of each phase.
        """
        message: Message = {"do": "verify", "stage": stage, "text": text, "eager_ms": baseline.eager_ms}
        message["told_by"] = baseline.told_by
        holds = holds or Holds()
        with self._judges.one() as judge, holds.shared():
            start = time.monotonic() - holds.waited_s
            message["load_limit_s"] = self._load_limit(text, build)
            answer, ended = self._with_candidate(judge, message, self._runners.take_awake(text), holds)
            seconds = time.monotonic() - holds.waited_s - start
        if "verdict" not in answer:
            return Verdict("crash", stage, evidence=problem_in(answer, ended), seconds=seconds)
        self._notes.operators[digest_of(text)] = answer["operators"]
        self._notes.phases[digest_of(text)] = answer["phases"]
        self._notes.seeds.update(answer["seeds"])
        verdict = decode_record(Verdict, answer["verdict"])
        gates = tuple(replace(gate, evidence=name_death(gate.evidence, ended)) for gate in verdict.gates)
        return replace(verdict, evidence=name_death(verdict.evidence, ended), gates=gates, seconds=seconds)

    def compile_ahead(self, text: str, build: Build) -> None:
        """Has a candidate for a GPU that compiles itself at import do so now, while the caller does not hold the
        device."""
        if compiles_itself(text) and not self._device.traits.uses_host_cores:
            digits = self._device.arch.removeprefix("sm_")
            self._runners.compile_ahead(text, f"{digits[:-1]}.{digits[-1]}+PTX", self._load_limit(text, build))

    def make_ready(
        self, text: str, stage: Stage, begins: Callable[[], object] = lambda: None, holds: Holds | None = None
    ) -> None:
        """On a GPU, starts the processes that a candidate's check and timing will take, and returns when they are
        ready. `begins` is called when the first is about to come."""
        starting, wanted = (holds or Holds()).starting, self._wanted(text, stage)
        self._runners.pool.want(text, wanted, self._waiting, starting=starting, begins=begins)

    def stock(self, holds: Holds | None = None) -> bool:
        """Makes some processes ready for a later proof of any candidate; True if there were any to make."""
        starting, wanted = (holds or Holds()).starting, self._wanted(_ANY_CANDIDATE, "final")
        return self._runners.pool.stock(_ANY_CANDIDATE, wanted, self._waiting, starting=starting)

    def _wanted(self, text: str, stage: Stage) -> dict[str, int]:
        """The number of processes by kind that one candidate takes: for its check, each timed group, and in a proof the
        audit.

        A file that does not compile itself gets one more, for the baseline comparison.
        """
        groups, kind = effort_of(stage, self._device.traits).min_groups, pool_key(text)
        besides = 0 if stage == "screen" else AUDITED + (CONTESTED if kind == CANDIDATE else 0)
        return {REFERENCE: groups, kind: 1 + groups + besides}

    @property
    def _waiting(self) -> int:
        """The most processes that may wait with a context: each takes memory of the host too."""
        return min(self._plan.waiting, machine_memory_bytes() // HOST_BYTES)

    def dismiss(self, text: str) -> None:
        """Ends the processes that were made ready for a candidate that is not timed."""
        self._runners.pool.forget(text)

    def time(
        self,
        text: str,
        build: Build,
        stage: Stage,
        baseline: Baseline,
        incumbent_ms: float | None = None,
        holds: Holds | None = None,
        beside: tuple[str, Build] | None = None,
    ) -> Timing:
        """Times a candidate in turns with the reference, or with another candidate `beside` it (text and build).

        Takes groups of pairs, each in a fresh pair of processes, until the interval is narrow enough or a group fails.
        Another set of operators than in the check is an objection too.
        """
        message: Message = {"stage": stage, "text": text, "eager_ms": baseline.eager_ms, "told_by": baseline.told_by}
        message |= {**self._limits, "errors": self._own_errors, "load_limit_s": self._load_limit(text, build)}
        message["series"] = secrets.token_hex(8)
        if beside is not None:
            message |= {"beside": beside[0], "load_limit_s": max(message["load_limit_s"], self._load_limit(*beside))}
        holds = holds or Holds()
        ahead = self._plan.pairs if stage == "screen" else 1  # beside a group of a proof no other process has its file
        with self._judges.one() as judge, contextlib.ExitStack() as stack:
            stack.callback(self._runners.pool.forget, text)
            asked = stage, self._device.traits, self._screens, incumbent_ms, baseline.eager_ms
            groups = Groups(*asked, waited=lambda: holds.waited_s)
            stack.enter_context(holds.whole())
            paired = stack.enter_context(PairedRun(judge, self._runners, holds, message, self._times.judge_s).open())
            while not groups.is_enough():
                answer, ended = paired.run(groups.count, groups.orders(ahead))
                if "pairs" not in answer:
                    outcome = OUTCOMES.get(str(answer.get("failed", ["crash"])[0]), "crash")
                    problem, gate = problem_in(answer, "died" if beside else ended), str(answer.get("gate", ""))
                    return replace(no_timing(stage, problem, groups.seconds, outcome=outcome), gate=gate)
                before = self._notes.operators.get(digest_of(text))
                if before is not None and (late := later_work(before, answer["operators"], answer["moved_bytes"])):
                    return replace(no_timing(stage, late, groups.seconds, outcome="cheating"), gate="provenance")
                groups.add(answer)
        return groups.timing()

    def ablate(
        self, text: str, build: Build, baseline: Baseline, policy: Policy, holds: Holds | None = None
    ) -> tuple[list[Gate], Message]:
        """Runs the audit's own experiments on a candidate, in up to three fresh processes: gates, and what a process
        was seen to do."""
        message: Message = {"do": "ablate", "text": text, "policy": policy, "eager_ms": baseline.eager_ms}
        message |= {"is_quick": not compiles_itself(text), "load_limit_s": self._load_limit(text, build)}
        candidates, holds = list[Worker](), holds or Holds()
        threads = OTHER_THREADS if self._device.traits.uses_host_cores else ()

        def tick() -> None:
            """Ends each candidate's process that broke a limit."""
            for candidate in candidates:
                if candidate.excess():
                    candidate.end()

        message["public"], drawn = self._public.take()
        try:
            with self._judges.one() as judge, holds.shared():
                candidates += [self._runners.take(text) for _ in range(1 if policy == "open" else 3)]
                with self._runners.links(candidates, threads=threads) as handles:
                    asked, limit_s = {**self._limits, **message}, self._times.judge_s
                    given = [*handles, *drawn]
                    answer, _ = judge.request(asked, given, timeout_s=limit_s, tick=tick, pause=holds.pause)
        except (WorkerDied, ChannelClosed) as died:
            return [Gate(AUDIT_RUNS, False, f"the audit could not run the candidate: {died}")], {}
        finally:
            for candidate in candidates:
                self._runners.discard(candidate)
        raise_error(answer)
        if "failed" in answer:
            return [Gate(AUDIT_RUNS, False, f"the audit could not run the candidate: {answer['failed'][1]}")], {}
        return [decode_record(Gate, gate) for gate in answer["gates"]], answer["seen"]

    def profile(
        self,
        text: str,
        build: Build,
        baseline: Baseline,
        seconds: float,
        watch: Watch | None = None,
        holds: Holds | None = None,
    ) -> tuple[Message, str]:
        """Calls a candidate's forward for `seconds` in a fresh process; returns the profiler's answer and "", or {} and
        a problem.

        Loads the file first, unwatched; then `watch`, given the process's id, observes it from outside with the device
        held alone.
        """
        message: Message = {"do": "profile", "text": text, "eager_ms": baseline.eager_ms, "told_by": baseline.told_by}
        message |= {"load_limit_s": self._load_limit(text, build), "stage": "screen", "errors": self._own_errors}
        message["series"], holds = "", holds or Holds()
        candidate, answer = self._runners.fresh(text), Message()
        try:
            with self._judges.one() as judge, holds.whole():
                for lasting, watched in ((0.0, None), (seconds, watch)):
                    around = watched(candidate.pid) if watched else contextlib.nullcontext()
                    held = holds.alone() if lasting else holds.shared()
                    with held, self._runners.links([candidate]) as handles, around:
                        asked = {**self._limits, **message, "seconds": lasting}
                        answer, _ = judge.request(asked, handles, timeout_s=self._times.judge_s)
                    raise_error(answer)
                    if "failed" in answer:
                        return {}, str(answer["failed"][1])
        except (WorkerDied, ChannelClosed) as died:
            return {}, f"the process ended: {died}"
        finally:
            self._runners.discard(candidate)
        return answer, ""

    # ------------------------------------------------------------ processes

    def _fork(
        self,
        entry: str,
        limits: Limits,
        directory: Path,
        sandbox: Sandbox,
        environment: dict[str, str] | None = None,
        folder_locks: Sequence[int] = (),
        *,
        early: bool = False,
    ) -> Worker:
        """Starts a worker from the warm process; `close` ends it too. Raises FoundryError if the grader is closed, even
        in the middle of a request."""
        if self._closed:
            raise FoundryError("the grader is closed", "resume the run")
        worker = self._zygote.fork(
            entry,
            limits,
            directory=directory,
            environment=environment,
            sandbox=sandbox,
            folder_locks=folder_locks,
            early=early,
        )
        self._forked.add(worker)
        return worker

    def _about_task(self, question: Callable[[Any, TaskPlace], A], limit_s: float, *, early: bool = False) -> A:
        """The answer of a fresh confined process to a question about the task. Raises TaskError."""
        worker = self._start_intake(limit_s, early=early)
        self._zygote.go_on()
        try:
            device = self._device.traits.torch_device if self._device.present else "cpu"
            where = TaskPlace(codec.encode(self._task), thread_count(self._device), device, gpu_limit_bytes())
            asked: Callable[Concatenate[Any, ...], A] = question
            return ask_intake(worker, asking(asked, where=where), limit_s, self._times)
        finally:
            worker.end()

    def _start_intake(self, wall_s: float, *, early: bool = False) -> Worker:
        """Starts a confined process that can run the task's own code, for at most `wall_s` seconds."""
        limits = self._task_limits(wall_s)
        return self._fork("foundry.tools.task.intake:serve", limits, self._scratch, TASK, early=early)

    def _task_limits(self, wall_s: float) -> Limits:
        """Limits of a process that runs a task: `wall_s`, the task's memory, 10 hours of CPU time, files of 1 TiB."""
        return Limits(wall_s=wall_s, memory_bytes=task_memory_bytes(), cpu_s=36_000, file_bytes=1 << 40)

    def _start_judge(self) -> Worker:
        """Starts a judge process, which does not know its task yet."""
        limits = self._task_limits(self._times.judge_s)
        return self._fork("foundry.tools.grade.judge.serve:serve", limits, self._scratch, TASK, early=True)

    def _open_judge(self, judge: Worker) -> None:
        """Sends a judge its task, device, memory plan, seed and threads. Raises TaskError if it cannot load the
        task."""
        message: Message = {"do": "open", "task": codec.encode(self._task), "device": codec.encode(self._device)}
        message["plan"] = asdict(self._plan)
        ask_about_task(judge, {**message, "seed": self._seed, "threads": thread_count(self._device)}, task_seconds())

    def _load_limit(self, text: str, build: Build) -> float:
        """Seconds that importing a file may take; more for a file that compiles itself at import."""
        if self._load_limit_s is not None:
            return self._load_limit_s
        return load_seconds(text, build)

    def _with_candidate(self, judge: Worker, message: Message, candidate: Worker, holds: Holds) -> tuple[Message, str]:
        """Asks the judge about a candidate; returns its answer and how the candidate's process ended.

        A candidate that breaks a limit is killed, and the judge answers then, because its link closes.
        """
        broken: list[str] = []
        answer: Message = {}

        def tick() -> None:
            """Ends the candidate's process and notes the reason if it broke a limit."""
            if reason := candidate.excess():
                broken.append(reason)
                candidate.end()

        try:
            with self._runners.links([candidate]) as handles:
                asked = {**self._limits, **message}
                answer, _ = judge.request(asked, handles, timeout_s=self._times.judge_s, tick=tick, pause=holds.pause)
        except WorkerDied as died:
            answer = {"failed": ["crash", f"the judge {died}"]}
        except ChannelClosed:  # it was gone before it could be linked
            answer = {"failed": ["crash", "the process died"]}
        finally:
            ended = self._runners.release(candidate, is_well=False)
        raise_error(answer)
        return answer, broken[0] if broken else ended


def thread_count(device: Device) -> int:
    """Threads of PyTorch in every process: the device's cores, or at most 8 beside a GPU."""
    return device.cores if device.traits.uses_host_cores else min(8, len(os.sched_getaffinity(0)))
