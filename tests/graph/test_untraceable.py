"""A task that no tracer follows: a chat model is asked for the whole file, with its tools, and what it writes is judged
like any kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.agents.chat.scripted_server import answer, calling
from tests.agents.session import move
from tests.graph.conftest import FakeWorkbench, kernel_file
from tests.graph.search.test_tools import Calling, answers_of

from foundry.graph.replay import replay
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import solve
from foundry.knowledge.candidate import REFERENCE
from foundry.knowledge.opgraph import OperatorRun
from foundry.tools.grade.workbench import Intake

MakeRequest = Callable[..., SolveRequest]
WHY = "no tracer could follow the model: its Python reads the values of tensors in line 5"


class Untraceable(FakeWorkbench):
    """A machine on which the task's operators were seen to run, and no graph was made of them."""

    async def intake(self) -> Intake:
        ran = [OperatorRun("aten::relu", calls=1, flops=1 << 20, traffic_bytes=8 << 20, ms=0.1)]
        return replace(await super().intake(), graphs=[], capture_note=WHY, ran=ran)


async def test_a_model_writes_a_kernel_for_a_task_that_no_tracer_follows(
    make_request: MakeRequest, serve: Any, tmp_path: Path
) -> None:
    """It ended with an IndexError in `diagnose` before the first request: the estimates asked for its graph."""

    def engineer(request: Any) -> Any:
        told = str(request["messages"]).count("<result call=")
        source = {"source": kernel_file(2)}
        script = [calling("check", source), calling("profile", source), answer(move(moves=[], draft=1))]
        return script[min(told, 2)]

    server = serve(engineer)
    request = make_request(3, islands=1, model="scripted-1", base_url=server.url, learn=True, store=str(tmp_path / "s"))
    summary = await solve(request, parts=Calling(Untraceable()))
    assert summary.verdict == "accepted", summary
    assert not any("error" in reason for reason in summary.islands.values()), summary.islands
    run = RunDirectory.inspect(Path(summary.run))
    assert run.evaluation(summary.candidate).candidate.parents == (REFERENCE,)
    assert "correct" in answers_of(run)[0] and "times as fast as eager" in answers_of(run)[1]
    run.close()
    assert (await replay(Path(summary.run), Calling(Untraceable()))).exact
