"""Times the library's first candidate of made-up tasks with and without the exact rewrites, against eager PyTorch.

    python benchmarks/lab/algebra.py                  # on this machine's GPU; TF32 allowed on both sides
    python benchmarks/lab/algebra.py --only mean      # the tasks whose name contains this
    python benchmarks/lab/algebra.py --compile-only   # needs nvcc and no GPU
    python benchmarks/lab/algebra.py --tasks DIR      # the tasks as files, for `foundry agent solve`

Default choices, nothing tuned. Errors are those of the norm against float64, of eager and of both candidates. Times are
medians of device events in milliseconds.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from layers import WITHOUT_GPU, allow_tf32, median_ms

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.algebra.rewrites import REWRITES
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.task.capture import capture

NAMES = tuple(rewrite.name for rewrite in REWRITES)
COMPILERS = 14
TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
@INIT@

    def forward(self, x):
@FORWARD@


def get_inputs():
    return [torch.randn(@SHAPE@)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Case:
    """The lines of a constructor and of forward, and the input's shape."""

    init: tuple[str, ...]
    forward: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def text(self) -> str:
        def indented(lines: tuple[str, ...]) -> str:
            return "\n".join(f"        {line}" for line in lines)

        shape = ", ".join(map(str, self.shape))
        text = TASK.replace("@INIT@", indented(self.init)).replace("@FORWARD@", indented(self.forward))
        return text.replace("@SHAPE@", shape)


CASES = {
    "linear, sum of features": Case(
        ("self.linear = nn.Linear(6144, 6144)",),
        ("return torch.tanh((self.linear(x) * 0.25).sum(1, keepdim=True)) + 1.0",),
        (2048, 6144),
    ),
    "linear, mean of features, residual": Case(
        ("self.linear = nn.Linear(4096, 6144)", "self.shift = nn.Parameter(torch.randn(6144))"),
        ("return nn.functional.gelu((self.linear(x) - self.shift).mean(1, keepdim=True)) + x",),
        (4096, 4096),
    ),
    "linear, mean of tokens": Case(
        ("self.linear = nn.Linear(1024, 4096)", "self.head = nn.Linear(4096, 256)"),
        ("return self.head(self.linear(x).mean(1))",),
        (32, 512, 1024),
    ),
    "linear, average of features": Case(
        ("self.linear = nn.Linear(4096, 8192)", "self.pool = nn.AvgPool1d(8)"),
        ("return nn.functional.gelu(self.pool(self.linear(x).unsqueeze(1)).squeeze(1)).amax(1)",),
        (1024, 4096),
    ),
    "conv2d, scale, average 2": Case(
        (
            "self.convolution = nn.Conv2d(32, 64, 3, padding=1)",
            "self.scale = nn.Parameter(torch.rand(64, 1, 1))",
            "self.pool = nn.AvgPool2d(2)",
        ),
        ("return torch.sigmoid(self.pool(self.convolution(x) * self.scale))",),
        (64, 32, 128, 128),
    ),
    "conv2d, average 4": Case(
        ("self.convolution = nn.Conv2d(16, 64, 3)", "self.pool = nn.AvgPool2d(4)"),
        ("return torch.sigmoid(self.pool(self.convolution(x))).sum((1, 2, 3))",),
        (64, 16, 256, 256),
    ),
    "transposed conv3d, average 2": Case(
        (
            "self.convolution = nn.ConvTranspose3d(16, 48, 3, stride=2, padding=1)",
            "self.scale = nn.Parameter(torch.tensor(0.5))",
            "self.pool = nn.AvgPool3d(2)",
            "self.shift = nn.Parameter(torch.randn(48, 1, 1, 1))",
        ),
        ("return (self.pool(self.convolution(x) * self.scale) + self.shift) * 2.0",),
        (32, 16, 16, 48, 48),
    ),
    "transposed conv2d, mean of positions": Case(
        (
            "self.convolution = nn.ConvTranspose2d(48, 96, 3)",
            "self.shift = nn.Parameter(torch.randn(96, 1, 1))",
        ),
        ("x = self.convolution(x).mean((2, 3), keepdim=True) + self.shift", "return torch.logsumexp(x, 1)"),
        (16, 48, 256, 256),
    ),
    "transposed conv3d, mean of depth": Case(
        ("self.convolution = nn.ConvTranspose3d(16, 48, 3, padding=1)",),
        ("return torch.tanh(torch.softmax(self.convolution(x).mean(2), 1)) * 2.0",),
        (8, 16, 24, 96, 96),
    ),
    "conv2d, mean of positions": Case(
        ("self.convolution = nn.Conv2d(64, 128, 3, padding=1)", "self.head = nn.Linear(128, 100)"),
        ("return self.head(self.convolution(torch.relu(x)).mean((2, 3)))",),
        (64, 64, 112, 112),
    ),
    "two maximum pools": Case(
        ("self.first = nn.MaxPool3d(2)", "self.second = nn.MaxPool3d(3)"),
        ("return self.second(self.first(x)).sum(1, keepdim=True)",),
        (16, 32, 36, 96, 96),
    ),
    "upper triangle of a product": Case(  # no rewrite: tiles below the diagonal are never added up
        ("self.weight = nn.Parameter(torch.rand(6144, 6144))",),
        ("return torch.triu(x @ self.weight)",),
        (6144, 6144),
    ),
    "diagonal, product": Case(
        ("self.scale = nn.Parameter(torch.rand(4096))",),
        ("return torch.diag(self.scale) @ x",),
        (4096, 4096),
    ),
}


