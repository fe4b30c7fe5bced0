"""What a run files in the experience store, and that the search finds it there again."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundry.agents.steps import moves_towards
from foundry.graph.history.replay import replay
from foundry.graph.run.events import EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.search.lessons import counted, lessons, query
from foundry.graph.show.view import RunView
from foundry.graph.show.words.candidate import story
from foundry.graph.solve import resume, solve
from foundry.knowledge.candidate import Audit, Build, Candidate, Evaluation, Gate, Recipe, Stage, Timing, Verdict
from foundry.knowledge.codec import encode
from foundry.knowledge.compiler.ir.kernels import KernelSummary
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.moves import moves as library_moves
from foundry.knowledge.experience.record import WHOLE_KERNEL
from foundry.knowledge.experience.store import ExperienceStore
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Move

MakeRequest = Callable[..., SolveRequest]


def row(name: str, value: int | str) -> Move:
    return Move("set", "vector", name, "k_softmax", "row", value)


# A quick run of the softmax example on two busy cores, as recorded: the parent's screen, the child's, the moves.
Measured = tuple[float, float, float]
RECORDED: list[tuple[Measured, Measured, tuple[Move, ...]]] = [
    ((0.896, 0.582, 1.379), (1.151, 0.691, 1.918), (row("algorithm", "online"),)),
    ((1.566, 1.212, 2.023), (1.367, 1.247, 1.498), (row("unroll", 8),)),
    ((2.635, 2.234, 3.108), (1.987, 1.437, 2.748), (row("algorithm", "online"),)),
    ((2.635, 2.234, 3.108), (1.174, 0.563, 2.451), (row("algorithm", "recompute"),)),
    ((2.635, 2.234, 3.108), (1.271, 1.057, 1.530), (Move("split", "fusion", "div", "k_softmax", "row"),)),
    ((1.566, 1.212, 2.023), (1.956, 1.565, 2.446), (row("algorithm", "recompute"),)),
    (
        (2.635, 2.234, 3.108),
        (1.328, 1.032, 1.708),
        (row("vector", 32), row("stream", 0), row("schedule", "dynamic")),
    ),
    ((1.566, 1.212, 2.023), (1.630, 1.470, 1.807), (row("algorithm", "online"),)),
]


def timed(found: Measured, stage: Stage = "screen") -> Evaluation:
    speedup, low, high = found
    timing = Timing(stage, 10 / speedup, 10.0, speedup, (low, high), 16, 0.02, 1.0)
    candidate = Candidate("c2", 0, 1, "cpu", "library", "0" * 64)
    return Evaluation(candidate, Build(True, 0.1), Verdict("correct", stage), Audit(True, "fair"), timing)


Filed = Callable[..., Any]


@pytest.fixture
def filed(machine: Any) -> Filed:
    """The lessons of one step on the fake machine's graph and device."""

    def file(moves: tuple[Move, ...], parent: list[Evaluation], child: list[Evaluation], step: str = "i0g1") -> Any:
        return lessons(
            run="recorded",
            step=step,
            task="softmax",
            graph=GRAPH,
            device=machine().device,
            diagnosis=None,
            filed=counted(moves),
            parent=parent,
            child=child,
            kernels=(),
        )

    return file


GRAPH = OpGraph([], [], [], [], "export")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperienceStore]:
    opened = ExperienceStore.open(tmp_path / "store")
    yield opened
    opened.close()


def test_every_move_of_a_recorded_run_is_found_under_its_own_key(
    filed: Filed, store: ExperienceStore, machine: Any
) -> None:
    """The step of three moves was filed under one joined key, which no single move has."""
    for number, (before, after, moves) in enumerate(RECORDED):
        store.add(filed(moves, [timed(before)], [timed(after)], f"i0g{number}"))
    credits = {credit.move: credit for credit in store.credits(query(GRAPH, machine().device))}
    assert set(credits) == {move.key for _, _, moves in RECORDED for move in moves}
    online, vector = credits["row:set:algorithm=online"], credits["row:set:vector=32"]
    assert (online.steps, online.wins, online.alone, online.inseparable) == (3, 2, 3, ())
    assert (vector.steps, vector.wins, vector.alone) == (1, 0, 0)
    assert vector.inseparable == ("row:set:schedule=dynamic", "row:set:stream=0")
    for move in RECORDED[6][2]:
        assert math.log(1.328 / 2.635) / 3 < credits[move.key].log_effect < 0
        assert credits[move.key].log_effect == pytest.approx(vector.log_effect)
    assert vector.log_effect < online.log_effect


def test_a_steps_moves_are_filed_alike_in_whatever_order_they_were_made(filed: Filed) -> None:
    moves = RECORDED[6][2]
    before, after = [timed(RECORDED[6][0])], [timed(RECORDED[6][1])]
    one, other = filed(moves, before, after), filed(tuple(reversed(moves)), before, after)
    assert [item.id for item in one] == [item.id for item in other] and len({item.id for item in one}) == 3
    twice = counted((moves[0], replace(moves[0], kernel="k_other"), moves[1]))
    assert twice == {"row:set:stream=0": 1, "row:set:vector=32": 2}
    assert counted(()) == {WHOLE_KERNEL: 1}


