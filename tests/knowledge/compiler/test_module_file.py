"""Candidate files for the CPU: self-contained, loadable, and the same build for the tool and for themselves."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from timeit import repeat
from types import ModuleType
from typing import Any

import pytest
import torch

from foundry.knowledge import compiler as library
from foundry.knowledge.compiler.file.assemble import Entry, Reference, split_task
from foundry.knowledge.compiler.file.python_text import call_text
from foundry.knowledge.compiler.file.texts import ENDINGS, library_texts
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    Const,
    Emit,
    Expr,
    Kernel,
    Load,
    MapKernel,
    Named,
    OutputView,
    Plan,
    PrintedKernel,
    Reduction,
    RowKernel,
    Store,
    TorchCall,
    View,
)
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import Arrangement, DType, OpGraph, Ref, contiguous_strides
from foundry.tools.targets.base import read_literals
from foundry.tools.targets.cpu.build import CpuTarget

DEVICE = Device("cpu", "test", "x86-64", 2, 32 << 20, 64, 8 << 30)
TASK = """from __future__ import annotations
import torch
from torch import nn

WIDTH = 8
BATCH = 4


class Model(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 2.0))
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x):
        raise AssertionError("the candidate must not call the reference")


def get_inputs():
    return [torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return []


if __name__ == "__main__":
    print("never")
"""
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(folder))
    yield folder


def buffer(name: str, shape: tuple[int, ...], role: Any, source: str = "", **more: Any) -> Buffer:
    strides = more.pop("strides", contiguous_strides(shape))
    return Buffer(name, shape, strides, more.pop("dtype", "float32"), role, source, **more)


def load(name: str, *strides: int, dtype: DType = "float32") -> Load:
    return Load(name, View(0, strides), dtype)


def apply(op: str, *args: Expr) -> Apply:
    return Apply(op, args, "float32")


def scale_plan(rows: int, columns: int, strides: tuple[int, int] | None = None) -> Plan:
    """y = x * scale, seen = the last row's maximum copied back into the buffer `seen`."""
    held = strides or (columns, 1)
    value = apply("mul", load("x", *held), load("p", 0, 1))
    kernel = MapKernel("scaled", (rows, columns), (Store("y", View(0, (columns, 1)), value),))
    buffers = {
        "x": buffer("x", (rows, columns), "input", "0", strides=held),
        "p": buffer("p", (columns,), "parameter", "scale"),
        "y": buffer("y", (rows, columns), "output"),
    }
    return Plan(buffers, (kernel,), (OutputView("y", (rows, columns), (columns, 1)),), Arrangement())


def entry(plan: Plan) -> Entry:
    printed: list[PrintedKernel | None] = []
    for step in plan.steps:
        printed.append(None if isinstance(step, TorchCall) else print_kernel(step, plan, DEVICE, {}))
    return Entry(plan, tuple(printed))


def imported(text: str, tmp_path: Path) -> ModuleType:
    path = tmp_path / f"candidate_{next(_numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def model(plan: Plan, tmp_path: Path) -> Any:
    return imported(module_file(TASK, [entry(plan)], DEVICE), tmp_path).ModelNew()


def test_parameters_keep_names_and_values_and_follow_updates(tmp_path: Path) -> None:
    candidate = model(scale_plan(4, 8), tmp_path)
    x = torch.randn(4, 8)
    assert set(candidate.state_dict()) == {"scale", "seen"}
    assert torch.equal(candidate(x), x * 2)
    candidate.load_state_dict({"scale": torch.arange(8.0), "seen": torch.zeros(8)})
    assert torch.equal(candidate(x), x * torch.arange(8.0))
    candidate.scale = torch.nn.Parameter(torch.ones(8))
    assert torch.equal(candidate(x), x)


def test_the_tool_and_the_candidate_name_a_build_alike(tmp_path: Path, cache: Path) -> None:
    text = module_file(TASK, [entry(scale_plan(4, 8))], DEVICE)
    build = CpuTarget().build(text)
    assert build.ok and not build.cached and (cache / build.artifact).is_file()
    module = imported(text, tmp_path)
    assert module._library_path() == str(cache / build.artifact)
    assert len(list(cache.glob("*.so"))) == 1


def test_the_candidate_builds_itself_without_foundry(tmp_path: Path, cache: Path) -> None:
    text = module_file(TASK, [entry(scale_plan(4, 8))], DEVICE)
    assert text.startswith("# Foundry kernel, target cpu. Needs torch and g++ only.")
    path = tmp_path / "alone.py"
    path.write_text(
        text
        + "\nx = torch.randn(4, 8)\nassert torch.equal(ModelNew().requires_grad_(False)(x), x * 2)\nprint('right')\n"
    )
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import sys, runpy; sys.modules['foundry'] = None; runpy.run_path({str(path)!r})",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout == "right\n", done.stderr
    assert len(list(cache.glob("*.so"))) == 1


def test_literals_can_be_read_without_running_the_file() -> None:
    literals = read_literals(module_file(TASK, [entry(scale_plan(4, 8))], DEVICE))
    assert literals is not None
    assert literals.about["target"] == "cpu" and literals.about["entry"] == "foundry_forward"
    assert literals.about["shapes"] == [{"0": [4, 8]}]
    assert "scaled" in literals.source


def test_task_source_is_kept_without_its_input_makers_and_with_overrides() -> None:
    future, rest = split_task(TASK, {"WIDTH": 32})
    assert future == "from __future__ import annotations"
    assert "get_inputs" not in rest and "__main__" not in rest
    assert "WIDTH = 32\nBATCH = 4" in rest and "class Model(nn.Module)" in rest


@pytest.mark.parametrize(
    "wrong", [torch.randn(5, 8), torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 4).t()[:, :3]]
)
def test_inputs_of_another_shape_or_type_are_refused(tmp_path: Path, wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"input 0: compiled for a cpu tensor of \(4, 8\)"):
        model(scale_plan(4, 8), tmp_path)(wrong)


