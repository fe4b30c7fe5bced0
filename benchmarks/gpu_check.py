"""Checks and times every CUDA template on this machine's GPU, and prints one table a part.

    python benchmarks/gpu_check.py                 # correctness, launch overhead, timing of the default choices
    python benchmarks/gpu_check.py --sweep         # also each tunable's values, one at a time
    python benchmarks/gpu_check.py --examples 8    # also all examples, scaled, through capture and lowering

Times are device events with a cold L2, median of repeated calls; "eager" is PyTorch with TF32 allowed. Full numbers go
to the JSON file named by --out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import MapKernel, OutputView, Plan, PrintedKernel
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.tools.grade.runner.cuda_events import time_calls
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda import CudaTarget, resource_lines

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 15
EMPTY_MODEL = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"


def load_cases() -> Any:
    """The kernels of the tests: the same cases, other sizes."""
    sys.path.insert(0, str(ROOT))
    return SimpleNamespace(
        **{
            name: value
            for module in ("cases", "window_cases", "conv_cases", "test_kernels")
            for name, value in vars(importlib.import_module(f"tests.knowledge.compiler.cuda.{module}")).items()
        }
    )


def _norm(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + h, (x.shape[1],), w)


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b + bias)


def _product_t(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b.mT + bias)


def _group(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 8, w))


def _conv(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x, w, bias, padding=1))


def _chain(x: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + b) * s


def timed_cases(tests: Any) -> dict[str, tuple[Callable[[], Any], Callable[..., Any]]]:
    """name -> (case, the same in eager PyTorch)."""
    softmax = torch.softmax
    return {
        "chain 16384x4096": (lambda: tests.gelu_chain(16384, 4096), _chain),
        "chain bf16": (
            lambda: tests.gelu_chain(16384, 8192, "bfloat16"),
            lambda x, b, s: (F.gelu(x + b) * s).bfloat16(),
        ),
        "softmax 131072x256": (lambda: tests.softmax(131072, 256), lambda x: softmax(x, 1)),
        "softmax 16384x4096": (lambda: tests.softmax(16384, 4096), lambda x: softmax(x, 1)),
        "softmax 2048x32768": (lambda: tests.softmax(2048, 32768), lambda x: softmax(x, 1)),
        "softmax 512x131072": (lambda: tests.softmax(512, 131072), lambda x: softmax(x, 1)),
        "softmax 8x4194304": (lambda: tests.softmax(8, 1 << 22), lambda x: softmax(x, 1)),
        "softmax column 262144x128": (lambda: tests.softmax(262144, 128, column=True), lambda x: softmax(x.T, 0).T),
        "softmax column 65536x1024": (lambda: tests.softmax(65536, 1024, column=True), lambda x: softmax(x.T, 0).T),
        "norm 65536x768": (lambda: tests.layer_norm(65536, 768), _norm),
        "norm 16384x4096": (lambda: tests.layer_norm(16384, 4096), _norm),
        "norm 1024x65536": (lambda: tests.layer_norm(1024, 65536), _norm),
        "group norm 64x(8x32x4096)": (lambda: tests.group_norm(64, 8, 32, 4096), _group),
        "moments 64x256x3136": (lambda: tests.batch_moments(64, 256, 3136), lambda x: torch.var_mean(x, (0, 2))),
        "loss 2^26": (lambda: tests.loss(1 << 26), lambda x, y: F.mse_loss(x, y)),
        "scan 16384x4096": (lambda: tests.scan(16384, 4096), lambda x, k: torch.cumsum(x * k, 1) * 2),
        "scan column 65536x1024": (
            lambda: tests.scan(65536, 1024, column=True),
            lambda x, k: (torch.cumsum(x.T * k.T, 0) * 2).T,
        ),
        "gemm 4096": (lambda: tests.gemm(4096, 4096, 4096), _product),
        "gemm 8192x4096x1024 b^T": (lambda: tests.gemm(8192, 4096, 1024, flip="b"), _product_t),
        "gemm 256x1024x8192": (lambda: tests.gemm(256, 1024, 8192), _product),
        "gemm 64x(512x512x64)": (lambda: tests.gemm(512, 512, 64, (64,)), _product),
        "gemm 4095": (lambda: tests.gemm(4095, 4095, 4095), _product),
        "conv 32x64x56x56 3x3": (lambda: tests.conv(32, 64, 128, (56, 56), (3, 3), padding=1), _conv),
        "attention 6x4096x64": (
            lambda: tests.attention(4096, 4096, 64, 64, causal=True),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        ),
    }


def candidate(case: Any, device: Any, choices: dict[str, Choice]) -> tuple[str, PrintedKernel]:
    plan = case.plan()
    printed = print_kernel(case.kernel, plan, device, choices)
    return module_file(EMPTY_MODEL, [Entry(plan, (printed,))], device), printed


def load_model(text: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    return namespace["ModelNew"]()


def median_ms(call: Callable[[], Any], samples: int = SAMPLES) -> float:
    for _ in range(3):
        call()
    return statistics.median(time_calls(call, 1)[1] for _ in range(samples))


def build_all(texts: list[str], device: Any) -> list[Any]:
    target = CudaTarget(device)
    with ThreadPoolExecutor(max_workers=14) as pool:
        return list(pool.map(target.build, texts))


def correctness(tests: Any, device: Any) -> list[dict[str, Any]]:
    """Every case of the tests as a whole candidate against its float64 truth."""
    torch.manual_seed(7)
    convolutions = tests.CONVOLUTIONS | tests.CONVOLUTIONS_SIXTEEN_BIT
    cases = {name: make() for name, make in (tests.CASES | tests.SIXTEEN_BIT | convolutions).items()}
    texts = {name: candidate(case, device, case.choices)[0] for name, case in cases.items()}
    builds = build_all(list(texts.values()), device)
    rows = []
    for (name, text), build in zip(texts.items(), builds, strict=True):
        row: dict[str, Any] = {"case": name, "ok": False, "note": build.first_error}
        if build.ok:
            try:
                cases[name].check(tests.run_candidate(text, cases[name]))
                row["ok"] = True
            except Exception as error:  # one case's failure is a row of the table
                row["note"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        rows.append(row)
    failed = [row for row in rows if not row["ok"]]
    print(f"correctness: {len(rows) - len(failed)} of {len(rows)} cases")
    for row in failed:
        print(f"  FAILED {row['case']}: {row['note']}")
    return rows


def launch_overhead(tests: Any, device: Any) -> dict[str, float]:
    """Host time of a forward of 1 and of 21 tiny launches, in microseconds."""
    times = {}
    for count in (1, 21):
        case = tests.gelu_chain(16, 64)
        plan = case.plan()
        assert isinstance(case.kernel, MapKernel)
        kernels = tuple(replace(case.kernel, name=f"chain{i}") for i in range(count))
        plan = Plan(plan.buffers, kernels, (OutputView("y", (16, 64), (64, 1)),), "tensor")
        printed = tuple(print_kernel(kernel, plan, device, {}) for kernel in kernels)
        model = load_model(module_file(EMPTY_MODEL, [Entry(plan, printed)], device))
        inputs = [tensor.cuda() for tensor in case.inputs.values()]
        model(*inputs)
        best = float("inf")
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(20):
                model(*inputs)
            best = min(best, (time.perf_counter() - begin) / 20)
            torch.cuda.synchronize()
        times[f"forward of {count}"] = 1e6 * best
    times["per launch"] = (times["forward of 21"] - times["forward of 1"]) / 20
    print("host time, us:", ", ".join(f"{name} {value:.2f}" for name, value in times.items()))
    return times


def variants(printed: PrintedKernel, sweep: bool) -> Iterator[dict[str, Choice]]:
    yield {}
    if sweep:
        for item in printed.tunables:
            for value in item.values:
                if value != printed.choices[item.name]:
                    yield {item.name: value}


def _eager_ms(eager: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[float, float]:
    times = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        times.append(median_ms(lambda: eager(*inputs)))
    return times[0], times[1]


def timing(tests: Any, device: Any, sweep: bool, only: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    print(f"{'case':28} {'ieee ms':>9} {'eager ms':>9} {'ours ms':>9} {'speedup':>8} {'GB/s':>6}  best of sweep")
    for name, (make, eager) in timed_cases(tests).items():
        if only and only not in name:
            continue
        try:
            rows.append(_time_case(name, make(), eager, device, sweep))
        except Exception:  # one case's failure is a row of the table
            print(f"{name:28} FAILED {traceback.format_exc(limit=2).splitlines()[-1][:150]}")
        torch.cuda.empty_cache()
    return rows


def _time_case(name: str, case: Any, eager: Callable[..., Any], device: Any, sweep: bool) -> dict[str, Any]:
    inputs = [tensor.cuda() for tensor in case.inputs.values()]
    moved = sum(t.numel() * t.element_size() for t in [*case.inputs.values(), *case.outputs.values()])
    _, first = candidate(case, device, {})
    tried = list(variants(first, sweep))
    texts = [candidate(case, device, choices)[0] for choices in tried]
    builds = build_all(texts, device)
    results: list[dict[str, Any]] = []
    for choices, text, build in zip(tried, texts, builds, strict=True):
        if not build.ok:
            results.append({"choices": choices, "error": build.first_error})
            continue
        model = load_model(text)
        entry: dict[str, Any] = {"choices": choices, "resources": resource_lines(build.resources, device.arch)}
        try:
            if not choices:
                case.check(dict(zip(case.outputs, model(*inputs), strict=True)))
            entry["ms"] = median_ms(lambda model=model: model(*inputs), SAMPLES if not choices else 7)  # type: ignore[misc]
        except Exception as error:  # one variant's failure is a row of the table
            entry["error"] = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        results.append(entry)
    ieee, tf32 = _eager_ms(eager, inputs)
    ours = results[0].get("ms", float("nan"))
    done = sorted((entry for entry in results if "ms" in entry), key=lambda entry: entry["ms"])
    best = f"{done[0]['ms']:.3f} {done[0]['choices']}" if sweep and done else ""
    rate = moved / ours / 1e6
    failure = results[0].get("error", "")
    print(f"{name:28} {ieee:9.3f} {tf32:9.3f} {ours:9.3f} {tf32 / ours:8.2f} {rate:6.0f}  {best} {failure}")
    chosen = {"name": name, "ieee_ms": ieee, "tf32_ms": tf32, "ours_ms": ours, "choices": first.choices}
    return {**chosen, "bytes": moved, "variants": results}


def examples(scale: int, device: Any) -> list[dict[str, Any]]:
    """All examples through capture, seeds and lowering: error against float64 and time against eager and compile."""
    from foundry.knowledge.compiler.lower import lower, seeds
    from foundry.tools.task.capture import capture
    from foundry.tools.task.file import read_task
    from foundry.tools.task.loading import load

    rows = []
    print(f"{'example':24} {'eager ms':>9} {'compile':>9} {'ours ms':>9} {'speedup':>8} {'error':>9} {'eager err':>9}")
    for path in sorted((ROOT / "examples").glob("*.py")):
        row: dict[str, Any] = {"example": path.stem}
        try:
            task = read_task(path, scale=scale)
            loaded = load(task)
            model, inputs = loaded.build_model(1), loaded.inputs(2)
            graph = capture(model, inputs)
            recipe = seeds(graph, device)[0]
            lowered = lower([graph], recipe, task_source=task.source, device=device)
            build = CudaTarget(device).build(lowered.source)
            if not build.ok:
                raise RuntimeError(build.first_error)
            row |= _compare(model, inputs, lowered.source)
            row["resources"] = resource_lines(build.resources, device.arch)
            print(
                f"{path.stem:24} {row['eager_ms']:9.3f} {row['compile_ms']:9.3f} {row['ours_ms']:9.3f} "
                f"{row['eager_ms'] / row['ours_ms']:8.2f} {row['error']:9.1e} {row['eager_error']:9.1e}"
            )
        except Exception as error:  # one example's failure is a row of the table
            row["failure"] = traceback.format_exc()
            print(f"{path.stem:24} FAILED {type(error).__name__}: {str(error)[:160]}")
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def _compare(model: torch.nn.Module, inputs: list[Any], source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, "candidate.py", "exec"), namespace)
    # The same parameters in all three: the candidate keeps the model's names.
    ours = namespace["ModelNew"].__new__(namespace["ModelNew"])
    ours.__dict__.update(model.__dict__)
    model, ours = model.cuda(), ours.cuda()
    moved = [item.cuda() if isinstance(item, torch.Tensor) else item for item in inputs]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with torch.no_grad():
        found, eager = ours(*moved), model(*moved)
        compiled = torch.compile(model)
        times = {
            "eager_ms": median_ms(lambda: model(*moved)),
            "ours_ms": median_ms(lambda: ours(*moved)),
            "compile_ms": median_ms(lambda: compiled(*moved)),
        }
        wide = [item.double() if torch.is_tensor(item) and item.is_floating_point() else item for item in moved]
        truth = model.double()(*wide)

    def error(got: Any) -> float:
        pairs = zip([got] if torch.is_tensor(got) else got, [truth] if torch.is_tensor(truth) else truth, strict=True)
        return max(float((g.double() - t).norm() / t.norm()) for g, t in pairs)

    return {**times, "error": error(found), "eager_error": error(eager)}


def main() -> None:
    torch.set_grad_enabled(False)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="time every value of every tunable")
    parser.add_argument("--examples", type=int, default=0, metavar="SCALE", help="also run the examples at this scale")
    parser.add_argument("--only", default="", help="time only the cases whose name contains this")
    parser.add_argument("--skip-templates", action="store_true", help="only the examples")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    device = describe("cuda")
    if not device.present:
        raise SystemExit("no NVIDIA GPU on this machine")
    print(f"{device.name}, {device.arch}, {device.cores} multiprocessors, torch {torch.__version__}")
    tests = load_cases()
    report: dict[str, Any] = {"device": device.name, "torch": torch.__version__}

    def save() -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps(report, indent=1, default=str))

    if not arguments.skip_templates:
        report["correctness"] = correctness(tests, device)
        report["launch_us"] = launch_overhead(tests, device)
        save()
        report["timing"] = timing(tests, device, arguments.sweep, arguments.only)
        save()
    if arguments.examples:
        report["examples"] = examples(arguments.examples, device)
    save()


if __name__ == "__main__":
    main()
