"""The library's first kernels of every task beside PyTorch, on one GPU or on the CPU, half a second a task:

    python benchmarks/kernelbench_levels.py --root ../KernelBench --levels 1,2 --out levels.jsonl --seconds 500
    python benchmarks/kernelbench_levels.py --root ../KernelBench --levels 1,2 --prepare-only --jobs 2   # no GPU
    python benchmarks/kernelbench_levels.py --folder tasks --target cpu --compiled --jobs 1 --threads 2
    python benchmarks/kernelbench_levels.py --report levels.jsonl

A map of where the library stands, and no result: kernels run in one process without the grader's questions. They are
the first recipe that a run tries and the first with accurate products, untuned; the faster one counts whose error
is within the bound that PyTorch's own error gives. `foundry bench` gives results.
Processes lower and compile all tasks while another, which is started again when a kernel takes it down, times those
that are ready. What was measured, or failed, and stands in --out is not asked again. On a GPU times are medians of
device events in ms, ours and eager (TF32 allowed) in turn, the L2 cache written over before each, and eager without
TF32, of 16-bit tasks in float32, is the truth. On the CPU the truth is the model in float64, all outputs are judged by
the protocol's bounds, and times are lower quartiles of short rounds in turn, which other load moves least.
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
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import torch
from kernelbench_coverage import H200, graph_of

from foundry.graph.doors.bench.request import BenchRequest, levels_of
from foundry.graph.doors.bench.tasks import BenchTask, find_tasks
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.lower import complete_recipe, lower, print_plan, seeds
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import CannotLower, TaskError
from foundry.tools.machine.device import describe
from foundry.tools.protocol.comparison import describe_mismatch, expect
from foundry.tools.protocol.comparison import measure as measure_error
from foundry.tools.protocol.rules import ALLOWED_FACTOR, FEW_ELEMENTS, accepts, error_limit, norm_floor
from foundry.tools.targets.cpu.build import CpuTarget
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.task.bundle import map_tensors
from foundry.tools.task.capture import CannotCapture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import LoadedTask, dtype_name, flatten, load, placed

TASK_S = 40.0  # after which the process that measures is taken for hung
COMPILED_TASK_S = 300.0  # the same where torch.compile is timed too
ROUND_S = 0.003  # of calls in a row on the CPU, at least one
L2_BYTES = 256 << 20  # written over before each sample: several times any cache
SAMPLES_S = 0.4  # of each task's samples, ours and eager together


@dataclass(frozen=True)
class Prepared:
    """A task's candidates."""

    task: str
    path: str = ""
    texts: tuple[str, ...] = ()
    templates: tuple[tuple[str, ...], ...] = ()  # of each candidate's kernels
    to_pytorch: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Row:
    """One task: the fastest right candidate, or the last where none is right. Errors are relative to the truth, in the
    norm of an output, the worst one's. `mismatch`: what the protocol says of a wrong output, on the CPU."""

    task: str
    eager_ms: float | None = None
    ours_ms: float | None = None
    eager_error: float | None = None
    error: float | None = None
    candidate: int = 0
    templates: list[str] = field(default_factory=list)
    problem: str = ""
    compiled_ms: float | None = None  # torch.compile's
    to_pytorch: list[str] = field(default_factory=list)
    mismatch: str = ""
    target: str = "cuda"

    @property
    def is_right(self) -> bool:
        """By the protocol's bound; on a GPU by that on the norm alone."""
        if self.target == "cpu":
            return self.error is not None and not self.mismatch
        allowed = max(ALLOWED_FACTOR * (self.eager_error or 0.0), norm_floor("float32", FEW_ELEMENTS))
        return self.error is not None and self.error <= allowed


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def prepare(asked: tuple[BenchTask, Device]) -> Prepared:
    """Lowers and compiles; whatever goes wrong is the task's problem."""
    task, device = asked
    torch.set_num_threads(1)
    try:
        graph = graph_of(task)
        found = seeds(graph, device)
        texts, templates, left = [], [], []
        target = CudaTarget(device, disassembles=False) if device.target == "cuda" else CpuTarget()
        for recipe in chosen(found):
            printed = print_plan(graph, recipe, device)
            source = read_task(Path(task.path)).source
            text = lower([graph], complete_recipe(recipe, printed), task_source=source, device=device).source
            built = target.build(text)
            if not built.ok:
                return Prepared(task.name, problem=built.first_error)
            texts.append(text)
            templates.append(tuple(each.template for _, each in printed.kernel_pairs()))
            left += [step.target for step in printed.plan.steps if isinstance(step, TorchCall)]
        return Prepared(task.name, task.path, tuple(texts), tuple(templates), tuple(dict.fromkeys(left)))
    except (TaskError, CannotCapture, CannotLower) as error:
        return Prepared(task.name, problem=str(error))
    except Exception as error:
        return Prepared(task.name, problem=f"internal error: {type(error).__name__}: {error}"[:300])


