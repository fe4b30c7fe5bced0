"""The census of operators: what Foundry makes of each operator of PyTorch's own list of samples (OpInfo).

    python benchmarks/census.py                     # counts all, writes results/census.json and the page
    python benchmarks/census.py --only cumsum,roll  # prints these operators; writes nothing
    python benchmarks/census.py --page              # writes docs/what_foundry_takes.md from results/census.json
    python benchmarks/census.py --check 12          # exit code 1 if the page or one of 12 operators is stale

Each operator runs on up to SAMPLES of its samples, as a module whose tensors are inputs. The product's own capture
traces it, and the kernel compiler plans and prints it for a CPU and for a GPU; nothing is compiled. An operator counts
by its worst sample.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import re
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.tools.task.capture import CannotCapture, capture

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/census.json"
PAGE = ROOT / "docs/what_foundry_takes.md"
SAMPLES = 3  # of one operator, spread over its list
LISTED = 60  # samples of an operator that are drawn; some lists have thousands
OPERATOR_S = 120.0
DEVICES = {
    "cpu": Device("cpu", "Census CPU", "x86-64-v4", 2, 1 << 25, 64, 1 << 33),
    "cuda": Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30),
}
DTYPES = (torch.float32, torch.int64, torch.int32, torch.bool, torch.complex64)  # the first that an operator takes
# An operator has the last of its samples' outcomes in this order.
OUTCOMES = {
    "outside": "it has no functional form for inference",
    "lowered": "kernels of the library compute all of it",
    "decomposed": "PyTorch's own decomposition of it is lowered whole",
    "left": "the kernel calls PyTorch for it",
    "refused": "a task with it has no kernel of the library",
}
# Reasons of capture that say that an operator is no function of tensors to tensors of known sizes.
OUTSIDE = {
    "draws random numbers": "it draws random numbers",
    "size depends on values": "the sizes of its results depend on values",
    "data-dependent sizes": "the sizes of its results depend on values",
    "returns no tensor": "it returns no tensor",
    "gives a bool": "it returns no tensor",
    "values of tensors are read": "Python reads values",
    "PendingUnbackedSymbolNotFound": "Python reads values",
    "aten.item.default gives a Sym": "Python reads values",
    "writes to user input": "it writes to its inputs",
    "undefined values": "the values of its result are undefined",
    "sparse": "sparse or nested tensors",
    "only supported on CUDA": "no sample for a CPU in PyTorch's list",
    "no sample": "no sample for a CPU in PyTorch's list",
}
UNDEFINED = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
NOTE = "<!-- Written by `python benchmarks/census.py --page`; run the census, do not edit this page. -->"


class Call(nn.Module):
    """A call of an operator whose tensors are forward's arguments."""

    def __init__(self, function: Any, arguments: Any) -> None:
        super().__init__()
        leaves, self._spec = tree_flatten(arguments)
        self._function = function
        self._fixed = [None if isinstance(item, torch.Tensor) else item for item in leaves]
        self._places = [index for index, item in enumerate(leaves) if isinstance(item, torch.Tensor)]
        self.tensors = tuple(leaves[index].detach() for index in self._places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._fixed)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        return self._function(*args, **kwargs)


def opinfos() -> dict[str, Any]:
    """PyTorch's list by name, with the variant where there is one."""
    if "expecttest" not in sys.modules:  # the base class of PyTorch's own tests, which run nowhere here
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return {" ".join(filter(None, (info.name, info.variant_test_name))): info for info in op_db}


def calls_of(info: Any) -> list[Call]:
    """Up to SAMPLES calls with elements in every tensor, the first and the last among them."""
    dtype = next((item for item in DTYPES if item in info.dtypes), None)
    if dtype is None:
        return []
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    samples = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), LISTED)
    found = [Call(info.op, ((sample.input, *sample.args), sample.kwargs)) for sample in samples]
    found = [item for item in found if all(tensor.numel() for tensor in item.tensors)] or found
    if len(found) <= SAMPLES:
        return found
    return [found[round(index * (len(found) - 1) / (SAMPLES - 1))] for index in range(SAMPLES)]


