"""A kernel file's forward, twice, in a process of its own: NVIDIA's tools start the program that they watch.

python -m foundry.tools.grade.replay FOLDER     with task.json, kernel.py and device.txt in it
"""

from __future__ import annotations

import sys
from pathlib import Path

FORWARDS = 2  # the first may build or tune
SEED = 7


def replay(folder: Path) -> None:
    """Builds the task's inputs and the candidate's model as a benchmark does, and calls it."""
    import torch

    from foundry.knowledge import codec
    from foundry.knowledge.task import Task
    from foundry.tools.grade.runner.models import candidate_maker
    from foundry.tools.task import loading

    task = codec.decode(Task, (folder / "task.json").read_text(encoding="utf-8"))
    device = torch.device((folder / "device.txt").read_text().strip())
    loaded = loading.load(task, overrides=task.overrides)
    get_init_inputs = getattr(loaded.module, "get_init_inputs", list)
    make = candidate_maker((folder / "kernel.py").read_text(encoding="utf-8"), str(folder / "candidate.py"))
    model = make({"seed": SEED}, get_init_inputs()).to(device)
    with torch.no_grad():
        inputs = loaded.inputs(SEED, device)
        for _ in range(FORWARDS):
            model(*inputs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print("replayed", flush=True)


if __name__ == "__main__":
    replay(Path(sys.argv[1]))
