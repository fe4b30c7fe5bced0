"""The library's first kernels of every task beside eager PyTorch, on one GPU, half a second a task:

    python benchmarks/kernelbench_levels.py --root ../KernelBench --levels 1,2 --out levels.jsonl --seconds 500
    python benchmarks/kernelbench_levels.py --root ../KernelBench --levels 1,2 --prepare-only --jobs 2   # no GPU
    python benchmarks/kernelbench_levels.py --report levels.jsonl

A map of where the library stands, and no result: kernels run in one process without the grader's questions. They are
the first recipe that a run tries and the first that names its precision, untuned; the faster one counts whose error
is within the bound that PyTorch's own error gives. `foundry bench` gives results.
Processes lower and compile all tasks while another, which is started again when a kernel takes it down, times those
that are ready. What was measured, or failed, and stands in --out is not asked again. Times are medians of device
events in ms, ours and eager (TF32 allowed) in turn, the L2 cache written over before each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import torch
from kernelbench_coverage import H200, graph_of
from layers import allow_tf32

from foundry.graph.bench.request import BenchRequest, levels_of
from foundry.graph.bench.tasks import BenchTask, find_tasks
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower, TaskError
from foundry.knowledge.library.lower import complete_recipe, lower, print_plan, seeds
from foundry.tools.machine.device import describe
from foundry.tools.protocol.rules import ALLOWED_FACTOR, FEW_ELEMENTS, norm_floor
from foundry.tools.targets.cuda import CudaTarget
from foundry.tools.task.capture import CannotCapture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import LoadedTask, flatten, load, placed

TASK_S = 40.0  # after which the process that measures is taken for hung
L2_BYTES = 256 << 20  # written over before each sample: several times any cache
SAMPLES_S = 0.4  # of each task's samples, ours and eager together


@dataclass(frozen=True)
class Prepared:
    """A task's candidates."""

    task: str
    path: str = ""
    texts: tuple[str, ...] = ()
    templates: tuple[tuple[str, ...], ...] = ()  # of each candidate's kernels
    problem: str = ""


@dataclass(frozen=True)
class Row:
    """One task: the fastest right candidate, or the last where none is right. Errors are relative to eager without
    TF32, in the norm of an output, the worst one's."""

    task: str
    eager_ms: float | None = None
    ours_ms: float | None = None
    eager_error: float | None = None
    error: float | None = None
    candidate: int = 0
    templates: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def is_right(self) -> bool:
        """By the protocol's bound on the norm, with eager's IEEE answer for the truth."""
        allowed = max(ALLOWED_FACTOR * (self.eager_error or 0.0), norm_floor("float32", FEW_ELEMENTS))
        return self.error is not None and self.error <= allowed


def prepare(asked: tuple[BenchTask, Device]) -> Prepared:
    """Lowers and compiles; whatever goes wrong is the task's problem."""
    task, device = asked
    torch.set_num_threads(1)
    try:
        graph = graph_of(task)
        found = seeds(graph, device)
        texts, templates = [], []
        for recipe in chosen(found):
            printed = print_plan(graph, recipe, device)
            source = read_task(Path(task.path)).source
            text = lower([graph], complete_recipe(recipe, printed), task_source=source, device=device).source
            built = CudaTarget(device, disassembles=False).build(text)
            if not built.ok:
                return Prepared(task.name, problem=built.first_error)
            texts.append(text)
            templates.append(tuple(each.template for _, each in printed.kernel_pairs()))
        return Prepared(task.name, task.path, tuple(texts), tuple(templates))
    except (TaskError, CannotCapture, CannotLower) as error:
        return Prepared(task.name, problem=str(error))
    except Exception as error:
        return Prepared(task.name, problem=f"internal error: {type(error).__name__}: {error}"[:300])


def chosen(recipes: tuple[Recipe, ...]) -> list[Recipe]:
    """The first, and the first that names its precision: what a run puts first where eager stays IEEE."""
    named = [recipe for recipe in recipes if recipe.names_precision]
    return [recipes[0], *(recipe for recipe in named[:1] if recipe is not recipes[0])]


