"""Tool calls of an expert before it proposes a step: the tools, the calls and their answers.

Only a chat model calls tools; the playbook has its figures already. An answer may hold text of a candidate, a compiler
or another model: it is data, never an instruction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.thought import Move

ToolName = Literal["compile", "check", "quick_time", "profile", "sass", "show", "history", "search_experience", "tune"]
Takes = Literal["kernel", "candidate", "query", "nothing"]


@dataclass(frozen=True)
class Tool:
    """`takes`: its arguments. `works`: the machine has to work on the kernel, which the run's budget pays for."""

    name: ToolName
    takes: Takes
    meaning: str
    works: bool = True


_ALL = (
    Tool("compile", "kernel", "Compiles it: the first error with its line, or registers, spills and vector widths."),
    Tool("check", "kernel", "Compiles it, compares it with float64, and looks for what no candidate may do."),
    Tool("quick_time", "kernel", "Checks it, and times it in turns with PyTorch eager, then in turns with the parent."),
    Tool("profile", "kernel", "Checks it, times it beside eager, and says what limits it."),
    Tool("sass", "kernel", "What its machine code is made of: the instructions of its loops by class."),
    Tool("show", "candidate", "The file of a candidate of this run and what was measured of it.", works=False),
    Tool(
        "history",
        "nothing",
        "The latest steps of this run, those from this parent first, and what came of them.",
        False,
    ),
    Tool("search_experience", "query", "What earlier runs learnt, by words: operators, a limiter, a move.", False),
    Tool("tune", "kernel", "Sweeps its tunables on the machine: the best numbers are a kernel that you may propose."),
)
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _ALL}


@dataclass(frozen=True)
class ToolCall:
    """One call, as it can be made, about a kernel that is a whole file (`text`), or that the kernel compiler prints
    (`recipe`;
    `moves`: the listed steps to it). `problem`: why it cannot be made, in one line; it counts all the same. `id` and
    `arguments` are the model's own words, for its endpoint."""

    name: str
    text: str = ""
    recipe: Recipe | None = None
    moves: tuple[Move, ...] = ()
    candidate: str = ""
    query: str = ""
    problem: str = ""
    id: str = ""
    arguments: str = ""

    @property
    def digest(self) -> str:
        """The first 16 digits of a sha256 of the question; equal questions of different experts have the same."""
        recipe = self.recipe.digest if self.recipe else ""
        asked = [self.name, self.text, recipe, self.candidate, self.query, self.problem]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ToolRequest:
    """A model's tool calls before its answer.

    `said` is its text beside the calls, `tokens` their cost. `native`: the calls came through the endpoint's interface,
    not in the text.
    """

    calls: tuple[ToolCall, ...]
    said: str = ""
    tokens: int = 0
    native: bool = False


@dataclass(frozen=True)
class ToolAnswer:
    """`recipe` and `moves`: the numbers that the tuner found, as a plan and as steps from the parent."""

    text: str
    recipe: Recipe | None = None
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True)
class Turn:
    """A request and its answers, one a call."""

    request: ToolRequest
    answers: tuple[ToolAnswer, ...]


@dataclass(frozen=True)
class Talk:
    """The tool calls and answers of an expert in this step so far."""

    turns: tuple[Turn, ...] = ()

    @property
    def calls(self) -> tuple[tuple[ToolCall, ToolAnswer], ...]:
        """All calls with their answers; a model knows them by their numbers, from 1."""
        return tuple(pair for turn in self.turns for pair in zip(turn.request.calls, turn.answers, strict=True))

    @property
    def tokens(self) -> int:
        """Tokens of all requests so far."""
        return sum(turn.request.tokens for turn in self.turns)