def outcome_of(call: Call) -> dict[str, tuple[str, str]]:
    """(outcome, reason) of a call for each device."""
    if any(tensor.layout is not torch.strided for tensor in call.tensors):
        return dict.fromkeys(DEVICES, ("outside", OUTSIDE["sparse"]))
    try:
        graph = capture(call, list(call.tensors))
    except CannotCapture as error:
        return dict.fromkeys(DEVICES, refused(str(error)))
    if any(graph.producers[name].kind in UNDEFINED for name in graph.output_names if name in graph.producers):
        return dict.fromkeys(DEVICES, ("outside", OUTSIDE["undefined values"]))
    found = {}
    for target, device in DEVICES.items():
        try:
            plan = print_plan(graph, Recipe(target), device).plan
        except CannotLower as error:
            found[target] = refused(str(error))
            continue
        made = {op.name for op in (plan.graph or graph).ops}
        parts = [op.kind for op in graph.ops if op.instead and op.name not in made]
        left = [step.target.split(".")[1] for step in plan.steps if isinstance(step, TorchCall)]
        outcome = "left" if left else "decomposed" if parts else "lowered"
        found[target] = (outcome, " ".join(dict.fromkeys(left)))
    return found


def refused(reason: str) -> tuple[str, str]:
    """The outcome of a refusal: outside of what is counted where the operator is no function of tensors."""
    reason = " ".join(reason.split())
    if reason == "forward computes nothing":
        return "lowered", ""  # it returns its input
    for mark, words in OUTSIDE.items():
        if mark in reason:
            return "outside", words
    if "complex" in reason:
        return "refused", "complex numbers"
    return "refused", re.sub(r"0x[0-9a-f]+", "0x", reason)[:160]


def count(name: str) -> dict[str, Any]:
    """The worst outcome of an operator's samples on each device, with its reason. Samples without a functional form
    count if there are no others."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, tuple[str, str]] = {}
    order = list(OUTCOMES)
    try:
        calls = calls_of(opinfos()[name])
        for call in calls:
            for target, one in outcome_of(call).items():
                found[target] = max(found.get(target, one), one, key=lambda item: order.index(item[0]))
    except Exception as error:
        found = dict.fromkeys(DEVICES, refused(f"{type(error).__name__}: {error}"))
    if not found:
        found = dict.fromkeys(DEVICES, ("outside", OUTSIDE["no sample"]))
    return {target: list(one) for target, one in found.items()}


def take(names: Iterable[str], jobs: int) -> dict[str, dict[str, Any]]:
    """The rows of operators, each counted in a process that may die."""
    found = {}
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=24) as pool:
        pending = [(name, pool.apply_async(count, (name,))) for name in names]
        for name, answer in pending:
            try:
                found[name] = answer.get(OPERATOR_S)
            except multiprocessing.TimeoutError:
                found[name] = {target: ["refused", "the process died or hung"] for target in DEVICES}
    return found


def as_json(found: dict[str, Any]) -> str:
    """A census as JSON with a line for each operator."""
    rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(found["operators"].items())]
    head = f'"torch": {json.dumps(found["torch"])},\n"counts": {json.dumps(found["counts"])}'
    return f'{{{head},\n"operators": {{\n' + ",\n".join(rows) + "\n}}\n"


# ---------------------------------------------------------------- the page


def totals(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Operators by outcome on each device."""
    found = {}
    for target in DEVICES:
        counts = Counter(row[target][0] for row in rows.values())
        found[target] = {outcome: counts[outcome] for outcome in OUTCOMES}
    return found


def share(counts: dict[str, int]) -> float:
    """Share of the operators with a functional form that are lowered, or decomposed and then lowered."""
    inside = sum(number for outcome, number in counts.items() if outcome != "outside")
    return (counts["lowered"] + counts["decomposed"]) / max(1, inside)


