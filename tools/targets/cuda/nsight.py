"""Nsight Compute: its counters, its command line, and its table.

One kernel needs several runs, which the tool repeats by itself. It needs a right that most machines keep for
administrators. Without it the tool reports ERR_NVGPUCTRPERM, which is passed on once with the remedy.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

PERMISSION = "ERR_NVGPUCTRPERM"
REMEDY = (
    "let every user read the GPU's counters: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
    "/etc/modprobe.d/nvidia.conf and a reboot (in a container: --cap-add SYS_ADMIN)"
)
STALLS = (
    *("long_scoreboard", "short_scoreboard", "barrier", "math_pipe_throttle", "mio_throttle", "lg_throttle", "wait"),
    *("not_selected", "gmma", "no_instruction", "membar", "sleeping", "branch_resolving"),
)
METRICS = (
    "gpu__time_duration.sum",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    *(
        f"sm__inst_executed_pipe_{name}.avg.pct_of_peak_sustained_active"
        for name in ("fma", "alu", "xu", "fp64", "lsu")
    ),
    "smsp__inst_executed.sum",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__sass_inst_executed_op_local_ld.sum",
    "smsp__sass_inst_executed_op_local_st.sum",
    "smsp__average_thread_inst_executed_per_inst_executed.ratio",
    *(f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS),
    "launch__grid_size",
    "launch__block_size",
)


def arguments(tool: str, kernels: str = "", *, launches: int = 0) -> list[str]:
    """The tool's own part of the command line; the program and its arguments follow.

    `kernels` is a pattern of names, `launches` the most that are profiled.
    """
    argv = [
        tool,
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--cache-control",
        "all",
    ]
    argv += ["--target-processes", "all", "--metrics", ",".join(METRICS)]
    argv += ["-k", f"regex:{kernels}"] if kernels else []
    return argv + (["-c", str(launches)] if launches else [])


def read_counters(output: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel's name, its counters) of each launch, in the order in which they ran.

    Lines that are no table (the program's own output, the tool's remarks) are skipped; counters that the device
    lacks are left out.
    """
    lines = output.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID","')), None)
    if start is None:
        return []
    table = [line for line in lines[start:] if line.startswith('"')]
    found: list[tuple[str, dict[str, float]]] = []
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        if not (row.get("ID") or "").strip():
            continue  # the line of units
        values = {name: _number(str(value)) for name, value in row.items() if name and name.split(".")[0] in _NAMES}
        counters = {name: value for name, value in values.items() if math.isfinite(value)}
        found.append((str(row.get("Kernel Name", "")), counters))
    return found


_NAMES = frozenset(name.split(".")[0] for name in METRICS)


def _number(text: str) -> float:
    """A number with thousands separators; NaN if it is none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


def has_looked(output: str) -> bool:
    """True if the tool counted something, or reported that it has no right to."""
    return PERMISSION in output or bool(read_counters(output))


def problem_of(output: str, found: Sequence[object]) -> str:
    """Says why the tool counted nothing, with the remedy; "" if it counted."""
    if found:
        return ""
    if PERMISSION in output:
        return f"Nsight Compute may not read this GPU's counters ({PERMISSION}): {REMEDY}"
    first = next((line.strip() for line in output.splitlines() if line.startswith("==ERROR==")), "it saw no kernel")
    return f"Nsight Compute counted nothing: {first.removeprefix('==ERROR==').strip()[:200]}"
