"""Runs whose chat model is away, talks nonsense or costs money, at a scripted server through the real client."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import Reply, ScriptedServer, answer, status
from tests.graph.conftest import kernel_file
from tests.graph.test_model_brain import bare

from foundry.agents.brain import Brain, Listener
from foundry.agents.chat.breaker import Pauses
from foundry.agents.chat.client import Patience
from foundry.agents.chat.options import ChatOptions
from foundry.agents.ledger import BudgetExhausted
from foundry.agents.models.brain import open_models
from foundry.agents.models.models import one_model
from foundry.agents.prices import UNKNOWN
from foundry.graph.history.replay import replay
from foundry.graph.run.budget import Ledger
from foundry.graph.run.events import Event, EventKind, EventLog
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import Summary, summarise
from foundry.graph.show.view import RunView
from foundry.graph.show.words import conversation
from foundry.graph.show.words.answers import cost
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.solve import solve
from foundry.knowledge.errors import UsageError
from foundry.knowledge.thought import Directive

MakeRequest = Callable[..., SolveRequest]
QUESTION = "what would you try next?"
PATIENCE = Patience(attempts=1, pauses=Pauses(after=2, first_s=0.05, longest_s=0.6))


def idea(number: int) -> Reply:
    source = kernel_file(number)
    return answer({"rationale": "tiles", "expected": "1.1x", "moves": [], "edits": [], "source": source, "cites": []})


def thinker(parts: Any, library: Any) -> Any:
    """Parts without a kernel compiler, whose brain asks the request's endpoint with little patience."""

    class Thinking(parts):  # type: ignore[misc]
        def brain(self, request: SolveRequest, thinking: Any, listener: Listener) -> Brain:
            return open_models(request.models, ledger=thinking, limits=PATIENCE, tape=request.tape, listener=listener)

    return Thinking(library=bare(library))


def events_of(summary: Summary, kind: EventKind) -> list[Event]:
    run = RunDirectory.inspect(Path(summary.run))
    found = EventLog(run.database, reading=True).read(kind)
    run.close()
    return found


async def test_an_outage_holds_a_run_up_and_does_not_end_its_search(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any
) -> None:
    """The library knows no step for this task, so that everything waits for the model."""
    ideas = [idea(number) for number in range(8)]
    server = serve(ideas[0], *[status(503)] * 5, *ideas[1:])
    request = make_request(5, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=thinker(parts, library))
    assert (summary.evaluations, summary.verdict) == (5, "accepted")
    names = [event.name for event in events_of(summary, "note")]
    assert names.index("model unavailable") < names.index("waits for the model") < names.index("model is back")
    assert any("answers again after" in note for note in summary.notes)
    assert (await replay(Path(summary.run), thinker(parts, library))).exact


async def test_nonsense_exhausts_no_parent(make_request: MakeRequest, parts: Any, library: Any, serve: Any) -> None:
    """Each of the four experts is asked twice before a step counts as a miss: two steps of nonsense, then ideas."""
    server = serve(*[answer("I would rather not.")] * 16, *[idea(number) for number in range(8)])
    request = make_request(3, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=thinker(parts, library))
    assert (summary.evaluations, summary.ending) == (3, "budget: 3 evaluations")


async def test_a_model_that_only_talks_nonsense_ends_the_island(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any
) -> None:
    server = serve(answer("I would rather not."))
    request = make_request(3, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=thinker(parts, library))
    assert summary.islands == {"0": "exhausted: 8 proposals in a row gave no new candidate"}


async def test_islands_ask_at_a_time_and_know_of_each_other(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any
) -> None:
    """No answer comes before there is a second question; what the budget pays for is never passed."""
    both, asked = threading.Event(), list[str]()

    def hold(request: dict[str, Any]) -> Reply:
        asked.append(json.dumps(request))
        number = len(asked)
        if number == 2:
            both.set()
        assert both.wait(60)
        return idea(number)

    server = serve(hold)
    request = make_request(5, islands=2, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=thinker(parts, library))
    assert (summary.evaluations, summary.verdict, server.most_at_once) == (5, "accepted", 2)
    told = ["at the same time a step from this parent is sought by" in prompt for prompt in asked]
    assert sorted(told[:2]) == [False, True]
    run = RunDirectory.inspect(Path(summary.run))
    assert {item.step for item in run.decisions() if item.proposal} >= {"i0g1", "i1g1"}
    run.close()
    assert (await replay(Path(summary.run), thinker(parts, library))).exact


