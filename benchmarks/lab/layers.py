"""Times single layers of the kernel compiler against eager PyTorch (TF32 allowed) on this machine's GPU.

    python benchmarks/lab/products.py                    # default choices, checked against eager in float32
    python benchmarks/lab/convolutions.py --each precision algorithm   # also every value of these tunables
    python benchmarks/lab/products.py --try path=mma tile_m=64,stages=3  # also these choices, where they are legal
    python benchmarks/lab/products.py --sweep            # also each tunable's values, one at a time
    python benchmarks/lab/products.py --resources        # registers, spills and occupancy; needs nvcc and no GPU

Times are medians of device events in milliseconds; every shape is larger than the L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.cost import flops, traffic_bytes
from foundry.knowledge.compiler.ir.kernels import Kernel, Plan, PrintedKernel, TorchCall
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget, resource_lines

MODEL = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
@PARAMETERS@
"""
WITHOUT_GPU = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
SAMPLES = 20
_HELD_CYCLES = 600_000  # that the GPU waits before a sample, while Python issues the launches
# Relative error of the norm against float32, beyond which a kernel of this precision, or with such outputs, is wrong.
LIMITS = {"tf32": 6e-4, "half": 6e-4, "float16": 2e-3, "bfloat16": 1e-2}


class Layer(Protocol):
    """One layer: the library's plan of it over x, w and bias, inputs or parameters, and the same in PyTorch."""

    def plan(self) -> Plan: ...
    def eager(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor: ...


def kernel_of(plan: Plan) -> Kernel:
    kernel = plan.steps[0]
    assert not isinstance(kernel, TorchCall)
    return kernel


def printed(layer: Layer, device: Device, choices: dict[str, Choice]) -> tuple[str, PrintedKernel]:
    plan = layer.plan()
    found = print_kernel(kernel_of(plan), plan, device, choices)
    return module_file(model_text(plan), [Entry(plan, (found,))], device), found


def model_text(plan: Plan) -> str:
    """A module that holds the plan's parameters."""
    lines = [
        f"        self.{buffer.source} = nn.Parameter(torch.empty({buffer.shape}, dtype=torch.{buffer.dtype}))"
        for buffer in plan.buffers.values()
        if buffer.role == "parameter"
    ]
    return MODEL.replace("@PARAMETERS@", "\n".join(lines))


def variants(layer: Layer, device: Device, arguments: argparse.Namespace) -> Iterator[dict[str, Choice]]:
    """The defaults, every combination of the tunables named by --each, with --sweep of each one other value, and what
    --try asks for."""
    _, first = printed(layer, device, {})
    named = [item for item in first.tunables if item.name in arguments.each]
    for values in itertools.product(*(item.values for item in named)):
        base = dict(zip((item.name for item in named), values, strict=True))
        yield base
        if arguments.sweep:
            _, own = printed(layer, device, base)
            for item in own.tunables:
                if item.name not in base:
                    yield from ({**base, item.name: v} for v in item.values if v != own.choices[item.name])
    for text in arguments.try_:
        pairs = (part.split("=") for part in text.split(","))
        yield {key: int(value) if value.isdigit() else value for key, value in pairs}


def median_ms(call: Callable[[], Any]) -> float:
    return medians_ms(call)[0]


def medians_ms(*calls: Callable[[], Any]) -> list[float]:
    """Of several calls in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(3):
        for call in calls:
            call()
    for _ in range(SAMPLES):
        for call, own in zip(calls, times, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(_HELD_CYCLES)  # type: ignore[no-untyped-call]
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            own.append(begin.elapsed_time(end))
    return [statistics.median(own) for own in times]


def load_model(text: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    return namespace["ModelNew"]().cuda()


def bind(model: Any, plan: Plan, tensors: Mapping[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The candidate on these tensors: parameters are the module's, inputs its arguments."""
    model.load_state_dict({name: tensors[name] for name in tensors if plan.buffers[name].role == "parameter"})
    inputs = [tensor for name, tensor in tensors.items() if plan.buffers[name].role == "input"]
    return lambda: model(*inputs)  # type: ignore[no-any-return]


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def time_layer(name: str, layer: Layer, device: Device, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    plan = layer.plan()
    made = {key: torch.randn(plan.buffers[key].shape, device="cuda") for key in ("x", "w", "bias")}
    tensors = {key: tensor.to(getattr(torch, plan.buffers[key].dtype)) for key, tensor in made.items()}
    inputs = list(tensors.values())
    allow_tf32(False)
    truth = layer.eager(*[tensor.float() for tensor in inputs])
    ieee_ms = median_ms(lambda: layer.eager(*inputs))
    allow_tf32(True)
    eager_ms = median_ms(lambda: layer.eager(*inputs))
    tried = list(variants(layer, device, arguments))
    texts = [printed(layer, device, choices) for choices in tried]
    with ThreadPoolExecutor(max_workers=14) as pool:
        builds = list(pool.map(CudaTarget(device).build, [text for text, _ in texts]))
    rows = []
    for choices, (text, own), build in zip(tried, texts, builds, strict=True):
        row: dict[str, Any] = {"layer": name, "set": choices, "choices": own.choices}
        row |= {"ieee_ms": ieee_ms, "tf32_ms": eager_ms}
        if build.ok:
            call = bind(load_model(text), plan, tensors)
            row["error"] = float((call().float() - truth).norm() / truth.norm())
            row["ms"] = median_ms(call)
            report(row, plan)
        else:
            row["failure"] = build.first_error
            print(f"{name:24} {choices}: {build.first_error}")
        rows.append(row)
    return rows


def report(row: dict[str, Any], plan: Plan) -> None:
    """One line: times, rates, and a word where the result is wrong."""
    kernel, dtype = kernel_of(plan), plan.buffers["y"].dtype
    limit = max(LIMITS.get(key, 1e-5) for key in (dtype, str(row["choices"].get("precision", ""))))
    rate = flops(kernel) / row["ms"] / 1e9, traffic_bytes(kernel, plan) / row["ms"] / 1e6
    wrong = "" if row["error"] < limit else "  WRONG"
    print(
        f"{row['layer']:24} {row['ieee_ms']:9.3f} {row['tf32_ms']:9.3f} {row['ms']:9.3f} "
        f"{row['tf32_ms'] / row['ms']:8.2f} {rate[0]:8.1f} {rate[1]:8.0f} {row['error']:9.1e} "
        f" {row['set'] or ''}{wrong}",
        flush=True,
    )


def resources(layers: Mapping[str, Layer], device: Device, arguments: argparse.Namespace) -> None:
    for name, layer in layers.items():
        for choices in variants(layer, device, arguments) if arguments.only in name else ():
            text, own = printed(layer, device, choices)
            build = CudaTarget(device).build(text)
            lines = resource_lines(build.resources, device.arch) if build.ok else [build.first_error]
            print(name, own.choices, *lines, sep="\n    ")


def main(layers: Mapping[str, Layer]) -> None:
    torch.set_grad_enabled(False)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", nargs="*", default=[], help="tunables of which every value is timed")
    parser.add_argument("--try", nargs="*", default=[], dest="try_", help="choices, NAME=VALUE with commas between")
    parser.add_argument("--sweep", action="store_true", help="time every value of every tunable, one at a time")
    parser.add_argument("--resources", action="store_true", help="compile only, and print what each kernel takes")
    parser.add_argument("--only", default="", help="only the layers whose name contains this")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    if arguments.resources:
        resources(layers, WITHOUT_GPU, arguments)
        return
    device = describe("cuda")
    if not device.present:
        raise SystemExit("no NVIDIA GPU on this machine")
    print(f"{device.name}, {device.arch}, torch {torch.__version__}")
    heads = ("ieee ms", "tf32 ms", "ours ms", "speedup", "TFLOP/s", "GB/s", "error")
    print(
        f"{'layer':24} " + " ".join(f"{head:>{8 if head in ('speedup', 'TFLOP/s', 'GB/s') else 9}}" for head in heads)
    )
    rows: list[dict[str, Any]] = []
    for name, layer in layers.items():
        if arguments.only in name:
            rows += time_layer(name, layer, device, arguments)
            torch.cuda.empty_cache()
            if arguments.out:
                about = {"device": device.name, "torch": torch.__version__, "rows": rows}
                arguments.out.write_text(json.dumps(about, indent=1))
    for kind, better in (("of the defaults", False), ("of the best choices", True)):
        found = list(speedups(rows, best=better))
        if found:
            print(f"geometric mean over TF32 eager, {kind}: {math.exp(statistics.fmean(map(math.log, found))):.2f}")


def speedups(rows: list[dict[str, Any]], *, best: bool) -> Iterator[float]:
    """One speedup a layer: of its first row, or of its fastest."""
    for _, group in itertools.groupby(rows, key=lambda row: row["layer"]):
        timed = [row["tf32_ms"] / row["ms"] for row in group if "ms" in row]
        if timed:
            yield max(timed) if best else timed[0]