def page(found: dict[str, Any]) -> str:
    """The page for users."""
    counts, rows = totals(found["operators"]), found["operators"]
    lines = ["# What Foundry can take", "", NOTE, ""]
    lines += [
        "The census runs every operator of PyTorch's own list of samples (OpInfo) through capture and the kernel "
        f"compiler. It was taken with torch {found['torch']}. An operator counts by the worst of up to {SAMPLES} "
        "samples. `python benchmarks/census.py --only cumsum,roll` says what becomes of single operators.",
        "",
        f"Lowered or decomposed: {100 * share(counts['cpu']):.0f} % on a CPU and {100 * share(counts['cuda']):.0f} % "
        "on CUDA, of the operators with a functional form for inference.",
        "",
        "| outcome | meaning | CPU | CUDA |",
        "|---|---|---|---|",
    ]
    cpu, cuda = counts["cpu"], counts["cuda"]
    lines += [f"| {name} | {text} | {cpu[name]} | {cuda[name]} |" for name, text in OUTCOMES.items()]
    for outcome in list(OUTCOMES)[::-1]:
        lines += ["", f"## {outcome.capitalize()}", ""]
        lines += list(listed(rows, outcome)) or ["None."]
    return "\n".join(lines) + "\n"


def listed(rows: dict[str, dict[str, Any]], outcome: str) -> Iterator[str]:
    """The operators of an outcome on a CPU by reason, then those that differ on CUDA."""
    by_reason: dict[str, list[str]] = {}
    for name, row in sorted(rows.items()):
        if row["cpu"][0] == outcome:
            reason = row["cpu"][1] if outcome in ("refused", "outside") else ""
            by_reason.setdefault(reason, []).append(name)
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        words = ", ".join(f"`{name.removeprefix('nn.functional.')}`" for name in names)
        reason = re.sub(r"^no tracer could follow the model: export, make_fx: |; symbolic: .*", "", reason)
        yield f"- {reason}: {words}" if outcome == "outside" else f"- `{reason}`: {words}" if reason else f"- {words}"
    other = [name for name, row in sorted(rows.items()) if row["cuda"][0] == outcome != row["cpu"][0]]
    if other:
        yield "- on CUDA only: " + ", ".join(f"`{name.removeprefix('nn.functional.')}`" for name in other)


def stale(number: int) -> list[str]:
    """Differences of the stored census from the page, and from `number` operators that are counted anew."""
    found = json.loads(RESULTS.read_text())
    said = [] if PAGE.read_text() == page(found) else [f"{PAGE.name} is stale: run python benchmarks/census.py --page"]
    if found["torch"] != torch.__version__.split("+")[0]:
        return said  # other releases have other samples
    for name in random.Random().sample(sorted(found["operators"]), number):
        if (row := count(name)) != found["operators"][name]:
            said.append(f"{name}: {row}, and in {RESULTS.name} {found['operators'][name]}")
    return said


def main() -> int:
    asked = arguments()
    if asked.check is not None:
        said = stale(asked.check)
        print(*said, sep="\n", end="\n" if said else "")
        return 1 if said else 0
    if asked.page:
        PAGE.write_text(page(json.loads(RESULTS.read_text())))
        return 0
    names = [name for name in opinfos() if not asked.only or name in asked.only.split(",")]
    rows = take(names, asked.jobs)
    if asked.only:
        for name, row in rows.items():
            print(name, *(f"{target}: {' '.join(row[target]).strip()}" for target in DEVICES), sep="; ")
        return 0
    found = {"torch": torch.__version__.split("+")[0], "counts": totals(rows), "operators": rows}
    asked.out.write_text(as_json(found))
    if asked.out == RESULTS:
        PAGE.write_text(page(found))
    for target, counts in found["counts"].items():
        print(target, counts, f"{100 * share(counts):.1f} %")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of operators, with commas between them")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", type=int, metavar="OPERATORS")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