async def test_once_a_run_is_stopped_no_further_expert_is_asked(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any
) -> None:
    """The word arrives while the first expert thinks; three others would have been asked before the next step."""

    def stop(asked: dict[str, Any]) -> Reply:
        (folder,) = Path(request.runs).iterdir()
        run = RunDirectory.inspect(folder)
        conversation.say(run, "stop")
        run.close()
        return answer("I would rather not.")

    server = serve(stop, answer("I would rather not."))
    request = make_request(3, islands=1, model="scripted-1", base_url=server.url)
    summary = await solve(request, parts=thinker(parts, library))
    assert summary.islands == {"0": "stopped by the user (d1)"}
    assert len(server.requests) == 2, "the first expert and its repair"


# a user's question


def begun(make_request: MakeRequest, server: ScriptedServer, **limits: Any) -> RunDirectory:
    request = make_request(model="scripted-1", base_url=server.url, limits=RunLimits(**limits), chat=ChatOptions(512))
    run = RunDirectory.create(request)
    run.set("brain", "scripted-1")
    return run


def test_a_question_is_paid_by_the_run_and_traced(make_request: MakeRequest, serve: Any) -> None:
    server = serve(answer("Larger tiles."))
    run = begun(make_request, server, tokens=100_000)
    log = EventLog(run.database)
    working = Ledger(run.request, run, log)  # of the process that works on the run meanwhile
    assert conversation.say(run, QUESTION).text == "Larger tiles."
    (call,) = [event for event in log.read("expert") if "prompt_tokens" in event.data]
    assert (call.data["purpose"], call.data["outcome"], call.data["tokens"]) == ("answer", "answered", 1100)
    assert run.text(call.data["answer"]) == "Larger tiles." and QUESTION in run.text(call.data["prompt"])
    assert server.requests[0]["max_tokens"] == 512
    asked = run.text(call.data["prompt"])
    assert " evaluations, " in asked and "No step has been taken yet." in asked and "No directives yet." in asked
    for _ in range(2):  # once, however often it looks
        working.refresh()
        assert working.spent().tokens == 1100
    assert Ledger(run.request, run, EventLog(run.database)).spent().tokens == 1100  # on resume
    late = Ledger(replace(run.request, limits=RunLimits(minutes=1e-9)), run, log)
    assert working.left_s() == math.inf and late.left_s() <= 54.1, "the search is over: a quick run's end is left"
    assert summarise(run).tokens == 1100 and not any("steps to the playbook" in note for note in summarise(run).notes)
    run.close()


def test_a_question_that_the_budget_does_not_cover_is_not_asked(make_request: MakeRequest, serve: Any) -> None:
    server = serve(answer("Larger tiles."))
    run = begun(make_request, server, tokens=200)
    reply = conversation.say(run, QUESTION)
    assert not reply.understood and "the model's budget is used up: 0 of 200 tokens" in reply.text
    assert not server.requests
    run.inbox.post(Directive(0, "run", "budget", {"verb": "budget", "amount": 100000, "unit": "tokens"}))
    assert conversation.say(run, QUESTION).text == "Larger tiles."
    run.close()


def test_a_call_of_a_killed_process_counts_as_the_most_that_it_may_have_cost(
    make_request: MakeRequest, serve: Any
) -> None:
    run = begun(make_request, serve(answer("Larger tiles.")), tokens=10_000, calls=2)
    killed = Ledger(run.request, run, EventLog(run.database)).thinking
    killed.settle(killed.reserve(1000, 512, UNKNOWN), None)  # refused by its endpoint
    killed.reserve(5000, 512, UNKNOWN)  # never settled
    ledger = Ledger(run.request, run, EventLog(run.database))
    assert (ledger.spent().tokens, ledger.thinking.total.requests) == (5512, 1)
    assert ledger.thinking.reserve(4000, 2000, UNKNOWN).answer_tokens == 488
    with pytest.raises(BudgetExhausted, match="1 of 2 calls, 5512 of 10000 tokens spent, and 1 calls under way"):
        ledger.thinking.reserve(1, 1, UNKNOWN)
    assert "2 of 2 calls" in conversation.say(run, QUESTION).text  # in a process of its own
    run.close()


def test_a_question_that_is_not_answered_says_why(make_request: MakeRequest, serve: Any) -> None:
    run = begun(make_request, serve(status(401, message="bad key")))
    assert "bad key" in conversation.say(run, QUESTION).text
    run.close()


