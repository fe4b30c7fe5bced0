"""Parts of the search that are of use to models alone: off while the playbook thinks, on from the step on in which a
model does, and on or off again as before when the run is replayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.graph.test_orders import run_saying

from foundry.agents.brief import Brief
from foundry.agents.models.models import one_model
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.history.fork import Change, fork
from foundry.graph.history.replay import replay
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.solve import resume, solve
from foundry.knowledge.thought import ExpertName

MakeRequest = Callable[..., SolveRequest]
Seen = list[tuple[str, str, int]]  # by whom a step is thought, in which role, how many elites it is shown


def watching(parts: Any, library: Any, seen: Seen) -> Any:
    """Parts whose brains note what they are shown; the playbook stands for every model."""

    class Watching(PlaybookBrain):
        title = ""

        async def propose(self, expert: ExpertName, brief: Brief) -> Any:
            seen.append((self.title, brief.role, len(brief.elites)))
            return await super().propose(expert, brief)

    class Named(parts):  # type: ignore[misc]
        def brain(self, request: SolveRequest, *_: Any) -> PlaybookBrain:
            brain = Watching(library())
            brain.title = request.models.title
            return brain

    return Named()


async def test_a_model_that_comes_in_the_midst_is_shown_roles_and_other_elites(
    make_request: MakeRequest, parts: Any, library: Any, tmp_path: Path
) -> None:
    seen: Seen = []
    mine = watching(parts, library, seen)
    said = {6: ["role memory on island 0"], 9: ["model other-1"], 20: ["model playbook"]}
    before = {"models": one_model("first-1", "http://127.0.0.1:9/v1")}  # where other-1 is asked, too
    run, _ = await run_saying(make_request, mine, tmp_path, {1: ["model playbook"], **said}, islands=1, **before)
    without = [item for item in seen if item[0] == "playbook"]
    by_model = [item for item in seen if item[0] == "other-1"]
    assert seen[0][:2] == ("first-1", "fusion") and without and by_model
    assert {role for _, role, _ in without} == {"any", "memory"}, "a user's role is followed all the same"
    assert max(elites for _, _, elites in without) == 1
    assert min(elites for _, _, elites in by_model) > 1, "those that were found before it came are among them"
    path = run.path
    run.close()
    assert (await replay(path, watching(parts, library, []))).differences == ()


async def test_a_fork_to_a_model_has_roles_and_the_archive(make_request: MakeRequest, parts: Any, library: Any) -> None:
    seen: Seen = []
    source = Path((await solve(make_request(12, islands=1), parts=watching(parts, library, seen))).run)
    assert {role for _, role, _ in seen} == {"any"} and max(elites for _, _, elites in seen) == 1
    seen.clear()
    change = Change(models=one_model("other-1", "http://127.0.0.1:9/v1"), limits=RunLimits(evaluations=4))
    path = fork(source, "c10", change, watching(parts, library, []))
    await resume(path, parts=watching(parts, library, seen))
    assert {role for _, role, _ in seen} == {"fusion"} and min(elites for _, _, elites in seen) > 1
    assert (await replay(path, watching(parts, library, []))).differences == ()
