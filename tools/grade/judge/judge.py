"""Judge process of one task: makes the inputs, knows the truth, orders the calls and decides. Imports torch.

It runs the task's code, which the user wrote, but never a candidate's. One judge serves one task; every request of the
main process brings the links to the runners it needs. Answers are plain JSON.
"""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import statistics
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from foundry.knowledge import codec
from foundry.knowledge.candidate import Baseline, Gate, Stage
from foundry.knowledge.device import Device
from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import ProductRun
from foundry.knowledge.task import AccuracyClass, Task
from foundry.tools.grade.judge import paired_timing
from foundry.tools.grade.judge.contest import Entered, enter, join, take_turns
from foundry.tools.grade.judge.correctness import SLOTS, Examination, release_each
from foundry.tools.grade.judge.foreign import answer_by
from foundry.tools.grade.judge.freedom import wrong_when_timed
from foundry.tools.grade.judge.limits import unrounded_means
from foundry.tools.grade.judge.link import Breaks, RunnerFailed, RunnerLink
from foundry.tools.grade.judge.paired_timing import ColdCache, PreparedGroup, TimedInputs, check_scheduling
from foundry.tools.grade.judge.repeated_calls import check_computes_again
from foundry.tools.grade.judge.telling import Telling, find_telling
from foundry.tools.grade.messages.runner import FileToLoad, RunnerCommands
from foundry.tools.grade.questions.affordable import QuestionBudget
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.integers.decisions import Decisions
from foundry.tools.grade.questions.lean import CaseRoom, Learned, return_freed_memory
from foundry.tools.grade.questions.task_cases import cases_of, imports_of
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.process.channel import Message
from foundry.tools.process.messages import Packing, asking
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.process.turns import scheduling_of
from foundry.tools.protocol.foreign import SEED as FOREIGN_SEED
from foundry.tools.protocol.orders import DECISION, NOT_ASKED, ONE_SIDED
from foundry.tools.protocol.rules import (
    AS_GIVEN,
    Distribution,
    OutputError,
    Seeds,
    distribution_named,
    distributions,
    is_ieee,
)
from foundry.tools.protocol.statistics import effort_of, relative_spread
from foundry.tools.task import bundle
from foundry.tools.task.gpu_plan import GpuPlan

RUN_LIMIT_S = 4.0  # seconds; least limit of one forward
RUN_LIMIT_FACTOR = 30.0  # limit of one forward in multiples of the baseline's time
BASELINE, CONTEST = -1, -2  # groups beside those of a candidate: the reference's first timing, the comparison
PROFILED_CALLS = 3  # fewest calls of a profile
_WITHOUT_GPU_KERNELS = Gate(
    "unwritten shared memory",
    True,
    "not checked: the driver refuses the grader's own kernels. Short work on other streams may also escape the clock",
)


