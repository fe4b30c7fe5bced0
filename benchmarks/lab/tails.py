"""Times layers whose result is reduced next, with the reduction made where the result is (`fused`) and by a kernel of
its own (`apart`), against eager PyTorch with TF32 allowed and `torch.compile`, on this machine's GPU.

    python benchmarks/lab/tails.py                # all of it; --no-compile leaves `torch.compile` out
    python benchmarks/lab/tails.py --resources    # registers, spills and occupancy; needs nvcc and no GPU

Times are medians of device events in milliseconds, behind a held GPU; errors are of the norm, against float64.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from layers import WITHOUT_GPU, allow_tf32, load_model, median_ms

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.fusion.state import ANYWHERE
from foundry.knowledge.compiler.ir.access import tail_of
from foundry.knowledge.compiler.lower import lower, print_plan
from foundry.knowledge.device import Device
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget, resource_lines
from foundry.tools.task.capture import capture

MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.@LAYER@
        self.norm = nn.@NORM@

    def forward(self, x):
        y = self.layer(x)
        return @AFTER@
"""


@dataclass(frozen=True)
class Mix:
    """A layer of torch.nn on an input of `shape`, what is made of its result y, and a norm that this may use."""

    layer: str
    shape: tuple[int, ...]
    after: str
    norm: str = "Identity()"

    @property
    def text(self) -> str:
        return MODEL.replace("@LAYER@", self.layer).replace("@NORM@", self.norm).replace("@AFTER@", self.after)

    def model(self) -> torch.nn.Module:
        namespace: dict[str, Any] = {}
        exec(compile(self.text, "task.py", "exec"), namespace)
        torch.manual_seed(3)
        return namespace["Model"]()  # type: ignore[no-any-return]


MIXES: dict[str, Mix] = {
    "linear, logsumexp": Mix("Linear(1024, 8192)", (16384, 1024), "F.leaky_relu(torch.logsumexp(y * 0.5, 1))"),
    "linear, sigmoid, sum": Mix("Linear(256, 8192)", (32768, 256), "y.sigmoid().sum(1, keepdim=True) * 0.1"),
    "linear, largest": Mix("Linear(4096, 4096)", (2048, 4096), "F.gelu(y.amax(1, keepdim=True) - 0.3)"),
    "linear 128 rows, mean": Mix("Linear(4096, 16384)", (128, 4096), "F.mish(F.gelu(y).mean(1))"),
    "conv2d, gelu, mean": Mix("Conv2d(48, 96, 3)", (64, 48, 112, 112), "F.gelu(y).mean((2, 3))"),
    "conv2d, relu, group norm": Mix(
        "Conv2d(32, 64, 3)", (64, 32, 130, 130), "self.norm(F.relu(y))", "GroupNorm(8, 64)"
    ),
    "conv2d, norm of a batch": Mix("Conv2d(24, 48, 5)", (64, 24, 100, 100), "self.norm(y * 0.7)", "BatchNorm2d(48)"),
    "conv2d, least channel": Mix("Conv2d(32, 96, 3)", (48, 32, 140, 140), "y.amin(1, keepdim=True).tanh()"),
    "conv3d, softmax": Mix("Conv3d(16, 32, 3)", (16, 16, 20, 72, 72), "F.softmax(y, 1).sigmoid()"),
    "conv3d, instance norm": Mix(
        "Conv3d(12, 24, 3)", (24, 12, 18, 66, 66), "F.hardtanh(self.norm(F.silu(y)))", "InstanceNorm3d(24)"
    ),
    "conv2d, tanh, largest of 4": Mix("Conv2d(40, 80, 3, padding=1)", (64, 40, 128, 128), "F.max_pool2d(y.tanh(), 2)"),
    "conv2d, largest of 16": Mix("Conv2d(8, 64, 3)", (64, 8, 202, 202), "F.max_pool2d(y.tanh() * 0.7 + 0.1, 4)"),
    "conv3d, mean of 8": Mix("Conv3d(16, 32, 3)", (24, 16, 22, 66, 66), "F.avg_pool3d(F.gelu(y), 2) - 0.5"),
    "transposed 2d, pooled": Mix(
        "ConvTranspose2d(64, 48, 4, stride=2, padding=1)", (32, 64, 72, 72), "F.adaptive_avg_pool2d(y.relu(), 1) * 2"
    ),
    "transposed 3d, largest of 8": Mix(
        "ConvTranspose3d(24, 40, 3, stride=2, padding=1)", (32, 24, 14, 36, 36), "F.max_pool3d(F.leaky_relu(y), 2)"
    ),
    "transposed 3d, logsumexp": Mix(
        "ConvTranspose3d(32, 24, 3, stride=2)",
        (16, 32, 12, 36, 36),
        "F.hardswish(torch.logsumexp(y, 1, keepdim=True))",
    ),
}


def texts_of(mix: Mix, device: Device) -> dict[str, str]:
    """Candidates with the reduction made with the result, and apart."""
    graph = capture(mix.model(), [torch.empty(mix.shape)])
    fused = Recipe("cuda", rewrites=(ANYWHERE,))
    planned = print_plan(graph, fused, device).plan
    if not any(tail_of(step) for step in planned.steps):
        raise SystemExit(f"nothing is reduced where it is made: {mix}")
    apart = replace(fused, materialise=planned.fused[:1])
    recipes = {"fused": fused, "apart": apart}
    return {
        name: lower([graph], recipe, task_source=mix.text, device=device).source for name, recipe in recipes.items()
    }


