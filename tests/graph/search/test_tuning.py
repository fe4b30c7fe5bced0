"""The tune move: a new correct structure goes to the tuner once, and what it found walks the one path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.graph.test_resume import CHILD, kill_when

from foundry.agents.tuning import tuned_mark
from foundry.graph.history.replay import replay
from foundry.graph.run.events import EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import resume, solve
from foundry.knowledge.codec import encode

MakeRequest = Callable[..., SolveRequest]


async def test_each_structure_is_tuned_once_and_its_numbers_are_measured_like_any_others(
    make_request: MakeRequest, parts: Any, machine: Any, library: Any, tmp_path: Path
) -> None:
    log = tmp_path / "machine.log"
    summary = await solve(make_request(24, islands=2), parts=parts(machine(log=log)))
    run = RunDirectory.inspect(Path(summary.run))
    notes = [event for event in EventLog(run.database, reading=True).read("note") if event.name == "tuned"]
    asked = log.read_text().splitlines().count("tune")
    assert asked == len(notes) >= 2, "one for each structure that the search came to"
    assert "no result" in notes[0].data["by"]
    assert (run.path / notes[0].data["log"]).read_text() == "best: {}\n"
    parents = [run.evaluation(note.data["parent"]).candidate.recipe for note in notes]
    marks = [tuned_mark(library().lower([], recipe, task_source="", device=machine().device)) for recipe in parents]
    assert len(set(marks)) == len(marks)
    made = [item for item in run.decisions() if item.proposal and item.proposal.rationale.startswith("Tune:")]
    moves = [[move.key for move in item.proposal.moves] for item in made if item.proposal]
    assert moves and all(keys == ["map:set:tile=64"] for keys in moves)
    measured = {evaluation.candidate.id for evaluation, _ in run.evaluations()}
    assert {item.candidate.id for item in made} <= measured
    run.close()
    assert (await replay(Path(summary.run), parts())).exact, "a replay takes the numbers from the record"


async def test_kill_9_after_the_tuner_keeps_what_it_found(
    make_request: MakeRequest, parts: Any, machine: Any, tmp_path: Path
) -> None:
    """Killed while the candidate with the tuner's numbers is built: the tuner is not asked again for them."""
    log = tmp_path / "machine.log"
    request = make_request(16, islands=1)

    def is_built() -> bool:
        lines = log.read_text().splitlines()
        return "tune" in lines and lines[-1] != "tune"

    conftest = Path(__file__).parents[1] / "conftest.py"
    path = kill_when(is_built, log, request, CHILD, str(conftest), encode(request), str(log), "tune", "3")
    assert log.read_text().splitlines().count("tune") == 1
    run = RunDirectory.inspect(path)
    kept = [key for (key,) in run.database.run("SELECT key FROM journal WHERE key LIKE 'tune/%'")]
    run.close()
    summary = await resume(path, parts=parts(machine(log=log)))
    assert summary.verdict == "accepted"
    run = RunDirectory.inspect(path)
    keys = [key for (key,) in run.database.run("SELECT key FROM journal WHERE key LIKE 'tune/%'")]
    assert kept[0] in keys and log.read_text().splitlines().count("tune") == len(keys)
    run.close()
    assert (await replay(path, parts())).exact


async def test_a_users_word_is_kept(make_request: MakeRequest, parts: Any, machine: Any, tmp_path: Path) -> None:
    """The tuner would take tile 64, the user has set another: what is made of the tuner's numbers obeys."""
    task = parts().task

    class Told(parts):  # type: ignore[misc]
        def task(self, request: SolveRequest) -> Any:
            plain = task(request)
            return replace(plain, options=replace(plain.options, instructions="set tile 128"))

    summary = await solve(make_request(16, islands=1), parts=Told(machine(log=tmp_path / "machine.log")))
    assert "tune" in (tmp_path / "machine.log").read_text().splitlines()
    run = RunDirectory.inspect(Path(summary.run))
    made = [item for item in run.decisions() if item.proposal is not None and item.candidate.recipe is not None]
    assert {item.candidate.recipe.choices["k0"]["tile"] for item in made if item.candidate.recipe} == {128}
    run.close()
