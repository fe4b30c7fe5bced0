"""Times the CUDA convolutions of the library against eager PyTorch (TF32 allowed) on this machine's GPU.

    python benchmarks/convolutions.py                    # default choices, checked against eager in float32
    python benchmarks/convolutions.py --algorithms       # both algorithms wherever both are offered
    python benchmarks/convolutions.py --sweep            # also each tunable's values, one at a time
    python benchmarks/convolutions.py --resources        # registers, spills and occupancy; needs nvcc and no GPU

Times are medians of device events in milliseconds; every shape is larger than the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.file.assemble import Entry
from foundry.knowledge.library.ir.cost import flops, traffic_bytes
from foundry.knowledge.library.ir.kernels import (
    Apply,
    Buffer,
    ConvKernel,
    Load,
    Named,
    OutputView,
    Plan,
    PrintedKernel,
    Store,
    View,
)
from foundry.knowledge.library.printers import module_file, print_kernel
from foundry.knowledge.opgraph import contiguous_strides
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda import CudaTarget, resource_lines

EMPTY_MODEL = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"
WITHOUT_GPU = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
SAMPLES = 20
HEADS = ("ieee ms", "tf32 ms", "ours ms", "speedup", "TFLOP/s", "GB/s")


@dataclass(frozen=True)
class Shape:
    """A convolution with a bias and a relu, as a model would have it."""

    batch: int
    channels: tuple[int, int]
    size: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    output_padding: int = 0
    groups: int = 1
    transposed: bool = False

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def out_size(self) -> tuple[int, ...]:
        if self.transposed:
            extra = self.output_padding - 2 * self.padding
            return tuple((n - 1) * self.stride + k + extra for n, k in zip(self.size, self.window, strict=True))
        return tuple((n + 2 * self.padding - k) // self.stride + 1 for n, k in zip(self.size, self.window, strict=True))

    def eager(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        more: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "groups": self.groups}
        more |= {"output_padding": self.output_padding} if self.transposed else {}
        name = f"conv{'_transpose' if self.transposed else ''}{self.rank}d"
        result: torch.Tensor = getattr(torch.nn.functional, name)(x, weight, bias, **more)
        return result.relu_()

    def plan(self) -> Plan:
        inside, outside = self.channels
        first, second = (inside, outside) if self.transposed else (outside, inside)
        shapes = {
            "x": (self.batch, inside, *self.size),
            "w": (first, second // self.groups, *self.window),
            "bias": (outside,),
            "y": (self.batch, outside, *self.out_size),
        }
        strides = {name: contiguous_strides(shape) for name, shape in shapes.items()}
        buffers = {
            name: Buffer(name, shape, strides[name], "float32", "output" if name == "y" else "input", str(number))
            for number, (name, shape) in enumerate(shapes.items())
        }
        bias = Load("bias", View(0, (0, 1, *(0,) * self.rank)), "float32")
        value = Apply("relu", (Apply("add", (Named("acc", "float32"), bias), "float32"),), "float32")
        each = (self.stride,) * self.rank, (self.padding,) * self.rank, (1,) * self.rank
        stores = (Store("y", View(0, strides["y"]), value),)
        kernel = ConvKernel(
            *("conv", self.batch, inside, outside, self.groups, self.size, self.out_size, self.window, *each),
            *(self.transposed, "x", 0, strides["x"], "w", stores, "float32", ("conv", "relu")),
        )
        return Plan(buffers, (kernel,), (OutputView("y", shapes["y"], strides["y"]),), "tensor")


SHAPES = {
    "plain 2d 3x3": Shape(32, (64, 128), (112, 112), (3, 3), padding=1),
    "plain 2d 3x3 odd": Shape(16, (64, 128), (129, 129), (3, 3)),
    "plain 3d 3x3x3": Shape(16, (16, 64), (16, 64, 64), (3, 3, 3), padding=1),
    "transposed 1d s2": Shape(16, (64, 64), (65536,), (5,), stride=2, padding=2, output_padding=1, transposed=True),
    "transposed 2d s2 3x3": Shape(
        16, (64, 128), (128, 128), (3, 3), stride=2, padding=1, output_padding=1, transposed=True
    ),
    "transposed 2d s2 4x4": Shape(16, (128, 64), (64, 64), (4, 4), stride=2, padding=1, transposed=True),
    "transposed 3d s2 3x3x3": Shape(
        16, (32, 64), (16, 32, 32), (3, 3, 3), stride=2, padding=1, output_padding=1, transposed=True
    ),
    "transposed 3d s2 4x4x4": Shape(16, (64, 32), (12, 24, 24), (4, 4, 4), stride=2, padding=1, transposed=True),
    "transposed 3d s1": Shape(8, (48, 24), (32, 48, 48), (3, 3, 3), transposed=True),
    "depthwise 2d 3x3": Shape(16, (64, 64), (512, 512), (3, 3), groups=64),
    "depthwise 2d 7x7": Shape(32, (128, 128), (112, 112), (7, 7), padding=3, groups=128),
    "depthwise 2d 3x3 s2": Shape(32, (128, 128), (224, 224), (3, 3), stride=2, padding=1, groups=128),
    "depthwise small images": Shape(128, (960, 960), (14, 14), (3, 3), padding=1, groups=960),
    "depthwise transposed": Shape(16, (64, 64), (128, 128), (4, 4), stride=2, padding=1, groups=64, transposed=True),
    "groups of 4": Shape(16, (128, 128), (128, 128), (3, 3), padding=1, groups=32),
    "groups of 8": Shape(16, (128, 128), (128, 128), (3, 3), padding=1, groups=16),
    "groups of 16": Shape(16, (128, 128), (128, 128), (3, 3), padding=1, groups=8),
    "to colours 9x9": Shape(16, (64, 3), (256, 256), (9, 9), padding=4),
}


def printed(shape: Shape, device: Device, choices: dict[str, Choice]) -> tuple[str, PrintedKernel]:
    plan = shape.plan()
    kernel = plan.steps[0]
    assert isinstance(kernel, ConvKernel)
    found = print_kernel(kernel, plan, device, choices)
    return module_file(EMPTY_MODEL, [Entry(plan, (found,))], device), found


def variants(first: PrintedKernel, arguments: argparse.Namespace) -> Iterator[dict[str, Choice]]:
    yield {}
    for item in first.tunables:
        if arguments.sweep or (arguments.algorithms and item.name == "algorithm"):
            yield from ({item.name: value} for value in item.values if value != first.choices[item.name])


def median_ms(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(3):
        call()
    for _ in range(SAMPLES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def load_model(text: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    return namespace["ModelNew"]()


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def time_shape(name: str, shape: Shape, device: Device, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    plan = shape.plan()
    inputs = [torch.randn(plan.buffers[key].shape, device="cuda") for key in ("x", "w", "bias")]
    allow_tf32(False)
    truth = shape.eager(*inputs)
    ieee_ms = median_ms(lambda: shape.eager(*inputs))
    allow_tf32(True)
    eager_ms = median_ms(lambda: shape.eager(*inputs))
    _, first = printed(shape, device, {})
    tried = list(variants(first, arguments))
    texts = [printed(shape, device, choices)[0] for choices in tried]
    with ThreadPoolExecutor(max_workers=14) as pool:
        builds = list(pool.map(CudaTarget(device).build, texts))
    rows = []
    kernel = plan.steps[0]
    assert isinstance(kernel, ConvKernel)
    for choices, text, build in zip(tried, texts, builds, strict=True):
        row: dict[str, Any] = {
            "shape": name,
            "choices": choices or first.choices,
            "ieee_ms": ieee_ms,
            "tf32_ms": eager_ms,
        }
        if build.ok:
            model = load_model(text)
            found = model(*inputs)
            row["error"] = float((found - truth).norm() / truth.norm())
            row["ms"] = median_ms(lambda model=model: model(*inputs))  # type: ignore[misc]
            rate = flops(kernel) / row["ms"] / 1e9, traffic_bytes(kernel, plan) / row["ms"] / 1e6
            wrong = "" if row["error"] < 1e-5 else f"  WRONG: {row['error']:.1e}"
            print(
                f"{name:24} {ieee_ms:9.3f} {eager_ms:9.3f} {row['ms']:9.3f} {eager_ms / row['ms']:8.2f} "
                f"{rate[0]:8.1f} {rate[1]:8.0f}  {choices or first.choices.get('algorithm', '')}{wrong}",
                flush=True,
            )
        else:
            row["failure"] = build.first_error
            print(f"{name:24} {choices}: {build.first_error}")
        rows.append(row)
    return rows


def resources(device: Device, only: str) -> None:
    for name, shape in SHAPES.items():
        if only in name:
            text, first = printed(shape, device, {})
            build = CudaTarget(device).build(text)
            lines = resource_lines(build.resources, device.arch) if build.ok else [build.first_error]
            print(name, first.choices, *lines, sep="\n    ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", action="store_true", help="time both algorithms")
    parser.add_argument("--sweep", action="store_true", help="time every value of every tunable")
    parser.add_argument("--resources", action="store_true", help="compile only, and print what each kernel takes")
    parser.add_argument("--only", default="", help="only the shapes whose name contains this")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    if arguments.resources:
        resources(WITHOUT_GPU, arguments.only)
        return
    device = describe("cuda")
    if not device.present:
        raise SystemExit("no NVIDIA GPU on this machine")
    print(f"{device.name}, {device.arch}, torch {torch.__version__}")
    print(
        f"{'shape':24} {'ieee ms':>9} {'tf32 ms':>9} {'ours ms':>9} {'speedup':>8} {'TFLOP/s':>8} {'GB/s':>8}  choices"
    )
    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        if arguments.only in name:
            rows += time_shape(name, shape, device, arguments)
            torch.cuda.empty_cache()
    speedups = [row["tf32_ms"] / row["ms"] for row in rows if "ms" in row]
    if speedups:
        print(f"geometric mean over TF32 eager: {math.exp(statistics.fmean(map(math.log, speedups))):.2f}")
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"device": device.name, "torch": torch.__version__, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
