"""What the kernel compiler makes of every task, at its true size, before any GPU is asked:

    python benchmarks/kernelbench_coverage.py --root ../KernelBench --levels 1,2,3 --out coverage.jsonl
    python benchmarks/kernelbench_coverage.py --root ../KernelBench --levels 3 --no-compile
    python benchmarks/kernelbench_coverage.py --folder tasks
    python benchmarks/kernelbench_coverage.py --report coverage.jsonl

A line a task and seed: is it captured, which operators are left to PyTorch, how many kernels there are, what nvcc
needs for them, what they spill and how much shared memory the largest takes. Inputs and weights are memory that nobody
writes, so that tasks of many gigabytes fit anywhere. Each task is a process of its own, forked from one that has
imported PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from foundry.graph.doors.bench.request import BenchRequest, levels_of
from foundry.graph.doors.bench.tasks import BenchTask, find_tasks
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.lower import complete_recipe, lower, print_plan, seeds
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower, TaskError
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.task.capture import CannotCapture, capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
LARGE = 8 << 20  # elements of a tensor that is not filled
TASK_S = 900.0


@dataclass(frozen=True)
class Row:
    """One task under one seed."""

    task: str
    seed: int = 0
    captured: str = ""  # by which tracer
    operators: int = 0
    to_pytorch: list[str] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)  # one a kernel
    compile_s: float | None = None
    compile_cpu_s: float | None = None  # the same without what else the machine does
    spill_bytes: dict[str, int] = field(default_factory=dict)  # by kernel
    shared_bytes: int = 0
    registers: int = 0
    problem: str = ""
    seconds: float = 0.0


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """Large tensors are left as the system gives them: pages that are never written take no memory."""
    kept: dict[tuple[Any, str], Any] = {}

    def swap(place: Any, name: str, made: Callable[..., Any]) -> None:
        kept[place, name] = getattr(place, name)
        setattr(place, name, made)

    def maker(name: str) -> Callable[..., Any]:
        original = getattr(torch, name)

        def make(*size: Any, **options: Any) -> Any:
            try:
                shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
            except TypeError:
                return original(*size, **options)
            known = options.keys() <= {"dtype", "device", "requires_grad"}
            return torch.empty(shape, **options) if known and shape.numel() > LARGE else original(*size, **options)

        return make

    def filler(name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)
        return lambda own, *given, **more: own if own.numel() > LARGE else original(own, *given, **more)

    for name in ("rand", "randn", "zeros", "ones"):
        swap(torch, name, maker(name))
    for name in ("uniform_", "normal_", "zero_", "fill_"):
        swap(torch.Tensor, name, filler(name))
    try:
        yield
    finally:
        for (place, name), original in kept.items():
            setattr(place, name, original)


def graph_of(task: BenchTask) -> OpGraph:
    """Raises TaskError, CannotCapture."""
    with unfilled():
        loaded = load(read_task(Path(task.path)))
        return capture(loaded.build_model(0), loaded.inputs(0), overrides=loaded.overrides)


def rows_of(task: BenchTask, device: Device, count: int, compiles: bool) -> list[Row]:
    """One a seed; a single one where there is no graph."""
    start = time.monotonic()
    try:
        graph = graph_of(task)
    except (TaskError, CannotCapture) as error:
        return [Row(task.name, problem=str(error), seconds=time.monotonic() - start)]
    row = Row(task.name, captured=graph.tracer, operators=len(graph.ops))
    try:
        recipes = seeds(graph, device)[:count]
    except CannotLower as error:
        return [replace(row, problem=str(error), seconds=time.monotonic() - start)]
    found = []
    for number, recipe in enumerate(recipes):
        start = time.monotonic()
        one = replace(row, seed=number)
        try:
            printed = print_plan(graph, recipe, device)
            left = [step.target for step in printed.plan.steps if isinstance(step, TorchCall)]
            one = replace(one, to_pytorch=left, templates=[text.template for _, text in printed.kernel_pairs()])
            source = read_task(Path(task.path)).source
            text = lower([graph], complete_recipe(recipe, printed), task_source=source, device=device).source
            one = compiled(one, text, device) if compiles else one
        except CannotLower as error:
            one = replace(one, problem=str(error))
        found.append(replace(one, seconds=time.monotonic() - start))
    return found


def compiled(row: Row, text: str, device: Device) -> Row:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = CudaTarget(device, disassembles=False).build(text)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return replace(
        row,
        compile_s=None if built.cached else round(built.seconds, 2),
        compile_cpu_s=None if built.cached else round(cpu_s, 2),
        spill_bytes={
            name: int(facts["spill_bytes"]) for name, facts in built.resources.kernels.items() if facts["spill_bytes"]
        }
        if built.ok
        else {},
        shared_bytes=built.resources.shared_bytes if built.ok else 0,
        registers=built.resources.registers if built.ok else 0,
        problem="" if built.ok else built.first_error,
    )


def work(asked: tuple[BenchTask, Device, int, bool]) -> list[dict[str, Any]]:
    """One task in a process of its own: whatever it raises is its row."""
    torch.set_num_threads(1)
    try:
        return [asdict(row) for row in rows_of(*asked)]
    except Exception as error:
        said = "".join(traceback.format_exception(error)[-2:])
        return [asdict(Row(asked[0].name, problem=f"internal error: {' '.join(said.split())[-400:]}"))]


def main() -> None:
    asked = arguments()
    if asked.report:
        report([json.loads(line) for line in asked.report.read_text().splitlines()])
        return
    levels = () if asked.folder else levels_of(asked.levels)
    request = BenchRequest(str(asked.folder or asked.root), "", levels, only=asked.only, every=asked.every)
    device = H200 if not (here := describe("cuda")).present else here
    device = replace(device, facts={**here.facts, **device.facts})
    orders = [(task, device, asked.seeds, not asked.no_compile) for task in find_tasks(request)]
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        os.environ["FOUNDRY_BUILD_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())  # what is built is timed
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=1))
        out = stack.enter_context(asked.out.open("a")) if asked.out else None
        pending = [(order[0].name, pool.apply_async(work, (order,))) for order in orders]
        for name, answer in pending:
            try:
                rows = answer.get(TASK_S)
            except Exception as error:
                rows = [asdict(Row(name, problem=f"no answer: {type(error).__name__}"))]
            found += rows
            for row in rows:
                print(line_of(row), flush=True)
                if out:
                    out.write(json.dumps(row) + "\n")
                    out.flush()
    report(found)
    sys.exit(1 if any(row["problem"] for row in found) else 0)


def line_of(row: dict[str, Any]) -> str:
    if row["problem"]:
        return f"{row['task']} [{row['seed']}]: {row['problem']}"
    left = f", PyTorch: {' '.join(row['to_pytorch'])}" if row["to_pytorch"] else ""
    spills = f", spills {sum(row['spill_bytes'].values())} bytes" if row["spill_bytes"] else ""
    took = "" if row["compile_s"] is None else f", nvcc {row['compile_s']:.1f} s ({row['compile_cpu_s']:.1f} of CPU)"
    kernels = " ".join(f"{count} {name}" for name, count in Counter(row["templates"]).items())
    return f"{row['task']} [{row['seed']}]: {kernels}{left}{took}{spills}, {row['shared_bytes'] // 1024} KB shared"


def report(rows: list[dict[str, Any]]) -> None:
    """The figures of all rows, and the tasks that stand out."""
    first = [row for row in rows if row["seed"] == 0]
    print(f"\n{len(first)} tasks, {sum(not row['problem'] for row in first)} without a problem,", end=" ")
    print(f"{sum(bool(row['to_pytorch']) for row in first)} with operators left to PyTorch")
    for number in sorted({row["seed"] for row in rows}):
        known = [row for row in rows if row["seed"] == number and row["compile_cpu_s"] is not None]
        if not known:
            continue
        heaviest = sorted(known, key=lambda row: -float(row["compile_cpu_s"]))
        median = statistics.median(row["compile_cpu_s"] for row in known)
        print(f"seed {number}: {len(known)} compiled, median {median:.1f} s of CPU; the heaviest:", end=" ")
        print(", ".join(f"{row['task']} {row['compile_cpu_s']:.1f}" for row in heaviest[:6]))
        spilling = [row for row in known if row["spill_bytes"]]
        print(f"  {len(spilling)} spill:", *(f"{row['task']} {row['spill_bytes']}" for row in spilling))
    left = Counter(kind for row in first for kind in set(row["to_pytorch"]))
    print("left to PyTorch, tasks each:", ", ".join(f"{kind} {count}" for kind, count in left.most_common()) or "none")
    for row in rows:
        if row["problem"]:
            print(f"  {row['task']} [{row['seed']}]: {row['problem']}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--folder", type=Path, help="of any tasks, instead of a checkout")
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--only", default="", help="tasks whose names hold it")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="of each task, the library's first ones")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON lines")
    parser.add_argument("--report", type=Path, help="only sums such a file up")
    return parser.parse_args()


if __name__ == "__main__":
    main()
