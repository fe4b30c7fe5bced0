"""Times KernelBench tasks that only move memory (scans, pools, long rows), kernel way by kernel way, against eager
PyTorch and the copy rate, on this machine's GPU.

    python benchmarks/lab/memory.py --root DIR                         # the defaults and every way that is listed here
    python benchmarks/lab/memory.py --root DIR --only 41 42 --out FILE
    python benchmarks/lab/memory.py --root DIR --texts FILE --print    # writes the candidates; needs no GPU
    python benchmarks/lab/memory.py --root DIR --texts FILE            # times what was written

Each way is checked against float64 on a part of the batch, and called twice for the same bits. Times are medians of
device events in milliseconds, behind a held GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import layers
import torch
from layers import load_model, median_ms

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.lower import lower, print_plan
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.task.capture import capture

Ways = list[dict[str, Choice]]
SCANS: Ways = [{}, {"team": 256}, {"team": 1024, "rounds": 2}]
LONG_SCANS: Ways = [
    {},
    {"path": "tiles"},
    {"path": "look_back"},
    *(
        {"path": "look_back", "threads": threads, "rounds": n}
        for threads, n in ((256, 8), (512, 4), (512, 2), (1024, 4))
    ),
]
POOLS: Ways = [
    {},
    {"path": "points"},
    *({"steps": steps} for steps in (1, 2, 4, 8, 16)),
    {"threads": 128},
    {"threads": 512},
    {"threads": 512, "steps": 1},
]
WIDE_ROWS: Ways = [
    {},
    {"cluster": 1},
    {"cluster": 8, "team": 1024},
    {"cluster": 8, "team": 1024, "softmax": "online"},
    {"cluster": 8, "team": 512},
    {"order": "behind", "team": 256},
    {"order": "behind", "team": 512},
    {"in_flight": 8},
]
ROWS: Ways = [
    {},
    {"cluster": 1},
    {"cluster": 2, "team": 1024, "staging": "shared"},
    {"cluster": 4, "team": 512, "staging": "shared"},
    {"cluster": 8, "team": 256, "staging": "shared"},
    {"cluster": 8, "team": 512, "staging": "registers"},
    {"order": "behind", "team": 256},
]
MIDDLE_ROWS: Ways = [
    {},
    {"cluster": 1},
    {"cluster": 2, "team": 1024},
    {"cluster": 4, "team": 256},
    {"cluster": 4, "team": 512},
    {"cluster": 4, "team": 512, "staging": "shared"},
    {"cluster": 8, "team": 256},
    {"cluster": 8, "team": 512},
    {"order": "behind", "team": 256},
]
LONG_ROWS: Ways = [
    {},
    {"order": "behind", "team": 256},
    {"order": "behind", "team": 512},
    {"order": "behind", "team": 256, "splits": 128},
    {"in_flight": 8},
]
COLUMNS: Ways = [
    {},
    *({"columns": c, "team": t} for c, t in ((32, 8), (32, 16), (64, 8), (128, 8))),
    *({"columns": c, "team": t, "in_flight": 8} for c, t in ((32, 8), (32, 16), (32, 32), (64, 8), (128, 8))),
]
TASKS: dict[int, Ways] = {
    23: WIDE_ROWS,
    34: WIDE_ROWS,
    38: ROWS,
    39: ROWS,
    24: [*WIDE_ROWS[:3], *WIDE_ROWS[4:7], WIDE_ROWS[-3]],
    35: LONG_ROWS,
    40: LONG_ROWS,
    41: POOLS,
    42: POOLS,
    43: POOLS,
    44: POOLS,
    45: POOLS,
    46: POOLS,
    89: SCANS,
    90: SCANS[:1],
    91: SCANS[:1],
    92: SCANS[:1],
    93: SCANS[:1],
    47: COLUMNS,
    51: COLUMNS,
}


def small_pools() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Pools as models have them, of images of all sizes."""
    yield "max 3x3 s2 of 112", "F.max_pool2d(x, 3, 2, 1)", (256, 64, 112, 112)
    yield "max 2x2 of 64", "F.max_pool2d(x, 2)", (256, 128, 64, 64)
    yield "max 2x2 of 14", "F.max_pool2d(x, 2)", (256, 1024, 14, 14)
    yield "mean 3x3 s1 of 35", "F.avg_pool2d(x, 3, 1, 1)", (256, 256, 35, 35)
    yield "mean 7x7 of 7", "F.avg_pool2d(x, 7)", (512, 2048, 7, 7)
    yield "mean 2x2x2 of 30", "F.avg_pool3d(x, 2)", (64, 32, 30, 30, 30)


