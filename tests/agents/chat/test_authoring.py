"""Kernels in a model's answer: JSON head and fences, replacements, the parent in the same form, problems in words."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.knowledge.compiler import authored
from tests.knowledge.compiler.test_authored import CPU, TASK, softmax

from foundry.agents.brief import Brief
from foundry.agents.chat.answers import AnswerError, ProposalAnswer, parse
from foundry.agents.chat.authoring import authored_recipe
from foundry.agents.chat.calls import ModelReply, RawCall, read_request
from foundry.agents.chat.fences import replacements
from foundry.agents.chat.proposal import Menu, drafted, proposal_of
from foundry.agents.expert import experts
from foundry.agents.ledger import TokenUsage
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt_text.authored import head_of
from foundry.agents.talk import Talk, ToolAnswer, ToolCall, ToolRequest, Turn
from foundry.knowledge.candidate import AuthoredKernel, Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.thought import Diagnosis

HEAD = {
    "rationale": "one pass over rows that stay in the cache",
    "expected": "half the time",
    "measure": "GB/s",
    "launches": [{"kernel": "softmax", "args": ["x", "out", "x_d0"]}],
    "tunables": {
        "GRAIN": {"values": [1, 16, 4], "default": 4, "meaning": "rows a thread takes at once"},
        "LANES": [16, 8],
    },
    "constraints": ["GRAIN <= x_d0"],
}
ANSWER = f"I fuse it.\n```json\n{json.dumps(HEAD)}\n```\nand the code:\n```cpp\n{authored.CPU_CODE}```\nDone."
WANTED = replace(
    authored.CPU, tunables=(authored.CPU.tunables[0], replace(authored.CPU.tunables[1], values=(8, 16), default=16))
)


@pytest.fixture
def brief(toy: Any) -> Brief:
    return replace(toy.brief(lowered=None), graph=softmax(16, 37), device=CPU)  # type: ignore[no-any-return]


def with_parent(brief: Brief, kernel: AuthoredKernel, **chosen: int) -> Brief:
    recipe = Recipe("cpu", authored=kernel, choices={"authored": dict(chosen)})
    lowered: Lowered = lower([softmax(16, 37)], recipe, task_source=TASK, device=CPU)
    return replace(brief, lowered=lowered, parent_text=lowered.source)


def recipe_of(text: str, brief: Brief) -> Recipe:
    found = authored_recipe(parse(text, ProposalAnswer), brief, brief.lowered.recipe if brief.lowered else None)
    assert found is not None
    return found


def test_a_head_and_a_fence_are_a_kernel(brief: Brief) -> None:
    answer = parse(ANSWER, ProposalAnswer)
    assert (answer.rationale, answer.measure) == (HEAD["rationale"], "GB/s")
    recipe = recipe_of(ANSWER, brief)
    assert recipe.authored == WANTED and recipe.origin == "model"
    assert recipe.choices == {"authored": {"GRAIN": 4, "LANES": 16}}


def test_replacements_and_a_new_head_change_what_they_name(brief: Brief) -> None:
    parent = with_parent(brief, authored.CPU, GRAIN=16)
    line = "  const float scale = 1 / total;"
    edit = f"<<<<<<< SEARCH\n{line}\n=======\n{line.replace('1 /', '1.0f /')}\n>>>>>>> REPLACE"
    for text in (f"```json\n{json.dumps({'rationale': 'r'})}\n```\n```\n{edit}\n```", f"Because.\n{edit}\n"):
        recipe = recipe_of(text, parent)
        assert recipe.authored is not None and "1.0f / total" in recipe.authored.code
        assert recipe.authored.tunables == authored.CPU.tunables and recipe.choices["authored"]["GRAIN"] == 16
    wider = recipe_of(json.dumps({"tunables": {"GRAIN": [1, 2], "LANES": [4]}}), parent)
    assert wider.choices == {"authored": {"GRAIN": 1, "LANES": 4}} and wider.authored is not None
    with pytest.raises(AnswerError, match="occurs 3 times, not once; search in the parent's code"):
        recipe_of(edit.replace(line, "#pragma omp simd"), parent)
    with pytest.raises(AnswerError, match="has been tried already"):
        recipe_of(json.dumps({"constraints": ["GRAIN <= x_d0"]}), parent)


def test_what_is_shown_of_a_parent_is_what_an_answer_may_say(brief: Brief) -> None:
    head = head_of(authored.CPU, {"GRAIN": 4, "LANES": 16})
    again = recipe_of(f"```json\n{json.dumps(head)}\n```\n```cpp\n{authored.CPU_CODE}```", brief)
    assert again.authored == authored.CPU
    kept = json.loads(json.dumps(head_of(authored.PACKED, {})))
    assert kept["launches"][0] == {"kernel": "turn", "args": ["p_weight", "turned"], "once": True}
    assert kept["scratch"]["turned"] == {"count": "p_weight_n", "dtype": "float32", "kept": True}


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"launches": []}, "`launches` is missing"),
    ({"launches": [{"kernel": "softmax", "args": ["x", "y", "1"]}]}, "no launch is given out"),
    ({"launches": [{"kernel": "rows", "args": ["x", "out"]}]}, "the code has no function rows"),
    ({"tunables": {"GRAIN": []}}, "tunables.GRAIN: it has no values"),
    ({"tunables": {"x_d0": [1]}, "constraints": []}, "the name x_d0 is taken"),
]


@pytest.mark.parametrize(("change", "why"), PROBLEMS, ids=[why for _, why in PROBLEMS])
def test_what_is_wrong_is_said(brief: Brief, change: dict[str, Any], why: str) -> None:
    text = f"```json\n{json.dumps({**HEAD, **change})}\n```\n```cpp\n{authored.CPU_CODE}```"
    with pytest.raises(AnswerError, match=why):
        recipe_of(text, brief)


def test_a_task_without_a_graph_takes_whole_files_only(brief: Brief) -> None:
    with pytest.raises(AnswerError, match="give a whole file"):
        recipe_of(ANSWER, replace(brief, graph=None))
    file = "```json\n{}\n```\n```python\nclass ModelNew:\n    pass\n```"
    assert authored_recipe(parse(file, ProposalAnswer), brief, None) is None


def test_replacements_that_are_cut_off_are_none() -> None:
    assert replacements("<<<<<<< SEARCH\na\n=======\nb\n") == []
    assert replacements("<<<<<<< SEARCH\na\n=======\n>>>>>>> REPLACE\n" * 2) == [("a", "")] * 2
    assert replacements("=======\n>>>>>>> REPLACE\n" + "x\n" * 9) == []


def asked(brief: Brief, arguments: dict[str, Any], text: str = "") -> ToolCall:
    reply = ModelReply(text, TokenUsage(1, 1), 0.0, False, 1, (RawCall("1", "check", json.dumps(arguments)),))
    if text:
        reply = replace(reply, calls=(), text=json.dumps({"tool": "check", "arguments": arguments}) + "\n" + text)
    latency = Diagnosis("c1", None, "memory_latency", "8 GB/s", "unroll")
    menu = Menu(brief, latency, experts()["tiling"], PlaybookBrain().library)
    request = read_request(reply, ("check",), 6, partial(drafted, menu=menu))
    assert request is not None
    (call,) = request.calls
    return call


def test_a_tool_is_called_with_such_a_kernel(brief: Brief) -> None:
    fields = {name: HEAD[name] for name in ("launches", "tunables", "constraints")}
    for call in (
        asked(brief, {**fields, "code": authored.CPU_CODE}),
        asked(brief, fields, f"```cpp\n{authored.CPU_CODE}```"),
    ):
        assert call.recipe is not None and call.recipe.authored == WANTED and not call.problem
    parent = with_parent(brief, authored.CPU)
    edited = asked(parent, {"edits": [{"old": "const float scale = 1 /", "new": "const float scale = 1.0f /"}]})
    assert edited.recipe is not None and edited.recipe.authored != authored.CPU
    assert edited.digest != asked(parent, {}).digest
    assert "`launches` is missing" in asked(brief, {"code": authored.CPU_CODE}).problem
    assert not asked(brief, {}, "```cpp\nfloat x = 1; { x; }\n```").problem, "a snippet beside a call is no kernel"


def given(**fields: Any) -> ProposalAnswer:
    return ProposalAnswer.model_validate(fields)


def called_with(draft: Recipe, name: str = "check", found: Recipe | None = None) -> Turn:
    return Turn(ToolRequest((ToolCall(name, recipe=draft),)), (ToolAnswer("told", found),))


def test_a_call_and_an_answer_may_change_an_earlier_draft_by_its_number(brief: Brief) -> None:
    """Each call needed the whole kernel again: four copies of it stood in one request."""
    menu = Menu(brief, Diagnosis("c1", None, "compute", "40 %", "tile"), experts()["tiling"], PlaybookBrain().library)
    first = drafted(parse(ANSWER, ProposalAnswer), menu).recipe
    assert first is not None
    after = replace(menu, brief=replace(brief, talk=Talk((called_with(first),))))
    line = "  const float scale = 1 / total;"
    edit = f"<<<<<<< SEARCH\n{line}\n=======\n{line.replace('1 /', '1.0f /')}\n>>>>>>> REPLACE"
    changed = f"```json\n{json.dumps({'draft': 1, 'rationale': 'r'})}\n```\n```\n{edit}\n```"
    second = drafted(parse(changed, ProposalAnswer), after).recipe
    assert second is not None and second.authored is not None and "1.0f / total" in second.authored.code
    assert first.authored is not None and second.authored.launches == first.authored.launches
    assert proposal_of(parse(changed, ProposalAnswer), after, "m").recipe == second
    assert drafted(given(draft=1), after).recipe == first, "timed as it is"
    swept = replace(first, choices={"authored": {"GRAIN": 16, "LANES": 8}})
    tuned = replace(menu, brief=replace(brief, talk=Talk((called_with(first), called_with(first, "tune", swept)))))
    assert drafted(given(draft=2), tuned).recipe == swept
    declared = drafted(given(draft=2, constraints=["GRAIN <= 16"]), tuned).recipe
    assert declared is not None and declared.choices["authored"]["GRAIN"] == 16, "the tuner's numbers stay"
    with pytest.raises(AnswerError, match="there is no call 2"):
        drafted(given(draft=2), after)


def test_a_whole_file_is_changed_as_a_draft_too(brief: Brief) -> None:
    menu = Menu(brief, Diagnosis("c1", None, "compute", "40 %", "tile"), experts()["tiling"], PlaybookBrain().library)
    whole = drafted(given(source="scale = 2\nclass ModelNew:\n    pass\n"), menu)
    turn = Turn(ToolRequest((ToolCall("check", text=whole.text),)), (ToolAnswer("told"),))
    after = replace(menu, brief=replace(brief, talk=Talk((turn,))))
    answer = given(draft=1, edits=[{"old": "scale = 2", "new": "scale = 3"}])
    assert drafted(answer, after).text == whole.text.replace("2", "3") == proposal_of(answer, after, "m").source
