"""The chat-model brain through the real langchain-openai client, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.agents.chat.scripted_server import Reply, answer, endless, garbage, status, truncated
from tests.agents.session import QUICK, SHORT, Session, move
from tests.waiting import PATIENCE_S

from foundry.agents import directives
from foundry.agents.brain import NoAnswer
from foundry.agents.chat import client
from foundry.agents.chat.answers import AnswerError, JudgementAnswer, ProposalAnswer, parse, schema_of
from foundry.agents.chat.brain import ChatModelBrain
from foundry.agents.judgement import AuditEvidence
from foundry.agents.ledger import ModelLedger
from foundry.agents.prompt_text.source import show, unfold
from foundry.knowledge.candidate import Audit, Gate, Judgement
from foundry.knowledge.compiler.file.texts import library_texts, read_library_text
from foundry.knowledge.errors import UsageError
from foundry.knowledge.ruling import rule
from foundry.knowledge.thought import Diagnosis, Directive, Edit, Proposal

FASTER = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + x\n"


async def test_a_choice_among_moves_becomes_a_recipe(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move(0, cites=["d1", "x99"]))))
    said = Directive(1, "tiling", "be bold")
    proposal = await session.propose(directives=(said,))
    listed = next(line for line in session.server.prompt().splitlines() if "(move 0)" in line and " of " in line)
    chosen = proposal.moves[0]
    assert f"- {chosen.name} = {chosen.was} of " in listed and f"{chosen.value} (move 0)" in listed
    assert proposal.recipe.choices["k0"][chosen.name] == chosen.value
    assert proposal.brain == "scripted-1" and proposal.rationale == "40 % of bandwidth"
    assert proposal.cites == ("d1",)  # x99 does not exist
    request = session.server.requests[0]
    assert request["max_tokens"] == 2000 and "max_completion_tokens" not in request and request["seed"] == 7
    assert "response_format" not in request, "code comes in fences beside the JSON"
    assert [(call.outcome, call.requests, call.prompt_tokens) for call in session.calls] == [("answered", 1, 1000)]
    assert (session.ledger.spent.tokens, session.ledger.spent.dollars) == (1100, 0.0)


async def test_the_prompt_holds_what_an_expert_needs(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move())))
    said = (Directive(4, "all", "prefer short code"),)
    await session.propose(directives=said, notes=("wider vectors did well",), stagnant_generations=3)
    prompt = session.server.prompt()
    for part in (
        "You are the memory-tiling expert",
        "8 GB/s is 40 % of the measured 20 GB/s",
        "Put more independent loads",  # the card of this limiter is recommended by its diagnosis text
        "unroll = 1 of 1, 2 (move ",
        "copy 20 GB/s",
        "d4 to all: prefer short code",
        "- stagnating: no improvement in 3 generations",
        "- wider vectors did well",
        "return x * 2.0",
        "class ModelNew(torch.nn.Module)",
        "The dominant operations run in the candidate's own kernels",
    ):
        assert part in prompt or part.startswith("Put more"), part
    assert "{{" not in prompt and "evolvable" not in prompt


async def test_edits_must_hit_the_parents_file_exactly_once(toy: Any, scripted: Any) -> None:
    good = move(moves=[], edits=[{"old": "x * 2.0", "new": "x + x"}])
    bad = move(moves=[], edits=[{"old": "torch", "new": "touch"}])
    session = Session(toy, scripted(answer(bad), answer(good)))
    proposal = await session.propose()
    assert proposal.edits == (Edit("x * 2.0", "x + x", 89),) and proposal.recipe is None and proposal.source == ""
    assert "occurs 2 times" in session.server.prompt(1) and "then the code in its fence" in session.server.prompt(1)
    assert [call.outcome for call in session.calls] == ["repaired"]
    assert session.ledger.spent.requests == 2 and session.ledger.spent.failed_steps == 0


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(move(moves=[], source=FASTER)),
        "Sure! Here it is:\n```json\n" + json.dumps(move(moves=[], source=FASTER), indent=2) + "\n```\nEnjoy.",
        f"Fewer operations.\n```python\n{FASTER}```\n",
        'I think {this} works: {"rationale": "r", "moves": []}\n```python\n' + FASTER + "```",
    ],
)
async def test_a_whole_kernel_in_any_wrapping(toy: Any, scripted: Any, text: str) -> None:
    session = Session(toy, scripted(answer(text)))
    proposal = await session.propose()
    assert proposal.source == FASTER and proposal.recipe is None and proposal.brain == "scripted-1"
    assert session.ledger.spent.requests == 1


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (answer("I would rather not."), "no JSON object"),
        (answer(move(moves=["many"])), "moves.0"),
        (answer(move(99)), "99 is not in the list"),
        (answer(move(moves=[])), "it changes nothing"),
        (answer(move(moves=[], source="class ModelNew(:\n")), "syntax error in line 1"),
        (answer(move(moves=[], source="x = 1\n")), "no class ModelNew"),
        (answer(move(moves=[], source="\0")), "source:"),
        (truncated('{"rationale": "because the'), "cut off after 100 tokens"),
        (answer(""), "no JSON object"),
        (answer("[" * 40_000), "no JSON object"),
        (answer('{"a":' * 5_000), "no JSON object"),
    ],
)
async def test_bad_twice_is_one_repair_and_a_failed_step(toy: Any, scripted: Any, bad: Any, problem: str) -> None:
    session = Session(toy, scripted(bad))
    proposal = await session.propose()
    assert await session.is_playbooks(proposal)
    assert len(session.server.requests) == 2
    assert problem in session.server.prompt(1)
    assert [call.outcome for call in session.calls] == ["failed"] and problem in session.calls[0].detail
    assert session.ledger.spent.failed_steps == 1 and session.ledger.spent.requests == 2


async def test_what_was_tried_is_refused(toy: Any, scripted: Any) -> None:
    first = await Session(toy, scripted(answer(move()))).propose()
    session = Session(toy, scripted(answer(move(0)), answer(move(1))))
    second = await session.propose(tried=frozenset({first.recipe.digest}))
    assert second.recipe.digest != first.recipe.digest and "tried already" in session.server.prompt(1)


async def test_the_users_pin_holds_for_the_model_too(toy: Any, scripted: Any) -> None:
    pin = Directive(3, "tiling", "block 256", {"verb": "set", "name": "block", "value": 256})
    proposal = await Session(toy, scripted(answer(move(1)))).propose(directives=(pin,))
    assert proposal.recipe.choices["k0"]["block"] == 256


async def test_busy_and_broken_servers_are_asked_again(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(status(429, retry_after=0.4), status(500), answer(move())))
    proposal = await session.propose()
    assert proposal.brain == "scripted-1" and len(session.server.requests) == 3
    first, second, _ = session.server.times
    assert second - first >= 0.4  # the server's own wish
    assert [(call.outcome, call.requests) for call in session.calls] == [("answered", 3)]
    assert session.ledger.spent.requests == 1  # refusals cost nothing


@pytest.mark.parametrize("reply", [status(500), status(429), garbage(), Reply(body=b"{}"), Reply(body=b"")])
async def test_a_server_that_stays_broken_costs_a_step_not_the_run(toy: Any, scripted: Any, reply: Any) -> None:
    session = Session(toy, scripted(reply))
    assert await session.is_playbooks(await session.propose())
    assert len(session.server.requests) == QUICK.attempts
    assert [call.outcome for call in session.calls] == ["unreachable"]
    assert (session.ledger.spent.tokens, session.ledger.spent.failed_steps) == (0, 1)


@pytest.mark.parametrize("reply", [endless(), endless(drip_s=0.05), answer(move(), wait_s=1e6)])
async def test_endless_and_slow_answers_are_cut(toy: Any, scripted: Any, reply: Any) -> None:
    session = Session(toy, scripted(reply), options=replace(SHORT, request_s=0.6))
    started = time.monotonic()
    assert await session.is_playbooks(await session.propose())
    assert time.monotonic() - started < PATIENCE_S
    assert [call.outcome for call in session.calls] == ["unreachable"]
    assert session.ledger.spent.answer_tokens == 2000  # the server may bill what it generated: count the most
    (call,) = session.calls
    assert call.requests == 1  # the same request would take as long again
    assert call.prompt_tokens + call.completion_tokens == session.ledger.spent.tokens


async def test_waiting_for_a_busy_server_costs_no_tokens(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(status(429, retry_after=50)), options=replace(SHORT, request_s=0.6))
    assert await session.is_playbooks(await session.propose())
    assert session.ledger.spent.tokens == 0 and session.calls[0].detail.endswith("HTTP 429")


async def test_a_request_after_the_search_has_what_is_left_of_the_run(
    toy: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user allows ten minutes a request; the run's time is over, for the playbook's steps as well."""
    monkeypatch.setattr(client, "LEAST_CALL_S", 0.3)
    session = Session(toy, scripted(endless(drip_s=0.05)), QUICK, replace(SHORT, request_s=600.0))
    session.ledger.left_s = lambda: -1.0
    with pytest.raises(NoAnswer):
        await session.propose()
    (call,) = session.calls
    assert call.outcome == "unreachable" and call.detail.endswith("and the run's time is over") and call.requests == 1