@pytest.mark.parametrize("is_training", [False, True])
def test_the_mode_that_was_not_captured_is_refused_where_it_means_something_else(
    is_training: bool, tmp_path: Path
) -> None:
    graph = OpGraph([], [], [], [], "export", training=is_training, reads_mode=True)
    made = model(replace(scale_plan(4, 8), graph=graph), tmp_path).train(is_training)
    assert torch.equal(made(torch.ones(4, 8)), torch.full((4, 8), 2.0))
    with pytest.raises(RuntimeError, match=r"compiled for model.(train|eval)\(\)"):
        made.train(not is_training)(torch.ones(4, 8))
    free = model(replace(scale_plan(4, 8), graph=replace(graph, reads_mode=False)), tmp_path)
    assert torch.equal(free.train(not is_training)(torch.ones(4, 8)), torch.full((4, 8), 2.0))


def test_inputs_with_other_strides_give_the_same_answer(tmp_path: Path) -> None:
    x = torch.randn(8, 4).t()
    assert torch.equal(model(scale_plan(4, 8), tmp_path)(x), x * 2)
    assert torch.equal(model(scale_plan(4, 8, strides=(1, 4)), tmp_path)(x), x * 2)


def test_outputs_are_new_memory_and_inputs_stay_as_they_were(tmp_path: Path) -> None:
    candidate = model(scale_plan(4, 8), tmp_path)
    x = torch.randn(4, 8, requires_grad=True)
    kept = x.detach().clone()
    first, second = candidate(x), candidate(x)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(x.detach(), kept)


def test_several_shapes_share_one_file(tmp_path: Path, cache: Path) -> None:
    text = module_file(TASK, [entry(scale_plan(rows, 8)) for rows in (4, 6)], DEVICE)
    candidate = imported(text, tmp_path).ModelNew()
    for rows in (4, 6):
        x = torch.randn(rows, 8)
        assert torch.equal(candidate(x), x * 2)
    with pytest.raises(ValueError, match="compiled for"):
        candidate(torch.randn(5, 8))
    assert len(list(cache.glob("*.so"))) == 1


def softmax_of(name: str, source: str, target: str) -> RowKernel:
    shifted = apply("sub", load(source, 8, 1), Named("m", "float32"))
    value = apply("div", apply("exp", shifted), Named("s", "float32"))
    stages = (
        Reduction("m", "max", load(source, 8, 1), "float32"),
        Reduction("s", "sum", apply("exp", shifted), "float32"),
        Emit(Store(target, View(0, (8, 1)), value)),
    )
    return RowKernel(name, (4,), (8,), stages)


