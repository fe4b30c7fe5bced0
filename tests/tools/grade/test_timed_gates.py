"""Times that a candidate cannot make: false clocks, work put off, other people's turns, answers from memory."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from tests.tools.grade import asking
from tests.waiting import until

from foundry.knowledge.candidate import Baseline, Build, Gate, Timing
from foundry.knowledge.opgraph import TensorSpec, contiguous_strides
from foundry.knowledge.ruling import clocks_agree
from foundry.knowledge.targets import CPU
from foundry.tools.grade.host import timed_groups
from foundry.tools.grade.host.answers import are_doubtful, ask_again
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.timed_groups import Groups
from foundry.tools.grade.judge import paired_timing
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.machine.device import describe
from foundry.tools.process.channel import Message
from foundry.tools.process.procfs import cpu_ns
from foundry.tools.process.turns import Turns, describe_rescheduling, out_of_turn, scheduling_of
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.orders import OUT_OF_TURN, PROCESSES, UNDISTURBED
from foundry.tools.protocol.rules import OutputError
from foundry.tools.protocol.statistics import ScreenHistory
from foundry.tools.task import bundle, loading
from foundry.tools.task.bundle import Parcel
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 64)

    def forward(self, INPUT):
        RESULT


def get_inputs():
    return [DRAWN]
"""
FLOATS = {"INPUT": "x", "RESULT": "return torch.softmax(x, 1) @ self.table.weight", "DRAWN": "torch.randn(256, 1000)"}
INTEGERS = {"INPUT": "x", "RESULT": "return self.table(x).sum(1)", "DRAWN": "torch.randint(0, 1000, (512, 32))"}
TURNED = {"INPUT": "x", "RESULT": "return x.t().contiguous() + 1.0", "DRAWN": "torch.randn(3000, 1500)"}
LOADED = Build(ok=True, seconds=0.0, artifact="none")


def source(parts: dict[str, str]) -> str:
    text = TASK
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


def candidate(parts: dict[str, str], forward: str, *, top: str = "", init: str = "pass") -> str:
    """The task's model with another forward; `self.right(x)` is the right result."""
    text = source(parts).replace("class Model(", "class ModelNew(").replace("def forward(", "def right(")
    text = text.replace("import torch\n", f"import gc, os, threading, time\nimport torch\n{top}\n", 1)
    body = "\n".join("        " + line for line in forward.splitlines())
    setup = f"        super().__init__()\n        {init}\n"
    text = text.replace("        super().__init__()\n", setup)
    return text.replace("\n\ndef get_inputs", f"\n    def forward(self, x):\n{body}\n\n\ndef get_inputs")


def opened(folder: Path, parts: dict[str, str], zygote: Zygote) -> tuple[Grader, Baseline]:
    (folder / "timed.py").write_text(source(parts))
    task = read_task(folder / "timed.py")
    made = Grader(task, describe("cpu"), folder, seed=5, zygote=zygote, owns_zygote=False)
    return made, made.baseline()


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Grader, Baseline]:
    return opened(tmp_path_factory.mktemp("floats"), FLOATS, zygote)


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Grader, Baseline]:
    return opened(tmp_path_factory.mktemp("integers"), INTEGERS, zygote)


def timed(opened: tuple[Grader, Baseline], forward: str, *, top: str = "", init: str = "pass") -> Timing:
    grader, baseline = opened
    parts = FLOATS if "randn" in grader._task.source else INTEGERS
    return asking.time(grader, candidate(parts, forward, top=top, init=init), LOADED, "screen", baseline)


def test_an_honest_candidate_is_timed_by_both_clocks_alike(floats: tuple[Grader, Baseline]) -> None:
    timing = timed(floats, "return self.right(x)")
    assert timing.problem == "" and len(timing.ratios) >= 2 and 0.5 < timing.wall_ratio < 2.0
    assert timing.speedup_ci95[0] < timing.speedup < timing.speedup_ci95[1]