def chosen(recipes: tuple[Recipe, ...]) -> list[Recipe]:
    """The first, and the first with accurate products: what a run puts first where eager stays IEEE."""
    named = [recipe for recipe in recipes if recipe.accurate]
    return [recipes[0], *(recipe for recipe in named[:1] if recipe is not recipes[0])]


def measure(prepared: Prepared, is_compiled: bool) -> Row:
    """On the GPU of this process."""
    loaded = load(read_task(Path(prepared.path)))
    model = on_gpu(loaded)
    inputs = placed(loaded.inputs(1, torch.device("cuda")), torch.device("cuda"))  # seed 0 draws the weights' numbers
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    allow_tf32(False)
    truth = tensors_of(widened(loaded, model)(*map_tensors(inputs, as_float)))
    allow_tf32(True)
    eager_error = difference(tensors_of(model(*inputs)), truth)
    compiled = torch.compile(model) if is_compiled else None
    rows = []
    for number, (text, templates) in enumerate(zip(prepared.texts, prepared.templates, strict=True)):
        ours = build(text, loaded, initial).train(model.training)
        error = difference(tensors_of(ours(*inputs)), truth)
        calls: list[Callable[[], Any]] = [lambda: model(*inputs), lambda own=ours: own(*inputs)]  # type: ignore[misc]
        times = medians_ms(*calls, *([lambda: compiled(*inputs)] if compiled is not None and not number else []))
        compiled_ms = times[2] if len(times) > 2 else rows[0].compiled_ms if rows else None
        row = Row(prepared.task, times[0], times[1], eager_error, error, number, list(templates), "", compiled_ms)
        rows.append(replace(row, to_pytorch=list(prepared.to_pytorch)))
        del ours, calls
    return min((row for row in rows if row.is_right), key=lambda row: row.ours_ms or 0.0, default=rows[-1])


def as_float(item: torch.Tensor) -> torch.Tensor:
    return item.float() if item.dtype in (torch.float16, torch.bfloat16) else item