def middle_rows() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Rows between what one block holds and KernelBench's level 1."""
    yield "group norm of 250 KB", "F.group_norm(x, 8)", (128, 24, 22, 30, 32)
    yield "layer norm of 512 KB", "F.layer_norm(x, x.shape[1:])", (1024, 131072)
    yield "softmax of 400 KB", "F.softmax(x, 1)", (2048, 100003)
    yield "logsumexp of 800 KB", "x.logsumexp(1)", (1024, 200000)


def long_rows() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Running sums that KernelBench has not: rows that are few and long, many and short."""
    for shape in ((1, 1 << 26), (7, (1 << 23) + 3), (64, 1 << 20), (1 << 20, 50), (1 << 16, 1000)):
        yield f"cumsum {shape[0]} x {shape[1]}", "torch.cumsum(x, 1)", shape
    yield "cumprod 1 x 2^26 backwards", "torch.cumprod(x.flip(1), 1).flip(1)", (1, 1 << 26)


TEXT = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return @WHAT@


def get_inputs():
    return [torch.rand(*@SHAPE@) * 0.5 + 0.75]


def get_init_inputs():
    return []
"""


@dataclass
class Timed:
    """A task, its text and its ways."""

    name: str
    path: Path
    ways: Ways

    def __post_init__(self) -> None:
        self.text = self.path.read_text()
        spec = importlib.util.spec_from_file_location(self.path.stem, self.path)
        assert spec and spec.loader
        self.module: Any = importlib.util.module_from_spec(spec)
        sys.modules[self.path.stem] = self.module
        spec.loader.exec_module(self.module)

    def model(self) -> torch.nn.Module:
        torch.manual_seed(3)
        return self.module.Model(*self.module.get_init_inputs())  # type: ignore[no-any-return]

    def graph(self) -> OpGraph:
        with torch.device("meta"):
            return capture(self.model(), self.module.get_inputs())


def tasks(root: Path, folder: Path, only: list[str]) -> Iterator[Timed]:
    for number, ways in TASKS.items():
        if not only or str(number) in only:
            (path,) = (root / "KernelBench" / "level1").glob(f"{number}_*.py")
            yield Timed(path.stem, path, ways)
    kinds = {
        "middle": (middle_rows(), MIDDLE_ROWS),
        "long": (long_rows(), LONG_SCANS),
        "small": (small_pools(), POOLS[:3]),
    }
    for kind, (found, ways) in kinds.items():
        for number, (name, what, shape) in enumerate(found if not only or kind in only else ()):
            path = folder / f"{kind}_{number}.py"
            path.write_text(TEXT.replace("@WHAT@", what).replace("@SHAPE@", repr(shape)))
            yield Timed(name, path, ways)


def candidates(task: Timed, device: Device) -> Iterator[tuple[dict[str, Choice], dict[str, Choice], str]]:
    """What was asked of the heaviest kernel, what it took, and the candidate's text; equal ones once."""
    graph = task.graph()
    pairs = print_plan(graph, Recipe("cuda"), device).kernel_pairs()
    kernel, _ = max(pairs, key=lambda pair: len(pair[1].functions))
    seen: set[str] = set()
    for way in task.ways:
        recipe = Recipe("cuda", choices={kernel.name: way})
        made = lower([graph], recipe, task_source=task.text, device=device)
        if made.source not in seen:
            seen.add(made.source)
            yield way, made.recipe.choices[kernel.name], made.source


def part_of(x: torch.Tensor) -> torch.Tensor:
    """The first and the last of a batch."""
    return torch.cat([x[:1], x[-1:]]) if len(x) > 2 else x


def error_of(task: Timed, model: torch.nn.Module, inputs: list[torch.Tensor], found: torch.Tensor) -> float:
    wide = task.model().double().cuda()
    wide.load_state_dict(model.state_dict())
    parts = [part_of(x).double() if x.is_floating_point() else part_of(x) for x in inputs]
    truth = wide(*parts)
    got = part_of(found)
    return float((got.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-300))


def inputs_of(task: Timed) -> list[torch.Tensor]:
    torch.manual_seed(1)
    with torch.device("cuda"):
        return [x.cuda() for x in task.module.get_inputs()]