def test_speeds_are_those_of_all_timings(filed: Filed) -> None:
    """The recorded proof of a screen of 1.64: the lesson knows both."""
    child = [timed((1.64, 1.47, 1.83)), timed((1.59, 1.24, 1.67), "full")]
    (record,) = filed((row("unroll", 4),), [timed((1.43, 1.32, 1.55))], child)
    assert record.child_speedup == pytest.approx(1.62, abs=0.005) and record.parent_speedup == pytest.approx(1.43)
    assert "row:set:unroll=4 went from 1.43x to 1.62x" in record.text


def test_what_is_vetoed_or_cannot_be_timed_is_a_failure_of_its_move(filed: Filed) -> None:
    fine = timed((1.5, 1.4, 1.6))
    vetoed = replace(fine, audit=Audit(False, "fair", (Gate("provenance", False, "calls torch"),)))
    assert fine.timing is not None
    died = replace(fine.timing, speedup=0.0, speedup_ci95=(0.0, 0.0), problem="the process died", outcome="crash")
    for child, outcome in ((vetoed, "not_allowed"), (replace(fine, timing=died), "crash")):
        (record,) = filed((row("unroll", 4),), [fine], [child])
        assert (record.outcome, record.child_speedup, record.lift) == (outcome, None, None)
        assert record.log_lift == pytest.approx(math.log(0.8)) and f"gave {outcome}" in record.text
    (repaired,) = filed((row("unroll", 4),), [vetoed], [fine])
    assert repaired.log_lift is None  # the parent had no speed: the repair says nothing about the move's


KILLED = """
import asyncio, os, signal, sys
from foundry.graph.solve import solve
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.codec import decode
from foundry.knowledge.experience.store import ExperienceStore
from tests.graph.conftest import FakeParts

class Killing(ExperienceStore):
    def add(self, records):
        if any(record.step == "i0g5" for record in records):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().add(records)

class Parts(FakeParts):
    def store(self, request):
        return Killing.open(request.store)

asyncio.run(solve(decode(SolveRequest, sys.argv[1]), parts=Parts()))
"""


def run_and_kill(request: SolveRequest) -> Path:
    """A run that is killed when a step is measured and about to be booked; its folder."""
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run([sys.executable, "-c", KILLED, encode(request)], cwd=root, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    (path,) = Path(request.runs).iterdir()
    return path


async def test_a_kill_between_evaluation_and_booking_loses_no_credit_and_the_next_run_starts_with_it(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    request = make_request(12, islands=1, learn=True, store=str(tmp_path / "lessons"))
    path = run_and_kill(request)
    await resume(path, parts=parts())
    run, store = RunDirectory.inspect(path), ExperienceStore.open(tmp_path / "lessons")
    made = {item.step: item for item in run.decisions() if item.proposal is not None and item.proposal.moves}
    booked = [record for record in store.newest(1000) if record.together]
    assert any(len(item.proposal.moves) > 1 for item in made.values() if item.proposal is not None)
    assert "i0g5" in made and {record.step for record in booked} == set(made)
    for step, decision in made.items():
        own = {record.move: record for record in booked if record.step == step}
        assert decision.proposal is not None
        assert set(own) == {move.key for move in decision.proposal.moves} == set(next(iter(own.values())).together)
        told = story(RunView(run), decision.candidate.id, details=True)
        for record in own.values():
            assert (record.credit is None) == (record.log_lift is None)
            assert record.credit is None or f"    credited with {record.credit.words}" in told
    run.close()
    store.close()
    assert (await replay(path, parts())).exact

    warm = Path((await solve(replace(request, seed=2), parts=parts())).run)
    assert (await replay(warm, parts())).exact  # with what it recalled, though the store holds more by now
    later = RunDirectory.inspect(warm)
    first = EventLog(later.database, reading=True).read("retrieval")[0]
    assert set(first.data["lifts"]) & {record.move for record in booked}
    why = [item.proposal.rationale for item in later.decisions() if item.proposal is not None]
    assert any("experience credits it with" in words for words in why)
    later.close()


def test_a_split_is_known_by_its_kernel_whoever_proposes_it() -> None:
    """Crossover and the user's words made the move without its template: it was filed as `split:value`."""
    kernel = KernelSummary("k_softmax", "row", ("div", "softmax"), {}, (), 1, 1)
    recipe = Recipe("cpu")
    lowered = Lowered(recipe, "", (kernel,), ("div",), (), (), (), (), 1, 1)
    (own,) = [move for move in library_moves(lowered) if move.kind == "split"]
    (crossed,) = list(moves_towards(lowered, replace(recipe, materialise=("div",))))
    assert own.key == crossed.key == "split:row"
