"""Whole candidates of functions, on the CPU and on the CUDA emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.forking import Forks
from tests.knowledge.compiler.cuda.test_module import run
from tests.knowledge.compiler.lowering import graph_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.printers import module_file
from foundry.knowledge.device import Device

MODEL = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"
SCRIPT = """
saved = torch.load("FOLDER/saved.pt")
got = ModelNew()(*saved["inputs"])
near = [torch.allclose(g, w, TOLERANCE, TOLERANCE, True) for g, w in zip(got, saved["wanted"], strict=True)]
print(json.dumps([i for i, is_near in enumerate(near) if not is_near]))
"""


def together(
    cases: Iterable[tuple[Callable[..., Any], list[torch.Tensor]]],
) -> tuple[Callable[..., tuple[torch.Tensor, ...]], list[torch.Tensor]]:
    """(a function that gives what those of the cases give, its inputs)."""
    known = list(cases)

    def all_of_them(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        rest = list(tensors)
        for model, inputs in known:
            own, rest = rest[: len(inputs)], rest[len(inputs) :]
            found: Any = model(*own)
            results += found if isinstance(found, tuple) else [found]
        return tuple(results)

    return all_of_them, [tensor for _, own in known for tensor in own]


def candidate(model: Callable[..., Any], inputs: Sequence[torch.Tensor], device: Device) -> str:
    """The first candidate of a function, for inputs that overlap nowhere: `.cuda()` keeps no others."""
    printed = print_plan(graph_of(model, *inputs).with_dense_inputs(), Recipe(device.target), device)
    return module_file(MODEL, [Entry(printed.plan, printed.kernels)], device)


def outputs_of(text: str, inputs: Sequence[torch.Tensor]) -> Any:
    """The outputs of a candidate for this process's device."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    return namespace["ModelNew"]()(*inputs)


def wrong_when_emulated(
    forks: Forks, text: str, inputs: Sequence[torch.Tensor], wanted: Any, folder: Path, tolerance: float
) -> list[int]:
    """The outputs of a CUDA candidate that are not the wanted ones."""
    torch.save({"inputs": list(inputs), "wanted": wanted}, folder / "saved.pt")
    script = SCRIPT.replace("FOLDER", str(folder)).replace("TOLERANCE", str(tolerance))
    found: list[int] = run(forks, text, script, folder, folder / "cache")
    return found