def pointwise(name: str, source: str, target: str, op: str) -> Kernel:
    return MapKernel(name, (32,), (Store(target, View(0, (1,)), apply(op, load(source, 1))),))


def test_temporaries_share_scratch_memory_and_pytorch_may_step_in(tmp_path: Path) -> None:
    steps = (
        pointwise("first", "x", "t0", "exp"),
        softmax_of("second", "t0", "t1"),
        TorchCall("sorted", "aten.sort.default", (Ref("t1"), -1, True), {}, ("values", "order")),
        pointwise("third", "values", "t2", "sqrt"),
        pointwise("fourth", "t2", "y", "neg"),
        TorchCall("last", "aten.max.dim", (Ref("order"), 1), {}, ("top", "")),  # "": a result of no elements
    )
    names = ["t0", "t1", "values", "t2"]
    buffers = {name: buffer(name, (4, 8), "temporary") for name in names}
    buffers["order"] = buffer("order", (4, 8), "temporary", dtype="int64")
    buffers["top"] = buffer("top", (4,), "temporary", dtype="int64")
    buffers |= {"x": buffer("x", (4, 8), "input", "0"), "y": buffer("y", (4, 8), "output")}
    views = [OutputView("y", (4, 8), (8, 1)), OutputView("order", (4, 8), (8, 1)), OutputView("", literal=3)]
    outputs = (*views, OutputView("top", (4,), (1,)))
    plan = Plan(buffers, steps, outputs, Arrangement.flat(len(outputs)))
    candidate = model(plan, tmp_path)
    x = torch.randn(4, 8)
    y, order, three, top = candidate(x)
    values, expected = torch.softmax(x.exp(), 1).sort(-1, descending=True)
    assert torch.allclose(y, -values.sqrt(), rtol=1e-6)
    assert torch.equal(order, expected) and three == 3 and top.tolist() == [7] * 4
    inner = Arrangement("dict", (Arrangement.flat(2, "list"), Arrangement()), ("it's", "top"))
    nested = replace(plan, arrangement=Arrangement("tuple", (inner, Arrangement())), outputs=(*views, views[0]))
    found, again = model(nested, tmp_path)(x)
    assert list(found) == ["it's", "top"] and type(found["it's"]) is list and found["top"] == 3
    assert torch.equal(found["it's"][0], y) and torch.equal(found["it's"][1], order) and torch.equal(again, y)
    record = Arrangement("record", (Arrangement(), Arrangement(), inner), ("hidden", "top", "rest"), "Out")
    named = model(replace(plan, arrangement=record, outputs=(views[0], outputs[3], *views)), tmp_path)(x)
    assert torch.equal(named.hidden, y) and named.top.tolist() == [7] * 4 and named.rest["top"] == 3


def test_written_back_buffers_change_in_place(tmp_path: Path) -> None:
    value = apply("add", load("s", 1), Const(1.0, "float32"))
    update = MapKernel("seen_next", (8,), (Store("n", View(0, (1,)), value),))
    base = scale_plan(4, 8)
    buffers = base.buffers | {"s": buffer("s", (8,), "parameter", "seen"), "n": buffer("n", (8,), "temporary")}
    plan = Plan(buffers, (*base.steps, update), base.outputs, Arrangement(), write_backs={"seen": "n"})
    candidate = model(plan, tmp_path)
    place = candidate.seen.data_ptr()
    candidate(torch.randn(4, 8))
    candidate(torch.randn(4, 8))
    assert candidate.seen.data_ptr() == place
    assert torch.equal(candidate.seen, torch.full((8,), 2.0))