async def test_the_runtime_header_is_folded_both_ways(toy: Any, scripted: Any) -> None:
    header = read_library_text("cpu/runtime.h")
    parent = f'SOURCE = r"""{header}\nint foundry_forward(void** b) {{ return 0; }}\n"""\n' + FASTER
    folded = show(parent)
    assert len(folded) < len(parent) - len(header) + 200 and unfold(folded) == parent
    session = Session(toy, scripted(answer(move(moves=[], source=folded.replace("return x + x", "return 2 * x")))))
    proposal = await session.propose(parent_text=parent)
    assert proposal.source == parent.replace("return x + x", "return 2 * x")
    assert "namespace math" not in session.server.prompt() and "return 0;" in session.server.prompt()


@pytest.mark.parametrize("name", [name for name in library_texts() if name.endswith((".h", ".cuh"))])
def test_every_text_that_the_library_pastes_is_folded_both_ways(name: str) -> None:
    pasted = read_library_text(name)
    file = f'SOURCE = r"""{read_library_text("cuda/runtime.cuh")}\n{pasted}\nvoid run();\n{pasted}"""\n'
    folded = show(file)
    assert pasted.strip() not in folded and folded.count("@foundry") == 3 and unfold(folded) == file


async def test_a_server_without_response_formats_is_asked_without(toy: Any, scripted: Any) -> None:
    def reply(request: dict[str, Any]) -> Any:
        if "response_format" in request:
            assert request["response_format"]["json_schema"]["strict"] is True
            return status(400, message="response_format json_schema is not supported")
        return answer("```json\n" + json.dumps({"judgement": "It is genuine.", "doubt": False}) + "\n```")

    session = Session(toy, scripted(reply))
    clean = toy.evaluation(toy.recipe())
    for _ in range(2):
        judged = await session.judge(AuditEvidence(toy.brief().task, clean, rule(clean), FASTER))
        assert "It is genuine." in judged.text
    assert ["response_format" in request for request in session.server.requests] == [True, False, False]