def test_a_transposition_that_is_left_to_the_reader_is_timed_with_the_reading(tmp_path: Path, zygote: Zygote) -> None:
    """A result that lies otherwise than PyTorch's is put into its strides within each timed call.

    Without that the first is 4.8 times as fast as the second; with it they take the same time, give or take
    what a busy machine does to a screen (a ratio of 1.37 has been seen).
    """
    grader, baseline = opened(tmp_path, TURNED, zygote)
    calls = [candidate(TURNED, f"return {what}") for what in ("(x + 1.0).t()", "torch.add(x, 1.0).t().contiguous()")]
    left, done = [asking.time(grader, text, LOADED, "screen", baseline) for text in calls]
    assert left.problem == done.problem == "" and left.speedup < 2.2 * done.speedup


def test_a_false_clock_gains_nothing(floats: tuple[Grader, Baseline]) -> None:
    top = """
def slow_down_the_clock():
    for found in gc.get_objects():
        if type(found).__name__ == "Runner":
            real = found._clock
            found._clock = lambda: real() // 20
"""
    slow = "for _ in range(4): self.right(x)\nreturn self.right(x)"
    timing = timed(floats, slow, top=top, init="slow_down_the_clock()")
    if timing.problem == "":  # what it changed may also have been seen
        assert timing.speedup < 0.6 and not clocks_agree(timing)
    assert timing.problem == "" or timing.outcome in ("cheating", "not_allowed")


DEFERRED = """
out = torch.zeros(x.shape[0], 64)
def work():
    time.sleep(0.0005)
    out.copy_(self.right(x))
threading.Thread(target=work).start()
return out
"""
BURNING = """
def burn(model):
    start, big = time.thread_time(), torch.randn(300, 300)
    while time.thread_time() - start < 0.003: big @ big
"""


def test_work_put_off_until_after_the_answer_is_caught(floats: tuple[Grader, Baseline]) -> None:
    timing = timed(floats, DEFERRED.strip())
    assert timing.outcome in ("wrong_result", "cheating") and timing.problem and timing.speedup == 0.0


def test_a_thread_that_computes_while_the_reference_runs_is_caught(floats: tuple[Grader, Baseline]) -> None:
    forward = "r = self.right(x)\nthreading.Thread(target=burn, args=(self,)).start()\nreturn r"
    timing = timed(floats, forward, top=BURNING)
    assert timing.outcome == "cheating" or timing.speedup < 0.8, timing  # its own interpreter may have to wait for it


@pytest.mark.parametrize("key", ["x.data_ptr()", "tuple(x.flatten()[::997].tolist())", "(round(float(x.mean()), 3))"])
def test_answers_from_memory_are_caught(floats: tuple[Grader, Baseline], key: str) -> None:
    forward = f"key = {key}\nif key not in MEMORY: MEMORY[key] = self.right(x)\nreturn MEMORY[key].clone()"
    timing = timed(floats, forward, top="MEMORY = {}")
    is_caught = timing.outcome in ("cheating", "wrong_result") and "of timed call" in timing.problem
    assert is_caught or timing.speedup_ci95[0] < 1.0  # or it never found its key again


def test_a_memory_that_reads_all_of_the_input_never_hits(integers: tuple[Grader, Baseline]) -> None:
    forward = """
key = bytes(x.numpy())
if key not in MEMORY:
    for _ in range(20): self.right(x)  # so much work that no busy machine hides who left it out
    MEMORY[key] = self.right(x)
return MEMORY[key].clone()
"""
    timing = timed(integers, forward.strip(), top="MEMORY = {}")
    assert timing.problem == "" and timing.speedup < 0.5


KEPT = """for given, kept in MEMORY:
    if torch.equal(given, x):
        return kept.clone()
for _ in range(20):  # so much work that no busy machine hides who left it out
    result = self.right(x)
MEMORY.append((x.clone(), result.clone()))
return result"""


