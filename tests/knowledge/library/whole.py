"""Whole candidates of functions, on the CPU and on the CUDA emulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.forking import Forks
from tests.knowledge.library.cuda.test_module import run

MODEL = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"
SCRIPT = """
saved = torch.load("FOLDER/saved.pt")
got = ModelNew()(*saved["inputs"])
near = [torch.allclose(g, w, TOLERANCE, TOLERANCE, True) for g, w in zip(got, saved["wanted"], strict=True)]
print(json.dumps([i for i, is_near in enumerate(near) if not is_near]))
"""


def outputs_of(text: str, inputs: Sequence[torch.Tensor]) -> Any:
    """What a candidate for this process's device gives."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    return namespace["ModelNew"]()(*inputs)


def wrong_when_emulated(
    forks: Forks, text: str, inputs: Sequence[torch.Tensor], wanted: Any, folder: Path, tolerance: float
) -> list[int]:
    """Which outputs of a CUDA candidate are not those that are wanted."""
    torch.save({"inputs": list(inputs), "wanted": wanted}, folder / "saved.pt")
    script = SCRIPT.replace("FOLDER", str(folder)).replace("TOLERANCE", str(tolerance))
    found: list[int] = run(forks, text, script, folder, folder / "cache")
    return found