async def test_missing_usage_is_estimated(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move(), usage=None)))
    await session.propose()
    characters = len(session.server.prompt())
    assert abs(session.ledger.spent.prompt_tokens - characters / 4) < 5
    assert session.ledger.spent.answer_tokens == len(json.dumps(move())) // 4 + 1


async def test_the_token_cap_ends_in_the_playbook(toy: Any, scripted: Any) -> None:
    usage = {"prompt_tokens": 2000, "completion_tokens": 400}
    session = Session(toy, scripted(answer(move(), usage=usage)), max_tokens=8000)
    outcomes = []
    for _ in range(4):
        await session.propose()
        outcomes.append(session.calls[-1].outcome)
    assert outcomes[0] == "answered" and outcomes[-1] == "budget"
    assert session.ledger.spent.tokens <= 8000
    assert session.server.requests[-1]["max_tokens"] < 2000  # the last answers were shortened to what was left
    assert await session.is_playbooks(await session.propose())
    session.ledger.max_tokens = 18_000
    assert (await session.propose()).brain == "scripted-1"


async def test_islands_together_cannot_overrun_the_cap_or_the_connections(toy: Any, scripted: Any) -> None:
    reply = answer(move(), usage={"prompt_tokens": 2000, "completion_tokens": 2000}, wait_s=0.1)
    both, asked = threading.Event(), list[dict[str, Any]]()

    def hold(request: dict[str, Any]) -> Reply:
        """No answer comes before there is a second question."""
        asked.append(request)
        if len(asked) == 2:
            both.set()
        assert both.wait(PATIENCE_S)
        return reply

    options = replace(SHORT, parallel=2)
    session = Session(toy, scripted(hold), options=options, max_tokens=13_000)
    await asyncio.gather(*(session.propose(step=f"i{island}g1", island=island) for island in range(8)))
    assert session.server.most_at_once == 2
    assert session.ledger.spent.tokens <= 13_000 and 2 <= session.ledger.spent.requests <= 3
    assert {call.outcome for call in session.calls} == {"answered", "budget"}


async def test_a_failure_is_read_by_who_repairs_it_in_one_request(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move(moves=[], edits=[{"old": "x * 2.0", "new": "x"}]))))
    broken = toy.evaluation(None, outcome="wrong_result", error="all elements are twice too large")
    found = await session.brain.diagnose(toy.brief(parent=broken, lowered=None))
    assert found.failure == "wrong_result" and "all elements are twice too large" in found.evidence
    correct = await session.brain.diagnose(toy.brief(parent=toy.evaluation(toy.recipe())))
    assert correct.limiter == "memory_bandwidth" and not session.server.requests
    await session.brain.propose("diagnostician", toy.brief(parent=broken, lowered=None, diagnosis=found))
    assert "all elements are twice too large" in session.server.prompt() and len(session.server.requests) == 1


