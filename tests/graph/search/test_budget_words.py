"""What a request says of the search's budget, and of the others who think about the same parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.agents.chat.scripted_server import answer, calling
from tests.agents.session import move
from tests.graph.conftest import FakeWorkbench, kernel_file
from tests.graph.search.test_tools import Engineer, without_library

from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import solve

MakeRequest = Callable[..., SolveRequest]


def prompts(server: Any) -> list[str]:
    texts = [str(request["messages"]) for request in server.requests]
    return [text for text in texts if "anti-cheat auditor" not in text]


async def test_a_request_says_what_the_search_has_left_and_what_costs_it(make_request: MakeRequest, serve: Any) -> None:
    """Requests promised six calls, never mentioned evaluations, and an island ended at a number that no list showed."""
    numbers = iter(range(100))

    def more(_: str) -> Any:
        return calling("check", {"source": kernel_file(next(numbers)) + f"# try {next(numbers)}\n"})

    server = serve(Engineer(more, lambda source: answer(move(moves=[], source=source))))
    summary = await solve(make_request(6, islands=1, model="scripted-1", base_url=server.url), parts=without_library())
    first, last = prompts(server)[0], prompts(server)[-1]
    assert "0 of 6 evaluations are spent" in first and "tools may work on 3 of 3 more" in first
    assert "of 6 evaluations are spent" in last and "0 of 6" not in last and "A kernel counts once" in last
    assert summary.ending.startswith("budget: 6 evaluations (") and "only tried by tools" in summary.ending
    run = RunDirectory.inspect(Path(summary.run))
    assert f"{6 - run.trial_count()} candidates" in summary.ending
    run.close()


async def test_a_step_beside_others_reads_who_they_are(make_request: MakeRequest, serve: Any, tmp_path: Path) -> None:
    numbers = iter(range(100))
    server = serve(lambda request: answer(move(moves=[], source=kernel_file(next(numbers))), wait_s=0.2))
    request = make_request(8, islands=2, model="scripted-1", base_url=server.url)
    await solve(request, parts=without_library(FakeWorkbench(delay_s=0.02)))
    told = [text for text in prompts(server) if "at the same time a step from this parent is sought by" in text]
    assert told and any("sought by island " in text for text in told) and "take a step of another kind" in told[0]
