"""Time travel: a fork knows what its source knew at a step, decides the same while nothing is changed, and goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foundry.agents.models.models import one_model
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.cli import app
from foundry.graph.app import make_graph
from foundry.graph.history.fork import Change, fork
from foundry.graph.history.replay import replay
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import checkpoints, resume, solve
from foundry.knowledge.errors import UsageError

MakeRequest = Callable[..., SolveRequest]


def decided(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Step -> (text of the candidate, its parents)."""
    run = RunDirectory.inspect(path)
    found = {item.step: (item.candidate.source, item.candidate.parents) for item in run.decisions()}
    run.close()
    return found


async def history(path: Path) -> dict[str, Any]:
    """Id of a checkpoint -> its values, of the whole thread, islands included, by LangGraph's own means."""
    async with checkpoints(path / "checkpoints.sqlite") as saver:
        graph = make_graph(saver)
        thread: Any = {"configurable": {"thread_id": path.name}}
        spaces = {""} | {item.config["configurable"]["checkpoint_ns"] async for item in saver.alist(thread)}
        found = {}
        for space in spaces:
            place: Any = {"configurable": {"thread_id": path.name, "checkpoint_ns": space}}
            async for state in graph.aget_state_history(place):
                found[state.config["configurable"]["checkpoint_id"]] = state.values
        return found


async def test_a_fork_goes_on_from_a_step_and_langgraph_s_history_agrees(
    make_request: MakeRequest, parts: Any, machine: Any, tmp_path: Path
) -> None:
    """Nothing from before the step is measured or thought again; words change what comes after it, and only that."""
    source = Path((await solve(make_request(16, islands=2), parts=parts())).run)
    log = tmp_path / "machine.log"
    path = fork(source, "i0g4", Change(said=["@tiling tile 128"], limits=RunLimits(evaluations=8)), parts())
    before = await history(path)
    known = await history(source)
    assert before and before.items() <= known.items(), "the thread's history up to the step"
    steps = set(decided(path))
    assert "i0g3" in steps and "i0g4" not in steps and decided(path).items() <= decided(source).items()
    run = RunDirectory.inspect(path)
    spent = run.text_count()
    assert run.is_active is False and run.get("status") == "interrupted"
    assert len(steps) - 1 <= run.evaluation_count() <= len(steps), "one island may have been at work"
    run.close()

    summary = await resume(path, parts=parts(machine(log=log)))
    assert summary.verdict == "accepted" and spent + 6 <= summary.evaluations <= spent + 12
    assert "intake" not in log.read_text() and "baseline" not in log.read_text()
    assert before.items() <= (await history(path)).items()
    new = {step: text for step, text in decided(path).items() if step not in steps}
    assert decided(source).get("i0g4") != new["i0g4"]
    run = RunDirectory.inspect(path)
    origin = run.origin
    assert origin is not None and (origin.run, origin.step) == (source.name, "i0g4")
    cited = [item for item in run.decisions() if item.proposal and "d1" in item.proposal.cites]
    assert cited and {item.step for item in cited} <= set(new)
    family = {item.candidate.id: item.candidate.parents for item in run.decisions()}
    assert all(parent in family for elders in family.values() for parent in elders), "lineage crosses the fork"
    run.close()
    assert (await replay(path, parts())).differences == ()
    told = CliRunner().invoke(app, ["agent", "compare", str(source), str(path)])
    assert told.exit_code == 0 and f"{path.name} is a fork of {source.name}, from before i0g4." in told.output
    parted = re.search(r"They parted at (\w+):", told.output)
    assert parted and parted[1] in (new.keys() | decided(source).keys()) - steps
    assert f"Only {path.name} was told: @tiling tile 128" in told.output and "It brought " in told.output
    listed = CliRunner().invoke(app, ["agent", "runs", "--runs", str(path.parent)]).output
    assert f"{path.name}  " in listed and f"(a fork of {source.name}@i0g4)" in listed
    found = CliRunner().invoke(app, ["agent", "compare", str(path), str(path), "--json"])
    assert json.loads(found.output)["step"] == "" and json.loads(found.output)["gain"] == 1.0


async def test_a_fork_without_a_change_repeats_its_source(make_request: MakeRequest, parts: Any) -> None:
    """One island has no others to wait for: the same steps, to the letter."""
    source = Path((await solve(make_request(14, islands=1), parts=parts())).run)
    path = fork(source, "i0g3", Change(), parts())
    await resume(path, parts=parts())
    assert decided(path) == decided(source)


async def test_a_finished_search_goes_on_with_more_budget(
    make_request: MakeRequest, parts: Any, machine: Any, tmp_path: Path
) -> None:
    """What islands had at work when the first of them saw the end is not measured again; proofs are."""
    logs = tmp_path / "source.log", tmp_path / "fork.log"
    source = await solve(make_request(10, islands=2), parts=parts(machine(0.02, logs[0])))
    path = fork(Path(source.run), "", Change(limits=RunLimits(evaluations=10)), parts())
    summary = await resume(path, parts=parts(machine(log=logs[1])))
    assert source.evaluations + 8 <= summary.evaluations <= source.evaluations + 13
    assert decided(Path(source.run)).items() <= decided(path).items()
    before, after = (log.read_text().splitlines() for log in logs)
    screened = [line for line in before if line.startswith("time screen")]
    assert screened and not set(screened) & set(after)
    assert any(line.startswith("time final") for line in after)


async def test_another_model_thinks_in_a_fork(make_request: MakeRequest, parts: Any, library: Any) -> None:
    """What the first one thought stays as it was, also in a replay."""

    class Named(type(parts())):  # type: ignore[misc]
        opened: tuple[str, ...] = ()

        def brain(self, request: SolveRequest, *_: Any) -> PlaybookBrain:
            self.opened += (request.models.title,)
            return PlaybookBrain(library())

    source = Path((await solve(make_request(6, islands=1), parts=parts())).run)
    change = Change(models=one_model("other-1", "http://127.0.0.1:9/v1"), limits=RunLimits(evaluations=2))
    path, own = fork(source, "c4", change, parts()), Named()
    await resume(path, parts=own)
    assert own.opened == ("other-1",)
    run = RunDirectory.inspect(path)
    assert (run.get("brain"), run.request.models.title) == ("other-1", "other-1")
    run.close()
    assert (await replay(path, Named())).differences == ()


async def test_what_cannot_be_forked_is_said_and_leaves_nothing(make_request: MakeRequest, parts: Any) -> None:
    source = Path((await solve(make_request(6, islands=1), parts=parts())).run)
    with pytest.raises(UsageError, match="has no step i7g9"):
        fork(source, "i7g9", Change(), parts())
    with pytest.raises(UsageError, match="200 is not legal here"):
        fork(source, "i0g2", Change(said=["@tiling tile 200"]), parts())
    assert list(source.parent.iterdir()) == [source]
