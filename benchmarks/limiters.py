"""Does the profiler ladder name the limiter that a kernel was written to have?

    python benchmarks/limiters.py --out limiters.json

Compiles the forty kernels of benchmarks/limiters (labelled in kernels.toml), climbs as far as this machine goes, and
prints what each rung named beside the label. Without a GPU that is the machine code; with one, each kernel's time; with
`ncu` and the right to read counters, those too. Needs nvcc and a disassembler (foundry doctor says how).
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from foundry.knowledge.device import Device
from foundry.knowledge.limits import CAUSES, RUNGS
from foundry.tools.machine.ceilings import with_ceilings
from foundry.tools.machine.device import describe
from foundry.tools.profiling.ladder import climb
from foundry.tools.targets.cuda import nsight
from foundry.tools.targets.cuda.build import CudaTarget, parse_ptxas
from foundry.tools.targets.cuda.describe import nvcc_path
from foundry.tools.targets.cuda.disassembly import instructions, tool_path
from foundry.tools.targets.cuda.occupancy import occupancy
from foundry.tools.targets.evidence import KernelEvidence, Whole

HERE = Path(__file__).resolve().parent / "limiters"
NEEDED = 36
WORDS = 64 << 20  # of each of the three buffers
COUNT_S, RUN_S = 170.0, 100.0
Plan = dict[str, dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)  # a child: runs the cubins of a folder
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_all(arguments.run, once=arguments.once)
        return 0
    plan: Plan = tomllib.loads((HERE / "kernels.toml").read_text())
    device = describe("cuda")
    device = with_ceilings(device) if device.present else device
    with tempfile.TemporaryDirectory(prefix="limiters-") as folder:
        document = measure(plan, device, Path(folder))
    print_table(document)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if document["agreed"][document["rung"]] >= NEEDED else 1


# ---------------------------------------------------------------- the rungs


def measure(plan: Plan, device: Device, folder: Path) -> dict[str, Any]:
    """What each rung that ran named for each kernel."""
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = dict(zip(plan, pool.map(lambda name: build(name, plan[name], device, folder), plan), strict=True))
    times: dict[str, Any] = {}
    counted: list[tuple[str, dict[str, float]]] = []
    notes: list[str] = []
    if device.present:
        times = timed(folder)
        counted, problem = counters(folder)
        notes += [problem] if problem else []
    rows = []
    for number, (name, facts) in enumerate(plan.items()):
        whole = whole_of(facts, device, times.get(name))
        seen = {"instructions": built[name]}
        if name in times:
            seen["times"] = replace(built[name], ms=times[name]["kernel_ms"], calls=facts["launches"])
        if number < len(counted):
            seen["counters"] = replace(seen.get("times", built[name]), counters=counted[number][1])
        named = {rung: climb([kernel], whole, CudaTarget()) for rung, kernel in seen.items()}
        row = {
            "kernel": name,
            "label": facts["cause"],
            "limiter": CAUSES[facts["cause"]].limiter,
            **times.get(name, {}),
        }
        row |= {rung: {"cause": found.cause, "evidence": found.evidence} for rung, found in named.items()}
        row["counted"] = dict(seen["counters"].counters) if "counters" in seen else {}
        rows.append(row)
    rung = max((rung for row in rows for rung in RUNGS if rung in row), key=RUNGS.index)
    agreed = {rung: sum(agrees(row, rung) for row in rows) for rung in ("instructions", "times", "counters")}
    seconds = round(time.monotonic() - start, 1)
    place = {"device": device.name, "arch": device.arch, "rung": rung, "seconds": seconds, "notes": notes}
    return {**place, "needed": NEEDED, "agreed": agreed, "kernels": rows}


def agrees(row: dict[str, Any], rung: str) -> bool:
    """Whether a rung named the label's limiter: what experts act on."""
    cause = row.get(rung, {}).get("cause", "")
    return bool(cause) and CAUSES[cause].limiter == row["limiter"]


def build(name: str, facts: dict[str, Any], device: Device, folder: Path) -> KernelEvidence:
    """Compiles one kernel; what the compiler and the machine code say of it."""
    cubin = folder / f"{name}.cubin"
    argv = [str(nvcc_path()), "-cubin", f"-arch={device.arch}", "-std=c++17", "-O3", "-Xptxas=-v"]
    argv += [f"-D{facts['define']}", str(HERE / facts["file"]), "-o", str(cubin)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} does not compile: {done.stderr[:400]}")
    report = {**parse_ptxas(done.stdout + done.stderr)["probe"], **instructions(cubin).get("probe", {})}
    report |= {"blocks": float(facts["grid"]), "threads": float(facts["block"])}
    report["shared_bytes"] += facts["shared_bytes"]
    resident = occupancy(device.arch, int(report["registers"]), int(report["shared_bytes"]), facts["block"])
    report["occupancy"] = resident.fraction
    return KernelEvidence(name, report, traffic_bytes=facts["bytes"], flops=facts["flops"])


