"""The experts as a set: what each may do, and that a fifth is one file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import pytest

import foundry.agents.experts
from foundry.agents.directives import parse
from foundry.agents.expert import experts
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt import render, template
from foundry.agents.route import ROLES, ranking
from foundry.agents.situation import Situation
from foundry.knowledge.limits import Limiter
from foundry.knowledge.thought import Aspect, Diagnosis, Directive, Failure, Move, Role

FIFTH = """
from foundry.agents.expert import Expert

EXPERT = Expert(
    name="scheduler",
    mandate="Decide which core does what, and when.",
    prompt="tiling",
    aspects={"parallel": 2.0},
    answers={"synchronisation": 4.0},
)
"""


def test_four_experts_cover_every_diagnosis_and_every_kind_of_move() -> None:
    assert list(experts()) == ["auditor", "diagnostician", "fusion", "tiling"]
    answered = {name for expert in experts().values() for name in expert.answers}
    assert answered == {*get_args(Limiter), *get_args(Failure)}
    improvers = [experts()["tiling"], experts()["fusion"]]
    assert {aspect for expert in improvers for aspect in expert.aspects} == set(get_args(Aspect))
    assert set(ROLES) == set(get_args(Role))
    assert not experts()["auditor"].aspects  # the auditor judges, it proposes nothing


@pytest.mark.parametrize("name", ["tiling", "fusion", "diagnostician", "auditor"])
def test_each_experts_prompt_has_its_evolvable_sections(name: str) -> None:
    text = (resources.files("foundry.agents.prompts") / f"{experts()[name].prompt}.md").read_text()
    sections = re.findall(r"<!-- evolvable: ([\w ]+) -->\n(.+?)<!-- /evolvable -->", text, re.DOTALL)
    assert [section for section, _ in sections] == ["philosophy", "strategies", "pitfalls", "analysis guidance"]
    assert "evolvable" not in template(name) and "{{" not in template(name)


def test_prompts_refuse_missing_and_unknown_slots_and_keep_braces_of_values() -> None:
    assert "{{context}}" in render("question", {"question": "{{context}}?", "context": "c1"})
    with pytest.raises(KeyError, match="context"):
        render("question", {"question": "why?"})
    with pytest.raises(ValueError, match="no slot for weather"):
        render("question", {"question": "", "context": "", "weather": ""})


def test_a_tile_that_was_measured_beside_other_numbers_is_no_trouble(toy: Any) -> None:
    """A template may have it there only: an island ended with "tuple.index(x): x not in tuple"."""
    situation = Situation(toy.brief())
    kernel, tunable = next((kernel, item) for kernel in situation.kernels.values() for item in kernel.tunables)
    move = Move("set", "tile", tunable.name, kernel.name, kernel.template, "7x3")
    assert experts()["tiling"].opinion(move, situation).weight == 1.0


@pytest.fixture
def fifth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "fifth_scheduler.py").write_text(FIFTH)
    monkeypatch.setattr(foundry.agents.experts, "__path__", [*foundry.agents.experts.__path__, str(tmp_path)])
    experts.cache_clear()
    yield
    experts.cache_clear()


@pytest.mark.usefixtures("fifth")
async def test_a_fifth_expert_is_one_file(toy: Any) -> None:
    waits = Diagnosis("c1", None, "synchronisation", "barriers take 45 %", "wait less", "k0")
    asked = Counter(ranking(toy.brief(step=f"i0g{step}"), waits)[0] for step in range(100))
    assert asked["scheduler"] > 50
    proposal = await PlaybookBrain(toy.library).propose("scheduler", replace(toy.brief(), diagnosis=waits))
    assert proposal is not None and proposal.expert == "scheduler"
    assert {move.aspect for move in proposal.moves} == {"parallel"}
    said = parse("@scheduler threads 1")
    assert isinstance(said, Directive) and said.to == "scheduler"