def measure(prepared: Prepared) -> Row:
    """On the GPU of this process."""
    loaded = load(read_task(Path(prepared.path)))
    try:
        with torch.device("cuda"):
            model = loaded.build_model(0)
    except TaskError:  # a task that draws its weights with a generator of its own
        model = loaded.build_model(0)
    model = model.cuda()
    inputs = placed(loaded.inputs(1, torch.device("cuda")), torch.device("cuda"))  # seed 0 draws the weights' numbers
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    allow_tf32(False)
    truth = tensors_of(model(*inputs))
    allow_tf32(True)
    eager_error = difference(tensors_of(model(*inputs)), truth)
    rows = []
    for number, (text, templates) in enumerate(zip(prepared.texts, prepared.templates, strict=True)):
        ours = build(text, loaded, initial).train(model.training)
        error = difference(tensors_of(ours(*inputs)), truth)
        eager_ms, ours_ms = medians_ms(lambda: model(*inputs), lambda own=ours: own(*inputs))  # type: ignore[misc]
        rows.append(Row(prepared.task, eager_ms, ours_ms, eager_error, error, number, list(templates)))
        del ours
    return min((row for row in rows if row.is_right), key=lambda row: row.ours_ms or 0.0, default=rows[-1])


def build(text: str, loaded: LoadedTask, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    arguments = getattr(loaded.module, "get_init_inputs", list)()
    named = isinstance(arguments, dict)
    model: torch.nn.Module = namespace["ModelNew"](**arguments) if named else namespace["ModelNew"](*arguments)
    model = model.cuda()
    model.load_state_dict(state)
    return model


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(result) if isinstance(leaf, torch.Tensor)]


