"""The small steering language: what it means, and what it says when it does not understand."""

from __future__ import annotations

from typing import Any

import pytest

from foundry.agents.directives import FORMS, NotUnderstood, Understood, forms, parse
from foundry.agents.obedience import Obedience, explain
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
            "@tiling 128x256 tiles on island 2",
            "tiling",
            {"verb": "set", "name": "tile", "value": 128, "value2": 256},
            2,
        ),
        ("@tiling tile 128 x 256", "tiling", {"verb": "set", "name": "tile", "value": 128, "value2": 256}, None),
        ("@tiling passes=online", "tiling", {"verb": "set", "name": "passes", "value": "online"}, None),
        ("@memory-tiling avoid unroll 8", "tiling", {"verb": "avoid", "name": "unroll", "value": 8}, None),
        ("@all no unroll 8", "all", {"verb": "avoid", "name": "unroll", "value": 8}, None),
        ("@tiling free block", "tiling", {"verb": "free", "name": "block"}, None),
        ("@fusion keep bias in the epilogue", "fusion", {"verb": "keep", "name": "bias"}, None),
        ("@fusion keep the bias in the epilogue", "fusion", {"verb": "keep", "name": "bias"}, None),
        ("@fusion fuse relu", "fusion", {"verb": "keep", "name": "relu"}, None),
        ("@fusion split relu", "fusion", {"verb": "split", "name": "relu"}, None),
        ("@fusion apply shift_invariance", "fusion", {"verb": "apply", "name": "shift_invariance"}, None),
        ("block 64", "all", {"verb": "set", "name": "block", "value": 64}, None),
        ("pause", "run", {"verb": "pause"}, None),
        ("Resume", "run", {"verb": "resume"}, None),
        ("stop!", "run", {"verb": "stop"}, None),
        ("budget +20", "run", {"verb": "budget", "amount": 20, "unit": "evaluations"}, None),
        ("budget +2.5 dollars", "run", {"verb": "budget", "amount": "2.5", "unit": "dollars"}, None),
        ("budget +5 min", "run", {"verb": "budget", "amount": 5, "unit": "minutes"}, None),
    ],
)
def test_forms(text: str, to: str, command: dict[str, Any], island: int | None) -> None:
    found = parse(text)
    assert isinstance(found, Understood) and not found.is_question
    assert (found.to, found.command, found.island) == (to, command, island)
    assert found.says.endswith(".")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("status", {"verb": "status"}),
        ("how is it going?", {"verb": "status"}),
        ("what is the best so far?", {"verb": "best"}),
        ("why c17", {"verb": "why", "candidate": "c17"}),
        ("why was c17 rejected?", {"verb": "why", "candidate": "c17"}),
    ],
)
def test_questions(text: str, command: dict[str, Any]) -> None:
    found = parse(text)
    assert isinstance(found, Understood) and found.is_question and found.command == command


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
    ],
)
def test_anything_else_is_said_not_to_be_understood(text: str, to: str, island: int | None) -> None:
    found = parse(text)
    assert isinstance(found, NotUnderstood)
    assert (found.to, found.island) == (to, island)
    assert forms() in found.says


def test_the_documented_forms_are_understood() -> None:
    for form, _ in FORMS:
        for line in form.replace("NAME", "shift_invariance").split(" | "):
            line = line.split(" [")[0]
            assert isinstance(parse(line), Understood), line


def directive(number: int, text: str) -> Directive:
    found = parse(text)
    assert isinstance(found, Understood)
    return Directive(number, found.to, text, found.command, found.island)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@tiling block 256", ""),
        ("@tiling block 100", "100 is not legal here; k0.block: 16, 32, 64, 128, 256."),
        ("@tiling warps 4", "No tunable of this candidate is called warps; it has block, unroll, passes, threads."),
        ("@fusion keep bias in the epilogue", ""),  # `add` reads fc.bias and is fused
        ("@fusion split gelu", "No value called gelu can be kept or split here; there are add, relu."),
        ("@fusion apply winograd", "No rewrite called winograd fits this graph; there are shift_invariance."),
        ("@tiling block 100 on island 3", ""),
    ],
)
def test_a_directive_that_cannot_be_followed_is_explained(toy: Any, text: str, why: str) -> None:
    said = directive(1, text)
    assert explain(said, toy.brief(directives=(said,))) == why


def test_later_directives_win_and_words_find_their_tunables(toy: Any) -> None:
    said = (directive(1, "@tiling tile 64"), directive(2, "@all tile 128"), directive(3, "@tiling avoid threads 2"))
    brief = toy.brief(Recipe("cpu", materialise=("relu",)), directives=said)
    moves = {(move.kernel, move.name): (move.value, by.id) for move, by in Obedience(brief, brief.lowered).required}
    # 128 is not legal for k1, whose block takes 64 or 256; the thread count leaves its avoided default
    assert moves == {("k0", "block"): (128, 2), ("k0", "threads"): (1, 3)}
