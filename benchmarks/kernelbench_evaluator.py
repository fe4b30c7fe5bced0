"""Whether KernelBench's own evaluator accepts Foundry's kernels as they are. Needs a CUDA GPU and a checkout:

    python benchmarks/kernelbench_evaluator.py --root ../KernelBench --levels 1,2 --every 10 --count 20 --out FILE
    python benchmarks/kernelbench_evaluator.py --root ../KernelBench --every 10 --policy strict    # IEEE arithmetic
    python benchmarks/kernelbench_evaluator.py --root ../KernelBench --bench bench/kernelbench   # a bench's winners
    python benchmarks/kernelbench_evaluator.py --root ../KernelBench --every 10 --export-only    # without a GPU

Without --bench each task is captured and the library's first file for it is taken: what an export writes, before any
search. The evaluator is the checkout's `eval_kernel_against_ref` with its defaults, its clock and its tolerances, each
time in a process of its own; nothing of it is replaced. It imports two clients of language models; a package that is
not installed stands in as an empty one. It compares with products in IEEE float32 within 1e-4, which a kernel in TF32,
as policy fair allows it, meets on some tasks only, and so does PyTorch with TF32. Of convolutions the reference itself
is in TF32, which is cuDNN's default, and may be as far as that from one in IEEE arithmetic: --without conv leaves them
out. With --jobs above 1 its times were taken beside others: only "correct" counts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import time
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foundry.graph.doors.bench.request import BenchRequest, levels_of
from foundry.graph.doors.bench.results import ResultFile
from foundry.graph.doors.bench.tasks import find_tasks

CLIENTS = {"openai": "OpenAI", "litellm": "completion"}  # what the evaluator's utils import of them
TRIALS, TIMED = 5, 100
EXPORT_S, EVALUATION_S = 240.0, 600.0


@dataclass(frozen=True)
class Row:
    """One kernel. Times are the evaluator's, means in ms."""

    task: str
    compiled: bool = False
    correct: bool = False
    reference_ms: float | None = None
    kernel_ms: float | None = None
    trials: str = ""
    problem: str = ""
    seconds: float = 0.0


