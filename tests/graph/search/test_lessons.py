"""What a run files in the experience store, and that the search finds it there again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundry.agents.playbook.ranking import weigh_lift
from foundry.agents.steps import towards
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.search.lessons import lessons, query, shares
from foundry.graph.solve import solve
from foundry.knowledge.candidate import (
    Audit,
    Build,
    Candidate,
    Coordinates,
    Evaluation,
    Gate,
    Recipe,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.experience.record import SEED, WHOLE_KERNEL
from foundry.knowledge.experience.store import ExperienceStore
from foundry.knowledge.library.ir.kernels import KernelSummary
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.library.moves import moves as library_moves
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
            filed=shares(moves),
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
    lifts = {lift.move: lift for lift in store.lifts(query(GRAPH, machine().device))}
    assert set(lifts) == {move.key for _, _, moves in RECORDED for move in moves}
    together = math.log(1.328 / 2.635)
    for move in RECORDED[6][2]:
        assert lifts[move.key].lift == pytest.approx(math.exp(together / 3))
    online = [math.log(1.151 / 0.896), math.log(1.987 / 2.635), math.log(1.630 / 1.566)]
    assert lifts["row:set:algorithm=online"].lift == pytest.approx(math.exp(sum(online) / 3))
    assert (lifts["row:set:algorithm=online"].tries, lifts["row:set:algorithm=online"].wins) == (3, 2)
    assert weigh_lift(lifts["row:set:vector=32"]) < 0.7 < weigh_lift(lifts["row:set:algorithm=online"])


def test_a_steps_moves_are_filed_alike_in_whatever_order_they_were_made(filed: Filed) -> None:
    moves = RECORDED[6][2]
    before, after = [timed(RECORDED[6][0])], [timed(RECORDED[6][1])]
    one, other = filed(moves, before, after), filed(tuple(reversed(moves)), before, after)
    assert [item.id for item in one] == [item.id for item in other] and len({item.id for item in one}) == 3
    assert shares((moves[0], replace(moves[0], kernel="k_other"), moves[1])) == {
        "row:set:stream=0": pytest.approx(1 / 3),
        "row:set:vector=32": pytest.approx(2 / 3),
    }
    assert shares(()) == {WHOLE_KERNEL: 1.0}


def test_speeds_are_those_of_all_timings(filed: Filed) -> None:
    """The recorded proof of a screen of 1.64: the lesson knows both."""
    child = [timed((1.64, 1.47, 1.83)), timed((1.59, 1.24, 1.67), "full")]
    (record,) = filed((row("unroll", 4),), [timed((1.43, 1.32, 1.55))], child)
    assert record.child_speedup == pytest.approx(1.62, abs=0.005) and record.parent_speedup == pytest.approx(1.43)
    assert "row:set:unroll=4 went from 1.43x to 1.62x" in record.text


def test_what_is_vetoed_or_cannot_be_timed_is_a_failure_of_its_move(filed: Filed) -> None:
    fine = timed((1.5, 1.4, 1.6))
    vetoed = replace(fine, audit=Audit(False, "fair", (Gate("fallback", False, "calls torch"),)))
    assert fine.timing is not None
    died = replace(fine.timing, speedup=0.0, speedup_ci95=(0.0, 0.0), problem="the process died", outcome="crash")
    for child, outcome in ((vetoed, "cheating"), (replace(fine, timing=died), "crash")):
        (record,) = filed((row("unroll", 4),), [fine], [child])
        assert (record.outcome, record.child_speedup, record.lift) == (outcome, None, None)
        assert record.log_lift == pytest.approx(math.log(0.8)) and f"gave {outcome}" in record.text
    (repaired,) = filed((row("unroll", 4),), [vetoed], [fine])
    assert repaired.log_lift is None  # the parent had no speed: the repair says nothing about the move's


async def test_a_run_files_single_moves_only_and_plays_them_back(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    summary = await solve(make_request(40, learn=True, store=str(tmp_path / "lessons")), parts=parts())
    run, store = RunDirectory.inspect(Path(summary.run)), ExperienceStore.open(tmp_path / "lessons")
    steps = {item.candidate.id: item.proposal.moves for item in run.decisions() if item.proposal is not None}
    assert any(len(moves) > 1 for moves in steps.values())
    made = {move.key for moves in steps.values() for move in moves}
    records = store.newest(1000)
    assert {record.move for record in records} - {SEED} == made
    assert "correct" not in {record.outcome for record in records if record.move == "rewrite:welford"}
    run.close()
    store.close()


def test_a_split_is_known_by_its_kernel_whoever_proposes_it() -> None:
    """Crossover and the user's words made the move without its template: it was filed as `split:value`."""
    kernel = KernelSummary("k_softmax", "row", ("div", "softmax"), {}, (), 1, 1)
    recipe = Recipe("cpu")
    lowered = Lowered(recipe, "", (kernel,), ("div",), (), (), (), (), Coordinates(0, 0, 0), 1, 1)
    (own,) = [move for move in library_moves(lowered) if move.kind == "split"]
    (crossed,) = list(towards(lowered, replace(recipe, materialise=("div",))))
    assert own.key == crossed.key == "split:row"
