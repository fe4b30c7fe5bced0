"""A model writes a kernel with two tunables for an operator that the library has no template for: the whole way on this
machine, and found again by a run that has no model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import Reply, ScriptedServer, answer, calling

from foundry.agents.models.models import Models, one_model
from foundry.graph.run.events import EventLog
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import solve

pytestmark = pytest.mark.slow
TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.pdist(x, 1.0)


def get_inputs():
    return [torch.randn(512, 64)]


def get_init_inputs():
    return []
"""
CODE = """
static void distances(const float* x, float* out) {
#pragma omp parallel for schedule(dynamic) collapse(2)
  for (long block = 0; block < x_d0; block += ROWS)
    for (long other = 0; other < x_d0; other += COLUMNS)
      for (long i = block; i < block + ROWS; ++i)
        for (long j = other > i ? other : i + 1; j < other + COLUMNS; ++j) {
          float total = 0;
#pragma omp simd reduction(+ : total)
          for (long k = 0; k < x_d1; ++k) total += math::abs(x[i * x_d1 + k] - x[j * x_d1 + k]);
          out[i * x_d0 - i * (i + 1) / 2 + j - i - 1] = total;
        }
}
"""
HEAD = {
    "rationale": "blocks of both stay in the first-level cache",
    "expected": "below half of eager's time",
    "measure": "ms",
    "launches": [{"kernel": "distances", "args": ["x", "out"]}],
    "tunables": {"ROWS": {"values": [4, 16, 64], "default": 4}, "COLUMNS": {"values": [8, 32, 128], "default": 8}},
    "constraints": ["x_d0 % ROWS == 0", "x_d0 % COLUMNS == 0"],
}
WRONG = CODE.replace("float total = 0;", "float total = nothing;")


def author(request: dict[str, Any]) -> Reply:
    """First a kernel that does not compile, then its repair, then nothing more."""
    asked = str(request["messages"][-1]["content"])
    if "nothing" in asked and "was not declared" in asked and "## Where we are" in asked:
        assert "float total = nothing;" in asked, "the parent's code is shown"
        edit = "<<<<<<< SEARCH\n          float total = nothing;\n=======\n          float total = 0;\n>>>>>>> REPLACE"
        return answer(
            f'```json\n{{"rationale": "the name was wrong", "expected": "it compiles"}}\n```\n```\n{edit}\n```'
        )
    if "The parent is c0" in asked:
        return answer(f"```json\n{json.dumps(HEAD)}\n```\n```cpp\n{WRONG}```")
    return answer("I have nothing more.")


async def test_a_models_kernel_is_repaired_tuned_accepted_and_found_again(
    tmp_path: Path, monkeypatch: Any, make_home: Callable[[], Path]
) -> None:
    monkeypatch.setenv("FOUNDRY_HOME", str(make_home()))
    (tmp_path / "distances.py").write_text(TASK)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    server = ScriptedServer([author]).start()
    request = SolveRequest(
        str(tmp_path / "distances.py"),
        target="cpu",
        islands=1,
        limits=RunLimits(evaluations=4, minutes=2.0),
        finalists=1,
        rivals=(),
        store=str(tmp_path / "store"),
        runs=str(tmp_path / "runs"),
        models=one_model("scripted-1", server.url),
    )
    try:
        summary = await solve(request)
    finally:
        server.stop()
    assert summary.verdict == "accepted", summary
    run = RunDirectory.inspect(Path(summary.run))
    winner = run.evaluation(summary.candidate).candidate
    assert winner.origin == "model" and winner.recipe is not None and winner.recipe.authored is not None
    events = EventLog(run.database, reading=True).read()
    (tuned,) = [event for event in events if event.name == "tuned"]
    assert tuned.data["tried"] >= 1 and tuned.data["failed"] == 0
    assert not [event for event in events if event.name == "duplicate"], "the tuner's numbers made no new kernel"
    made = [item.candidate.recipe for item in run.decisions() if item.candidate.recipe is not None]
    numbers = {json.dumps(recipe.choices) for recipe in made if recipe.authored == winner.recipe.authored}
    assert len(numbers) > 1, "nobody but the author chose numbers"
    thoughts = [event for event in events if event.kind == "expert" and "sections" in event.data]
    assert thoughts and thoughts[0].data["standing"] > 1000 and not thoughts[0].data["cut"]
    run.close()

    again = await solve(replace(request, models=Models()))
    found = RunDirectory.inspect(Path(again.run))
    first = found.decisions()[0].candidate
    assert again.verdict == "accepted" and first.proposal.startswith("recalled x") and first.origin == "model"
    assert first.recipe is not None and first.recipe.authored == winner.recipe.authored
    found.close()


async def test_a_draft_is_swept_before_it_is_proposed(
    tmp_path: Path, monkeypatch: Any, make_home: Callable[[], Path]
) -> None:
    """Drafts were judged at guessed defaults, although the prompt says not to guess."""

    def sweeper(request: dict[str, Any]) -> Reply:
        said = json.dumps(request["messages"])
        if "The parent is c0" not in said:
            return answer("I have nothing more.")
        if "<result call=" in said:
            return answer({"rationale": "swept", "draft": 1})
        parts = {name: HEAD[name] for name in ("launches", "tunables", "constraints")}
        return calling("tune", {**parts, "code": CODE})

    monkeypatch.setenv("FOUNDRY_HOME", str(make_home()))
    (tmp_path / "distances.py").write_text(TASK)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    server = ScriptedServer([sweeper]).start()
    request = SolveRequest(
        str(tmp_path / "distances.py"),
        target="cpu",
        islands=1,
        limits=RunLimits(evaluations=2, minutes=1.0),
        finalists=1,
        rivals=(),
        learn=False,
        runs=str(tmp_path / "runs"),
        models=one_model("scripted-1", server.url),
    )
    try:
        summary = await solve(request)
    finally:
        server.stop()
    run = RunDirectory.inspect(Path(summary.run))
    (told,) = [event for event in EventLog(run.database, reading=True).read("call") if event.name == "tune"]
    said = run.text(told.data["whole"])
    made = next((item.candidate.recipe for item in run.decisions() if item.candidate.recipe), None)
    run.close()
    assert "configurations" in said and made is not None and made.authored is not None, said
    if "Best: " in said:
        chosen = {f"{name} = {value} (was" for values in made.choices.values() for name, value in values.items()}
        assert any(part in said for part in chosen), "proposed with other numbers than the tuner's"
