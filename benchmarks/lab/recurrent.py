"""Times recurrent layers of the kernel compiler against eager PyTorch (cuDNN) on this machine's GPU.

    python benchmarks/lab/recurrent.py                   # default choices, checked against float64
    python benchmarks/lab/recurrent.py --sweep           # also each tunable's values, one at a time
    python benchmarks/lab/recurrent.py --try lanes=8 lanes=8,threads=512   # also these choices, where they are legal
    python benchmarks/lab/recurrent.py --resources       # registers, spills and occupancy; needs nvcc and no GPU

Layers stand alone, with given first states; the first cases have the sizes of KernelBench's level 3. Times are medians
of device events in milliseconds, PyTorch's and ours in turn; errors are those of the norm against float64.
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
from typing import Any

import torch
from layers import WITHOUT_GPU, allow_tf32, medians_ms
from torch import nn

from foundry.knowledge.candidate import Build, Choice, Recipe
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, RecurrentKernel
from foundry.knowledge.compiler.lower import lower, print_plan
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.build import CudaTarget, resource_lines
from foundry.tools.task.capture import capture

COMPILERS = 14
MODEL = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.@CALL@

    def forward(self, x, *states):
        return self.layers(x, states if len(states) > 1 else states[0])[0]
"""


@dataclass(frozen=True)
class Layers:
    """nn.LSTM, nn.GRU or nn.RNN over (steps, batch, inputs)."""

    kind: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    both_ways: bool = False
    dtype: str = "float32"

    @property
    def text(self) -> str:
        sizes = f"{self.inputs}, {self.hidden}, {self.layers}"
        return MODEL.replace(
            "@CALL@", f"{self.kind}({sizes}, bidirectional={self.both_ways}, dtype=torch.{self.dtype})"
        )

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        namespace: dict[str, Any] = {}
        exec(compile(self.text, "model.py", "exec"), namespace)
        return namespace["Model"]()  # type: ignore[no-any-return]

    def arguments(self) -> list[torch.Tensor]:
        torch.manual_seed(2)
        rows = self.layers * (2 if self.both_ways else 1)
        states = [torch.rand(rows, self.batch, self.hidden) for _ in range(2 if self.kind == "LSTM" else 1)]
        x = torch.rand(self.steps, self.batch, self.inputs)
        return [tensor.to(getattr(torch, self.dtype)) for tensor in (x, *states)]


CASES: dict[str, Layers] = {
    "lstm, 6 layers of 256": Layers("LSTM", 512, 10, 128, 256, 6),
    "lstm, 6 of 256, both ways": Layers("LSTM", 512, 10, 128, 256, 6, True),
    "gru, 6 layers of 256": Layers("GRU", 512, 10, 128, 256, 6),
    "gru, 6 of 256, both ways": Layers("GRU", 512, 10, 128, 256, 6, True),
    "lstm of 64, 128 sequences": Layers("LSTM", 200, 128, 64, 64),
    "gru of 512, 32 sequences": Layers("GRU", 200, 32, 512, 512),
    "lstm of 1024, 8 sequences": Layers("LSTM", 100, 8, 512, 1024),
    "lstm, 2 of 130, one sequence": Layers("LSTM", 300, 1, 40, 130, 2),
    "rnn, 2 of 128, 64 sequences": Layers("RNN", 200, 64, 128, 128, 2),
    "float16 lstm, 6 of 256": Layers("LSTM", 512, 10, 128, 256, 6, dtype="float16"),
    "bfloat16 gru, 4 of 512": Layers("GRU", 256, 16, 512, 512, 4, dtype="bfloat16"),
}


def walks(graph: OpGraph, recipe: Recipe, device: Device) -> tuple[Plan, dict[str, PrintedKernel]]:
    """The plan, and the recurrent kernels' texts by name."""
    printed = print_plan(graph, recipe, device)
    return printed.plan, {k.name: text for k, text in printed.kernel_pairs() if isinstance(k, RecurrentKernel)}


def variants(graph: OpGraph, device: Device, arguments: argparse.Namespace) -> Iterator[dict[str, Choice]]:
    """The defaults, what --try asks for where it is legal, and with --sweep every other value of one tunable at a
    time."""
    yield {}
    _, texts = walks(graph, Recipe("cuda"), device)
    first = next(iter(texts.values()))
    asked = []
    for text in arguments.try_:
        pairs = [pair.split("=") for pair in text.split(",")]
        asked.append({name: int(value) if value.isdigit() else value for name, value in pairs})
    if arguments.sweep:
        asked += [{item.name: v} for item in first.tunables for v in item.values if v != first.choices[item.name]]
    for wanted in asked:
        _, found = walks(graph, Recipe("cuda", choices=dict.fromkeys(texts, wanted)), device)
        if all(next(iter(found.values())).choices.get(name) == value for name, value in wanted.items()):
            yield wanted


