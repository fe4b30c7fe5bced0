"""The tools as a coding agent finds and calls them, with the SDK's own client."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the package mcp is not installed: pip install 'foundry[mcp]'")

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from foundry.agents.models.models import one_model
from foundry.agents.models.settings import read_models
from foundry.graph.doors.mcp.searches import without_models
from foundry.graph.doors.mcp.server import make_server
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.codec import encode

TOOLS = {"solve", "verify", "profile", "trace", "search_experience", "status", "say"}
TOY = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x * 2.0)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""
KERNEL = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x * 2.0)
"""


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A folder with one finished run."""
    shutil.copytree(finished, tmp_path / "runs" / finished.name)
    return tmp_path / "runs"


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


async def test_an_agent_reads_a_run_and_speaks_to_it(runs: Path, finished: Path) -> None:
    async with Client(make_server(runs, models=False)) as client:
        found = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert found.keys() == TOOLS
        assert found["verify"].annotations.read_only_hint and not found["solve"].annotations.read_only_hint
        assert "context" not in found["solve"].input_schema["properties"]
        assert found["solve"].input_schema["required"] == ["task"]
        status = (await client.call_tool("status", {})).structured_content
        assert status["verdict"] == "accepted" and "evaluations" in status["status"]
        story = text_of(await client.call_tool("trace", {"candidate": status["candidate"]}))
        assert f"{status['candidate']} was made from " in story and "lineage" in story
        steps = text_of(await client.call_tool("trace", {"run": finished.name, "expert": "tiling", "lines": 5}))
        assert len(steps.splitlines()) == 5 and "tiling" in steps
        slow = text_of(await client.call_tool("trace", {"kind": "tool", "slowest": 2}))
        assert len(slow.splitlines()) == 2 and " tool " in slow
        unknown = await client.call_tool("status", {"run": "nothing"})
        assert unknown.is_error and "no run 'nothing'" in text_of(unknown)


@pytest.fixture
def paid_runs(runs: Path) -> Path:
    """The same, its experts models that cost something."""
    run = RunDirectory.inspect(next(runs.iterdir()))
    run.set("request", encode(SolveRequest("toy.py", models=one_model("gpt-5.4"))))
    run.close()
    return runs


async def test_no_model_starts_unless_it_is_asked_for(paid_runs: Path) -> None:
    """Neither by a call, nor by a question to a run whose experts are models, nor by more money for them."""
    async with Client(make_server(paid_runs, models=False)) as client:
        for tool, given in (
            ("solve", {"task": "toy.py", "model": "gpt-5.4"}),
            ("say", {"words": "what did you try on fusion, and would a larger tile help?"}),
            ("say", {"words": "budget +20 dollars"}),
        ):
            refused = await client.call_tool(tool, given)
            assert refused.is_error and "foundry mcp --models" in text_of(refused), (tool, text_of(refused))


def test_a_search_without_a_model_asks_for_the_playbook_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever foundry.toml and the environment say."""
    (tmp_path / "foundry.toml").write_text('model = "gpt-5.4"\nexperts = { tiling = "qwen" }\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOUNDRY_MODEL", "gpt-5.4,fusion=qwen")
    assert read_models()
    assert not read_models([word for word in without_models() if word != "--model"])


@asynccontextmanager
async def over_stdio(folder: Path, home: Path) -> AsyncIterator[Any]:
    """A client of the real command, as an agent starts it."""
    env = {**os.environ, "FOUNDRY_HOME": str(home), "FOUNDRY_BUILD_CACHE": str(home / "build")}
    command = StdioServerParameters(command=sys.executable, args=["-m", "foundry.cli", "mcp"], env=env, cwd=folder)
    async with Client(stdio_client(command)) as client:
        yield client


@pytest.mark.slow
async def test_an_agent_solves_verifies_and_profiles_over_stdio(tmp_path: Path, make_home: Any) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "kernel.py").write_text(KERNEL)
    async with over_stdio(tmp_path, make_home()) as client:
        began = await client.call_tool("solve", {"task": "toy.py", "effort": "bench", "evaluations": 3})
        assert not began.is_error, text_of(began)
        run = began.structured_content["run"]
        assert began.structured_content["verdict"] == "running" and (tmp_path / run / "run.sqlite").exists()
        assert "at work" in (await client.call_tool("status", {"run": run})).structured_content["status"]
        assert "d1" in text_of(await client.call_tool("say", {"run": run, "words": "stop"}))
        again = await client.call_tool(
            "solve", {"task": "toy.py", "effort": "bench", "evaluations": 2, "wait_seconds": 300}
        )
        summary = again.structured_content
        assert summary["verdict"] == "accepted" and summary["brain"] == "playbook", summary
        assert (tmp_path / summary["run"] / "report.html").exists()
        verdict = (await client.call_tool("verify", {"task": "toy.py", "kernel": summary["kernel"]})).structured_content
        assert verdict["verdict"] == "accepted" and verdict["isolation"]
        cheat = (await client.call_tool("verify", {"task": "toy.py", "kernel": "kernel.py"})).structured_content
        assert cheat["verdict"] == "rejected", "PyTorch does the work"
        limits = (await client.call_tool("profile", {"task": "toy.py", "kernel": summary["kernel"]})).structured_content
        assert limits["rung_number"] >= 1
        learnt = await client.call_tool("search_experience", {"text": "relu"})
        assert not learnt.is_error and json.loads(learnt.content[0].text)
        missing = await client.call_tool("verify", {"task": "--help", "kernel": "none.py"})
        assert missing.is_error and "--help" in text_of(missing), "a path is never an option"
