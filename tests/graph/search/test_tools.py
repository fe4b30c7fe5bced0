"""Experts whose model calls tools in a run: journalled, paid from the run's budget, exact when resumed and replayed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import Reply, Request, answer, calling
from tests.agents.session import move
from tests.graph.conftest import FakeLibrary, FakeParts, FakeWorkbench, kernel, kernel_file
from tests.graph.test_model_brain import bare
from tests.graph.test_resume import kill_when

from foundry.agents.brain import Brain, Listener
from foundry.agents.models.brain import open_models
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.history.replay import replay
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import resume, solve
from foundry.knowledge.codec import decode, encode

MakeRequest = Callable[..., SolveRequest]
# Not every expert may tune, and whether a step's structure was swept before depends on the parent that is drawn.
SWEPT = "No better numbers: its tunables were swept before in this run"
TUNED = rf"Not called: there is no tool 'tune' here|{SWEPT}|(?s:.+) Best: \w+\.\w+ = .+ \(was "
KILLED = """
import asyncio, sys
from pathlib import Path
from tests.graph.search.test_tools import solve_for_ever
asyncio.run(solve_for_ever(sys.argv[1], Path(sys.argv[2])))
"""


class Calling(FakeParts):
    """Parts whose brain asks the request's endpoint, over the fake machine."""

    def brain(self, request: SolveRequest, thinking: Any, listener: Listener) -> Brain:
        playbook = PlaybookBrain(self._library)
        if not request.models:
            return playbook
        return open_models(request.models, ledger=thinking, playbook=playbook, listener=listener)


def without_library(machine: FakeWorkbench | None = None) -> Calling:
    return Calling(machine, library=bare(FakeLibrary))


async def solve_for_ever(request: str, log: Path) -> None:
    await solve(decode(SolveRequest, request), parts=without_library(FakeWorkbench(log=log)))


class Engineer:
    """A model that tries kernels by its tools before it proposes them: `script` has a reply for each number of results.
    As the auditor it reads the machine code and has no doubt."""

    def __init__(self, *script: Callable[[str], Reply]) -> None:
        self.script = script
        self.kernels = 0

    def __call__(self, request: Request) -> Reply:
        said = str(request["messages"])
        told = said.count("<result call=")
        if "You are the anti-cheat auditor" in said:
            return answer({"judgement": "genuine", "doubt": False, "reason": ""}) if told else calling("sass")
        if not told:
            self.kernels += 1
        return self.script[min(told, len(self.script) - 1)](kernel_file(self.kernels - 1))


def calls_of(run: RunDirectory) -> list[Event]:
    return EventLog(run.database, reading=True).read("call")


def answers_of(run: RunDirectory) -> list[str]:
    return [run.text(event.data["whole"]) for event in calls_of(run)]


async def test_a_model_tries_a_kernel_by_its_tools_and_it_is_measured_once(
    make_request: MakeRequest, serve: Any, tmp_path: Path
) -> None:
    server = serve(
        Engineer(
            lambda source: calling("compile", {"source": source}, ("check", {"source": source})),
            lambda _: pytest.fail("an answer to one of two calls alone"),
            lambda source: calling("quick_time", {"source": source}),
            lambda source: calling("profile", {"source": source}),
            lambda _: calling("history"),
            lambda _: calling("show", {"candidate": "c1"}),
            lambda _: answer(move(moves=[], draft=3)),
        )
    )
    log = tmp_path / "machine.log"
    request = make_request(5, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=without_library(FakeWorkbench(log=log)))
    assert (summary.verdict, summary.ending) == ("accepted", "budget: 5 evaluations")
    run = RunDirectory.inspect(Path(summary.run))
    made = [run.text(item.candidate.source) for item in run.decisions() if item.proposal is not None]
    assert made == [kernel_file(number) for number in range(len(made))] and len(made) >= 3
    names = Counter(event.name for event in calls_of(run))
    assert names["compile"] == names["check"] == names["quick_time"] == names["history"] >= 3
    told = answers_of(run)
    assert "It compiles." in told[0] and "correct, accuracy class ieee" in told[1] and "the audit is clean" in told[1]
    assert "times as fast as eager" in told[2] and "A quick timing, no proof." in told[2] and "roofline" in told[3]
    assert re.search(r"\n(memory_latency|memory_bandwidth|compute): its kernels|its operators", told[3]), told[3]
    assert told[4] == "No step yet." and "has no candidate c1" in told[5]
    assert "c1 from c0" in told[10] and kernel_file(0).strip() in told[11]
    asked = Counter(line for line in log.read_text().splitlines() if line.startswith(("verify screen", "time screen")))
    turns = [event for event in EventLog(run.database, reading=True).read("tool") if event.name == "time in turns"]
    assert len(asked) == sum(asked.values()), "a kernel that its author had timed was timed again as a candidate"
    assert len(turns) == sum("in turns with" in line for line in asked) > 0, "once for each draft and parent"
    assert run.text_count() == 5 and summary.tokens == 1100 * len(server.requests)
    run.close()
    requests = len(server.requests)
    assert (await replay(Path(summary.run), without_library())).exact
    assert len(server.requests) == requests, "a replay asked the model again"


