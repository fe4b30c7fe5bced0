"""`--dry-run`: what models may cost and would be told first; nobody is asked and no run begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import answer
from tests.graph.conftest import FakeLibrary
from tests.graph.test_model_brain import bare

from foundry.agents.chat.options import ChatOptions
from foundry.agents.models.models import Models, ModelSpec
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.doors.commands.dry_run import DryRun, dry_run
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.errors import UsageError

MakeRequest = Callable[..., SolveRequest]


async def look(request: SolveRequest, parts: Any) -> DryRun:
    return await dry_run(request, parts, PlaybookBrain(FakeLibrary()))


async def test_it_says_what_a_run_may_cost_and_starts_none(
    make_request: MakeRequest, parts: Any, serve: Any, tmp_path: Path
) -> None:
    server = serve(answer("never asked"))
    models = Models(
        (
            ModelSpec("cheap", "cheap-1", server.url, options=ChatOptions(price=(1.0, 10.0), tool_calls=2)),
            ModelSpec("unpriced", "strong-1", server.url, options=ChatOptions(tool_calls=0)),
        ),
        ("cheap",),
        {"diagnostician": ("unpriced",), "auditor": ("unpriced",)},
    )
    request = replace(make_request(24, islands=2), models=models)
    found = await look(request, parts())
    assert not server.requests and not (tmp_path / "runs").exists()
    cheap, unpriced = found.estimates
    assert (cheap.experts, cheap.requests.least, cheap.requests.most) == (("fusion", "tiling"), 20, 60)
    first = found.prompts[0]
    assert cheap.dollars and cheap.dollars.least == pytest.approx(20 * (first.tokens * 1e-6 + 1500 * 1e-5))
    assert cheap.dollars.most > 3 * cheap.dollars.least and cheap.tokens.least == 20 * (first.tokens + 1500)
    assert unpriced.dollars is None and unpriced.requests.least == unpriced.requests.most == 20 + request.finalist_count
    text = "\n".join(found.lines)
    assert "24 evaluations, 4 of them first candidates: 20 steps" in text and "price unknown" in text
    assert "caps: none" in text and "# You are the memory-tiling expert" in text and "# Task relu_add on cpu" in text
    assert [bool(prompt.user) for prompt in found.prompts] == [True, *[False] * (len(found.prompts) - 1)]


async def test_without_a_kernel_of_the_library_it_begins_from_the_reference(
    make_request: MakeRequest, parts: Any, library: Any
) -> None:
    request = make_request(2, model="scripted-1", base_url="http://127.0.0.1:9/v1")
    found = await look(request, parts(library=bare(library)))
    assert "the first from the reference" in found.notes[1] and found.estimates[0].requests.least == 2 + 3


async def test_without_a_model_there_is_nothing_to_say(make_request: MakeRequest, parts: Any) -> None:
    with pytest.raises(UsageError, match="add --model NAME"):
        await look(make_request(2), parts())