def widened(loaded: LoadedTask, model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, or one in float32 with its state if it has some in 16 bits."""
    state = model.state_dict()
    if all(as_float(value) is value for value in state.values()):
        return model
    wide = on_gpu(loaded)
    wide.load_state_dict(state)
    return wide.train(model.training).float()


def on_gpu(loaded: LoadedTask) -> torch.nn.Module:
    try:
        with torch.device("cuda"):
            model = loaded.build_model(0)
    except TaskError:  # a task that draws its weights with a generator of its own
        model = loaded.build_model(0)
    return model.cuda()


def measure_on_cpu(prepared: Prepared, is_compiled: bool) -> Row:
    loaded = load(read_task(Path(prepared.path)))
    model, inputs = loaded.build_model(0), loaded.inputs(1)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    eager = tensors_of(model(*copied(inputs)))
    model.load_state_dict(initial)
    truth = exact_outputs(loaded, initial, inputs) or eager
    compiled = torch.compile(model) if is_compiled else None
    rows = []
    for number, (text, templates) in enumerate(zip(prepared.texts, prepared.templates, strict=True)):
        ours = build(text, loaded, initial, "cpu").train(model.training)
        error, eager_error, mismatch = judge(tensors_of(ours(*copied(inputs))), eager, truth)
        calls: list[Callable[[], Any]] = [lambda: model(*inputs), lambda own=ours: own(*inputs)]  # type: ignore[misc]
        calls += [lambda: compiled(*inputs)] if compiled is not None and not number else []
        times = quartiles_ms(*calls)
        compiled_ms = times[2] if len(times) > 2 else rows[0].compiled_ms if rows else None
        row = Row(prepared.task, times[0], times[1], eager_error, error, number, list(templates), "", compiled_ms)
        rows.append(replace(row, to_pytorch=list(prepared.to_pytorch), mismatch=mismatch, target="cpu"))
    return min((row for row in rows if row.is_right), key=lambda row: row.ours_ms or 0.0, default=rows[-1])


def copied(inputs: list[Any]) -> Any:
    return map_tensors(inputs, torch.clone)


def exact_outputs(loaded: LoadedTask, state: dict[str, torch.Tensor], inputs: list[Any]) -> list[torch.Tensor] | None:
    """In float64; None for a model that cannot run in it."""
    try:
        model = loaded.build_model(0)
        model.load_state_dict(state)
        wide = map_tensors(inputs, lambda item: item.double() if item.is_floating_point() else item.clone())
        return tensors_of(model.double()(*wide))
    except Exception:
        return None


def judge(found: list[torch.Tensor], eager: list[torch.Tensor], truth: list[torch.Tensor]) -> tuple[float, float, str]:
    """The worst norm errors of ours and of eager, and what the protocol's bounds have against ours."""
    worst, worst_eager = 0.0, 0.0
    if [(item.shape, item.dtype) for item in found] != [(item.shape, item.dtype) for item in eager]:
        return math.inf, 0.0, "other outputs, shapes or types"
    said = []
    for number, (one, own, exact) in enumerate(zip(found, eager, truth, strict=True)):
        expected = expect(exact, own, dtype_name(own.dtype), None)
        error, theirs = measure_error(one, expected), measure_error(own, expected)
        limit = error_limit(theirs, expected.dtype, own.numel())
        worst, worst_eager = max(worst, error.norm), max(worst_eager, theirs.norm)
        if not accepts(error, limit):
            said.append(f"output {number}: {describe_mismatch(one, expected, limit, error)}")
    return worst, worst_eager, "; ".join(said)


def build(text: str, loaded: LoadedTask, state: dict[str, torch.Tensor], place: str = "cuda") -> torch.nn.Module:
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    arguments = getattr(loaded.module, "get_init_inputs", list)()
    named = isinstance(arguments, dict)
    model: torch.nn.Module = namespace["ModelNew"](**arguments) if named else namespace["ModelNew"](*arguments)
    model = model.to(place)
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


def quartiles_ms(*calls: Callable[[], Any]) -> list[float]:
    """Of several calls in turn on the CPU, at least 9 rounds each: of the clock, or with one thread of its own CPU
    time, which does not count who else runs."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    repeats = []
    for call in calls:
        call()
        begun = time.perf_counter()
        call()
        repeats.append(max(1, min(100, round(ROUND_S / (time.perf_counter() - begun)))))
    times: list[list[float]] = [[] for _ in calls]
    begun = time.monotonic()
    while len(times[0]) < 9 or (len(times[0]) < 200 and time.monotonic() - begun < len(calls) * SAMPLES_S):
        for call, own, count in zip(calls, times, repeats, strict=True):
            call()  # what another call left in the caches
            start = clock()
            for _ in range(count):
                call()
            own.append((clock() - start) * 1e3 / count)
    return [sorted(own)[len(own) // 4] for own in times]


@dataclass(frozen=True)
class Place:
    """Where and how the process that measures does so."""

    target: TargetName
    threads: int
    is_compiled: bool

    @property
    def limit_s(self) -> float:
        return COMPILED_TASK_S if self.is_compiled else TASK_S


def measure_all(link: Connection, place: Place) -> None:
    """A process of its own: answers each Prepared with a Row, until None comes."""
    torch.set_grad_enabled(False)
    if place.target == "cpu":
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a daemon has no children
        torch.set_num_threads(place.threads)
    while (prepared := link.recv()) is not None:
        try:
            way = measure if place.target == "cuda" else measure_on_cpu
            row = way(prepared, place.is_compiled)
        except Exception as error:
            row = Row(prepared.task, problem=f"{type(error).__name__}: {error}"[:300], target=place.target)
        link.send(row)
        if place.target == "cuda":
            torch.cuda.empty_cache()


class Measurer:
    """The process that measures; a new one takes the place of one that died or hangs."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._start()

    def _start(self) -> None:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._link = ours
        self._process = multiprocessing.get_context("spawn").Process(
            target=measure_all, args=(theirs, self._place), daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, prepared: Prepared, until: float) -> Row | None:
        """None where `until` (of time.monotonic) came first, which says nothing of the task."""
        row = Row(prepared.task, problem="the process that measured it died or did not answer")
        is_lost = True
        with contextlib.suppress(EOFError, OSError):
            self._link.send(prepared)
            if self._link.poll(max(1.0, min(self._place.limit_s, until - time.monotonic()))):
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
    device, until = describe(asked.target), time.monotonic() + asked.seconds
    if not device.present and not asked.prepare_only:
        raise SystemExit("no NVIDIA GPU on this machine: --prepare-only lowers and compiles without one")
    device = device if device.present else H200
    device = replace(device, cores=asked.threads) if device.target == "cpu" else device
    done = {row.task for row in known if row.problem or row.ours_ms is not None}
    levels = () if asked.folder else levels_of(asked.levels)
    request = BenchRequest(str(asked.folder or asked.root), "", levels, only=asked.only, every=asked.every)
    orders = [(task, device) for task in find_tasks(request) if task.name not in done]
    with contextlib.ExitStack() as stack:
        if "FOUNDRY_BUILD_CACHE" not in os.environ:
            os.environ["FOUNDRY_BUILD_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=4))
        out = stack.enter_context(asked.out.open("a"))
        place = Place(device.target, asked.threads, asked.compiled)
        measurer = None if asked.prepare_only else stack.enter_context(contextlib.closing(Measurer(place)))
        pending = [pool.apply_async(prepare, (order,)) for order in orders]
        for prepared in in_order_of_readiness(pending, until):
            row: Row | None = Row(prepared.task, problem=prepared.problem, target=device.target)
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
    wrong = "" if row.is_right else f"  WRONG {row.mismatch}"
    compiled = f", {row.compiled_ms / row.ours_ms:.2f}x torch.compile" if row.compiled_ms else ""
    left = f", PyTorch: {' '.join(row.to_pytorch)}" if row.to_pytorch else ""
    return (
        f"{row.eager_ms / row.ours_ms:6.2f}x {row.ours_ms:9.3f} for {row.eager_ms:9.3f} ms{compiled}, "
        f"error {row.error:.1e} beside {row.eager_error:.1e}  {row.task} ({' '.join(row.templates)}){left}{wrong}"
    )


def report(rows: list[Row]) -> None:
    """Each level's figures, the slower ones, the wrong ones, and those with a problem."""
    for level in sorted({row.task.rpartition("/")[0] for row in rows}):
        own = [row for row in rows if row.task.rpartition("/")[0] == level]
        timed = [row for row in own if row.eager_ms is not None and row.ours_ms is not None and row.is_right]
        speedups = sorted((row.eager_ms or 0.0) / (row.ours_ms or 1.0) for row in timed)
        if speedups:
            mean = math.exp(statistics.fmean(map(math.log, speedups)))
            faster = sum(value > 1 for value in speedups) / len(speedups)
            print(
                f"{level or 'tasks'}: {len(timed)} of {len(own)} right; over eager, TF32 allowed: geomean {mean:.2f}x, "
                f"median {statistics.median(speedups):.2f}x, faster {faster:.0%}"
            )
        compiled = [row.compiled_ms / (row.ours_ms or 1.0) for row in timed if row.compiled_ms]
        if compiled:
            mean = math.exp(statistics.fmean(map(math.log, compiled)))
            faster = sum(value > 1 for value in compiled)
            print(f"  over torch.compile: geomean {mean:.2f}x, faster {faster} of {len(compiled)}")
    for row in rows:
        slow = row.eager_ms is not None and row.ours_ms is not None and row.eager_ms < row.ours_ms
        if slow or row.problem or not (row.is_right or row.error is None):
            print(line_of(row))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--folder", type=Path, help="of any tasks, instead of a checkout")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of PyTorch and kernels, on the CPU")
    parser.add_argument("--compiled", action="store_true", help="time torch.compile as well")
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--only", default="", help="tasks whose names hold it")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no task is begun")
    parser.add_argument("--prepare-only", action="store_true", help="lower and compile, measure nothing")
    parser.add_argument("--out", type=Path, default=Path("levels.jsonl"), help="JSON lines")
    parser.add_argument("--report", type=Path, help="only sums such a file up")
    asked = parser.parse_args()
    if not asked.report and asked.root is None and asked.folder is None:
        parser.error("--root DIR: a checkout of KernelBench, --folder DIR: of tasks, or --report FILE")
    return asked


if __name__ == "__main__":
    sys.exit(main())