def main() -> None:
    asked = arguments()
    if asked.one:
        print(json.dumps(evaluate(asked.root, *map(Path, asked.one), timed=asked.timed)))
        return
    if asked.export:
        print(export(Path(asked.export), ieee_only=asked.policy == "strict"))
        return
    request = BenchRequest(str(asked.root), "", levels_of(asked.levels), only=asked.only, every=asked.every)
    tasks = find_tasks(request)
    winners = winners_of(asked.bench) if asked.bench else None
    if winners is not None:
        tasks = [task for task in tasks if task.name in winners]
    words = [word for word in asked.without.lower().split(",") if word]
    tasks = [task for task in tasks if not any(word in Path(task.path).read_text().lower() for word in words)]
    if asked.largest_mb:
        tasks = [task for task in tasks if input_bytes(Path(task.path)) <= 1e6 * asked.largest_mb]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        rows = [
            pool.submit(one, asked, task.name, Path(task.path), winners and winners[task.name], Path(folder))
            for task in tasks[:: asked.stride][: asked.count]
        ]
        found = [row.result() for row in rows]
    good = sum(row.compiled if asked.export_only else row.correct for row in found)
    how = "load in its evaluator's namespace" if asked.export_only else "are accepted by KernelBench's evaluator"
    print(f"{good} of {len(found)} kernels {how}")
    sys.exit(0 if good == len(found) else 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="a checkout of KernelBench")
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--only", default="", help="tasks whose names hold it")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--largest-mb", type=float, help="of inputs, which the evaluator draws on the host seven times")
    parser.add_argument("--without", default="", metavar="WORD,...", help="tasks whose text holds one are left out")
    parser.add_argument("--stride", type=int, default=1, help="every n-th of those that are left")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--bench", type=Path, help="a folder of `foundry bench`: its winners")
    parser.add_argument(
        "--policy", choices=("fair", "strict"), default="fair", help="strict: no TF32 in what is exported"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timed", type=int, default=TIMED, help="timed calls of each side")
    parser.add_argument("--out", type=Path, help="JSON lines")
    parser.add_argument("--export-only", action="store_true", help="only write and load the files: no GPU is needed")
    parser.add_argument("--one", nargs=2, metavar=("TASK", "KERNEL"), help=argparse.SUPPRESS)
    parser.add_argument("--export", metavar="TASK", help=argparse.SUPPRESS)
    return parser.parse_args()


def one(asked: argparse.Namespace, name: str, task: Path, winner: Path | None, folder: Path) -> Row:
    """One task's kernel, exported and evaluated in processes of their own, told as soon as it is known."""
    start = time.monotonic()
    try:
        text = (
            winner.read_text() if winner else child(["--export", str(task), "--policy", asked.policy], asked, EXPORT_S)
        )
        kernel = folder / f"{name.replace('/', '_')}.py"
        kernel.write_text(text)
        if asked.export_only:
            found: dict[str, Any] = {"compiled": defines_model(text, task)}
        else:
            said = child(["--one", str(task), str(kernel), "--timed", str(asked.timed)], asked, EVALUATION_S)
            found = json.loads(said.splitlines()[-1])
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        found = {"problem": " ".join(str(error).split())[-300:]}
    row = Row(name, **found, seconds=round(time.monotonic() - start, 1))
    if asked.out:
        with asked.out.open("a") as handle:
            handle.write(json.dumps(asdict(row)) + "\n")
    times = f", {row.reference_ms:.3f} ms against {row.kernel_ms:.3f}" if row.reference_ms and row.kernel_ms else ""
    word = "accepted" if row.correct else "loads" if asked.export_only and row.compiled else "refused"
    print(f"{name}: {word}{times} {row.trials} {row.problem} ({row.seconds:.0f} s)", flush=True)
    return row


def input_bytes(task: Path) -> int:
    """Bytes of a task's inputs, which are not drawn for it."""
    import torch

    names: dict[str, Any] = {}
    exec(task.read_text(), names)
    with torch.device("meta"):
        return sum(item.nbytes for item in names["get_inputs"]() if isinstance(item, torch.Tensor))


def winners_of(folder: Path) -> dict[str, Path]:
    lines = ResultFile(folder).read()
    return {line.task: folder / line.kernel for line in lines if line.is_accepted and line.kernel}


def child(order: list[str], asked: argparse.Namespace, limit_s: float) -> str:
    """What this script says when it does one thing. Raises RuntimeError, subprocess.TimeoutExpired."""
    argv = [sys.executable, __file__, "--root", str(asked.root), *order]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    return done.stdout


def defines_model(text: str, task: Path) -> bool:
    """Executes the file as the evaluator does: in the namespace of the reference, behind a line of its own."""
    names: dict[str, Any] = {}
    exec(task.read_text(), names)
    exec(f"import os\n{text}", names)
    return hasattr(names.get("ModelNew"), "forward")


def export(path: Path, *, ieee_only: bool) -> str:
    """The library's first file for a task."""
    import torch

    from foundry.knowledge.compiler.lower import lower, seeds
    from foundry.tools.machine.device import describe
    from foundry.tools.task.file import read_task
    from foundry.tools.task.intake import operator_graph
    from foundry.tools.task.loading import load

    task, device = read_task(path), describe("cuda")
    place = torch.device("cuda" if device.present else "cpu")
    graph = operator_graph(load(task), place)
    recipe = replace(seeds(graph, device)[0], ieee_only=ieee_only)
    return lower([graph], recipe, task_source=task.text, device=device).source


def evaluate(root: Path, task: Path, kernel: Path, *, timed: int) -> dict[str, Any]:
    """The evaluator's answer on one pair."""
    import torch

    sys.path.insert(0, str(root / "src"))
    for name, member in CLIENTS.items():
        if importlib.util.find_spec(name) is None:
            client = types.ModuleType(name)
            setattr(client, member, None)
            sys.modules[name] = client
    evaluator = importlib.import_module("kernelbench.eval")
    with tempfile.TemporaryDirectory() as build, contextlib.redirect_stdout(io.StringIO()):
        found = evaluator.eval_kernel_against_ref(
            task.read_text(),
            kernel.read_text(),
            num_correct_trials=TRIALS,
            num_perf_trials=timed,
            measure_performance=True,
            build_dir=build,
            device=torch.device("cuda:0"),
        )
    if found is None:
        return {"problem": "the evaluator asks to be called again"}
    said = [f"{key}: {value}" for key, value in found.metadata.items() if "error" in key or "issue" in key]
    said += [f"off by {found.metadata['max_difference'][0]}"] if "max_difference" in found.metadata else []
    return {
        "compiled": found.compiled,
        "correct": found.correctness,
        "reference_ms": found.ref_runtime if found.ref_runtime > 0 else None,
        "kernel_ms": found.runtime if found.runtime > 0 else None,
        "trials": str(found.metadata.get("correctness_trials", "")),
        "problem": " ".join("; ".join(said).split())[:300],
    }


if __name__ == "__main__":
    main()