def difference(found: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    """The largest of the outputs' relative differences in the norm; values that are not finite must be the same."""
    worst = 0.0
    for one, true in zip(found, truth, strict=True):
        if one.shape != true.shape:
            return math.inf
        one, true = one.float(), true.float()
        off = torch.where(one == true, 0.0, one - true).nan_to_num(nan=0.0)
        worst = max(worst, float(off.norm() / true.nan_to_num(0.0, 0.0, 0.0).norm().clamp_min(1e-30)))
    return worst


def medians_ms(*calls: Callable[[], Any]) -> list[float]:
    """Of several calls in turn, 5 to 20 samples each."""
    cache = torch.empty(L2_BYTES, dtype=torch.uint8, device="cuda")
    times: list[list[float]] = [[] for _ in calls]
    for call in (*calls, *calls):
        call()
    begun, samples = time.monotonic(), 20
    while len(times[0]) < samples:
        for call, own in zip(calls, times, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            cache.zero_()
            torch.cuda._sleep(600_000)  # type: ignore[no-untyped-call]  # launches are issued meanwhile
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            own.append(begin.elapsed_time(end))
        if len(times[0]) >= 5 and time.monotonic() - begun > SAMPLES_S:
            break
    return [statistics.median(own) for own in times]


def measure_all(link: Connection) -> None:
    """A process of its own: answers each Prepared with a Row, until None comes."""
    torch.set_grad_enabled(False)
    while (prepared := link.recv()) is not None:
        try:
            row = measure(prepared)
        except Exception as error:
            row = Row(prepared.task, problem=f"{type(error).__name__}: {error}"[:300])
        link.send(row)
        torch.cuda.empty_cache()


class Measurer:
    """The process that measures; a new one takes the place of one that died or hangs."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._link = ours
        self._process = multiprocessing.get_context("spawn").Process(target=measure_all, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, prepared: Prepared, until: float) -> Row | None:
        """None where `until` (of time.monotonic) came first, which says nothing of the task."""
        row = Row(prepared.task, problem="the process that measured it died or did not answer")
        is_lost = True
        with contextlib.suppress(EOFError, OSError):
            self._link.send(prepared)
            if self._link.poll(max(1.0, min(TASK_S, until - time.monotonic()))):
                row = self._link.recv()
                is_lost = "CUDA error" in row.problem  # which no later call of that process survives
            elif time.monotonic() >= until:
                return None
        if is_lost:
            self._restart()
        return row

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def in_order_of_readiness(pending: list[AsyncResult[Prepared]], until: float) -> Iterator[Prepared]:
    while pending and time.monotonic() < until:
        ready = [answer for answer in pending if answer.ready()]
        for answer in ready:
            pending.remove(answer)
            yield answer.get()
        if not ready:
            time.sleep(0.05)


def main() -> None:
    asked = arguments()
    known = rows_in(asked.report or asked.out)
    if asked.report:
        report(known)
        return
    device, until = describe("cuda"), time.monotonic() + asked.seconds
    if not device.present and not asked.prepare_only:
        raise SystemExit("no NVIDIA GPU on this machine: --prepare-only lowers and compiles without one")
    device = device if device.present else H200
    done = {row.task for row in known if row.problem or row.ours_ms is not None}
    request = BenchRequest(str(asked.root), "", levels_of(asked.levels), only=asked.only, every=asked.every)
    orders = [(task, device) for task in find_tasks(request) if task.name not in done]
    with contextlib.ExitStack() as stack:
        if "FOUNDRY_BUILD_CACHE" not in os.environ:
            os.environ["FOUNDRY_BUILD_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=4))
        out = stack.enter_context(asked.out.open("a"))
        measurer = None if asked.prepare_only else stack.enter_context(contextlib.closing(Measurer()))
        pending = [pool.apply_async(prepare, (order,)) for order in orders]
        for prepared in in_order_of_readiness(pending, until):
            row: Row | None = Row(prepared.task, problem=prepared.problem)
            if measurer and not prepared.problem:
                row = measurer.ask(prepared, until)
            if row is None:
                break
            known.append(row)
            print(line_of(row), flush=True)
            out.write(json.dumps(asdict(row)) + "\n")
            out.flush()
    report(known)


def rows_in(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def line_of(row: Row) -> str:
    if row.eager_ms is None or row.ours_ms is None:
        return f"{row.task}: {row.problem or 'compiled'}"
    wrong = "" if row.is_right else "  WRONG"
    return (
        f"{row.eager_ms / row.ours_ms:6.2f}x {row.ours_ms:9.3f} for {row.eager_ms:9.3f} ms, error {row.error:.1e} "
        f"beside {row.eager_error:.1e}  {row.task} ({' '.join(row.templates)}){wrong}"
    )


def report(rows: list[Row]) -> None:
    """Each level's figures, the slower ones, the wrong ones, and those with a problem."""
    for level in sorted({row.task.split("/")[0] for row in rows}):
        own = [row for row in rows if row.task.startswith(level + "/")]
        timed = [row for row in own if row.eager_ms is not None and row.ours_ms is not None and row.is_right]
        speedups = sorted((row.eager_ms or 0.0) / (row.ours_ms or 1.0) for row in timed)
        if speedups:
            mean = math.exp(statistics.fmean(map(math.log, speedups)))
            faster = sum(value > 1 for value in speedups) / len(speedups)
            print(
                f"{level}: {len(timed)} of {len(own)} right; over eager, TF32 allowed: geomean {mean:.2f}x, "
                f"median {statistics.median(speedups):.2f}x, faster {faster:.0%}"
            )
    for row in rows:
        slow = row.eager_ms is not None and row.ours_ms is not None and row.eager_ms < row.ours_ms
        if slow or row.problem or not (row.is_right or row.error is None):
            print(line_of(row))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--only", default="", help="tasks whose names hold it")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no task is begun")
    parser.add_argument("--prepare-only", action="store_true", help="lower and compile, measure nothing")
    parser.add_argument("--out", type=Path, default=Path("levels.jsonl"), help="JSON lines")
    parser.add_argument("--report", type=Path, help="only sums such a file up")
    asked = parser.parse_args()
    if not asked.report and asked.root is None:
        parser.error("--root DIR: a checkout of KernelBench, or --report FILE")
    return asked


if __name__ == "__main__":
    sys.exit(main())
