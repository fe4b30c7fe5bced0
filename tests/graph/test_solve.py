"""Whole runs: real LangGraph, real SQLite, the real playbook, a machine made of arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from foundry.agents.brief import Brief
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.history.replay import replay
from foundry.graph.run.budget import Ledger
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.request import EFFORTS, QUICK, EffortName, RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import summarise
from foundry.graph.solve import resume, solve
from foundry.knowledge.candidate import Build, Profile, Recipe
from foundry.knowledge.errors import UsageError
from foundry.knowledge.merit import merit
from foundry.knowledge.thought import Diagnosis, Proposal
from foundry.tools.profiling.gather import Seen

MakeRequest = Callable[..., SolveRequest]


async def test_a_run_finds_a_faster_kernel_and_leaves_everything_in_its_directory(
    make_request: MakeRequest, parts: Any, summit: float
) -> None:
    events: list[Event] = []
    summary = await solve(make_request(44), events.append, parts=parts())
    assert summary.verdict == "accepted"
    assert summary.speedup is not None and summary.speedup > 0.75 * summit
    assert summary.speedup_vs_compile == pytest.approx(summary.speedup * 0.8, rel=0.05)
    assert 40 <= summary.evaluations <= 48
    run = RunDirectory.inspect(Path(summary.run))
    ids = [evaluation.candidate.id for evaluation, _ in run.evaluations()]
    assert ids == [f"c{number}" for number in range(1, len(ids) + 1)]
    winner = run.evaluation(summary.candidate)
    assert summary.kernel == str(run.path / "kernel.py")
    assert (run.path / "kernel.py").read_text() == run.text(winner.candidate.source)
    assert winner.timing is not None and winner.timing.stage == "final"
    assert merit([winner]) == max(merit([item]) for item, stage in run.evaluations() if stage == "final")
    kinds = {event.kind for event in events}
    assert {"node", "expert", "tool", "proposal", "evaluation", "note"} <= kinds
    assert [event for event in EventLog(run.database, reading=True).read() if event.ended is None] == []
    run.close()


@pytest.mark.parametrize("refused", [False, True])
async def test_counters_are_read_for_elites_that_stagnate(
    make_request: MakeRequest, parts: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    """What the hardware counts reaches the diagnostician; where it may not be read, that is said once in a run."""
    monkeypatch.setitem(EFFORTS, "quick", replace(QUICK, stagnation=1, counted=2))

    class Counting(machine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.device = replace(machine().device, target="cuda")
            self.counted: list[str] = []

        async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
            self.counted.append(text)
            return Seen(notes=("Nsight Compute may not read them: ask the administrator",) if refused else ())

        async def profile(self, text: str, *rest: Any) -> Profile:
            found: Profile = await super().profile(text, *rest)
            if text not in self.counted or refused:
                return found
            cause: Any = {"limiter": "memory_latency", "evidence": "sectors 32 of 4", "action": "Coalesce."}
            return replace(found, rung="counters", **cause)

    bench, events = Counting(), list[Event]()
    await solve(make_request(40), events.append, parts=parts(bench))
    assert len(bench.counted) == len(set(bench.counted)) == (1 if refused else 2)
    told = [event for event in events if (event.kind, event.name) == ("note", "no counters")]
    assert [event.data["reason"][-21:] for event in told] == ["ask the administrator"] * refused
    found = [event.data.get("evidence", "") for event in events if event.name == "diagnostician"]
    assert any("counters: sectors 32 of 4" in text for text in found) is not refused


async def test_the_end_is_as_short_as_asked_for(make_request: MakeRequest, parts: Any, machine: Any) -> None:
    """One finalist and no torch.compile; the winner is proven as any other."""
    bench = machine()
    summary = await solve(make_request(24, finalists=1, rivals=()), parts=parts(bench))
    assert [stage for _, stage in bench.timed].count("final") == 1
    assert summary.verdict == "accepted" and summary.speedup is not None
    assert summary.compile_ms is None and summary.speedup_vs_compile is None
    with pytest.raises(UsageError, match="at least one"):
        make_request(finalists=0)


async def test_every_proposal_gives_a_reason_and_names_its_parent(make_request: MakeRequest, parts: Any) -> None:
    summary = await solve(make_request(16), parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    proposals = [decision.proposal for decision in run.decisions() if decision.island >= 0]
    assert proposals and all(item and item.rationale and item.parent.startswith("c") for item in proposals)
    run.close()


async def test_given_what_was_recorded_a_run_replays_exactly(make_request: MakeRequest, parts: Any) -> None:
    summary = await solve(make_request(32), parts=parts())
    replayed = await replay(Path(summary.run), parts())
    assert replayed.differences == ()
    assert replayed.decisions >= 28


async def test_everyone_who_thinks_in_a_step_reads_one_brief(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    """The records are read once a step: what the diagnosis saw is what every expert sees, the same objects."""
    seen: dict[str, list[Brief]] = {}

    class Noting(PlaybookBrain):
        async def diagnose(self, brief: Brief) -> Diagnosis:
            seen.setdefault(brief.step, []).append(brief)
            return await super().diagnose(brief)

        async def propose(self, expert: str, brief: Brief) -> Proposal | None:
            seen[brief.step].append(brief)
            own = await super().propose(expert, brief)
            return own if expert != "tiling" else None  # so that several experts are asked

    await solve(make_request(24), parts=parts(brain=Noting(library())))
    assert len(seen) > 8 and max(map(len, seen.values())) > 2
    for first, *later in seen.values():
        assert all(brief is later[0] and brief.diagnosis is not None for brief in later)
        assert all(brief.parent is first.parent and brief.tried is first.tried for brief in later)
        assert all(brief.elites is first.elites and brief.directives is first.directives for brief in later)
        assert all(brief.obedience is not None and brief.obedience is later[0].obedience for brief in later)


async def test_a_replay_tells_where_another_search_differs(make_request: MakeRequest, parts: Any) -> None:
    """The check above can fail: another seed of the brain is noticed at its first step."""
    summary = await solve(make_request(12), parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    body = run.get("request").replace('"seed": 1', '"seed": 2')
    run.set("request", body)
    run.close()
    replayed = await replay(Path(summary.run), parts())
    assert not replayed.exact


class SlowIsland(PlaybookBrain):
    """Thinks on island 0 until so many candidates are evaluated."""

    def __init__(self, library: Any, evaluations: int) -> None:
        super().__init__(library)
        self.left, self.is_over = evaluations, asyncio.Event()

    def hear(self, event: Event) -> None:
        self.left -= event.kind == "evaluation"
        if self.left <= 0:
            self.is_over.set()

    async def diagnose(self, brief: Any) -> Any:
        if brief.island == 0:
            await asyncio.wait_for(self.is_over.wait(), PATIENCE_S)
        return await super().diagnose(brief)


async def test_a_slow_island_does_not_hold_the_others(make_request: MakeRequest, parts: Any, library: Any) -> None:
    brain = SlowIsland(library(), 20)
    summary = await solve(make_request(24), brain.hear, parts=parts(brain=brain))
    run = RunDirectory.inspect(Path(summary.run))
    islands = [decision.island for decision in run.decisions() if decision.island >= 0]
    run.close()
    assert islands.count(0) <= 3
    assert all(islands.count(number) >= 4 for number in (1, 2, 3))


class FailingIsland(PlaybookBrain):
    """Breaks on island 2 in its third generation."""

    async def propose(self, expert: Any, brief: Any) -> Any:
        if brief.island == 2 and brief.generation == 3:
            raise ZeroDivisionError("a bug in an expert")
        return await super().propose(expert, brief)


async def test_an_error_in_one_island_ends_that_island_only(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    summary = await solve(make_request(24), parts=parts(brain=FailingIsland(library())))
    assert summary.verdict == "accepted"
    assert "ZeroDivisionError: a bug in an expert" in summary.islands["2"]
    assert all(reason.startswith("budget") for island, reason in summary.islands.items() if island != "2")
    assert any("a bug in an expert" in note for note in summary.notes)


async def test_islands_stop_at_the_target_and_say_so(make_request: MakeRequest, parts: Any) -> None:
    request = make_request(limits=RunLimits(evaluations=200, target_speedup=1.5))
    summary = await solve(request, parts=parts())
    assert summary.evaluations < 60
    assert summary.speedup is not None and summary.speedup >= 1.4
    assert summary.ending.startswith("target: at least ")


async def test_only_the_floor_that_the_policy_allows_ends_a_search(make_request: MakeRequest, parts: Any) -> None:
    """A kernel at its own arithmetic's roof is not done where the policy allows faster arithmetic."""
    request = make_request(8)
    summary = await solve(request, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    best = next(item for item, _ in run.evaluations() if item.profile is not None)
    assert best.timing is not None and best.profile is not None
    at_its_roof = replace(best.profile, fraction_of_floor=1.0, floor_ms=best.timing.candidate_ms)

    def ending(effort: EffortName, share: float) -> str:
        assert best.timing is not None
        ledger = Ledger(replace(request, effort=effort), run, EventLog(run.database, reading=True))
        allowed_floor_ms = share * best.timing.candidate_ms
        return ledger.why_satisfied(replace(best, profile=replace(at_its_roof, allowed_floor_ms=allowed_floor_ms)))

    assert ending("bench", 0.25) == ""
    assert ending("bench", 0.98) == "floor: 98 % of the roofline floor"
    assert ending("quick", 0.98) == "", "after so few evaluations a longer search does not trust the floor"
    run.close()


async def test_islands_stop_on_time(make_request: MakeRequest, parts: Any, machine: Any) -> None:
    request = make_request(limits=RunLimits(evaluations=1_000_000, minutes=0.01))
    started = time.monotonic()
    summary = await solve(request, parts=parts(machine(delay_s=0.02)))
    assert time.monotonic() - started < PATIENCE_S
    assert "budget: 0.01 minutes" in summary.ending
    assert summary.verdict == "accepted"


async def test_islands_that_find_nothing_better_for_long_end(
    make_request: MakeRequest, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EFFORTS, "quick", replace(QUICK, plateau=3))
    summary = await solve(make_request(70), parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    (decision,) = (
        event.data for event in EventLog(run.database, reading=True).read("note") if event.name == "decision 1"
    )
    run.close()
    assert decision["again"] is False and len(decision["reasons"]) == 4
    assert any(reason.startswith("plateau") for reason in decision["reasons"].values())
    assert (await replay(Path(summary.run), parts())).exact


async def test_an_exhausted_space_ends_the_islands_early(make_request: MakeRequest, parts: Any, library: Any) -> None:
    class Small(library):  # type: ignore[misc]
        def lower(self, graphs: Any, recipe: Any, **rest: Any) -> Any:
            lowered = super().lower(graphs, recipe, **rest)
            (kernel,) = lowered.kernels
            only = tuple(item for item in kernel.tunables if item.name == "threads")
            return replace(lowered, kernels=(replace(kernel, tunables=only),), rewrites_open=())

    summary = await solve(make_request(100), parts=parts(library=Small()))
    assert summary.evaluations < 12
    assert "exhausted" in summary.ending
    assert summary.verdict == "accepted"


async def test_stop_and_resume_ends_in_the_same_kind_of_result(
    make_request: MakeRequest, parts: Any, machine: Any
) -> None:
    stop = asyncio.Event()
    seen = 0

    def watch(event: Event) -> None:
        nonlocal seen
        seen += event.kind == "evaluation"
        if seen == 10:
            stop.set()

    machine_ = machine(delay_s=0.01)
    first = await solve(make_request(24), watch, stop=stop, parts=parts(machine_))
    assert first.verdict == "interrupted"
    assert 8 <= first.evaluations < 20
    second = await resume(Path(first.run), parts=parts(machine_))
    assert second.verdict == "accepted"
    assert 22 <= second.evaluations <= 28
    assert len(machine_.timed) == len(set(machine_.timed)), "a measurement was repeated"
    again = await resume(Path(first.run), parts=parts(machine_))
    assert again == second


@pytest.mark.parametrize("kind, name", [("node", "baseline"), ("evaluation", "c1")])
async def test_a_listener_that_is_gone_leaves_a_run_that_goes_on(
    kind: str, name: str, make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    """A pipe without a reader is no disk that is full: nothing is wrong with the run's files."""

    def listen(event: Event) -> None:
        if (event.kind, event.name) == (kind, name):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        await solve(make_request(4), listen, parts=parts())
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDirectory.inspect(path)
    assert (summarise(run).verdict, run.get("ending")) == ("interrupted", "")
    run.close()
    assert (await resume(path, parts=parts())).verdict == "accepted"


async def test_a_stopped_run_gives_up_its_locks(make_request: MakeRequest, parts: Any, machine: Any) -> None:
    """Whenever it is stopped: in one of ten moments a checkpoint was being written."""
    for number in range(20):
        stop, chance = asyncio.Event(), random.Random(number)
        left = 6 * chance.randint(1, 18)

        def watch(event: Event, stop: asyncio.Event = stop, chance: random.Random = chance) -> None:
            nonlocal left
            left -= event.kind in ("evaluation", "node", "tool")
            if left == 0:
                asyncio.get_running_loop().call_later(chance.random() / 50, stop.set)

        summary = await solve(make_request(24), watch, stop=stop, parts=parts(machine(delay_s=0.003)))
        with contextlib.closing(sqlite3.connect(Path(summary.run) / "checkpoints.sqlite", timeout=0.3)) as other:
            other.execute("CREATE TABLE of_another_writer (number)")  # raises when the file is locked
            assert other.execute("SELECT count(*) FROM of_another_writer").fetchone() == (0,)


async def test_a_strict_run_says_beforehand_what_it_cannot_accept(make_request: MakeRequest, parts: Any) -> None:
    events: list[Event] = []
    summary = await solve(make_request(4, policy="strict"), events.append, parts=parts())
    assert any(note.startswith("policy: strict refuses") for note in summary.notes)
    names = [event.name for event in events]
    assert names.index("policy") < names.index("c1")
    assert not (await solve(make_request(4), parts=parts())).notes


async def test_a_run_can_be_worked_on_by_one_process_only(make_request: MakeRequest, parts: Any) -> None:
    stop = asyncio.Event()
    stop.set()
    summary = await solve(make_request(), stop=stop, parts=parts())
    holder = RunDirectory.open(Path(summary.run))
    with pytest.raises(UsageError, match="is being worked on by process"):
        await resume(Path(summary.run), parts=parts())
    holder.close()


async def test_two_runs_at_once_share_a_folder_and_a_store(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    request = make_request(12, learn=True, store=str(tmp_path / "store"))
    one, two = await asyncio.gather(solve(request, parts=parts()), solve(request, parts=parts()))
    assert one.run != two.run
    assert one.verdict == two.verdict == "accepted"


async def test_a_second_run_starts_from_what_the_first_learnt(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    request = make_request(30, learn=True, store=str(tmp_path / "store"))
    cold = await solve(request, parts=parts())
    events: list[Event] = []
    warm = await solve(request, events.append, parts=parts())
    assert cold.speedup is not None and warm.speedup is not None
    early = [event for event in events if event.kind == "evaluation" and event.step.startswith("seed")]
    recalled = [event for event in early if str(event.data["expert"]).startswith("recalled x")]
    assert recalled and recalled[0].data["speedup"] > 0.9 * cold.speedup
    shown = [event for event in events if event.kind == "retrieval"]
    assert any(event.data["shown"] for event in shown)


async def test_a_task_that_cannot_be_lowered_ends_honestly(make_request: MakeRequest, parts: Any, library: Any) -> None:
    from foundry.knowledge.errors import CannotLower

    class Empty(library):  # type: ignore[misc]
        def seeds(self, graph: Any, device: Any, unrounded: Any = None) -> Any:
            raise CannotLower("no template for aten.svd")

    summary = await solve(make_request(), parts=parts(library=Empty()))
    assert summary.verdict == "nothing accepted"
    assert summary.evaluations == 0
    assert summary.kernel is None and summary.receipt is None
    assert summary.baseline_ms == 10.0 and summary.compile_ms == 8.0
    assert "no template for aten.svd" in summary.ending


@dataclass(frozen=True)
class First:
    """The rewrites of the library's recipes, of which "welford" is wrong, which of them are accurate, and the recipes
    that are evaluated."""

    rewrites: tuple[tuple[str, ...], ...]
    accurate: tuple[int, ...]
    evaluated: list[str]


@pytest.mark.parametrize(
    "case",
    [
        First(((), (), ()), (), ["tile 16"]),
        First((("welford",), (), ()), (), ["tile 16", "tile 32"]),
        First((("welford",), ("welford",), ()), (), ["tile 16", "tile 32", "tile 64"]),
        First(((), ("online",), ()), (), ["tile 16", "tile 32"]),
        First(((), (), ()), (0,), ["tile 16", "tile 32", "tile 64"]),
        First(((), (), ()), (0, 1), ["tile 16"]),
    ],
)
async def test_a_bench_evaluates_one_first_candidate_and_others_where_they_are_needed(
    make_request: MakeRequest, parts: Any, library: Any, case: First
) -> None:
    """Further ones where those before are wrong, where rewrites may leave little of the work, and where less accurate
    products may be right."""

    class Three(library):  # type: ignore[misc]
        def seeds(self, graph: Any, device: Any, unrounded: Any = None) -> Any:
            return tuple(
                Recipe(
                    device.target,
                    rewrites=rewrites,
                    choices={"k0": {"tile": tile}},
                    accurate=("relu",) if number in case.accurate else (),
                )
                for number, (rewrites, tile) in enumerate(zip(case.rewrites, (16, 32, 64), strict=True))
            )

    summary = await solve(make_request(5, effort="bench"), parts=parts(library=Three()))
    run = RunDirectory.inspect(Path(summary.run))
    log = EventLog(run.database, reading=True)
    names = [event.name for event in log.read("evaluation") if event.step.startswith("seed")]
    made = [run.decision(name) for name in names]
    run.close()
    tiles = [one.candidate.recipe.choices["k0"]["tile"] for one in made if one and one.candidate.recipe]
    assert [f"tile {tile}" for tile in tiles] == case.evaluated
    assert summary.verdict == "accepted"


async def test_for_a_device_that_is_not_here_it_compiles_and_says_what_is_not_proven(
    make_request: MakeRequest, parts: Any, machine: Any
) -> None:
    elsewhere = machine()
    elsewhere.device = replace(elsewhere.device, target="cuda", name="sm_90", present=False)
    summary = await solve(make_request(target="cuda"), parts=parts(elsewhere))
    assert summary.verdict == "unproven"
    assert summary.kernel is not None and summary.receipt is None
    assert summary.speedup is None and elsewhere.timed == []
    assert "no device: no cuda device is here: nothing can run" in summary.notes
    assert "unproven kernel: c1 compiles: 40 registers, 0 bytes spilled, occupancy 0.75" in summary.notes