def whole_of(facts: dict[str, Any], device: Device, time: dict[str, float] | None) -> Whole:
    ceilings = device.ceilings
    if ceilings is None or time is None:
        return Whole(launches=facts["launches"], cores=device.cores)
    rates = ceilings.copy_bytes_per_s, ceilings.ieee_flops_per_s, ceilings.tf32_flops_per_s
    return Whole(time["wall_ms"], facts["launches"], ceilings.launch_ms, device.cores, *rates)


def timed(folder: Path) -> dict[str, Any]:
    """Each kernel's time, as CUPTI and as the clock see it."""
    argv = [sys.executable, str(Path(__file__).resolve()), "--run", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_S)
    if done.returncode:
        raise SystemExit(f"the kernels do not run: {done.stderr[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def counters(folder: Path) -> tuple[list[tuple[str, dict[str, float]]], str]:
    """The hardware's counters, one launch of each kernel in the plan's order; or why there are none."""
    ncu = tool_path("ncu")
    if ncu is None:
        return [], "Nsight Compute (ncu) is not here: the counters' rung is missing"
    argv = nsight.arguments(str(ncu), "^probe$")
    argv += [sys.executable, str(Path(__file__).resolve()), "--run", str(folder), "--once"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COUNT_S)
    except subprocess.TimeoutExpired:
        return [], f"Nsight Compute did not end in {COUNT_S:g} s"
    found = nsight.read_counters(done.stdout)
    return found, nsight.problem_of(done.stdout + done.stderr, found)


# ---------------------------------------------------------------- the child: runs the kernels


def run_all(folder: Path, *, once: bool) -> None:
    """Runs every kernel of the plan; prints {name: {wall_ms, kernel_ms}} as its last line unless `once`."""
    import torch

    from foundry.tools.grade.runner.record import record_launches

    plan: Plan = tomllib.loads((HERE / "kernels.toml").read_text())
    numbers = torch.randint(0, WORDS, (WORDS,), dtype=torch.int32, device="cuda")
    buffers = [numbers, numbers.clone(), torch.zeros_like(numbers)]
    found = {}
    for name, facts in plan.items():
        launch = loaded(folder / f"{name}.cubin", facts, [buffer.data_ptr() for buffer in buffers])
        launch()
        torch.cuda.synchronize()
        if not once:
            again = functools.partial(repeat, launch, facts["launches"])
            wall_ms = statistics.median(event_ms(again) for _ in range(5))
            kernel_ms = sum(row[1] for row in record_launches(again)) / 1e3
            found[name] = {"wall_ms": wall_ms, "kernel_ms": kernel_ms}
    print(json.dumps(found))


def repeat(launch: Callable[[], None], times: int) -> None:
    for _ in range(times):
        launch()


def event_ms(work: Callable[[], None]) -> float:
    """Time of some launches by the device's own clock."""
    import torch

    events: Any = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    events[0].record()
    work()
    events[1].record()
    torch.cuda.synchronize()
    return float(events[0].elapsed_time(events[1]))


def loaded(cubin: Path, facts: dict[str, Any], pointers: list[int]) -> Callable[[], None]:
    """Launches a cubin's kernel through the driver, in PyTorch's context."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), cubin.read_bytes()), cubin.name)
    check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"probe"), cubin.name)
    if facts["shared_bytes"] > 48 << 10:
        check(driver.cuFuncSetAttribute(function, 8, facts["shared_bytes"]), cubin.name)
    values: list[Any] = [*map(ctypes.c_uint64, pointers), ctypes.c_int(facts["n"]), ctypes.c_int(facts["m"])]
    arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    sizes = [ctypes.c_uint(item) for item in (facts["grid"], 1, 1, facts["block"], 1, 1, facts["shared_bytes"])]

    def launch(kept: Any = (module, values)) -> None:
        check(driver.cuLaunchKernel(function, *sizes, None, arguments, None), cubin.name)

    return launch


def check(code: int, what: str) -> None:
    if code:
        raise SystemExit(f"{what}: the CUDA driver says {code}")


# ---------------------------------------------------------------- the table


def cell(row: dict[str, Any], rung: str) -> str:
    """What a rung named, in bold where it is not the label's limiter."""
    named = row[rung]["cause"] or "-"
    return named if agrees(row, rung) else f"**{named}**"


def print_table(document: dict[str, Any]) -> None:
    rungs = [rung for rung in ("instructions", "times", "counters") if any(rung in row for row in document["kernels"])]
    print(f"| kernel | label | {' | '.join(rungs)} |")
    print(f"|---|---|{'---|' * len(rungs)}")
    for row in document["kernels"]:
        cells = [cell(row, rung) for rung in rungs]
        print(f"| {row['kernel']} | {row['label']} | {' | '.join(cells)} |")
    for rung in rungs:
        exact = sum(row[rung]["cause"] == row["label"] for row in document["kernels"])
        print(f"{rung}: the limiter of {document['agreed'][rung]} of {len(document['kernels'])}, the cause of {exact}")
    for note in document["notes"]:
        print(f"note: {note}")
    print(f"{document['device']}, {document['seconds']} s; needed: {NEEDED} limiters on the highest rung")


if __name__ == "__main__":
    sys.exit(main())