@dataclass(frozen=True)
class Made:
    """A case as PyTorch's model and as two candidates: as the task writes it, and rewritten."""

    name: str
    model: torch.nn.Module
    candidates: tuple[Lowered, Lowered]


def make(name: str, case: Case, device: Device) -> Made:
    namespace: dict[str, Any] = {"__name__": "task"}
    exec(compile(case.text, "task.py", "exec"), namespace)
    torch.manual_seed(0)
    model = namespace["Model"]()
    with torch.device("meta"):
        shapes, x = namespace["Model"](), torch.empty(case.shape)
    graph = capture(shapes, (x,))
    found = [
        lower([graph], Recipe("cuda", rewrites=names), task_source=case.text, device=device) for names in ((), NAMES)
    ]
    return Made(name, model, (found[0], found[1]))


def run(lowered: Lowered, model: torch.nn.Module, x: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Milliseconds of a call, and its result."""
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(lowered.source, "candidate.py", "exec"), namespace)
    candidate = namespace["ModelNew"]().cuda()
    candidate.load_state_dict(model.state_dict())
    return median_ms(lambda: candidate(x)), candidate(x)


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def in_float64(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The truth, an image or row at a time, so that it fits beside the rest."""
    wide = model.double()
    parts = [wide(part.double()) for part in (x.split(max(1, len(x) // 8)) if len(x) < 4096 else [x])]
    model.float()
    return torch.cat(parts)


def time_case(made: Made, shape: tuple[int, ...]) -> dict[str, Any]:
    model, x = made.model.cuda(), torch.randn(shape, device="cuda")
    plain, rewritten = made.candidates
    row: dict[str, Any] = {"task": made.name, "rewrites": list(rewritten.rewrites_applied)}
    row |= {"flops": [plain.flops, rewritten.flops]}
    with torch.no_grad():
        allow_tf32(True)
        row["eager_ms"], eager = median_ms(lambda: model(x)), model(x)
        row["plain_ms"], as_written = run(plain, model, x)
        row["rewritten_ms"], other = run(rewritten, model, x)
        truth = in_float64(model, x)
    row["errors"] = [error(found, truth) for found in (eager, as_written, other)]
    return row


def show(row: dict[str, Any]) -> None:
    eager, plain, rewritten = row["eager_ms"], row["plain_ms"], row["rewritten_ms"]
    errors = " ".join(f"{item:8.1e}" for item in row["errors"])
    print(
        f"{row['task']:38} {eager:9.4f} {plain:9.4f} {rewritten:9.4f} {eager / plain:8.2f} {eager / rewritten:8.2f} "
        f"{row['flops'][0] / max(1, row['flops'][1]):8.1f}  {errors}  {', '.join(row['rewrites'])}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the tasks whose name contains this")
    parser.add_argument("--compile-only", action="store_true", help="lower and compile, and show what each has")
    parser.add_argument("--tasks", type=Path, help="write the tasks as files into this folder, and nothing else")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if arguments.only in name}
    if arguments.tasks:
        arguments.tasks.mkdir(parents=True, exist_ok=True)
        for name, case in cases.items():
            (arguments.tasks / f"{name.replace(', ', '_').replace(' ', '_')}.py").write_text(case.text)
        return
    device = WITHOUT_GPU if arguments.compile_only else describe("cuda")
    if not device.present and not arguments.compile_only:
        raise SystemExit("no NVIDIA GPU on this machine")
    made = [make(name, case, device) for name, case in cases.items()]
    texts = [candidate.source for item in made for candidate in item.candidates]
    with ThreadPoolExecutor(max_workers=COMPILERS) as pool:
        builds = list(pool.map(CudaTarget(replace(device, present=True)).build, texts))
    for item, pair in zip(made, zip(builds[::2], builds[1::2], strict=True), strict=True):
        for candidate, build in zip(item.candidates, pair, strict=True):
            if arguments.compile_only or not build.ok:
                kernels = [kernel.name for kernel in candidate.kernels]
                print(item.name, candidate.rewrites_applied, kernels, candidate.labels, build.ok, build.first_error)
    if arguments.compile_only:
        return
    print(f"{'task':38}  eager ms  plain ms rewritten    plain rewritten  flops/  errors: eager, plain, rewritten")
    rows = []
    for item in made:
        try:
            rows.append(time_case(item, CASES[item.name].shape))
            show(rows[-1])
        except RuntimeError as problem:
            print(f"{item.name:38} {problem}", flush=True)
        item.model.cpu()
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