@dataclass(frozen=True)
class Try:
    """One text of a case, being compiled."""

    set: dict[str, Choice]
    choices: dict[str, Choice]
    text: str
    build: Future[Build]


def begin(case: Layers, device: Device, arguments: argparse.Namespace, pool: ThreadPoolExecutor) -> list[Try]:
    graph = capture(case.model(), case.arguments())
    _, texts = walks(graph, Recipe("cuda"), device)
    tries = []
    for wanted in variants(graph, device, arguments):
        lowered = lower(
            [graph], Recipe("cuda", choices=dict.fromkeys(texts, wanted)), task_source=case.text, device=device
        )
        choices = lowered.recipe.choices[next(iter(texts))]
        tries.append(Try(wanted, choices, lowered.source, pool.submit(CudaTarget(device).build, lowered.source)))
    return tries


def time_case(name: str, case: Layers, tries: list[Try]) -> list[dict[str, Any]]:
    model, inputs = case.model(), case.arguments()
    state = model.state_dict()
    wide = case.model().double().cuda()
    with torch.no_grad():
        truth = wide(*[tensor.double().cuda() for tensor in inputs])
        eager = model.cuda()
        given = [tensor.cuda() for tensor in inputs]
        errors = {}
        for allowed in (False, True):
            allow_tf32(allowed)
            errors["tf32" if allowed else "ieee"] = _error(eager(*given), truth)
        rows = []
        for number, one in enumerate(tries):
            row: dict[str, Any] = {"layer": name, "set": one.set, "choices": one.choices, "eager_errors": errors}
            built = one.build.result()
            if built.ok:
                namespace: dict[str, Any] = {}
                exec(compile(one.text, "candidate.py", "exec"), namespace)
                own = namespace["ModelNew"]()
                own.load_state_dict(state)
                own = own.cuda()
                row["error"] = _error(own(*given), truth)
                row |= _times(eager, own, given) if number == 0 else {**rows[0], "ms": _own_ms(own, given), **row}
                _report(row)
            else:
                row["failure"] = built.first_error
                print(f"{name:28} {one.set}: {row['failure']}", flush=True)
            rows.append(row)
    return rows


def _own_ms(own: Any, given: list[torch.Tensor]) -> float:
    return medians_ms(lambda: own(*given))[0]


def _times(eager: Any, own: Any, given: list[torch.Tensor]) -> dict[str, float]:
    def eager_call(allowed: bool) -> Any:
        allow_tf32(allowed)
        return eager(*given)

    found = medians_ms(lambda: eager_call(False), lambda: eager_call(True), lambda: own(*given))
    return dict(zip(("ieee_ms", "tf32_ms", "ms"), found, strict=True))


def _report(row: dict[str, Any]) -> None:
    errors = row["eager_errors"]
    print(
        f"{row['layer']:28} {row['ieee_ms']:8.3f} {row['tf32_ms']:8.3f} {row['ms']:8.3f} "
        f"{row['tf32_ms'] / row['ms']:6.2f} {errors['ieee']:8.1e} {errors['tf32']:8.1e} {row['error']:8.1e} "
        f"{row['set'] or row['choices']}",
        flush=True,
    )


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="time every value of every tunable, one at a time")
    parser.add_argument("--try", nargs="*", default=[], dest="try_", help="choices, NAME=VALUE with commas between")
    parser.add_argument("--resources", action="store_true", help="compile only, and print what each kernel takes")
    parser.add_argument("--only", nargs="*", default=[""], help="only the cases whose name contains one of these")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if any(word in name for word in arguments.only)}
    device = WITHOUT_GPU if arguments.resources else describe("cuda")
    if not (device.present or arguments.resources):
        raise SystemExit("no NVIDIA GPU on this machine")
    pool = ThreadPoolExecutor(max_workers=COMPILERS)
    begun = {name: begin(case, device, arguments, pool) for name, case in chosen.items()}
    if arguments.resources:
        for name, tries in begun.items():
            for one in tries:
                built = one.build.result()
                lines = resource_lines(built.resources, device.arch) if built.ok else [built.first_error]
                print(name, one.choices, *lines, sep="\n    ", flush=True)
        return
    print(f"{device.name}, {device.arch}, torch {torch.__version__}")
    print(f"{'case':28} eager ms: IEEE, TF32; ours, times; errors of the three")
    rows: list[dict[str, Any]] = []
    for name, tries in begun.items():
        rows += time_case(name, chosen[name], tries)
        torch.cuda.empty_cache()
        if arguments.out:
            about = {"device": device.name, "torch": torch.__version__, "rows": rows}
            arguments.out.write_text(json.dumps(about, indent=1))
    firsts = [next(group) for _, group in itertools.groupby(rows, key=lambda row: row["layer"])]
    found = [row["tf32_ms"] / row["ms"] for row in firsts if "ms" in row]
    if found:
        print(f"geometric mean over TF32 eager: {math.exp(statistics.fmean(map(math.log, found))):.2f}")


if __name__ == "__main__":
    main()