def test_weights_are_prepared_once_and_again_when_they_change(tmp_path: Path) -> None:
    base = scale_plan(4, 8)
    printed = PrintedKernel(
        functions="static void twice(const float* x, const float* w, float* y) {\n"
        "  for (int i = 0; i < 32; ++i) y[i] = x[i] * w[i % 8];\n}\n",
        call="twice(b_x, b_packed, b_y);",
        template="map",
        choices={},
        tunables=(),
        prepare={"packed": "for (int i = 0; i < 8; ++i) b_packed[i] = b_p[i] * 10.0f;"},
        prepared_sizes={"packed": 8},
    )
    candidate = imported(module_file(TASK, [Entry(base, (printed,))], DEVICE), tmp_path).ModelNew()
    x = torch.randn(4, 8)
    assert torch.equal(candidate(x), x * 20)
    assert torch.equal(candidate(x), x * 20)
    candidate.scale.mul_(3)
    assert torch.equal(candidate(x), x * 60)


def test_constants_live_in_the_source(tmp_path: Path) -> None:
    value = apply("add", load("x", 8, 1), Apply("cast", (load("c", 0, 1, dtype="bfloat16"),), "float32"))
    buffers = {
        "x": buffer("x", (4, 8), "input", "0"),
        "c": buffer("c", (8,), "constant", data=tuple(i / 8 for i in range(8)), dtype="bfloat16"),
        "y": buffer("y", (4, 8), "output"),
    }
    kernel = MapKernel("shift", (4, 8), (Store("y", View(0, (8, 1)), value),))
    plan = Plan(buffers, (kernel,), (OutputView("y", (4, 8), (8, 1)),), Arrangement())
    x = torch.randn(4, 8)
    assert torch.equal(model(plan, tmp_path)(x), x + torch.arange(8) / 8)


def test_names_that_mean_something_in_python_are_no_trouble(tmp_path: Path) -> None:
    kernel = MapKernel("rename", (32,), (Store("lambda", View(0, (1,)), apply("neg", load("input", 1))),))
    buffers = {"input": buffer("input", (4, 8), "input", "0"), "lambda": buffer("lambda", (4, 8), "output")}
    plan = Plan(buffers, (kernel,), (OutputView("lambda", (4, 8), (8, 1)),), Arrangement.flat(1, "list"))
    x = torch.randn(4, 8)
    assert torch.equal(model(plan, tmp_path)(x)[0], -x)


def test_the_library_shares_pytorchs_threads(tmp_path: Path) -> None:
    text = module_file(Reference(TASK, {"WIDTH": 512}), [entry(scale_plan(4096, 512))], DEVICE)
    path = tmp_path / "threads.py"
    text += "import os\ncount = lambda: len(os.listdir('/proc/self/task'))\ntorch.set_num_threads(2)\n"
    text += "model = ModelNew().requires_grad_(False)\n"
    text += "x = torch.randn(4096, 512)\n(x * 2).sum()\nbefore = count()\nmodel(x)\nprint(count() - before)\n"
    path.write_text(text)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_call_costs_little_beside_the_kernel(tmp_path: Path) -> None:
    candidate = model(scale_plan(4, 8), tmp_path)
    x = torch.randn(4, 8)
    ours, pytorchs = (
        min(repeat(lambda: work(x), timer=time.thread_time, number=50, repeat=40))  # noqa: B023
        for work in (candidate, lambda x: torch.relu(x * 2.0))
    )
    assert ours < 10 * pytorchs


def test_every_text_of_the_library_is_found_wherever_it_lies() -> None:
    root = Path(library.__file__).parent
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.name.endswith(ENDINGS)}
    assert len(there) > 10 and set(library_texts()) == there
    assert any(name.endswith("runtime.h") for name in there) and any(name.endswith("runtime.cuh") for name in there)


def test_infinities_stand_in_a_call_of_pytorch_as_python() -> None:
    """`float(inf)` is no Python: a candidate that clamps at infinity by PyTorch did not load."""
    call = TorchCall("y", "aten.nan_to_num.default", ([math.inf, -math.inf, 0.5],), {"nan": math.nan}, ("y",))
    found: dict[str, Any] = {}
    exec(call_text(call, {}).replace("torch.ops.aten.nan_to_num.default", "tell"), {"tell": tell}, found)
    ((values,), options) = found["y"]
    assert values == [math.inf, -math.inf, 0.5] and math.isnan(options["nan"])


def tell(*values: object, **options: object) -> tuple[tuple[object, ...], dict[str, object]]:
    return values, options