def time_task(task: Timed, built: list[tuple[Any, Any, str, Future[Any]]]) -> Iterator[dict[str, Any]]:
    inputs, model = inputs_of(task), task.model().cuda()
    with torch.no_grad():
        out = model(*inputs)
        moved = sum(x.numel() * x.element_size() for x in [*inputs, out])
        del out
        eager_ms = median_ms(lambda: model(*inputs))
        torch.cuda.empty_cache()
        for way, taken, text, future in built:
            build = future.result()
            row = {"task": task.name, "set": way, "choices": taken, "eager_ms": eager_ms, "bytes": moved}
            try:
                if not build.ok:
                    raise RuntimeError(build.first_error)
                candidate = load_model(text)
                candidate.load_state_dict(model.state_dict())
                found = candidate(*inputs)
                row["error"] = error_of(task, model, inputs, found)
                row["same"] = bool(torch.equal(found, candidate(*inputs)))
                del found
                row["ms"] = median_ms(lambda: candidate(*inputs))  # noqa: B023
            except RuntimeError as error:
                row["failure"] = str(error)[:300]
            yield row


def load_with_inits(task: Timed) -> None:
    """`load_model` makes a model without arguments; this task's takes some."""
    arguments = task.module.get_init_inputs()

    def made(text: str) -> Any:
        namespace: dict[str, Any] = {}
        exec(compile(text, "candidate.py", "exec"), namespace)
        return namespace["ModelNew"](*arguments).cuda()

    globals()["load_model"] = made


def report(row: dict[str, Any], floor_rate: float) -> None:
    floor = row["bytes"] / floor_rate / 1e6
    if "ms" not in row:
        print(f"{row['task'][:26]:26} {row['set']}: {row['failure']}", flush=True)
        return
    words = "" if row["same"] else "  OTHER BITS"
    words += "  WRONG" if not row["error"] < 1e-5 else ""
    print(
        f"{row['task'][:26]:26} eager {row['eager_ms']:8.3f} ours {row['ms']:8.3f} {row['eager_ms'] / row['ms']:6.2f}x "
        f"floor {floor:7.3f} {row['ms'] / floor:5.2f} err {row['error']:.1e} {row['set']}{words}",
        flush=True,
    )


def copy_rate() -> float:
    """GB/s that a copy of 4 GB reads and writes."""
    a = torch.empty(1 << 30, device="cuda")
    b = torch.empty_like(a)
    return float(2 * a.numel() * 4 / median_ms(lambda: b.copy_(a)) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="KernelBench's folder")
    parser.add_argument("--only", nargs="*", default=[], help="numbers of level 1, or long, small, middle")
    parser.add_argument("--texts", type=Path, help="JSON file of the candidates, written beforehand")
    parser.add_argument("--print", action="store_true", help="write that file, and time nothing")
    parser.add_argument("--build", action="store_true", help="build the candidates, and time nothing")
    parser.add_argument("--seconds", type=float, default=1e9, help="no task begins later than this")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    begun, folder = time.monotonic(), Path(tempfile.mkdtemp())
    chosen = list(tasks(arguments.root, folder, arguments.only))
    if arguments.print:
        found = {task.name: list(candidates(task, layers.WITHOUT_GPU)) for task in chosen}
        arguments.texts.write_text(json.dumps(found))
        return
    device = describe("cuda")
    if not device.present:
        raise SystemExit("no NVIDIA GPU on this machine")
    written = json.loads(arguments.texts.read_text()) if arguments.texts else {}
    target, rows, pending = CudaTarget(device), [], []
    pool = ThreadPoolExecutor(max_workers=14)
    layers.SAMPLES = 9
    rate = copy_rate()
    torch.cuda.empty_cache()
    print(f"{device.name}, torch {torch.__version__}; a copy moves {rate:.0f} GB/s", flush=True)
    for task in chosen:
        try:
            made = written[task.name] if written else list(candidates(task, device))
        except Exception as error:  # one task must not end the others
            print(task.name, type(error).__name__, str(error)[:200], flush=True)
            continue
        pending.append((task, [(way, taken, text, pool.submit(target.build, text)) for way, taken, text in made]))
    for _, built in pending:  # compilers would keep Python from launching in time
        wait([future for *_, future in built])
    print(f"built after {time.monotonic() - begun:.0f} s", flush=True)
    if arguments.build:
        return
    for task, built in pending:
        if time.monotonic() - begun > arguments.seconds:
            print(f"{task.name}: no time left")
            continue
        load_with_inits(task)
        for row in time_task(task, built):
            report(row, rate)
            rows.append(row)
        torch.cuda.empty_cache()
        if arguments.out:
            arguments.out.write_text(json.dumps({"device": device.name, "copy_gb_s": rate, "rows": rows}, indent=1))
    pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