def test_results_kept_and_given_out_again_are_caught_though_always_right(floats: tuple[Grader, Baseline]) -> None:
    grader, baseline = floats
    cached = asking.time(grader, candidate(FLOATS, KEPT, top="MEMORY = []"), LOADED, "full", baseline)
    assert (cached.outcome, cached.gate) == ("cheating", "computed anew") and "kept" in cached.problem
    honest = asking.time(grader, candidate(FLOATS, "return self.right(x)"), LOADED, "screen", baseline)
    assert honest.problem == "" and honest.speedup > 0


def test_a_wrong_answer_in_some_timed_calls_is_caught(floats: tuple[Grader, Baseline]) -> None:
    forward = "self.calls += 1\nreturn self.right(x) if self.calls < 6 else torch.zeros(x.shape[0], 64)"
    timing = timed(floats, forward, init="self.calls = 0")
    assert (timing.outcome, timing.gate) == ("wrong_result", "timed outputs") and "of timed call" in timing.problem


QUIET, BUSY, BUSIER = (0.05, 0.06, 0.05, 0.07), (0.05, 0.06, 0.9, 1.2), (0.7, 0.8, 0.9, 1.1)


@pytest.mark.parametrize(
    ("ours_ms", "theirs_ms", "own_ms", "ratio"),
    [
        (QUIET, QUIET, 1.0, (0.95, 1.05)),
        (BUSY, BUSIER, 1.0, (0.95, 1.05)),
        (QUIET, QUIET, 0.2, (4.5, 5.5)),
        (BUSY, BUSIER, 0.1, (4.0, 20.0)),
    ],
)
def test_clocks_disagree_when_the_references_messages_do_not_explain_it(
    ours_ms: tuple[float, ...], theirs_ms: tuple[float, ...], own_ms: float, ratio: tuple[float, float]
) -> None:
    """On a busy machine an honest kernel's messages wait as some of the reference's do; a false clock shows in all."""
    walls = [(1.0 + ours, 1.0 + theirs) for ours, theirs in zip(3 * ours_ms, 3 * theirs_ms, strict=True)]
    assert ratio[0] <= paired_timing.PairSamples([(1.0, own_ms)] * 12, walls).wall_ratio <= ratio[1]


def an_answer(stream: int, **changed: object) -> dict[str, object]:
    pairs = [[1.0 + 0.01 * ((stream + number) % 3), 1.0] for number in range(4)]
    return {"pairs": pairs, "wall_ratio": 1.0, "out_of_turn": "", "slowed": 1.0, "reference_ms": 1.0, **changed}


def test_a_reference_that_only_the_candidate_slows_is_an_objection() -> None:
    honest, slowing = Groups("full", CPU, ScreenHistory()), Groups("full", CPU, ScreenHistory())
    for number in range(8):
        busy = {"slowed": 2.0, "alone_ms": 1.0} if number % 2 else {}  # the machine was slow for a while, twice
        honest.add(an_answer(number, **busy))
        slowing.add(an_answer(number, slowed=1.5 + 0.01 * number, alone_ms=0.5))
    assert honest.timing().problem == ""
    timing = slowing.timing()
    assert (timing.outcome, timing.gate, timing.speedup) == ("not_judged", UNDISTURBED, 0.0)
    assert "1.53 times" in timing.problem


def test_work_out_of_turn_must_show_in_most_groups() -> None:
    seldom, often = Groups("full", CPU, ScreenHistory()), Groups("full", CPU, ScreenHistory())
    for number in range(6):
        seldom.add(an_answer(number, out_of_turn="used 2 ms" if number == 3 else ""))
        often.add(an_answer(number, out_of_turn="used 2 ms" if number else ""))
    assert seldom.timing().problem == ""
    assert (often.timing().gate, often.timing().problem) == (OUT_OF_TURN, "used 2 ms")


def test_a_screen_convicts_nobody_by_two_groups() -> None:
    """One noisy group, of a screen that had given up on a slow kernel, called an honest softmax a cheat."""
    slow, busy, hiding = (
        Groups("screen", CPU, ScreenHistory(), 0.5),
        *(Groups("screen", CPU, ScreenHistory()) for _ in range(2)),
    )
    slow.add(an_answer(0, out_of_turn="used 2 ms"))
    assert slow.is_enough() and slow.timing().problem == ""
    for number in range(6):
        for groups, works in ((busy, number < 2), (hiding, number != 3)):
            if not groups.is_enough():
                groups.add(an_answer(number, out_of_turn="used 2 ms" if works else ""))
    assert busy.count == 3 and busy.timing().problem == "" and busy.timing().speedup > 0
    assert hiding.count == 6 and hiding.timing().gate == OUT_OF_TURN


