"""What the library has no kernel for: nothing is evaluated in which PyTorch would do the work, and users read why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from foundry.graph.run.events import EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.solve import solve
from foundry.knowledge.compiler.lowered import LeftWork, Lowered
from foundry.tools.grade.host.workbench import Intake

MakeRequest = Callable[..., SolveRequest]


def leaving(library: Any, *, always: bool) -> Any:
    """A library that leaves the task's relu to PyTorch, or does so unless the first tile is 32."""

    class Leaving(library):  # type: ignore[misc]
        def lower(self, graphs: Any, recipe: Any, **given: Any) -> Lowered:
            found: Lowered = super().lower(graphs, recipe, **given)
            has_all = found.recipe.choices["k0"]["tile"] != 16 and not always
            return found if has_all else replace(found, left=(LeftWork("relu", 1 << 20, 8 << 20),))

    return Leaving()


async def test_what_would_leave_the_work_to_pytorch_is_not_evaluated_and_the_user_reads_what_to_do(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    summary = await solve(make_request(), parts=parts(library=leaving(library, always=True)))
    assert summary.verdict == "nothing accepted" and summary.evaluations == 0
    assert "it has no kernel for relu, so that PyTorch would do 41 % of the work; policy fair" in summary.ending
    assert "--model NAME" in summary.ending and "--policy open" in summary.ending
    assert not any("cheat" in line for line in ending_lines(summary, "relu_add.py"))
    opened = await solve(make_request(policy="open"), parts=parts(library=leaving(library, always=True)))
    assert opened.verdict == "accepted"


async def test_why_a_task_could_not_be_captured_is_said_once(
    make_request: MakeRequest, parts: Any, machine: Any
) -> None:
    why = "no tracer could follow the model: the values of tensors are read in line 5"

    class Untraceable(machine):  # type: ignore[misc]
        async def intake(self) -> Intake:
            found: Intake = await super().intake()
            return replace(found, graphs=[], capture_note=why)

    summary = await solve(make_request(), parts=parts(Untraceable()))
    assert summary.ending == f"the task could not be captured: {why}; a chat model may write a kernel (--model NAME)"
    assert sum(why in line for line in ending_lines(summary, "relu_add.py")) == 1


async def test_no_step_goes_where_pytorch_would_do_the_work(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    """The first recipe is withheld, the second is not; its neighbour with the first's tile is not evaluated either."""
    summary = await solve(make_request(30, islands=1), parts=parts(library=leaving(library, always=False)))
    assert summary.verdict == "accepted" and summary.evaluations > 4
    run = RunDirectory.inspect(Path(summary.run))
    assert not [item for item in run.decisions() if '"tile": 16' in run.text(item.candidate.source)]
    notes = EventLog(run.database, reading=True).read("note")
    assert any("no kernel for relu" in event.data["reason"] for event in notes if event.name == "proposal failed")
    run.close()
