"""The cause that each rung names, on kernels whose limiter is known: recorded machine code, outputs of profilers."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundry.knowledge.candidate import Build, Profile, Resources
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.limits import CAUSES
from foundry.tools.grade.runner.record import read_trace
from foundry.tools.profiling.gather import Seen, evidence, seen_launches
from foundry.tools.profiling.ladder import Climbed, climb, with_diagnosis
from foundry.tools.targets.cpu.build import CpuTarget
from foundry.tools.targets.cpu.sampling import by_function, read_samples
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.targets.cuda.nsight import METRICS, PERMISSION, problem_of, read_counters
from foundry.tools.targets.cuda.rules import by_code, gpu_cause
from foundry.tools.targets.cuda.sass import read_disassembly
from foundry.tools.targets.evidence import KernelEvidence, Whole

RECORDED = Path(__file__).parents[1] / "targets" / "recorded" / "kernels.sass"
H200 = Device(
    "cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30,
    ceilings=Ceilings(4.0e12, 8e12, 50e12, 400e12, 780e12, 0.002, "2026-01-01"),
)  # fmt: skip
WHOLE = Whole(1.0, 1, 0.002, 132, 4.0e12, 50e12, 400e12)
CODE = {
    "strided_32": "uncoalesced",
    "rows_of_1024": "uncoalesced",
    "chase_1": "latency",
    "atomics_1": "atomics",
    "banks_16": "bank_conflicts",
    "barriers_512": "barriers",
    "spills_48": "spills",
    "half_products": "tensor",
    "ways_16": "divergence",
}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, float]]:
    return {name: code.facts() for name, code in read_disassembly(RECORDED.read_text()).items()}


@pytest.mark.parametrize("name", CODE)
def test_machine_code_names_what_it_shows(name: str, reports: dict[str, dict[str, float]]) -> None:
    compiler = {"registers": 32.0, "spill_bytes": 780.0 if name == "spills_48" else 0.0}
    found = by_code(KernelEvidence(name, {**reports[name], **compiler}))
    assert found and found[0] == CODE[name] and found[1]
    assert found[0] in CAUSES


def test_a_plain_copy_is_accused_of_nothing_until_it_is_timed(reports: dict[str, dict[str, float]]) -> None:
    copy = KernelEvidence("stream_copy", reports["stream_copy"], traffic_bytes=3.2e9)
    assert by_code(copy) is None
    fast, slow = replace(copy, ms=1.0, calls=1), replace(copy, ms=4.0, calls=1)
    assert (gpu_cause(fast, WHOLE) or ("",))[0] == "bandwidth"
    assert (gpu_cause(slow, WHOLE) or ("",))[0] == "latency"


def test_a_small_grid_is_known_by_its_launch() -> None:
    few = KernelEvidence("k", {"blocks": 8.0, "threads": 256.0}, ms=1.0)
    assert gpu_cause(few, WHOLE) == ("few_warps", "8 blocks of 256 threads are 64 warps for 132 processors")


# ---------------------------------------------------------------- rung "times"


def trace(*events: tuple[str, float, list[int], list[int]]) -> str:
    """A trace as torch.profiler exports it; the host's events are passed over."""
    rows: list[dict[str, object]] = [{"cat": "cpu_op", "name": "aten::empty", "ts": 0, "dur": 3, "args": {}}]
    for number, (name, microseconds, grid, block) in enumerate(events):
        args = {"grid": grid, "block": block, "registers per thread": 32} if grid else {"bytes": 64}
        kind = "kernel" if grid else "gpu_memset"
        rows.append({"ph": "X", "cat": kind, "name": name, "ts": 10 + number, "dur": microseconds, "args": args})
    return json.dumps({"traceEvents": list(reversed(rows))})


def test_kernel_times_share_a_forward_out(reports: dict[str, dict[str, float]]) -> None:
    rows = read_trace(
        trace(
            ("Memset (Device)", 2.0, [], []),
            ("spills_48", 700.0, [264, 1, 1], [1024, 1, 1]),
            ("void small<4>(float const*)", 40.0, [1000, 1, 1], [128, 2, 1]),
            ("void small<4>(float const*)", 60.0, [1000, 1, 1], [128, 2, 1]),
        )
    )
    assert rows[0] == ("Memset (Device)", 2.0, 0, 0) and rows[2][2:] == (1000, 256)
    build = Build(
        True,
        0.1,
        resources=Resources(
            kernels={"spills_48": {"registers": 32.0, "spill_bytes": 780.0, "shared_bytes": 0.0}},
            instructions={"spills_48": reports["spills_48"]},
        ),
    )
    found = climb(evidence(build, H200, None, Seen(1.0, seen_launches(rows))), WHOLE, CudaTarget())
    assert (found.rung, found.cause) == ("times", "spills")
    assert found.evidence.startswith("spills_48 (87.3 % of the time): 780 bytes")
    assert [(kernel.name, kernel.calls) for kernel in found.kernels[:2]] == [("spills_48", 1), ("small", 2)]