def test_two_speeds_are_remarked() -> None:
    groups = Groups("full", CPU, ScreenHistory())
    for number in range(6):
        answer = an_answer(number)
        answer["pairs"] = [[1.0, 1.0 if place % 2 else 0.1] for place in range(6)]
        groups.add(answer)
    assert "two speeds" in groups.timing().remarks[0]


def test_a_screen_gives_up_on_what_is_clearly_slower() -> None:
    for incumbent_ms, enough in ((0.5, True), (0.9, False), (None, False)):
        groups = Groups("screen", CPU, ScreenHistory(), incumbent_ms)
        groups.add(an_answer(0))
        assert groups.is_enough() is enough
    assert timed_groups.GIVE_UP_FACTOR * 0.9 > 1.0


@pytest.fixture
def resting() -> Iterator[int]:
    """A process that does nothing."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def test_cpu_time_is_split_into_turns_and_what_lies_between(resting: int) -> None:
    mine, idle = Turns(os.getpid()), Turns(resting)
    for _ in range(6):
        for turns in (mine, idle):
            turns.begin()
            turns.end(timed=True)
        end = time.process_time() + 0.003
        while time.process_time() < end:
            pass
    usual = mine.usual()
    assert usual is not None and usual.idle_ms >= 2.5
    assert "between its turns" in out_of_turn(idle, mine) and out_of_turn(mine, mine) == ""
    assert cpu_ns(1 << 22) is None and Turns(1 << 22).usual() is None


def test_work_done_while_inputs_are_given_is_out_of_turn() -> None:
    honest, ahead = Turns(os.getpid()), Turns(os.getpid())
    for turns, works in ((honest, False), (ahead, True)):
        for _ in range(6):
            turns.begin()
            end = time.process_time() + (0.003 if works else 0.0)
            while time.process_time() < end:
                pass
            turns.end(timed=False)
            turns.begin()
            turns.end(timed=True)
    assert "was given inputs" in out_of_turn(honest, ahead) and out_of_turn(ahead, honest) == ""


def test_a_changed_place_in_the_queue_is_seen() -> None:
    usual = scheduling_of(os.getpid())
    assert usual is not None and describe_rescheduling(os.getpid(), usual, is_reference=True) == ""
    child = os.fork()
    if child == 0:
        os.nice(5)
        time.sleep(1000)
        os._exit(0)
    try:
        until(lambda: scheduling_of(child) != usual, "another place in the queue")
        assert f"nice {usual.nice + 5}" in describe_rescheduling(child, usual, is_reference=True)
        assert describe_rescheduling(child, usual, is_reference=False) == ""  # a candidate may stand back
        slower = scheduling_of(child)
        assert slower is not None and "its process runs" in describe_rescheduling(
            os.getpid(), slower, is_reference=False
        )
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_inputs_keep_to_the_range_that_the_task_declares(tmp_path: Path, zygote: Zygote) -> None:
    parts = {**FLOATS, "RESULT": "assert 1 <= x.min() and x.max() <= 2\n        return x @ self.table.weight"}
    parts["DRAWN"] = "torch.rand(256, 1000) + 1"
    (tmp_path / "timed.toml").write_text("input_range = [1.0, 2.0]\n")
    grader, baseline = opened(tmp_path, parts, zygote)
    honest = asking.time(grader, candidate(parts, "return self.right(x)"), LOADED, "screen", baseline)
    assert honest.problem == ""
    forward = "key = x.data_ptr()\nif key not in MEMORY: MEMORY[key] = self.right(x)\nreturn MEMORY[key].clone()"
    caught = asking.time(grader, candidate(parts, forward, top="MEMORY = {}"), LOADED, "screen", baseline)
    assert "of timed call" in caught.problem


class Link:
    """A reference that refuses some changes of its inputs."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.change = refused, (1.0, 0)

    def perturb(self, slots: list[int], factor: float, shift: int) -> None:
        self.change = (factor, shift)

    def run(self, slots: list[int]) -> None:
        factor, shift = self.change
        if ("scaled" in self.refused and factor != 1.0) or ("rotated" in self.refused and shift):
            raise RunnerFailed("crash", "no such input")

    def restore(self, slot: int, number: int, parcel: Parcel) -> None:
        self.change = (1.0, 0)


