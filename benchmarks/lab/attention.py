"""Times attention of the kernel compiler against eager PyTorch in the same types on this machine's GPU.

    python benchmarks/lab/attention.py                   # default choices, checked against float64
    python benchmarks/lab/attention.py --each precision  # also every value of these tunables
    python benchmarks/lab/attention.py --sweep           # also each tunable's values, one at a time
    python benchmarks/lab/attention.py --try path=turns path=turns,keys=128   # also these choices, where they are legal

The operator is PyTorch's scaled_dot_product_attention with whatever kernel it chooses; "written out" is two products
and a softmax with TF32 allowed. Times are medians of device events in milliseconds, PyTorch's and ours in turn; errors
are those of the norm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from layers import allow_tf32, load_model, medians_ms, model_text, speedups

from foundry.knowledge.candidate import Build, Choice
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.cost import flops
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    AttentionKernel,
    Buffer,
    Const,
    Load,
    Named,
    OutputView,
    Plan,
    Store,
    View,
)
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import DType, contiguous_strides
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget

SHOWN = 2  # heads of the first example that are compared with float64
COMPILERS = 14


@dataclass(frozen=True)
class Attention:
    """q of (batch, heads, rows, head), k and v of (batch, heads / group, columns, head)."""

    batch: int
    heads: int
    rows: int
    columns: int
    head: int
    dtype: DType = "float32"
    group: int = 1
    causal: bool = False
    mask: Literal["", "added", "hidden"] = ""
    written: bool = False

    def inputs(self) -> list[torch.Tensor]:
        kind = getattr(torch, self.dtype)
        shapes = [(self.heads, self.rows), *[(self.heads // self.group, self.columns)] * 2]
        found = [torch.randn(self.batch, *shape, self.head, device="cuda", dtype=kind) for shape in shapes]
        if self.mask == "added":
            found.append(torch.randn(self.rows, self.columns, device="cuda", dtype=kind))
        elif self.mask == "hidden":
            found.append(torch.rand(self.rows, self.columns, device="cuda") < 0.7)
        return found

    def eager(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        if self.written:
            return ((q @ k.mT) / math.sqrt(self.head)).softmax(-1) @ v
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[0] if mask else None, is_causal=self.causal, enable_gqa=self.group > 1
        )

    def truth(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """The first heads in float64."""
        q, k, v = (tensor[:1].double() for tensor in inputs[:3])
        k, v = (tensor.repeat_interleave(self.group, 1)[:, :SHOWN] for tensor in (k, v))
        scores = q[:, :SHOWN] @ k.mT / math.sqrt(self.head)
        for mask in inputs[3:]:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1) @ v

    def plan(self) -> Plan:
        shared, size = self.heads // self.group, self.head
        shapes = {"q": (self.batch, self.heads, self.rows, size), "k": (self.batch, shared, self.columns, size)}
        shapes |= {"v": shapes["k"], "y": shapes["q"]}
        space = (0, 0, 0, self.columns, 1)
        mask = {
            "": None,
            "added": _cast(Load("mask", View(0, space), self.dtype), "float32"),
            "hidden": Apply(
                "where", (Load("mask", View(0, space), "bool"), _number(0.0), _number(-math.inf)), "float32"
            ),
        }[self.mask]
        order = ("q", "k", "v", "mask")
        buffers = {
            name: Buffer(name, shape, contiguous_strides(shape), self.dtype, "output" if name == "y" else "input", "")
            for name, shape in shapes.items()
        }
        if self.mask:
            kind: DType = "bool" if self.mask == "hidden" else self.dtype
            buffers["mask"] = Buffer("mask", (self.rows, self.columns), (self.columns, 1), kind, "input")
        buffers = {
            name: Buffer(b.name, b.shape, b.strides, b.dtype, b.role, str(order.index(name)) if name in order else "")
            for name, b in buffers.items()
        }
        of_q = contiguous_strides((self.batch, shared, self.group, self.rows, size))
        of_k = (shared * self.columns * size, self.columns * size, 0, size, 1)
        kernel = AttentionKernel(
            "attention",
            (self.batch, shared, self.group),
            self.rows,
            self.columns,
            size,
            size,
            Load("q", View(0, of_q), self.dtype),
            Load("k", View(0, of_k), self.dtype),
            Load("v", View(0, of_k), self.dtype),
            1 / math.sqrt(size),
            self.causal,
            mask,
            (Store("y", View(0, of_q), _cast(Named("acc", "float32"), self.dtype)),),
            "float32",
            ops=("attention",),
            empty_rows="nan" if self.written else "zero",
        )
        shape = shapes["y"]
        return Plan(buffers, (kernel,), (OutputView("y", shape, contiguous_strides(shape)),), "tensor")


def _number(value: float) -> Const:
    return Const(value, "float32")


def _cast(value: Load | Named, dtype: DType) -> Load | Named | Apply:
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


CASES: dict[str, Attention] = {
    "bfloat16 64": Attention(8, 16, 2048, 2048, 64, "bfloat16"),
    "bfloat16 64, causal": Attention(8, 16, 2048, 2048, 64, "bfloat16", causal=True),
    "bfloat16 128": Attention(4, 16, 4096, 4096, 128, "bfloat16"),
    "bfloat16 128, causal": Attention(4, 16, 4096, 4096, 128, "bfloat16", causal=True),
    "float16 96": Attention(8, 12, 1024, 1024, 96, "float16"),
    "bfloat16 256": Attention(4, 8, 2048, 2048, 256, "bfloat16"),
    "bfloat16 128, hidden": Attention(4, 16, 2048, 2048, 128, "bfloat16", mask="hidden"),
    "bfloat16 64, added": Attention(8, 16, 1024, 1024, 64, "bfloat16", mask="added"),
    "bfloat16 128, group of 8": Attention(4, 32, 2048, 2048, 128, "bfloat16", group=8, causal=True),
    "decode 128, group of 8": Attention(8, 32, 1, 8192, 128, "bfloat16", group=8),
    "decode 128": Attention(8, 16, 1, 8192, 128, "bfloat16"),
    "decode 128, 4 rows": Attention(1, 32, 4, 16384, 128, "float16"),
    "short 64": Attention(64, 12, 197, 197, 64, "float16"),
    "windows 32": Attention(1024, 8, 49, 49, 32, "float16"),
    "float32 64": Attention(8, 16, 1024, 1024, 64),
    "float32 64, causal": Attention(8, 16, 1024, 1024, 64, causal=True),
    "float32 128": Attention(4, 16, 2048, 2048, 128),
    "float32 64, added": Attention(8, 16, 1024, 1024, 64, mask="added"),
    "float32 decode 64": Attention(8, 16, 1, 8192, 64),
    "float32 64, written out": Attention(8, 16, 1024, 1024, 64, written=True),
    "float32 128, written out": Attention(4, 16, 2048, 2048, 128, written=True),
}


def variants(case: Attention, device: Device, arguments: argparse.Namespace) -> Iterator[dict[str, Choice]]:
    """The defaults, the combinations of --each, what --try asks for where it is legal, and with --sweep every other
    value of one tunable at a time."""
    plan = case.plan()
    first = print_kernel(plan.steps[0], plan, device, {})  # type: ignore[arg-type]
    named = [item for item in first.tunables if item.name in arguments.each]
    yield {}
    for values in itertools.product(*(item.values for item in named)):
        base = dict(zip((item.name for item in named), values, strict=True))
        if base and any(first.choices[name] != value for name, value in base.items()):
            yield base
    for text in arguments.try_:
        wanted = {
            name: int(value) if value.isdigit() else value for name, value in (p.split("=") for p in text.split(","))
        }
        found = print_kernel(plan.steps[0], plan, device, wanted).choices  # type: ignore[arg-type]
        if all(found.get(name) == value for name, value in wanted.items()):
            yield wanted
    if arguments.sweep:
        for item in first.tunables:
            yield from ({item.name: value} for value in item.values if value != first.choices[item.name])


def text_of(case: Attention, device: Device, choices: dict[str, Choice]) -> tuple[str, dict[str, Choice]]:
    plan = case.plan()
    found = print_kernel(plan.steps[0], plan, device, choices)  # type: ignore[arg-type]
    return module_file(model_text(plan), [Entry(plan, (found,))], device), found.choices


@dataclass(frozen=True)
class Try:
    """One text of a case, being compiled."""

    set: dict[str, Choice]
    choices: dict[str, Choice]
    text: str
    build: Future[Build]


def begin(case: Attention, device: Device, arguments: argparse.Namespace, pool: ThreadPoolExecutor) -> list[Try]:
    tries = []
    for wanted in variants(case, device, arguments):
        text, choices = text_of(case, device, wanted)
        tries.append(Try(wanted, choices, text, pool.submit(CudaTarget(device).build, text)))
    return tries


def time_case(name: str, case: Attention, tries: list[Try]) -> list[dict[str, Any]]:
    inputs = case.inputs()
    truth = case.truth(inputs)
    allow_tf32(True)
    eager = _error(case.eager(*inputs), truth)
    plan = case.plan()
    work = flops(plan.steps[0]) * (0.5 if case.causal else 1.0)  # type: ignore[arg-type]
    rows = []
    for one in tries:
        row: dict[str, Any] = {"layer": name, "set": one.set, "choices": one.choices}
        row |= {"eager_error": eager}
        if one.build.result().ok:
            model = load_model(one.text)
            row["error"] = _error(model(*inputs), truth)
            eager_ms, own_ms = medians_ms(lambda: case.eager(*inputs), lambda model=model: model(*inputs))  # type: ignore[misc]
            row |= {"tf32_ms": eager_ms, "ms": own_ms}
            print(
                f"{name:26} {eager_ms:8.3f} {own_ms:8.3f} {eager_ms / own_ms:6.2f} "
                f"{work / eager_ms / 1e9:7.1f} {work / own_ms / 1e9:7.1f} {eager:8.1e} {row['error']:8.1e} "
                f"{one.set or one.choices}",
                flush=True,
            )
        else:
            row["failure"] = one.build.result().first_error
            print(f"{name:26} {one.set}: {row['failure']}", flush=True)
        rows.append(row)
    return rows


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found[:1, :SHOWN].double() - truth).norm() / truth.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", nargs="*", default=[], help="tunables of which every value is timed")
    parser.add_argument("--sweep", action="store_true", help="time every value of every tunable, one at a time")
    parser.add_argument("--try", nargs="*", default=[], dest="try_", help="choices, NAME=VALUE with commas between")
    parser.add_argument("--only", nargs="*", default=[""], help="only the cases whose name contains one of these")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    device = describe("cuda")
    if not device.present:
        raise SystemExit("no NVIDIA GPU on this machine")
    print(f"{device.name}, {device.arch}, torch {torch.__version__}")
    print(f"{'case':26} eager ms  ours ms  times  TFLOP/s of both  errors of both")
    rows: list[dict[str, Any]] = []
    pool = ThreadPoolExecutor(max_workers=COMPILERS)
    chosen = {name: case for name, case in CASES.items() if any(word in name for word in arguments.only)}
    for name, tries in {name: begin(case, device, arguments, pool) for name, case in chosen.items()}.items():
        rows += time_case(name, chosen[name], tries)
        torch.cuda.empty_cache()
        if arguments.out:
            about = {"device": device.name, "torch": torch.__version__, "rows": rows}
            arguments.out.write_text(json.dumps(about, indent=1))
    for kind, better in (("of the defaults", False), ("of the best choices", True)):
        found = list(speedups(rows, best=better))
        if found:
            print(f"geometric mean over eager, {kind}: {math.exp(statistics.fmean(map(math.log, found))):.2f}")


if __name__ == "__main__":
    main()
