"""A brain that writes code: whole kernels where the library has none, edits, nonsense, cheats, doubts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.graph.conftest import kernel

from foundry.agents.brief import Brief
from foundry.agents.judgement import AuditEvidence
from foundry.graph.history.replay import replay
from foundry.graph.run.events import EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.view import RunView
from foundry.graph.show.words.answers import cost
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Judgement
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.ruling import rule
from foundry.knowledge.thought import Diagnosis, Edit, ExpertName, Proposal

MakeRequest = Callable[..., SolveRequest]


class Writer:
    """Writes a kernel, then edits it; its third idea does not fit, its fourth cheats."""

    name = "test-model"

    def __init__(self, doubt: str = "") -> None:
        self.doubt = doubt
        self.thoughts = 0
        self.parents: list[str] = []

    async def diagnose(self, brief: Brief) -> Diagnosis:
        return Diagnosis(brief.parent.candidate.id, None, "memory_bandwidth", "read from the source", "tile it")

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | None:
        self.thoughts += 1
        self.parents.append(brief.parent.candidate.id)
        blank = Proposal(
            f"p-{brief.step}", expert, brief.parent.candidate.id, "tiles fit the cache", "fewer misses", brain=self.name
        )
        ideas = {
            1: replace(blank, source=kernel(32)),
            2: replace(blank, edits=(Edit('"tile": 32', '"tile": 64'),)),
            3: replace(blank, edits=(Edit("not there", "nothing"),)),
            4: replace(blank, source=kernel(128) + "# cheat\n"),
        }
        return ideas.get(brief.generation)

    async def judge(self, evidence: AuditEvidence) -> Judgement:
        return Judgement("read it", self.doubt)

    async def answer(self, question: str, context: str) -> str:
        return ""


def bare(library: Any) -> Any:
    """A library that cannot lower this task."""

    class Empty(library):  # type: ignore[misc]
        def seeds(self, graph: Any, device: Any, unrounded: Any = None) -> Any:
            raise CannotLower("no template for aten.svd")

    return Empty()


async def test_a_model_starts_from_the_reference_where_the_library_has_nothing(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    brain = Writer()
    request = make_request(20, islands=1, model="test-model")
    summary = await solve(request, parts=parts(brain=brain, library=bare(library)))
    assert summary.verdict == "accepted" and summary.brain == "test-model"
    assert brain.parents[:2] == ["c0", "c1"]
    run = RunDirectory.inspect(Path(summary.run))
    winner = run.evaluation(summary.candidate).candidate
    assert winner.origin == "model" and '"tile": 64' in run.text(winner.source)
    assert winner.parents == ("c1",)
    notes = EventLog(run.database, reading=True).read("note")
    failed = [event.data["reason"] for event in notes if event.name == "proposal failed"]
    assert failed == ["edit 1: its old text occurs 0 times, not once"]
    assert all(item.candidate.id != "c0" for item, stage in run.evaluations() if stage == "final")
    run.close()
    thoughts = brain.thoughts
    assert (await replay(Path(summary.run), parts(brain=brain, library=bare(library)))).exact
    assert brain.thoughts == thoughts, "a replay asked the model again"


async def test_what_a_model_takes_to_answer_is_thinking_and_no_overhead(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    class Slow(Writer):
        async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | None:
            await asyncio.sleep(0.3)
            return await super().propose(expert, brief)

    request = make_request(20, islands=1, model="test-model")
    summary = await solve(request, parts=parts(brain=Slow(), library=bare(library)))
    thinking_s, overhead_s = summary.time["thinking_s"], summary.time["overhead_s"]
    assert thinking_s >= 0.9 and overhead_s <= summary.wall_s - thinking_s + 0.01
    assert f"thinking {thinking_s:.1f} s" in "\n".join(ending_lines(summary, request.task))
    run = RunDirectory.inspect(Path(summary.run))
    assert f"thinking {thinking_s:.1f} s" in cost(RunView(run))
    run.close()


async def test_a_doubt_of_the_auditor_vetoes(make_request: MakeRequest, parts: Any, library: Any) -> None:
    brain = Writer(doubt="the result is cached")
    request = make_request(20, islands=1, model="test-model")
    summary = await solve(request, parts=parts(brain=brain, library=bare(library)))
    assert summary.verdict == "nothing accepted"
    assert summary.kernel is None and summary.speedup is None
    assert any("failed its proof" in note and "the result is cached" in note for note in summary.notes)
    run = RunDirectory.inspect(Path(summary.run))
    finals = [item for item, stage in run.evaluations() if stage == "final"]
    run.close()
    assert finals and all(item.audit and item.audit.clean for item in finals), "the auditor's record was rewritten"
    rulings = [rule(item) for item in finals]
    assert all((found.verdict, found.evidence) == ("rejected", "judgement: the result is cached") for found in rulings)
    assert all("read it" in found.judgement for found in rulings)