class Judge:
    """The grader of one task. A search verifies and times candidates on its first case."""

    def __init__(self, message: Message, breaks: Breaks) -> None:
        """Reads task, device, memory plan and seed from the message "open". Draws and computes nothing yet."""
        self.breaks = breaks
        self._task = codec.decode(Task, message["task"])
        self._device = codec.decode(Device, message["device"])
        self._worst: AccuracyClass = self._task.options.accuracy or "tf32"
        wanted = self._device.traits.torch_device
        self._place = wanted if torch_device_of(wanted).is_available() else "cpu"
        self._on_host = torch_device_of(self._place).is_host
        self._screen_case: Case | None = None
        self._plan, self._seeds = GpuPlan(**message["plan"]), Seeds(int(message["seed"]))
        bundle.may_keep(self._plan.idle)
        self._room = CaseRoom(self._plan.is_lean, self._plan.widens, self._plan.resident)
        if self._room.is_lean:
            return_freed_memory()
        self._learned: Learned | None = None  # findings of the screen's case, which a lean judge frees between its uses
        self._screen_trials: list[Trial] = []
        self._telling_trial: Trial | None = None  # asked besides, where inputs as given do not tell
        self._outlines: dict[str, Trial] = {}  # trials "as given" and the telling one, without tensors
        self._screen_inputs: TimedInputs | None = None
        self._series: tuple[str, Case, TimedInputs] | None = None  # what the candidate in hand is timed on
        self._groups: dict[int, PreparedGroup] = {}  # ready to be timed, by number
        self._entered: Entered  # the prepared sides of the comparison
        self._telling: Telling | None = None  # which question tells right from wrong, once known
        self._product_runs: tuple[ProductRun, ...] | None = None  # the reference's products, once asked
        self._skipped: dict[str, Gate] = {}
        self._decisions: Decisions | None = None  # the reference's, over all cases that a candidate was asked
        self._usual = scheduling_of(os.getpid())
        self._cache = ColdCache(self._device.cache_bytes, on_cpu=self._on_host)

    # ------------------------------------------------------------ requests

    def prepare(self, message: Message, handles: list[int]) -> Message:
        """Computes in advance what `baseline` needs, so that the device has to be quiet only while it times."""
        self._prepare_screen()
        self._products()
        return {}

    def ready_baseline(self, message: Message, handles: list[int]) -> Message:
        """Prepares the reference's process for `baseline`."""
        self.prepare(message, handles)
        group = self._groups[BASELINE] = PreparedGroup(self._case(), self._prepare_screen()[1])
        group.links["reference"] = self._link(handles[0], 15 * self._run_limit(message), side="reference")
        self._make_ready(group.reference, group, "screen", self._reference())
        return {}

    def baseline(self, message: Message, handles: list[int]) -> Message:
        """Times the reference. Returns its `Baseline`, its errors, the seeds drawn, and seconds on the device.

        The baseline says too if the task is degenerate, so that no kernel for it can be proven.
        """
        telling, timed = self._prepare_screen()
        trial, group = self._outline(telling.told_by), self._groups.pop(BASELINE)
        try:
            before = group.reference.device_s
            samples = paired_timing.time_alone(group.reference, timed, self._cache)
            device_s = group.reference.device_s - before
        finally:
            group.close_all()
        every = zip(trial.of_baseline, trial.ieee, trial.specs, strict=True)
        floats = [one for one in every if one[2].dtype == "float32"]
        baseline = Baseline(
            eager_ms=statistics.median(samples),
            noise=relative_spread(samples),
            output_shapes=[spec.shape for spec in trial.specs],
            degenerate=telling.degenerate,
            coincidence=telling.coincidence,
            told_by=telling.told_by,
            is_ieee=bool(floats) and all(is_ieee(*one) for one in floats),
            unrounded=unrounded_means(trial),
            products=self._products(),
        )
        errors = [[error.norm, error.violation] for error in trial.of_baseline]
        plain = codec.to_plain(baseline)
        return {"baseline": plain, "errors": errors, "seeds": self._seeds.drawn, "device_s": device_s}

    def verify(self, message: Message, handles: list[int]) -> Message:
        """Judges the candidate behind the link. Returns its verdict, operators, seconds by phase, and seeds drawn."""
        stage: Stage = message["stage"]
        link = self._link(handles[0], self._run_limit(message), float(message["load_limit_s"]))
        examination = Examination(link, stage, self._worst, slots=SLOTS[: self._plan.slots])
        if not self._on_host:  # whether a float64 run fits, before a candidate is there that could take the memory
            self._outline("")
        load = FileToLoad(self._place, text=message["text"])
        try:
            if stage == "screen":
                verdict = examination.run(load, [self._case()], lambda case: self._screen(message["told_by"]))
            else:
                if not self._room.widens:
                    words = f"{NOT_ASKED} memory: PyTorch's own run is the truth"
                    self._skipped["float64"] = Gate("float64", True, words)
                self._decisions = None
                self._budget = QuestionBudget(float(message["eager_ms"]), self._task.options.policy)
                verdict = examination.run(load, self._fresh_cases(stage), lambda case: self._trials(case, stage))
        finally:
            link.close()
        if verdict.correct:
            lacking = [_WITHOUT_GPU_KERNELS] if link.gpu_kernels_refused else []
            gates = (*verdict.gates, *self._skipped.values(), *lacking)
            verdict = replace(verdict, gates=gates if stage == "screen" else (*gates, *self._one_sided()))
        return {
            "verdict": codec.to_plain(verdict),
            "operators": examination.operators,
            "phases": link.seconds,
            "seeds": self._seeds.drawn if stage != "screen" else {},
        }

    def _one_sided(self) -> Iterator[Gate]:
        """Yields a gate for each line of the task where Python read the same value for every question."""
        found = {} if self._decisions is None else self._decisions.one_sided(self._task.path)
        for line, answer in found.items():
            yield Gate(f"{DECISION} {line}", True, f"{ONE_SIDED} Python read {answer} there for every question")

    def ready(self, message: Message, handles: list[int]) -> Message:
        """Prepares sides of groups for timed calls, in the order given: the first of a group gets other memory.

        `beside` is the text of another candidate that takes the reference's place. Returns {}, or the failure and its
        group.
        """
        case, timed = self._timed_inputs_of(message)
        texts = {"candidate": message["text"], "reference": message.get("beside", "")}
        if texts["reference"]:
            timed = replace(timed)  # which changes of content the reference accepts, no candidate says
        for (number, side), handle in zip(message["sides"], handles, strict=True):
            group = self._groups.setdefault(number, PreparedGroup(case, timed))
            group.close(side)  # of a process that died
            text, how = texts[side], dict[str, Any](side=side)
            if text:
                how = {"side": "candidate", "load_limit_s": float(message["load_limit_s"])}
            link = group.links[side] = self._link(handle, self._run_limit(message), **how)
            try:
                what = FileToLoad(self._place, text=text) if text else self._reference()
                self._make_ready(link, group, f"{message['stage']}-{case.seed}", what)
            except RunnerFailed as failed:
                return {**failed.answer(), "group": number}
        return {}

    def alone(self, message: Message, handles: list[int]) -> Message:
        """Times a group's reference before there is a candidate, or at the end. Returns ms a call and device seconds.

        `ends` closes the reference's process afterwards.
        """
        group = self._groups[message["group"]]
        reference, before = group.reference, group.reference.device_s
        group.alone = paired_timing.time_undisturbed(reference, group.timed, self._cache)
        if message["ends"]:
            group.close("reference")
        return {"alone_ms": statistics.median(group.alone), "device_s": reference.device_s - before}

    def time(self, message: Message, handles: list[int]) -> Message:
        """Times reference and candidate of a prepared group in turns. Returns the pairs and facts about them."""
        stage: Stage = message["stage"]
        group = self._groups[message["group"]]
        before = group.reference.device_s + group.candidate.device_s
        if group.alone:  # so that both have run as often
            paired_timing.time_undisturbed(group.candidate, group.timed, self._cache)
        effort = effort_of(stage, self._device.traits, float(message["eager_ms"]))
        asked = group.reference, group.candidate, group.timed, self._cache, effort
        how = {"seed": secrets.randbits(31), "alone": group.alone, "check": message.get("check", "none")}
        samples = paired_timing.time_pairs(*asked, **how)
        if message.get("record") and stage != "screen":
            check_computes_again(group.candidate, group.timed, self._cache, samples)
        return {
            "pairs": samples.pairs,
            "wall_ratio": samples.wall_ratio,
            "slowed": samples.slowed,
            "reference_ms": samples.reference_ms,
            "out_of_turn": samples.out_of_turn,
            "checked": samples.checked,
            "moved_bytes": group.timed.moved_bytes,
            "phases": group.candidate.seconds,
            "seconds": samples.seconds,
            "device_s": group.reference.device_s + group.candidate.device_s - before,
        }

    def conclude(self, message: Message, handles: list[int]) -> Message:
        """Checks state and scheduling of a timed candidate and closes its link; closes the reference unless it `stays`.

        Returns {"operators": those of one more call if the message says `record`, else []}.
        """
        group = self._groups[message["group"]]
        try:
            group.candidate.check_state()
            check_scheduling(self._usual, group.reference, group.candidate)
            late = group.candidate.operators(0) if message.get("record") else []
        finally:
            group.close("candidate")
        if not message["stays"]:
            group.close("reference")
        return {"operators": late}

    def profile(self, message: Message, handles: list[int]) -> Message:
        """Profiles the candidate behind the link: calls it for `seconds` on the screen's inputs. Returns its report."""
        case, timed = self._timed_inputs_of(message)
        link = self._link(handles[0], self._run_limit(message), float(message["load_limit_s"]))
        try:
            self._prepare(link, timed, case, "profile", FileToLoad(self._place, text=message["text"]))
            limit_s = link.run_limit_s * PROFILED_CALLS + float(message["seconds"])
            return asdict(link.ask(asking(RunnerCommands.profile, slot=0, seconds=message["seconds"]), limit_s))
        finally:
            link.close()

    def ready_contest(self, message: Message, handles: list[int]) -> Message:
        """Links the reference's runner, gives it model and inputs, and has it compile the variants for `contest`."""
        case, timed = self._timed_inputs_of(message)
        group = self._groups[CONTEST] = PreparedGroup(case, timed)
        link = group.links["reference"] = self._link(handles[0], self._run_limit(message), side="reference")
        self._prepare(link, timed, case, "contest", self._reference())
        self._entered = enter(link, timed, message["rivals"], message["build_limits_s"], message["tf32"])
        return {}

    def join_contest(self, message: Message, handles: list[int]) -> Message:
        """Adds the kernel that won to the prepared sides."""
        group, limits = self._groups[CONTEST], (self._run_limit(message), float(message["load_limit_s"]))
        link = group.links["candidate"] = self._link(handles[0], *limits)
        self._prepare(link, group.timed, group.case, "contest", FileToLoad(self._place, text=message["text"]))
        self._entered = join(self._entered, link, group.timed)
        return {}

    def contest(self, message: Message, handles: list[int]) -> Message:
        """Times all prepared sides in turns; then judges the kernel by another benchmark's rules, if asked to."""
        group, name = self._groups.pop(CONTEST), message["foreign"]
        try:
            found = take_turns(self._entered, group.timed, self._cache)
            if name and "candidate" in group.links:
                for link, slot in itertools.product(group.links.values(), range(len(group.timed.inputs))):
                    link.forget(slot=slot, case=0)
                (fresh,) = cases_of(self._task, [FOREIGN_SEED], self._place, only_first=True, room=self._room)
                fresh.learn_from(self._learned or self._leave_screen())
                fresh.free_memory()  # its inputs alone are asked for
                sides = group.reference, group.candidate
                found |= answer_by(name, fresh, *sides, self._outline("").specs, message["tf32"], self._cache)
        finally:
            group.close_all()
        return found

    def release(self, message: Message, handles: list[int]) -> Message:
        """Closes the links of all groups, and frees the inputs and parameters that they were timed on."""
        for group in self._groups.values():
            group.close_all()
        self._groups.clear()
        if self._series is not None:
            _, case, timed = self._series
            for parcel in (*timed.inputs, *timed.sent.values()):
                parcel.close()
            case.close()
            self._series = None
        return {}

    def _timed_inputs_of(self, message: Message) -> tuple[Case, TimedInputs]:
        """(case, inputs) for timing all groups of one candidate: kept for the screen if there is room, else fresh."""
        stage, series = message["stage"], message["series"]
        errors, telling = [OutputError(*pair) for pair in message["errors"]], distribution_named(message["told_by"])
        if stage == "screen" and self._plan.keeps_trials:
            return self._case(), self._draw_timed_inputs(stage, errors, telling)
        if self._series is None or self._series[0] != series:
            self.release(message, [])
            case = self._case() if stage == "screen" else next(self._fresh_cases(stage, only_first=True))
            self._series = (series, case, self._draw_timed_inputs(stage, errors, telling, case))
            case.free_memory()
        return self._series[1:]

    def ablate(self, message: Message, handles: list[int]) -> Message:
        """Runs the candidate while it is observed, and without its native code. Returns {"gates", "seen"}."""
        from foundry.tools.grade.judge.audit_questions import PublicInputs
        from foundry.tools.grade.judge.audit_runs import PURPOSES, audit_runs

        limits, policy = (self._run_limit(message), float(message["load_limit_s"])), message["policy"]
        ready = handles[: len(handles) - len(message["public"])]
        links = {purpose: self._link(handle, *limits) for purpose, handle in zip(PURPOSES, ready, strict=False)}
        at_once = not self._on_host and self._plan.pairs > 1 and message["is_quick"]  # there is room for two pairs
        load, asked = FileToLoad(self._place, text=message["text"]), (self._case(), self._as_given())
        drawn = [(seed, codec.unpack(Packing, packed)) for seed, packed in message["public"]]
        public = PublicInputs.given(self.breaks, drawn, handles[len(ready) :], self._plan.keeps_trials)
        try:
            gates, seen = audit_runs(links, *asked, load, policy=policy, at_once=at_once, public=public)
        finally:
            for link in links.values():
                link.close()
        return {"gates": [codec.to_plain(gate) for gate in gates], "seen": seen}

    # ------------------------------------------------------------ what is asked

    def _case(self) -> Case:
        """The screen's case (its parameters from the run's seed), built when first needed."""
        if self._screen_case is None:
            seeds = [self._seeds.draw("screen", "parameters")]
            self._screen_case = next(cases_of(self._task, seeds, self._place, only_first=True, room=self._room))
            if self._learned is not None:
                self._screen_case.learn_from(self._learned)
        return self._screen_case

    def _leave_screen(self) -> Learned:
        """Returns the findings of the screen's case. A lean judge frees the case, and builds it again when needed."""
        self._learned = self._case().learned
        if self._room.is_lean and self._screen_case is not None:
            self._screen_case.close()
            self._screen_case = None
            gc.collect()
        return self._learned

    def _screen(self, besides: str = "") -> Iterator[Trial]:
        """Yields the screen's trials, then the telling one that `besides` names, if any.

        They are kept if the GPU has room for all of them, else computed each time.
        """
        if not self._plan.keeps_trials:
            yield from self._questions()
        else:
            self._screen_trials = self._screen_trials or list(self._questions())
            yield from self._screen_trials
        if besides:
            yield self._telling_trial_of(besides)

    def _questions(self) -> Iterator[Trial]:
        """Yields the screen's trials, computed one after another; those that do not suit the case are left out.

        Draws other parameters first, if the model has some.
        """
        case = self._case()
        if case.has_parameters():
            case.randomise(self._seeds.draw("screen", "randomised parameters"))
        for distribution in distributions("screen", limited=case.limited):
            trial = self._trial(case, distribution, "screen") if case.suits(distribution) else None
            if trial is not None:
                yield trial
            del trial  # before the next one is made

    def _as_given(self) -> Trial:
        """The first of the screen's trials."""
        return next(self._screen())

    def _outline(self, told_by: str) -> Trial:
        """Shapes and PyTorch's errors of the telling trial that `told_by` names; of inputs as given if it is ""."""
        if told_by not in self._outlines:
            trial = self._telling_trial_of(told_by) if told_by else self._as_given()
            self._outlines[told_by] = trial.outline()
        return self._outlines[told_by]

    def _products(self) -> tuple[ProductRun, ...]:
        """Runs of the reference's products with their use of TF32.

        () without TF32, or if the GPU has no room to keep trials.
        """
        if self._product_runs is None:
            may_ask = torch_device_of(self._place).has_tf32 and self._plan.keeps_trials
            self._product_runs = self._as_given().reruns.products() if may_ask else ()
        return self._product_runs

    def _prepare_screen(self) -> tuple[Telling, TimedInputs]:
        """(the question that tells right from wrong, inputs for timing both sides)."""
        if self._telling is None:
            self._telling = find_telling(self._case(), self._as_given(), self._seeds)
        name = self._telling.told_by
        return self._telling, self._draw_timed_inputs(
            "screen", self._outline(name).of_baseline, distribution_named(name)
        )

    def _telling_trial_of(self, name: str) -> Trial:
        """The trial of the telling question `name`, drawn once if trials are kept; a task has one such question."""
        if self._telling_trial is not None:
            return self._telling_trial
        self._outline("")  # the first trial says what there is to change
        trial = self._case().trial(distribution_named(name), self._seeds.draw("screen", f"screen: {name}"))
        if self._plan.keeps_trials:
            self._telling_trial = trial
        return trial

    def _trial(self, case: Case, distribution: Distribution, stage: Stage) -> Trial | None:
        """The trial, or None if the reference itself refuses such inputs (a loss that takes only probabilities)."""
        try:
            name = f"{distribution.name} ({case.name})" if case.name else distribution.name
            return case.trial(distribution, self._seeds.draw(stage, f"{stage}: {name}"))
        except TaskError as error:
            if distribution == AS_GIVEN:
                raise
            self._skipped[name] = Gate(name, True, f"not asked: the reference refuses such inputs: {error.problem}")
            return None

    def _fresh_cases(self, stage: Stage, *, only_first: bool = False) -> Iterator[Case]:
        """Yields cases that no candidate has met. The first is built at once, before a candidate takes memory."""
        seed = self._seeds.draw(stage, f"{stage}: parameters")
        learned = self._leave_screen()
        made = cases_of(self._task, [seed], self._place, only_first=only_first, room=self._room)
        first = next(made)

        def learning() -> Iterator[Case]:
            """Yields the cases, each with the findings of the screen's case."""
            for case in itertools.chain([first], made):
                case.learn_from(learned)
                yield case

        return learning()

    def _trials(self, case: Case, stage: Stage) -> Iterator[Trial]:
        """Yields fresh trials of a case and frees each afterwards.

        The file's own shapes get all distributions of the stage, extra shapes and dtypes those of the screen. Questions
        that the budget leaves out become gates.
        """

        def make() -> Iterator[Trial]:
            """Yields the trials that the budget and the reference allow; closes the case at the end."""
            chosen = distributions(stage if not case.name else "screen", limited=case.limited)
            for distribution in chosen:
                if not case.suits(distribution) or self._budget.leaves_out(distribution, self._skipped):
                    continue
                if distribution.parameters != "seeded":
                    seed = self._seeds.draw(stage, f"{stage}: parameters of {distribution.name} {case.name}".strip())
                    case.randomise(seed, distribution.parameters)
                trial = self._trial(case, distribution, stage)
                if trial is not None:
                    yield trial
                del trial  # before the next one is made
            self._decisions = self._decisions or case.decisions
            self._decisions.join(case.decisions)
            case.close()

        return release_each(make())

    def _draw_timed_inputs(
        self, stage: Stage, errors: list[OutputError], telling: Distribution, case: Case | None = None
    ) -> TimedInputs:
        """Input sets for timing, of the distribution `telling`; those of the screen are kept."""
        if stage == "screen" and self._screen_inputs is not None:
            return self._screen_inputs
        case, specs = case or self._case(), self._outline("").specs
        packed = [case.inputs(self._seeds.draw(stage, f"{stage}: timed inputs 0"), telling)]
        for index in range(1, min(self._plan.slots, paired_timing.slots_for(packed[0].nbytes))):
            packed.append(case.inputs(self._seeds.draw(stage, f"{stage}: timed inputs {index}"), telling))
        timed = TimedInputs(
            packed,
            specs,
            errors,
            lambda: case.inputs(secrets.randbits(31), telling),
            paired_timing.is_changeable(packed[0]),
            scalable=not case.limited,
            rotatable=not case.has_structure(),
            judge=partial(wrong_when_timed, case, self._worst),
        )
        if stage == "screen" and self._plan.keeps_trials:
            self._screen_inputs = timed
        return timed

    def _prepare(self, link: RunnerLink, timed: TimedInputs, case: Case, token: str, load: FileToLoad) -> None:
        """Gives the runner model, parameters and inputs, unless it has them from an earlier link."""
        if link.token() == token:
            for slot, parcel in enumerate(timed.inputs):
                link.restore(slot, 0, parcel)  # earlier samples changed them
        else:
            link.load(load)
            link.build(0, case)
            link.state(0, case, "seeded")
            for slot, packed in enumerate(timed.inputs):
                link.inputs(slot, 0, packed)
            link.token(token)
        link.lay_out(0, 0, case.strides)

    def _make_ready(self, link: RunnerLink, group: PreparedGroup, token: str, load: FileToLoad) -> None:
        """Prepares a side. On a GPU it makes one call of each kind, so that libraries and kernels are loaded."""
        self._prepare(link, group.timed, group.case, token, load)
        if not self._on_host:
            link.perturb([0], 1.0, 0)
            link.run([0])
            link.peek([[0] if spec.numel else [] for spec in group.timed.specs])

    def _reference(self) -> FileToLoad:
        """The order that loads the reference in a runner."""
        return FileToLoad(self._place, task=codec.encode(self._task))

    def _link(self, handle: int, run_limit_s: float, load_limit_s: float = 60.0, side: str = "candidate") -> RunnerLink:
        """A link to the runner behind an open socket, with its time limits."""
        return RunnerLink(
            os.dup(handle),
            load_limit_s=load_limit_s,
            run_limit_s=run_limit_s,
            side=side,
            imports=lambda text: imports_of(text, self._task),
            device=self._place,
            pause=self.breaks.offer,
        )

    def _run_limit(self, message: Message) -> float:
        """Seconds one forward may take: a multiple of the baseline's time, with a floor."""
        if "run_limit_s" in message:
            return float(message["run_limit_s"])
        return max(RUN_LIMIT_S, RUN_LIMIT_FACTOR * float(message.get("eager_ms", 0.0)) / 1e3)