async def test_a_broken_foreign_file_is_repaired_by_edits(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move(moves=[], edits=[{"old": "x * 2.0", "new": "x"}]))))
    broken = toy.evaluation(None, outcome="wrong_result", error="twice too large")
    found = Diagnosis("c1", "wrong_result", None, "twice too large", "drop one")
    proposal = await session.brain.propose("diagnostician", toy.brief(parent=broken, lowered=None, diagnosis=found))
    assert isinstance(proposal, Proposal) and proposal.edits == (Edit("x * 2.0", "x", 89),)
    assert "You are the debugging diagnostician" in session.server.prompt()
    moves = Session(toy, scripted(answer(move(0))))
    with pytest.raises(NoAnswer, match="there are no moves"):  # nor has the playbook one: nothing is said of the parent
        await moves.brain.propose("diagnostician", toy.brief(parent=broken, lowered=None, diagnosis=found))
    assert "there are no moves" in moves.server.prompt(1)


async def test_the_auditors_model_adds_doubt_and_never_clears_a_gate(toy: Any, scripted: Any) -> None:
    clean = toy.evaluation(toy.recipe())
    evidence = AuditEvidence(toy.brief().task, clean, rule(clean), FASTER)
    shown = max(FASTER.splitlines(), key=len).replace(" ", "  ")
    caches = {"judgement": "It caches.", "doubt": True, "reason": "this line keeps y", "quote": shown}
    judged = await Session(toy, scripted(answer(caches))).judge(evidence)
    assert judged.doubt == "scripted-1: this line keeps y" and "It caches." in judged.text
    vague = {"reason": ""}, {"quote": ""}, {"quote": "return"}, {"quote": "held = state.get('prepared_42')"}
    for said in vague:  # a model of 135 million parameters doubted a proven winner and gave no evidence
        groundless = Session(toy, scripted(answer({**caches, **said})))
        assert (await groundless.judge(evidence)).doubt == "" and len(groundless.server.requests) == 2
    vetoed = replace(clean, audit=Audit(False, "fair", (Gate("alias", False, "output is the input"),)))
    failed = AuditEvidence(evidence.task, vetoed, rule(vetoed), FASTER)
    praising = Session(toy, scripted(answer({"judgement": "Fine.", "doubt": False, "reason": ""})))
    assert await praising.brain.judge(failed) == Judgement() and not praising.server.requests


async def test_a_cap_is_told_once_and_counts_no_failed_step(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move())), max_tokens=300)
    for _ in range(3):
        assert await session.is_playbooks(await session.propose())
    assert [call.outcome for call in session.calls] == ["budget"] and not session.server.requests
    assert session.ledger.spent.failed_steps == 0


async def test_text_that_no_file_can_hold_is_made_writable(toy: Any, scripted: Any) -> None:
    proposal = await Session(toy, scripted(answer(move(rationale="half \ud800 pair")))).propose()
    assert proposal.rationale.encode() == b"half ? pair"


def test_a_model_without_any_access_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="set OPENAI_API_KEY, or name a server with --base-url"):
        ChatModelBrain("gpt-5.4", ledger=ModelLedger())


def test_hostile_text_is_parsed_in_linear_time() -> None:
    started = time.process_time()
    for text in ("```" + "a" * 200_000, "```\n" * 20_000, "{" * 200_000, "@tiling " + "block " * 50_000):
        with pytest.raises(AnswerError):
            parse(text, ProposalAnswer)
        directives.parse(text)
    assert time.process_time() - started < 5


async def test_questions_are_answered_from_the_trace(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer("c17 was too large.")))
    assert await session.brain.answer("why was c17 rejected?", "c17 wrong_result") == "c17 was too large."
    assert "c17 wrong_result" in session.server.prompt() and "response_format" not in session.server.requests[0]
    assert await Session(toy, scripted(status(500))).brain.answer("why?", "") == ""


def test_the_schema_is_strict_and_its_own_answers_fit() -> None:
    schema = schema_of(JudgementAnswer)
    assert schema["additionalProperties"] is False and set(schema["required"]) == set(schema["properties"])
    assert "default" not in json.dumps(schema)
    assert parse(json.dumps({"judgement": "It computes.", "doubt": False}), JudgementAnswer).quote == ""


def test_a_run_without_a_model_never_imports_the_client() -> None:
    code = (
        "import sys, foundry.agents.chat.brain, foundry.agents.playbook.brain, foundry.agents.expert as e; e.experts();"
        "print([m for m in ('langchain_openai', 'openai', 'langchain_core', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == "[]"
