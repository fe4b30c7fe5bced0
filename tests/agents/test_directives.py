"""The small steering language: what it means, and what it says when it does not understand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foundry.agents.directives import FORMS, NotUnderstood, RunQuestion, parse, promise, verbs
from foundry.agents.explanation import answer_misunderstood, explain, stands_for
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.thought import Directive


@pytest.mark.parametrize(
    ("text", "to", "command", "island"),
    [
        ("@tiling block 256", "tiling", {"verb": "set", "name": "block", "value": 256}, None),
        ("@tiling unroll 4 on island 2", "tiling", {"verb": "set", "name": "unroll", "value": 4}, 2),
        (
            "@tiling: set unroll = 4 in k0.",
            "tiling",
            {"verb": "set", "name": "unroll", "value": 4, "kernel": "k0"},
            None,
        ),
        (
            "@tiling tile 128x256 on island 2",
            "tiling",
            {"verb": "set", "name": "tile", "value": 128, "value2": 256},
            2,
        ),
        ("@tiling passes=online", "tiling", {"verb": "set", "name": "passes", "value": "online"}, None),
        ("@tiling avoid unroll 8", "tiling", {"verb": "avoid", "name": "unroll", "value": 8}, None),
        ("avoid passes=online", "all", {"verb": "avoid", "name": "passes", "value": "online"}, None),
        ("avoid tile 6x2", "all", {"verb": "avoid", "name": "tile", "value": "6x2"}, None),
        ("set passes to online", "all", {"verb": "set", "name": "passes", "value": "online"}, None),
        ("set threads 2", "all", {"verb": "set", "name": "threads", "value": 2}, None),
        ("split relu", "all", {"verb": "split", "name": "relu"}, None),
        ("budget +5 dollars", "run", {"verb": "budget", "amount": 5, "unit": "dollars"}, None),
        ("@all avoid unroll 8", "all", {"verb": "avoid", "name": "unroll", "value": 8}, None),
        ("@tiling free block", "tiling", {"verb": "free", "name": "block"}, None),
        ("@fusion keep bias in the epilogue", "fusion", {"verb": "keep", "name": "bias"}, None),
        ("@fusion keep bias", "fusion", {"verb": "keep", "name": "bias"}, None),
        ("@fusion fuse relu", "fusion", {"verb": "keep", "name": "relu"}, None),
        ("@fusion split relu", "fusion", {"verb": "split", "name": "relu"}, None),
        ("@fusion apply shift_invariance", "fusion", {"verb": "apply", "name": "shift_invariance"}, None),
        ("block 64", "all", {"verb": "set", "name": "block", "value": 64}, None),
        ("pause", "run", {"verb": "pause"}, None),
        ("Resume", "run", {"verb": "resume"}, None),
        ("stop!", "run", {"verb": "stop"}, None),
        ("budget +20", "run", {"verb": "budget", "amount": 20, "unit": "evaluations"}, None),
        ("budget +2.5 dollars", "run", {"verb": "budget", "amount": "2.5", "unit": "dollars"}, None),
        ("budget -20", "run", {"verb": "budget", "amount": -20, "unit": "evaluations"}, None),
        ("pause island 2", "run", {"verb": "pause"}, 2),
        ("try kernels/Mine.py on island 1", "run", {"verb": "try", "file": "kernels/Mine.py"}, 1),
        ("start from c17", "run", {"verb": "from", "candidate": "c17"}, None),
        ("freeze c17", "run", {"verb": "freeze", "candidate": "c17"}, None),
        ("add island memory", "run", {"verb": "add", "role": "memory"}, None),
        ("role fusion on island 0", "run", {"verb": "role", "role": "fusion"}, 0),
        ("model openai/GPT-5.4", "run", {"verb": "model", "name": "openai/GPT-5.4"}, None),
        ("withdraw d3", "run", {"verb": "withdraw", "directive": 3}, None),
        ("split add", "all", {"verb": "split", "name": "add"}, None),
        ("budget +1 minute", "run", {"verb": "budget", "amount": 1, "unit": "minutes"}, None),
    ],
)
def test_forms(text: str, to: str, command: dict[str, Any], island: int | None) -> None:
    found = parse(text)
    assert isinstance(found, Directive)
    assert (found.to, found.command, found.island, found.text) == (to, command, island, text)
    assert promise(found).endswith(".")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("status", RunQuestion("status")),
        ("Cost", RunQuestion("cost")),
        ("why c17?", RunQuestion("why", "c17")),
        ("diff c17 c12", RunQuestion("diff", "c17", "c12")),
        ("tried", RunQuestion("tried")),
        ("tried fusion", RunQuestion("tried", about="fusion")),
    ],
)
def test_questions(text: str, question: RunQuestion) -> None:
    assert parse(text) == question


@pytest.mark.parametrize(
    ("text", "to", "island"),
    [
        ("make it faster please", "all", None),
        ("@fusion could you try online softmax here?", "fusion", None),
        ("@tiling be bolder on island 1", "tiling", 1),
        ("@bob block 256", "all", None),
        ("@tiling", "tiling", None),
        ("", "all", None),
        ("@tiling pause", "tiling", None),
        ("@tiling use shared memory", "tiling", None),
        *[(line, "all", None) for line in ("c17", "use bf16", "avoid unroll", "never mind", "try sm90", "float32")],
        *[(line, "all", None) for line in ("no bias", "unroll4", "budget 20", "unroll 4 8", "set 4", "c1 7")],
        *[(line, "all", None) for line in ("how is it going?", "what did it cost?", "why was c17 rejected?", "go on")],
        *[(line, "all", None) for line in ("what did you try on fusion?", "do not use tile 6x2", "use 2 threads")],
    ],
)
def test_anything_else_is_said_not_to_be_understood(text: str, to: str, island: int | None) -> None:
    found = parse(text)
    assert isinstance(found, NotUnderstood)
    assert (found.directive.to, found.directive.island, found.directive.command) == (to, island, {})
    assert found.directive.text == text and found.reason


def test_the_documented_forms_are_understood() -> None:
    for form, _ in FORMS:
        for line in form.replace("NAME", "shift_invariance").replace("ROLE", "memory").split(" | "):
            line = line.split(" [")[0]
            assert not isinstance(parse(line), NotUnderstood), line


def test_every_verb_is_documented() -> None:
    said = " ".join(form for form, _ in FORMS)
    assert all(verb in said for verb in verbs())


def directive(number: int, text: str) -> Directive:
    found = parse(text)
    assert isinstance(found, Directive)
    return replace(found, id=number)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@tiling block 256", ""),
        ("@tiling block 100", "100 is not legal here; k0.block: 16, 32, 64, 128, 256."),
        ("@tiling warps 4", "No tunable called warps is in this run; there are block, unroll, passes, threads."),
        ("@tiling c 4", "No tunable called c is in this run; there are block, unroll, passes, threads."),
        (
            "@tiling bluck 64",
            "No tunable called bluck is in this run; there are block, unroll, passes, threads; near it: block.",
        ),
        ("@tiling block 64 in k7", "No kernel called k7 is in this run; there are k0."),
        ("@tiling passes=many", "many is not legal here; k0.passes: two, online."),
        (
            "@tiling tile 100x64",
            "Where no tunable is called tile, it stands for block. "
            "100x64 is not legal here; k0.block: 16, 32, 64, 128, 256.",
        ),
        ("@tiling avoid block 100", ""),  # nobody uses it anyway
        ("@tiling avoid warps 4", "No tunable called warps is in this run; there are block, unroll, passes, threads."),
        ("@tiling free warps", ""),
        ("@fusion keep bias in the epilogue", ""),  # `add` reads fc.bias and is fused
        ("@fusion split softmax", "These kernels cannot keep or split softmax; they can keep or split add, relu."),
        ("@fusion split gelu", "No value called gelu can be kept or split; there are add, relu; near it: relu."),
        ("@fusion apply winograd", "No rewrite called winograd fits; there are shift_invariance."),
    ],
)
def test_a_directive_that_cannot_be_followed_is_explained(toy: Any, text: str, why: str) -> None:
    brief = toy.brief()
    assert explain(directive(1, text), [brief.lowered], brief.graph) == why


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("@tiling block 64", ""),
        ("@tiling thread 1", ""),
        ("@tiling tile 64", "Where no tunable is called tile, it stands for block."),
        ("@tiling avoid chunk 64", "Where no tunable is called chunk, it stands for block."),
        ("@tiling chunk 64 in k7", ""),
        ("@fusion split relu", ""),
    ],
)
def test_a_name_that_is_taken_for_another_is_said(toy: Any, text: str, told: str) -> None:
    assert stands_for(directive(1, text), [toy.brief().lowered]) == told


def test_a_directive_is_held_against_every_kernel_that_the_run_knows(toy: Any) -> None:
    fused, split = toy.brief().lowered, toy.brief(Recipe("cpu", materialise=("relu",))).lowered
    assert explain(directive(1, "block 64 in k1"), [fused], None).startswith("No kernel called k1")
    assert explain(directive(1, "block 64 in k1"), [fused, split], None) == ""
    assert explain(directive(1, "block 100"), [fused, split], None) == (
        "100 is not legal here; k0.block: 16, 32, 64, 128, 256; k1.block: 64, 256."
    )
    assert explain(directive(1, "block 100"), [], None) == ""  # nothing is known yet: the island will say


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("c17", "I do not understand 'c17'. A line begins with status, best, ranking, cost, "),
        ("why was c17 rejected?", "I do not understand 'why was c17 rejected'. `why` is said like this: why c17"),
        ("what is best?", "I do not understand 'what is best'. A line begins with status, best, "),
        ("avoid unroll", "`avoid` is said like this: @tiling avoid unroll 8"),
        ("use unrol4", "I do not understand 'use unrol4'. Near it: unroll. A line begins with "),
        ("split", "`split` is said like this: @fusion split relu"),
        ("float32", "help shows how each is said."),
    ],
)
def test_what_is_not_understood_is_answered_with_the_verbs_in_one_line(toy: Any, text: str, told: str) -> None:
    said = parse(text)
    assert isinstance(said, NotUnderstood)
    answer = answer_misunderstood(said, [toy.brief().lowered])
    assert told in answer and "\n" not in answer
    assert "Near it" not in answer_misunderstood(said, [])


def test_whoever_is_no_expert_is_answered_with_those_who_are(toy: Any) -> None:
    said = parse("@nobody unroll 4")
    assert isinstance(said, NotUnderstood)
    assert answer_misunderstood(said, [toy.brief().lowered]) == (
        "There is no expert named 'nobody'; there are @auditor, @diagnostician, @fusion, @tiling, and @all speaks to "
        "each of them."
    )


def test_later_directives_win_and_words_find_their_tunables(toy: Any) -> None:
    said = (directive(1, "@tiling tile 64"), directive(2, "@all tile 128"), directive(3, "@tiling avoid threads 2"))
    brief = toy.brief(Recipe("cpu", materialise=("relu",)), directives=said)
    moves = {(move.kernel, move.name): (move.value, by.id) for move, by in brief.obedience.required}
    # 128 is not legal for k1, whose block takes 64 or 256; the thread count leaves its avoided default
    assert moves == {("k0", "block"): (128, 2), ("k0", "threads"): (1, 3)}