def test_many_small_launches_are_the_limiter_whatever_the_kernels_are() -> None:
    rows = seen_launches([["tiny", 1.5, 64, 128]] * 200)
    seen = Seen(0.5, rows)
    found = climb(evidence(Build(True, 0.1), H200, None, seen), replace(WHOLE, ms=0.5, launches=200), CudaTarget())
    assert found.cause == "launches" and "200 launches" in found.evidence


def test_what_a_candidates_process_says_is_read_with_care() -> None:
    odd: list[Any] = [["k", "fast", 1, 1], ["k"], "text", [3, 1.0, 1, 1], ["k", -5.0, 1, 1], ["good", 2.0, 3, 4]]
    assert seen_launches(odd) == (("k", 0.0, 1, 1), ("good", 2.0, 3, 4))


# ---------------------------------------------------------------- rung "counters"


def table(**values: float) -> str:
    """As `ncu --csv --page raw --print-units base` prints it, amid the program's own words; 0 where nothing is said."""
    short = {name: next(metric for metric in METRICS if name in metric) for name in values}
    by_metric = {short[name]: value for name, value in values.items()}
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", *METRICS]
    units = [""] * 6 + ["%"] * len(METRICS)
    row = ["0", "77", "python3", "127.0.0.1", "probe(const float *)", "1"]
    row += [f"{by_metric.get(metric, 0.0):,.2f}" for metric in METRICS]
    lines = [",".join(f'"{item}"' for item in line) for line in (head, units, row)]
    return "\n".join(["==PROF== Connected to process 77", "hello", *lines, "==PROF== Disconnected from process 77"])


COUNTED: dict[str, dict[str, float]] = {
    "bandwidth": {"dram_throughput": 91.0, "stalled_long_scoreboard": 20.0},
    "uncoalesced": {"global_op_ld.ratio": 32.0, "dram_throughput": 70.0, "stalled_long_scoreboard": 20.0},
    "bank_conflicts": {
        "conflicts_pipe_lsu_mem_shared_op_ld": 31e6,
        "wavefronts_mem_shared": 32e6,
        "stalled_short_scoreboard": 5.0,
        "stalled_mio_throttle": 9.0,
    },
    "local_memory": {"smsp__inst_executed.sum": 1e6, "local_ld": 2e5},
    "barriers": {"stalled_barrier": 8.0, "stalled_wait": 2.0},
    "divergence": {"thread_inst_executed_per_inst": 3.0, "stalled_wait": 5.0},
    "tensor": {"tensor_op_hmma_cycles": 71.0},
    "arithmetic": {"pipe_fma.": 93.0, "stalled_math_pipe": 3.0},
    "special_functions": {"pipe_xu.": 97.0},
    "integer": {"pipe_alu.": 92.0},
    "latency": {"stalled_long_scoreboard": 30.0, "warps_active": 90.0},
    "low_occupancy": {"stalled_long_scoreboard": 30.0, "warps_active": 4.0},
    "cache_bandwidth": {"lts__throughput": 88.0, "dram_throughput": 3.0},
}


@pytest.mark.parametrize("cause", COUNTED)
def test_counters_name_the_cause(cause: str) -> None:
    ((name, counters),) = read_counters(table(**COUNTED[cause]))
    report = {"spill_bytes": 0.0}
    found = gpu_cause(KernelEvidence("probe", report, ms=1.0, counters=counters), WHOLE)
    assert name.startswith("probe") and found and found[0] == cause


def test_numbers_with_separators_and_missing_ones_are_read() -> None:
    text = table(wavefronts_mem_shared=32_000_000.0).replace('"0.00"', '"n/a"', 1)
    ((_, counters),) = read_counters(text)
    assert counters["l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"] == 32e6
    assert len(counters) == len(METRICS) - 1
    assert len(set(METRICS)) == len(METRICS) < 60


def test_a_missing_permission_is_said_with_its_remedy() -> None:
    said = f"==ERROR== {PERMISSION} - The user does not have permission to access NVIDIA GPU Performance Counters"
    assert read_counters(said) == [] and "NVreg_RestrictProfilingToAdminUsers=0" in problem_of(said, [])
    assert problem_of("==ERROR== LibraryNotLoaded", []).endswith("LibraryNotLoaded")
    assert problem_of("", [object()]) == ""


