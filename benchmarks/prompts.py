"""What an expert's prompt holds, in estimated tokens a section, for examples on both targets.

    python benchmarks/prompts.py [EXAMPLE ...]

No model and no device is asked: the parent is the library's first candidate, its times are placeholders.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from foundry.agents.brief import Brief
from foundry.agents.chat.calls import tools_words
from foundry.agents.expert import experts
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt import template
from foundry.agents.words.sections import tokens
from foundry.agents.words.words import MOST_MOVES, step_prompt
from foundry.graph.dry_run import first_brief
from foundry.graph.run.services import KernelLibrary
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.library.moves import moves
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("softmax", "gemm_bias_relu", "conv2d_batchnorm_relu")
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


async def main(names: list[str]) -> None:
    expert = experts()["tiling"]
    for name in names or NAMES:
        for device in DEVICES:
            brief = brief_of(name, device)
            assert brief.lowered is not None
            diagnosis = await PlaybookBrain().diagnose(brief)
            prompt = step_prompt(brief, diagnosis, moves(brief.lowered)[:MOST_MOVES])
            system = f"{template(expert.prompt)}\n{tools_words(expert.calls, 6, proposes=True)}"
            whole, standing = tokens(len(system) + len(prompt.text)), tokens(len(system) + prompt.standing)
            print(f"{name} on {device.target}: {whole:,} tokens, the first {100 * standing // whole} % always the same")
            found = {"system": tokens(len(system)), **prompt.sizes}
            for title, count in sorted(found.items(), key=lambda item: -item[1])[:10]:
                print(f"  {count:7,}  {title}{' (cut)' if title in prompt.cut else ''}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