@pytest.mark.parametrize(
    ("refused", "scalable", "left"),
    [
        ((), True, (True, True)),
        (("rotated",), True, (True, False)),
        ((), False, (False, True)),
        (("scaled",), True, (False, True)),
        (("scaled", "rotated"), True, (False, False)),
        (("rotated",), False, (False, False)),
    ],
)
def test_the_strongest_change_that_the_reference_takes(
    refused: tuple[str, ...], scalable: bool, left: tuple[bool, bool]
) -> None:
    inputs = bundle.pack([])
    question = paired_timing.TimedInputs([inputs], [], [], lambda: inputs, scalable=scalable)
    found = paired_timing.find_changes(cast(RunnerLink, Link(*refused)), question, random.Random(1))
    assert (found.scaled, found.rotated) == left


class Side:
    """A process whose last call gave these outputs."""

    def __init__(self, output: torch.Tensor) -> None:
        self.output = output

    def peek(self, places: list[list[int]]) -> list[list[float]]:
        return [self.output[places[0]].tolist()]

    def collect(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        return [self.output]

    def call(self, slot: int, specs: list[TensorSpec], poison: int) -> tuple[Message, list[torch.Tensor]]:
        return {}, [self.output.clone()]

    def run(self, slots: list[int]) -> None:
        """The same output again."""


def timed_as(judge: paired_timing.TimedJudge, output: torch.Tensor) -> paired_timing.TimedInputs:
    spec = TensorSpec(tuple(output.shape), contiguous_strides(tuple(output.shape)), loading.dtype_name(output.dtype))
    inputs = bundle.pack([])
    return paired_timing.TimedInputs([inputs], [spec], [OutputError(1e-4, 0.1)], lambda: inputs, judge=judge)


def refused(given: torch.Tensor, wanted: torch.Tensor) -> int:
    """The number of doubts, in 100 looks at timed outputs, that the rule for checked calls confirms."""
    timed = timed_as(lambda *asked: "wrong", given)
    reference, candidate = cast(RunnerLink, Side(wanted)), cast(RunnerLink, Side(given))
    count = 0
    for seed in range(100):
        try:
            timed.doubts = 0
            paired_timing._peek(reference, candidate, timed, paired_timing._Draw(0, 1, timed, random.Random(seed)))
        except RunnerFailed as failed:
            assert failed.outcome == "wrong_result"
            count += 1
    return count


def test_a_timed_call_is_judged_as_a_checked_one_and_accused_only_if_it_answers_otherwise() -> None:
    """One position of one: where values tie, all of the output differs and nothing is wrong."""
    given, wanted = torch.tensor([5]), torch.tensor([7])
    asked: list[torch.Tensor] = []

    def outcome(*answers: str) -> str:
        waiting = iter(answers)

        def judge(parcel: Parcel, change: tuple[float, int], outputs: Sequence[torch.Tensor]) -> str:
            asked.extend(outputs)
            return next(waiting)

        timed = timed_as(judge, given)
        draw = paired_timing._Draw(0, 1, timed, random.Random(1))
        try:
            paired_timing._peek(cast(RunnerLink, Side(wanted)), cast(RunnerLink, Side(given)), timed, draw)
        except RunnerFailed as failed:
            return failed.outcome
        return "correct"

    assert outcome("") == "correct" and torch.equal(asked[0], given)
    assert outcome("far off", "far off") == "wrong_result"
    assert outcome("far off", "", "far off") == "cheating"
    assert outcome("far off", "", "") == "wrong_result", "a race, maybe"


def test_an_output_that_is_written_after_the_call_is_no_doubt() -> None:
    """By the time at which all of it is fetched it may be right."""
    given = torch.zeros(4, dtype=torch.int64)
    late, timed_on = Side(given), timed_as(lambda *asked: "", given)
    setattr(late, "collect", lambda specs: [torch.ones(4, dtype=torch.int64)])  # noqa: B010
    draw = paired_timing._Draw(0, 1, timed_on, random.Random(1))
    with pytest.raises(RunnerFailed, match="changed after the call had returned"):
        paired_timing._peek(cast(RunnerLink, Side(given + 1)), cast(RunnerLink, late), timed_on, draw)


def test_of_many_doubts_in_a_timing_the_first_are_judged_and_then_some() -> None:
    judged: list[int] = []
    given, wanted = torch.tensor([5]), torch.tensor([7])

    def judge(parcel: Parcel, change: tuple[float, int], outputs: Sequence[torch.Tensor]) -> str:
        judged.append(inputs.doubts)
        return ""

    inputs, stream = timed_as(judge, given), random.Random(1)
    for number in range(400):
        draw = paired_timing._Draw(number, 1, inputs, stream)
        paired_timing._peek(cast(RunnerLink, Side(wanted)), cast(RunnerLink, Side(given)), inputs, draw)
    assert judged[:2] == [1, 2] and 20 < len(judged) < 100


def test_a_glance_at_outputs_that_are_mostly_zero_convicts_only_what_is_stale() -> None:
    """Behind a relu few of 64 elements are not zero, and those may be small: they are held against all that are not."""
    stream = torch.Generator().manual_seed(1)
    sums = 2.4 * torch.randn(1 << 14, generator=stream)
    wanted = torch.relu(sums - 5.0)
    rounded = torch.relu(sums + 2e-3 * torch.randn(1 << 14, generator=stream) - 5.0)
    assert 0.005 < float((wanted > 0).float().mean()) < 0.03
    assert refused(rounded, wanted) == 0
    assert refused(wanted.roll(1000), wanted) > 50
    assert refused(torch.zeros_like(wanted), wanted) > 30


def test_only_times_leave_a_doubt_that_is_worth_a_second_look() -> None:
    fine = Timing("full", 2.0, 4.0, 2.0, (1.9, 2.1), 12, 0.01, 1.0)
    assert not timed_groups.is_doubtful(fine)
    assert timed_groups.is_doubtful(replace(fine, wall_ratio=2.3))
    assert not timed_groups.is_doubtful(replace(fine, wall_ratio=2.3, candidate_ms=0.1))  # too short to tell
    assert timed_groups.is_doubtful(replace(fine, problem="slower", outcome="cheating", gate=UNDISTURBED))
    assert not timed_groups.is_doubtful(replace(fine, problem="wrong", outcome="cheating", gate="timed outputs"))
    busy = replace(fine, problem="used 6 ms while it had nothing to do", outcome="cheating", gate=PROCESSES)
    assert all(timed_groups.is_doubtful(replace(busy, stage=stage)) for stage in ("screen", "full"))


def test_a_process_that_was_busy_once_is_looked_at_again_and_convicted_by_the_second_look() -> None:
    well, busy, wrong = Gate("own kernels", True, ""), Gate(PROCESSES, False, "used 6 ms"), Gate("as given", False, "")
    assert are_doubtful([well, busy]) and not are_doubtful([well]) and not are_doubtful([busy, wrong])
    for answers in ([[busy], [well]], [[busy], [busy]], [[well]], [[wrong]]):
        asked = iter(answers)
        assert ask_again(lambda: next(asked), are_doubtful) is answers[-1]  # noqa: B023
        assert next(asked, None) is None
    asked = iter([[busy], [busy], [well], [busy]])
    assert ask_again(lambda: next(asked), are_doubtful, 3) == [well] and next(asked) == [busy]
