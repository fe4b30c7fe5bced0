"""Search strategies: off unless asked for, each by itself, replayed exactly, and without a place in others' state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.agents.chat.scripted_server import ScriptedServer
from tests.graph.conftest import DEVICE, FakeLibrary, graph
from tests.graph.run.test_thinking import events_of, idea, thinker
from tests.graph.test_fork import history
from tests.waiting import PATIENCE_S
from typer.testing import CliRunner

from foundry.agents.brief import Brief
from foundry.agents.models.models import Models, ModelSpec
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.cli import app
from foundry.graph.doors.commands.dry_run import first_brief
from foundry.graph.history.fork import Change, fork
from foundry.graph.history.replay import replay
from foundry.graph.run.events import Event
from foundry.graph.run.request import RunLimits, SolveRequest, StrategyName
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.search import strategies
from foundry.graph.search.strategies import archive
from foundry.graph.search.strategies.archive import Archive, read_cell
from foundry.graph.search.strategies.gradients import Transition, add_hints, gradient
from foundry.graph.solve import resume, solve
from foundry.knowledge.candidate import Resources
from foundry.knowledge.task import Task
from foundry.knowledge.thought import ExpertName

MakeRequest = Callable[..., SolveRequest]
WITHOUT_A_MODEL = ("archive", "gradients", "migration", "roles", "credits")


class Watching(PlaybookBrain):
    """Notes what it is shown, and keeps island 0 waiting until so many candidates are evaluated."""

    def __init__(self, library: Any, wait_for: int = 0) -> None:
        super().__init__(library)
        self.shown: list[Brief] = []
        self.left, self.is_over = wait_for, asyncio.Event()

    def hear(self, event: Event) -> None:
        self.left -= event.kind == "evaluation"
        if self.left <= 0:
            self.is_over.set()

    async def diagnose(self, brief: Brief) -> Any:
        if brief.island == 0 and self.left > 0:
            await asyncio.wait_for(self.is_over.wait(), PATIENCE_S)
        return await super().diagnose(brief)

    async def propose(self, expert: ExpertName, brief: Brief) -> Any:
        self.shown.append(brief)
        return await super().propose(expert, brief)


def test_each_file_is_a_strategy_of_its_name() -> None:
    files = {path.stem for path in Path(strategies.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == set(get_args(StrategyName))


async def test_nothing_of_a_strategy_is_on_the_default_path(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    brain = Watching(library())
    summary = await solve(make_request(14, islands=2), parts=parts(brain=brain))
    assert {(brief.role, len(brief.elites), len(brief.notes), len(brief.weights)) for brief in brain.shown} == {
        ("any", 1, 0, 0)
    }
    assert not await memories(summary.run)


async def memories(run: str) -> set[tuple[str, ...]]:
    """The strategies that have kept anything in any island at any checkpoint."""
    return {tuple(values["memory"]) for values in (await history(Path(run))).values() if values.get("memory")}


@pytest.mark.parametrize("name", WITHOUT_A_MODEL)
async def test_a_run_with_a_strategy_ends_replays_and_forks(
    name: StrategyName, make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    request = make_request(16, islands=2, strategies=(name,), learn=True, store=str(tmp_path / "store"))
    summary = await solve(request, parts=parts())
    assert summary.verdict == "accepted" and await memories(summary.run) == {(name,)}
    assert (await replay(Path(summary.run), parts())).differences == ()
    path = fork(Path(summary.run), "i0g4", Change(limits=RunLimits(evaluations=6)), parts())
    assert (await resume(path, parts=parts())).verdict == "accepted"
    assert (await replay(path, parts())).differences == ()


async def test_the_archive_shows_elites_of_other_cells_and_roles_prefer_kinds_of_moves(
    make_request: MakeRequest, parts: Any, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "read_cell", lambda text, _: "010" if "online" in text else "000")
    brain = Watching(library())
    await solve(make_request(20, islands=2, strategies=("archive", "roles")), parts=parts(brain=brain))
    assert {brief.role for brief in brain.shown} == {"fusion", "memory"}
    assert max(len(brief.elites) for brief in brain.shown) > 1
    assert any(example.why == "the best of another kind" for brief in brain.shown for example in brief.examples)


async def test_migrants_are_built_upon(make_request: MakeRequest, parts: Any, library: Any) -> None:
    brain = Watching(library(), 30)
    summary = await solve(make_request(60, strategies=("migration",)), brain.hear, parts=parts(brain=brain))
    run = RunDirectory.inspect(Path(summary.run))
    homes = {decision.candidate.id: decision.island for decision in run.decisions()}
    made = [decision for decision in run.decisions() if decision.proposal]
    assert [item for item in made if homes[item.proposal.parent] not in (-1, item.island)]  # type: ignore[union-attr]
    run.close()


async def test_of_several_models_each_takes_its_turn(
    make_request: MakeRequest, parts: Any, library: Any, serve: Callable[..., ScriptedServer]
) -> None:
    numbers = iter(range(1000))
    server = serve(lambda _: idea(next(numbers)))
    models = Models(tuple(ModelSpec(name, f"{name}-1", server.url) for name in ("one", "two")), ("one", "two"))
    summary = await solve(make_request(6, islands=1, models=models), parts=thinker(parts, library))
    asked = [
        event.data.get("model") for event in events_of(summary, "expert") if event.data.get("purpose") == "propose"
    ]
    thought = [name for name in asked if name]
    assert set(thought) == {"one", "two"} and abs(thought.count("one") - thought.count("two")) <= 1


def test_a_strategy_that_is_not_there_is_refused() -> None:
    said = CliRunner().invoke(app, ["agent", "solve", "task.py", "--strategy", "magic"])
    assert said.exit_code == 2 and "archive, gradients, migration" in " ".join(said.output.split())


# archive and gradients


@pytest.fixture
def brief() -> Brief:
    """Of a first step, as a dry run shows it."""
    return first_brief(Task("toy", "toy.py", "class Model: ...\n", "d" * 64), [graph()], DEVICE, FakeLibrary())


def archive_of(cells: dict[str, tuple[str, float]]) -> Archive:
    found = Archive()
    for name, (cell, value) in cells.items():
        found.add(name, cell, value)
    return found


def test_a_cell_keeps_its_best_and_a_tie_keeps_the_older() -> None:
    cell = "120"
    found = archive_of({"c2": (cell, 2.0), "c1": (cell, 2.0), "c4": ("000", 5.0), "c5": ("111", 0.1)})
    assert found.elites() == {"000": "c4", "120": "c1"}
    found.add("c3", cell, 2.1)
    assert list(found.elites().values()) == ["c4", "c3"]


PLAIN = "for (long i = 0; i < n; ++i) y[i] = x[i];"
TILED = "__global__ void k() { __shared__ float tile[32]; __syncthreads(); y[i] = tile[0]; }"
REDUCED = "__global__ void k() { v += __shfl_xor_sync(~0u, v, 1); y[i] = expf(x[i] - m) / sum; atomicAdd(y, v); }"


@pytest.mark.parametrize(
    ("code", "cell"), [(PLAIN, "000"), (TILED, "201"), (REDUCED, "013"), ("// atomicAdd(x)\nvoid f();", "000")]
)
def test_a_kernel_s_cell_is_read_from_its_native_text(code: str, cell: str) -> None:
    text = f'SOURCE = r"""#include <math.h>\n{code}"""\n\n\nclass ModelNew: ...\n'
    assert read_cell(text, Resources()) == cell
    assert read_cell(text, Resources(shared_bytes=2048))[0] == max("2", cell[0])
    assert read_cell("class ModelNew: ...", Resources()) == "000"


def test_gradients_point_where_improvement_came_from(brief: Brief) -> None:
    known = archive_of({"c1": ("110", 2.0)})
    better: Transition = ("110", "210", 2.0, 3.0)  # memory up
    worse: Transition = ("110", "120", 2.0, 1.2)  # algorithm up
    found = gradient("110", [better, worse] * 4, known)
    assert found[0] > 0.4 > 0 > found[1]
    told = add_hints(brief, found)
    assert told.weights["tile"] > 1 > told.weights["fusion"]
    assert told.notes[0].startswith("kernels near this one gained by this: ") and len(told.notes) == 2


def test_without_transitions_only_exploration_pulls(brief: Brief) -> None:
    found = gradient("000", [], archive_of({"c1": ("000", 2.0)}))
    assert all(0 < value <= 0.2 for value in found) and add_hints(brief, found).notes == ()
