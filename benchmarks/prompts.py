"""What an expert's prompt holds, in estimated tokens a section, for examples on both targets: a first step, and later
ones from parents that differ by a number or by their structure.

    python benchmarks/prompts.py [EXAMPLE ...]

No model and no device is asked: the parent is the library's first candidate, its times are placeholders.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from foundry.agents.brief import Brief
from foundry.agents.chat.calls import declarations, tools_words
from foundry.agents.expert import experts
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt import template
from foundry.agents.prompt_text.messages import MOST_MOVES, step_prompt
from foundry.agents.prompt_text.sections import tokens
from foundry.graph.doors.commands.dry_run import first_brief
from foundry.graph.run.services import KernelLibrary
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.moves import apply, moves
from foundry.knowledge.device import Ceilings, Device
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("softmax", "gemm_bias_relu", "conv2d_batchnorm_relu", "attention", "cross_entropy", "masked_cumsum", "mlp")
DEVICES = (
    Device(
        "cpu",
        "AMD EPYC",
        "x86-64-v4",
        8,
        32 << 20,
        64,
        64 << 30,
        True,
        Ceilings(2e10, 1e11, 8e11, 8e11, 8e11, 0.01, ""),
    ),
    Device(
        "cuda",
        "NVIDIA H200",
        "sm_90",
        132,
        60 << 20,
        16,
        141 << 30,
        True,
        Ceilings(4.3e12, 8e12, 5e13, 4.4e14, 8e14, 0.002, ""),
    ),
)


def brief_of(name: str, device: Device) -> Brief:
    """The brief of a run's first step after its seeds."""
    task = read_task(EXAMPLES / f"{name}.py")
    loaded = load(task, overrides={})
    graph = capture(loaded.build_model(0), loaded.inputs(0))
    return first_brief(task, [graph], device, KernelLibrary())


def later(brief: Brief) -> Iterator[tuple[str, Brief]]:
    """The same step from other parents: one with another number, and one of another structure."""
    assert brief.lowered is not None and brief.graph is not None
    settings = [move for move in moves(brief.lowered) if move.kind == "set"]
    others = [move for move in moves(brief.lowered) if move.kind != "set"]
    for name, found in (("another number", settings), ("another structure", others)):
        if found:
            recipe = apply(brief.lowered.recipe, found[0])
            lowered = lower([brief.graph], recipe, task_source=brief.task.source, device=brief.device)
            candidate = replace(brief.parent.candidate, id="c9", recipe=lowered.recipe)
            parent = replace(brief.parent, candidate=candidate)
            yield name, replace(brief, parent=parent, parent_text=lowered.source, lowered=lowered)


async def size(brief: Brief) -> tuple[int, int, dict[str, int]]:
    """(tokens, those at the begin that are always the same, tokens by section)."""
    assert brief.lowered is not None
    expert = experts()["tiling"]
    prompt = step_prompt(brief, await PlaybookBrain().diagnose(brief), moves(brief.lowered)[:MOST_MOVES])
    system = f"{template(expert.prompt)}\n{tools_words(expert.calls, 6, proposes=True)}"
    declared = len(json.dumps(declarations(expert.calls)))  # endpoints put it in front of all
    sizes = {"tools": tokens(declared), "system": tokens(len(system)), **prompt.sizes}
    before = declared + len(system)
    return tokens(before + len(prompt.text)), tokens(before + prompt.standing), sizes


def told(name: str, sizes: list[tuple[int, int]]) -> str:
    """A line about the requests of a task, or of all of them: (tokens, those that are always the same) of each."""
    wholes, shares = [whole for whole, _ in sizes], [100 * standing / whole for whole, standing in sizes]
    return (
        f"{name}: {len(sizes)} requests, median {statistics.median(wholes):,.0f} tokens, at most {max(wholes):,}; "
        f"always the same {min(shares):.0f} to {max(shares):.0f} %, median {statistics.median(shares):.0f} %"
    )


async def main(names: list[str]) -> None:
    everything: list[tuple[int, int]] = []
    for name in names or NAMES:
        found: list[tuple[int, int]] = []
        for device in DEVICES:
            brief = brief_of(name, device)
            whole, standing, sizes = await size(brief)
            found.append((whole, standing))
            print(f"{name} on {device.target}: {whole:,} tokens, the first {100 * standing // whole} % always the same")
            for title, count in sorted(sizes.items(), key=lambda item: -item[1])[:10]:
                print(f"  {count:7,}  {title}")
            for why, other in later(brief):
                whole, standing, _ = await size(other)
                found.append((whole, standing))
                print(f"  from {why}: {whole:,} tokens, the first {100 * standing // whole} % always the same")
        print(told(name, found))
        everything += found
    print(told("all", everything))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