# ---------------------------------------------------------------- a CPU

SAMPLES = """
     7f1c2b4011f0 rows(float const*, float*) [clone ._omp_fn.0] (/cache/build/ab12.so)
     7f1c2b4011f4 rows(float const*, float*) [clone ._omp_fn.0] (/cache/build/ab12.so)
     7f1c2b401200 _Z4rowsPKfPf._omp_fn.0 (/cache/build/ab12.so)
     7f1c2c000000 gomp_team_barrier_wait_end (/usr/lib/libgomp.so.1.0.0)
     7f1c2d000000 at::native::empty (/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so)
     7f1c2d000010 [unknown] ([unknown])
"""


def test_samples_are_shared_out_by_function() -> None:
    shares = by_function(read_samples(SAMPLES))
    assert shares["rows"] == pytest.approx(0.5)
    assert set(shares) == {"rows", "gomp_team_barrier_wait_end", "(libtorch_cpu.so)", "([unknown])"}


def test_a_function_with_most_samples_is_diagnosed_by_its_loops() -> None:
    cpu = Device("cpu", "test", "x86-64-v4", 2, 1 << 20, 64, 1 << 30)
    loops = {"hot_scalar_float": 9.0, "hot_other": 4.0, "loops": 1.0, "scalar_loop": 9.0, "vector_bytes": 0.0}
    build = Build(True, 0.1, resources=Resources(vector_bytes=64, instructions={"rows": loops, "columns": loops}))
    static = climb(evidence(build, cpu, None, None), Whole(), CpuTarget())
    assert (static.rung, static.cause) == ("instructions", ""), "which of the two runs is not known"
    assert static.kernels[0].cause == "scalar_loop"
    alone = replace(build, resources=replace(build.resources, instructions={"rows": loops}))
    guess = climb(evidence(alone, cpu, None, None), Whole(), CpuTarget())
    assert (guess.cause, guess.is_guess) == ("scalar_loop", True)
    reached = Profile("roofline", 0.0, 0.0, 0.0, 0.0, 1, {"bandwidth_used": 0.8})
    assert with_diagnosis(reached, guess, cpu).limiter == "memory_bandwidth", "a poor loop limits nothing at a ceiling"
    seen = Seen(2.0, samples=read_samples(SAMPLES))
    found = climb(evidence(build, cpu, None, seen), Whole(2.0), CpuTarget())
    assert (found.rung, found.cause) == ("times", "scalar_loop") and found.kernels[0].ms == pytest.approx(1.0)
    profile = with_diagnosis(Profile("roofline", 0.0, 0.0, 0.0, 0.0, 1), found, cpu)
    assert profile.limiter == "instruction_mix" and profile.action == CAUSES["scalar_loop"].action


def test_the_benchmark_has_forty_labelled_kernels() -> None:
    """`python benchmarks/limiters.py` measures the ladder against these kernels."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks" / "limiters"
    plan = tomllib.loads((folder / "kernels.toml").read_text())
    assert len(plan) == 40 and {facts["cause"] for facts in plan.values()} <= set(CAUSES)
    assert all((folder / facts["file"]).is_file() for facts in plan.values())
    assert len({CAUSES[facts["cause"]].limiter for facts in plan.values()}) == 7


# ---------------------------------------------------------------- what is far from both ceilings


def profile_at(bandwidth: float, arithmetic: float, flops_per_byte: float) -> Profile:
    facts: dict[str, float | str] = {"bandwidth_used": bandwidth, "arithmetic_used": arithmetic}
    return Profile("times", 1e9, 1e9, arithmetic, 1.0, 1, facts={**facts, "flops_per_byte": flops_per_byte})


@pytest.mark.parametrize(
    ("bandwidth", "arithmetic", "flops_per_byte", "wanted"),
    [
        (0.04, 0.12, 4.0, "memory_latency"),  # a product of one row with packed weights
        (0.2, 0.4, 80.0, "compute"),  # a square product: blocks in registers help it
        (0.2, 0.7, 4.0, "compute"),
        (0.55, 0.1, 1.0, "memory_latency"),
        (0.65, 0.1, 1.0, "memory_bandwidth"),
    ],
)
def test_below_60_percent_of_both_ceilings_it_is_no_ceiling(
    bandwidth: float, arithmetic: float, flops_per_byte: float, wanted: str
) -> None:
    """A product that uses each weight once was sent to larger register blocks at 4 to 12 % of both ceilings."""
    found = with_diagnosis(profile_at(bandwidth, arithmetic, flops_per_byte), Climbed("times"), H200)
    assert found.limiter == wanted