# what a model costs


@pytest.mark.parametrize(
    ("model", "price", "dollars", "said"),
    [
        ("gpt-5.4-mini", None, 1000 * 0.75e-6 + 100 * 4.5e-6, "$0.00"),  # a relay on localhost costs what it relays
        ("scripted-1", (1000.0, 5000.0), 1.5, "$1.50"),
        ("scripted-1", (0.0, 0.0), 0.0, "$0.00"),
        ("scripted-1", None, 0.0, "price unknown"),
    ],
)
def test_what_a_model_costs_is_counted_or_said_to_be_unknown(
    make_request: MakeRequest, serve: Any, model: str, price: Any, dollars: float, said: str
) -> None:
    server = serve(answer("Larger tiles."))
    request = make_request(model=model, base_url=server.url, chat=ChatOptions(price=price))
    run = RunDirectory.create(request)
    log = EventLog(run.database)
    heard: list[Any] = []
    brain = Parts().brain(request, Ledger(request, run, log).thinking, heard.append)
    assert brain.name == model and heard[0].name == "model"
    known = said != "price unknown"
    assert heard[0].facts["priced"] is known and ("price unknown" in heard[0].text) is not known
    log.note("note", "model", text=heard[0].text, **heard[0].facts)
    conversation.say(run, QUESTION)
    summary = summarise(run)
    assert (summary.tokens, summary.priced) == (1100, known) and summary.dollars == pytest.approx(dollars)
    assert any(line.startswith("cost: 1100 tokens") and said in line for line in ending_lines(summary, "task.py"))
    assert ("price unknown" in cost(RunView(run))) is not known
    run.close()


@pytest.mark.parametrize(
    ("cap", "most"), [("tokens", 26_000), ("dollars", 0.1), ("calls", 3)], ids=["tokens", "dollars", "calls"]
)
async def test_islands_side_by_side_stop_before_a_cap_is_passed(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any, cap: str, most: Any
) -> None:
    """The endpoint counts many tokens a byte, and every answer is as long as it may be."""
    numbers = iter(range(1000))

    def bill(asked: dict[str, Any]) -> Reply:
        prompt = len(json.dumps([asked["messages"], asked.get("tools")]))
        usage = {"prompt_tokens": int(prompt / 2.2), "completion_tokens": asked["max_tokens"]}
        return replace(idea(next(numbers)), usage=usage, wait_s=0.15)

    server = serve(bill)
    price = (2.0, 10.0)
    request = make_request(12, islands=4, model="scripted-1", base_url=server.url, chat=ChatOptions(2000, price=price))
    summary = await solve(replace(request, limits=RunLimits(12, **{cap: most})), parts=thinker(parts, library))
    bills = [bill(asked).usage or {} for asked in server.requests]
    tokens = sum(sum(it.values()) for it in bills)
    dollars = sum(it["prompt_tokens"] * 2e-6 + it["completion_tokens"] * 1e-5 for it in bills)
    spent = {"tokens": tokens, "dollars": dollars, "calls": len(bills)}[cap]
    assert spent <= most and len(bills) >= 2 and summary.tokens == tokens
    assert "budget" in {event.data.get("outcome") for event in events_of(summary, "expert")}


def test_a_cap_in_dollars_needs_a_price(make_request: MakeRequest, tmp_path: Path) -> None:
    def asked(model: str, **options: Any) -> SolveRequest:
        url = "http://127.0.0.1:9/v1"
        return make_request(model=model, base_url=url, limits=RunLimits(dollars=2.0), chat=ChatOptions(**options))

    with pytest.raises(UsageError, match=r"2 dollars cannot be kept: the price of scripted-1 is not known.*--price"):
        Parts().check_model(asked("scripted-1"))
    Parts().check_model(asked("scripted-1", price=(1.0, 2.0)))
    Parts().check_model(asked("openai/gpt-5.4"))


def test_a_resumed_run_asks_as_it_was_told(make_request: MakeRequest) -> None:
    options = ChatOptions(999, 7.5, 2, 0.3, "low", (1.0, 2.0), "MY_KEY")
    run = RunDirectory.create(make_request(model="scripted-1", chat=options))
    run.close()
    again = RunDirectory.open(run.path)
    assert again.request.models == one_model("scripted-1", None, options)
    again.close()