def truth_of(mix: Mix, model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """In float64, part of the batch at a time where a norm does not span it."""
    wide = mix.model().double().cuda()
    wide.load_state_dict(model.state_dict())
    parts = [x] if "Batch" in mix.norm else x.split(max(1, len(x) // 8))
    with torch.no_grad():
        return torch.cat([wide(part.double()).float() for part in parts])


def error_of(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.float() - truth).norm() / truth.norm())


def time_mix(name: str, mix: Mix, texts: Mapping[str, str], *, kernels: bool) -> dict[str, Any]:
    torch.manual_seed(1)
    model, x = mix.model().cuda(), torch.randn(mix.shape, device="cuda")
    allow_tf32(True)
    row: dict[str, Any] = {"mix": name}
    with torch.no_grad():
        truth = truth_of(mix, model, x)
        row["eager_ms"], row["eager_error"] = median_ms(lambda: model(x)), error_of(model(x), truth)
        for way, text in texts.items():
            candidate = load_model(text)
            candidate.load_state_dict(model.state_dict())
            row[f"{way}_error"] = error_of(candidate(x), truth)
            row[f"{way}_same"] = bool(torch.equal(candidate(x), candidate(x)))
            row[f"{way}_ms"] = median_ms(lambda: candidate(x))  # noqa: B023
            if kernels:
                row[f"{way}_kernels_ms"] = kernels_ms(lambda: candidate(x))  # noqa: B023
    return row


def kernels_ms(call: Callable[[], object]) -> dict[str, float]:
    """The time of each kernel of a call, by PyTorch's profiler."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    return {event.key.removeprefix("foundry_k_"): event.device_time_total / 3e3 for event in profile.key_averages()}


def time_compiled(mix: Mix) -> float:
    allow_tf32(True)
    torch._dynamo.reset()
    model, x = mix.model().cuda(), torch.randn(mix.shape, device="cuda")
    with torch.no_grad():
        compiled = torch.compile(model)
        return median_ms(lambda: compiled(x))


def report(row: Mapping[str, Any]) -> None:
    times = " ".join(f"{row.get(f'{way}_ms', math.nan):9.3f}" for way in ("eager", "compile", "apart", "fused"))
    ratio = f"{row['apart_ms'] / row['fused_ms']:8.2f} {row['eager_ms'] / row['fused_ms']:8.2f}"
    errors = " ".join(f"{row[f'{way}_error']:9.1e}" for way in ("eager", "apart", "fused"))
    print(f"{row['mix']:26} {times} {ratio} {errors} {'' if row['fused_same'] else ' DIFFERS FROM ITSELF'}", flush=True)
    for way in ("apart", "fused"):
        for kernel, spent_ms in row.get(f"{way}_kernels_ms", {}).items():
            print(f"    {way} {kernel[:60]:60} {spent_ms:9.3f}", flush=True)


def resources(device: Device, mixes: Mapping[str, Mix]) -> None:
    for name, mix in mixes.items():
        build = CudaTarget(device).build(texts_of(mix, device)["fused"])
        print(name, *(resource_lines(build.resources, device.arch) if build.ok else [build.first_error]), sep="\n    ")


def built(mixes: Mapping[str, Mix], device: Device) -> Iterator[tuple[str, dict[str, str]]]:
    """Each mix with its texts, all of them compiled at once."""
    texts = {name: texts_of(mix, device) for name, mix in mixes.items()}
    with ThreadPoolExecutor(max_workers=16) as pool:
        every = [text for found in texts.values() for text in found.values()]
        builds = dict(zip(every, pool.map(CudaTarget(device).build, every), strict=True))
    for name, found in texts.items():
        failed = [builds[text].first_error for text in found.values() if not builds[text].ok]
        if failed:
            print(name, *failed)
            continue
        yield name, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--kernels", action="store_true", help="time each kernel, too")
    parser.add_argument("--resources", action="store_true", help="compile only, and print what each kernel takes")
    parser.add_argument("--only", default="", help="only the mixes whose name contains this")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    mixes = {name: mix for name, mix in MIXES.items() if arguments.only in name}
    if arguments.resources:
        resources(WITHOUT_GPU, mixes)
        return
    device = describe("cuda")
    if not device.present:
        raise SystemExit("no NVIDIA GPU on this machine")
    print(f"{device.name}, {device.arch}, torch {torch.__version__}")
    heads = ("eager ms", "compile", "apart ms", "fused ms")
    print(
        f"{'mix':26} " + " ".join(f"{head:>9}" for head in heads) + "  of apart of eager  errors: eager, apart, fused"
    )
    rows = {}
    for name, texts in built(mixes, device):
        rows[name] = time_mix(name, mixes[name], texts, kernels=arguments.kernels)
        report(rows[name])
        torch.cuda.empty_cache()
        save(arguments.out, device, rows)
    for name in rows if not arguments.no_compile else ():
        rows[name]["compile_ms"] = time_compiled(mixes[name])
        report(rows[name])
        torch.cuda.empty_cache()
        save(arguments.out, device, rows)
    for other in ("apart", "eager", "compile"):
        found = [row[f"{other}_ms"] / row["fused_ms"] for row in rows.values() if f"{other}_ms" in row]
        if found:
            print(f"geometric mean over {other}: {math.exp(statistics.fmean(map(math.log, found))):.2f}")


def save(path: Path | None, device: Device, rows: Mapping[str, Any]) -> None:
    if path:
        about = {"device": device.name, "torch": torch.__version__, "rows": list(rows.values())}
        path.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