async def test_tools_are_paid_from_the_budget_and_have_a_part_of_it(make_request: MakeRequest, serve: Any) -> None:
    """Each step times two kernels and proposes none of them: half of the six evaluations are theirs."""
    numbers = iter(range(100))

    def more(_: str) -> Reply:
        return calling("check", {"source": kernel_file(next(numbers)) + f"# try {next(numbers)}\n"})

    server = serve(Engineer(more, more, lambda source: answer(move(moves=[], source=source))))
    request = make_request(6, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=without_library())
    run = RunDirectory.inspect(Path(summary.run))
    refused = [text for text in answers_of(run) if "their part of the budget, 3 kernels" in text]
    assert run.trial_count() == 3 and refused and run.text_count() == 6 and summary.evaluations == 3
    run.close()


async def test_a_library_kernel_is_asked_about(make_request: MakeRequest, serve: Any, tmp_path: Path) -> None:
    server = serve(
        Engineer(
            lambda _: calling("search_experience", {"query": "relu add tile"}),
            lambda _: calling("sass"),
            lambda _: calling("quick_time", {"candidate": "c1"}),
            lambda _: calling("check", {"source": kernel(32) + "class ModelNew: pass  # cheat\n"}),
            lambda _: calling("tune"),
            lambda _: calling("search_experience", {"query": ""}),
            lambda _: answer(move(1)),
        )
    )
    request = make_request(12, islands=1, model="scripted-1", base_url=server.url, learn=True)
    summary = await solve(request, parts=Calling())
    assert summary.verdict == "accepted"
    run = RunDirectory.inspect(Path(summary.run))
    by_name: dict[str, list[str]] = {}
    for event in calls_of(run):
        by_name.setdefault(event.name, []).append(run.text(event.data["whole"]))
    judged = [event for event in calls_of(run) if event.data["expert"] == "auditor"]
    run.close()
    assert judged and {event.name for event in judged} == {"sass"} and judged[0].step.startswith("final/")
    assert "40 registers" in by_name["sass"][0] and "10 pairs" not in by_name["sass"][0]
    assert "the audit vetoes it" in by_name["check"][0] and "calls torch" in by_name["check"][0]
    assert "It is correct and takes" in by_name["quick_time"][0]
    assert re.search(
        r"\nIn turns with c\d+, 9 pairs: it took .* times as fast as c\d+ \(95 %: ", by_name["quick_time"][0]
    )
    assert by_name["tune"] and all(re.match(TUNED, told) for told in by_name["tune"]), by_name["tune"]
    learnt, empty = by_name["search_experience"][:2]
    assert learnt.startswith("x") and empty == "Not called: say what is looked for."


async def test_each_reason_for_no_numbers_is_said(make_request: MakeRequest, serve: Any) -> None:
    """The tuner answered with four reasons joined by "or"."""

    def engineer(request: Request) -> Reply:
        said = str(request["messages"])
        if "You are the memory-tiling expert" not in said:
            return answer("I have nothing.")
        script = [calling("tune", {"moves": [4]}), calling("tune", {"source": kernel_file(3)})]
        told = said.count("<result call=")
        return script[told] if told < 2 else answer("I have nothing.")

    server = serve(engineer)
    request = make_request(12, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=Calling())
    run = RunDirectory.inspect(Path(summary.run))
    told = [run.text(event.data["whole"]) for event in calls_of(run) if event.name == "tune"]
    run.close()
    assert any("its tunables were swept before in this run" in text for text in told), told
    assert any("a whole file has no tunables that the tuner knows" in text for text in told), told


async def test_kill_9_in_the_middle_of_a_loop_loses_the_call_in_flight(
    make_request: MakeRequest, serve: Any, tmp_path: Path
) -> None:
    """Two calls are answered; the model is asked for the third time when the run is killed, and again afterwards."""
    hangs = [True]

    def third(source: str) -> Reply:
        return Reply(wait_s=600.0 * hangs.pop()) if hangs else answer(move(moves=[], source=source))

    server = serve(
        Engineer(
            lambda source: calling("check", {"source": source}),
            lambda source: calling("quick_time", {"source": source}),
            third,
        )
    )
    log = tmp_path / "machine.log"
    request = make_request(2, islands=1, model="scripted-1", base_url=server.url)
    path = kill_when(lambda: len(server.requests) >= 3, log, request, KILLED, encode(request), str(log))
    before = log.read_text().splitlines()
    summary = await resume(path, parts=without_library(FakeWorkbench(log=log)))
    after = log.read_text().splitlines()[len(before) :]
    asked = [request for request in server.requests if "anti-cheat auditor" not in str(request["messages"])]
    assert summary.verdict == "accepted" and len(asked) == 3 + 1 + 3
    assert asked[2]["messages"] == asked[3]["messages"] != asked[4]["messages"]
    measured = {line for line in before if " screen " in line}
    assert len(measured) == 3 and not measured & set(after)
    assert summary.tokens == (len(server.requests) - 1) * 1100  # the request that was under way is known to nobody
    assert (await replay(path, without_library())).exact
