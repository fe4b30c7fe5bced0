"""Rules for the cause that limits a CUDA kernel: over hardware counters, over its time, and over its machine code.

The first rule that matches decides. Counters come first; if they are missing or name no cause, the kernel's time is
compared with the measured ceilings, and then its machine code is examined.
"""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.limits import SATURATED
from foundry.tools.targets.cuda.nsight import STALLS
from foundry.tools.targets.evidence import Finding, KernelEvidence, Whole, of_kinds, percent

BUSY_SHARE = 0.5  # share of a forward's time in which some kernel runs
DECODING = 0.5  # share of a loop's instructions; index arithmetic takes a good part in any kernel
CONVERTING = 0.05  # share of a loop's instructions
FULL_PIPE = 60.0  # % of an execution unit's peak
WARPS_A_CORE = 4  # warps on a multiprocessor, one for each of its schedulers
FEW_ACTIVE = 20.0  # % of the warps that fit
LOW_OCCUPANCY = 0.2  # share of the warps that fit
MANY_BARRIERS = 0.05  # share of a loop's instructions
STALLED = 0.3  # share of the cycles in which a warp waits
_WIDTHS = {"128": 16, "64": 8, "32": 4, "8": 1}
_GLOBAL = tuple(f"{way}_{width}" for way in ("load", "store") for width in _WIDTHS)


def gpu_cause(kernel: KernelEvidence, whole: Whole) -> Finding | None:
    """The cause that limits one kernel, from the best evidence there is; None if no rule matches."""
    if few := _few_warps(kernel, whole):
        return few
    if kernel.counters and (found := by_counters(kernel)):
        return found
    if kernel.ms > 0 and (found := by_time(kernel, whole)):
        return found
    return by_code(kernel, measured=kernel.ms > 0)


def idle_cause(kernels: Sequence[KernelEvidence], whole: Whole) -> Finding | None:
    """The cause "outside" if most of a forward's time passes while no kernel runs; else None."""
    busy = sum(kernel.ms for kernel in kernels) / whole.ms if whole.ms > 0 else 0.0
    return ("outside", f"kernels run for {percent(busy)} of {whole.ms:.4g} ms") if 0 < busy < BUSY_SHARE else None


def _few_warps(kernel: KernelEvidence, whole: Whole) -> Finding | None:
    """Cause "few_warps": the grid has fewer warps than the device has schedulers."""
    warps = kernel.warps()
    if warps and whole.cores and warps < WARPS_A_CORE * whole.cores:
        blocks, threads = int(kernel.report["blocks"]), int(kernel.report["threads"])
        return "few_warps", f"{blocks} blocks of {threads} threads are {warps:.0f} warps for {whole.cores} processors"
    return None


# ---------------------------------------------------------------- rung "counters"


def by_counters(kernel: KernelEvidence) -> Finding | None:
    """The cause that Nsight Compute's counters show, or None."""
    for ask in (_tensor, _local, _lanes, _barriers, _banks, _atomics, _sectors, _memory, _pipes, _waiting):
        if found := ask(kernel):
            return found
    return None


def _counter(kernel: KernelEvidence, name: str) -> float:
    """One hardware counter, 0 if it was not read."""
    return kernel.counters.get(name, 0.0)


def _tensor(kernel: KernelEvidence) -> Finding | None:
    """Cause "tensor": tensor cores are busy."""
    used = max(
        _counter(kernel, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
        _counter(kernel, "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"),
        _counter(kernel, "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"),
    )
    return ("tensor", f"tensor cores are busy {used:.0f} % of the time") if used >= FULL_PIPE / 2 else None


def _local(kernel: KernelEvidence) -> Finding | None:
    """Cause "spills" or "local_memory": instructions move registers to or from local memory."""
    moved = sum(_counter(kernel, f"smsp__sass_inst_executed_op_local_{way}.sum") for way in ("ld", "st"))
    share = moved / max(1.0, _counter(kernel, "smsp__inst_executed.sum"))
    if share < 0.05:
        return None
    cause = "spills" if kernel.report.get("spill_bytes", 1.0) else "local_memory"
    return cause, f"{percent(share)} of the instructions move registers to or from local memory"


def _lanes(kernel: KernelEvidence) -> Finding | None:
    """Cause "divergence": few of a warp's threads work at a time."""
    lanes = _counter(kernel, "smsp__average_thread_inst_executed_per_inst_executed.ratio")
    if 0 < lanes <= 16 and not _is_saturated(kernel):
        return "divergence", f"{lanes:.3g} of 32 threads of a warp work at a time"
    return None


def _stall(kernel: KernelEvidence, *reasons: str) -> float:
    """Share of these reasons in the time that warps wait."""
    each = {
        name: _counter(kernel, f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio") for name in STALLS
    }
    whole = sum(each.values())
    return sum(each[name] for name in reasons) / whole if whole else 0.0


def _barriers(kernel: KernelEvidence) -> Finding | None:
    """Cause "barriers": warps wait at barriers."""
    share = _stall(kernel, "barrier", "membar")
    is_many = kernel.hot("barrier") >= MANY_BARRIERS and not kernel.hot("tensor")
    least = STALLED / 2 if is_many else STALLED
    return ("barriers", f"{percent(share)} of the waiting is at barriers") if share >= least else None


def _banks(kernel: KernelEvidence) -> Finding | None:
    """Cause "bank_conflicts": accesses to shared memory are repeated."""
    conflicts = sum(
        _counter(kernel, f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{way}.sum") for way in ("ld", "st")
    )
    share = conflicts / max(1.0, _counter(kernel, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"))
    waiting = _stall(kernel, "short_scoreboard", "mio_throttle")
    if share >= 0.3 and waiting >= 0.2:
        return "bank_conflicts", f"{percent(share)} of the accesses to shared memory are repeats for bank conflicts"
    return None


def _atomics(kernel: KernelEvidence) -> Finding | None:
    """Cause "atomics": many accesses to memory are atomic."""
    atomics, others = of_kinds(kernel, ("atomic",)), of_kinds(kernel, _GLOBAL)
    is_hot = kernel.hot("atomic") > 0
    if is_hot and atomics >= 0.3 * (atomics + others) and not _is_saturated(kernel):
        return "atomics", f"{atomics:.0f} of {atomics + others:.0f} accesses to memory in its code are atomic"
    return None


def _sectors(kernel: KernelEvidence) -> Finding | None:
    """Cause "uncoalesced": a warp's access touches more sectors than needed."""
    for way, words in (("ld", "load"), ("st", "store")):
        found = _counter(kernel, f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{way}.ratio")
        ideal = _mean_width(kernel, words)  # one sector of 32 bytes for each byte of a thread's width
        if found >= 2 * ideal:
            return "uncoalesced", f"a warp's {words} touches {found:.3g} sectors, {ideal:.3g} would do"
    return None


def _mean_width(kernel: KernelEvidence, way: str) -> float:
    """Mean bytes that a thread loads or stores at a time in the loops, at least 4."""
    counts = {width: kernel.report.get(f"hot_{way}_{name}", 0.0) for name, width in _WIDTHS.items()}
    whole = sum(counts.values())
    return max(4.0, sum(width * count for width, count in counts.items()) / whole) if whole else 4.0


def _dram(kernel: KernelEvidence) -> float:
    """Percent of the peak rate of DRAM."""
    return _counter(kernel, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed")


def _is_saturated(kernel: KernelEvidence) -> bool:
    """True if DRAM runs at SATURATED of its peak rate or more."""
    return _dram(kernel) >= 100 * SATURATED


def _memory(kernel: KernelEvidence) -> Finding | None:
    """Cause "bandwidth" or "cache_bandwidth": DRAM or the L2 is saturated."""
    if _is_saturated(kernel):
        return "bandwidth", f"memory is busy {_dram(kernel):.0f} % of the time"
    caches = _counter(kernel, "lts__throughput.avg.pct_of_peak_sustained_elapsed")
    return ("cache_bandwidth", f"the second-level cache is busy {caches:.0f} % of the time") if caches >= 70 else None


def _pipes(kernel: KernelEvidence) -> Finding | None:
    """Cause named after the execution unit that is nearly full: special functions, arithmetic or integer."""
    used = {
        "special_functions": _pipe(kernel, "xu"),
        "arithmetic": max(_pipe(kernel, "fma"), _pipe(kernel, "fp64")),
        "integer": _pipe(kernel, "alu"),
    }
    cause = max(used, key=lambda name: used[name])
    if used[cause] < FULL_PIPE:
        return None
    if cause != "special_functions" and kernel.hot("integer") > 2 * kernel.hot("float", "double"):
        cause = "integer"  # integer products run on the floating-point pipe
    return cause, f"the units for it are busy {used[cause]:.0f} % of the time"


def _pipe(kernel: KernelEvidence, name: str) -> float:
    """Percent of an execution pipe's peak."""
    return _counter(kernel, f"sm__inst_executed_pipe_{name}.avg.pct_of_peak_sustained_active")


def _waiting(kernel: KernelEvidence) -> Finding | None:
    """Cause from the dominant stall reason: latency, arithmetic or low occupancy."""
    active = _counter(kernel, "sm__warps_active.avg.pct_of_peak_sustained_active")
    for reasons, cause in (
        (("long_scoreboard", "lg_throttle"), "latency"),
        (("math_pipe_throttle",), "arithmetic"),
        (("short_scoreboard", "mio_throttle"), "latency"),
    ):
        share = _stall(kernel, *reasons)
        if share >= STALLED:
            if cause == "latency" and 0 < active < FEW_ACTIVE and not kernel.report.get("chased"):
                return "low_occupancy", f"{active:.0f} % of the warps that fit are there, and wait for memory"
            return cause, f"{percent(share)} of the waiting is for {' and '.join(reasons)}"
    return None


# ---------------------------------------------------------------- rung "times"


def by_time(kernel: KernelEvidence, whole: Whole) -> Finding | None:
    """The cause that a kernel's time shows if its bytes or operations are known: bandwidth, tensor or arithmetic."""
    seconds = kernel.ms / 1e3
    used = kernel.traffic_bytes / seconds / whole.bytes_per_s if whole.bytes_per_s else 0.0
    if used >= SATURATED:
        return "bandwidth", f"{kernel.traffic_bytes / seconds / 1e9:.4g} GB/s are {percent(used)} of what was measured"
    has_tensor = kernel.hot("tensor") > 0
    possible = whole.tensor_flops_per_s if has_tensor else whole.flops_per_s
    rate = kernel.flops / seconds
    if possible and rate / possible >= (0.4 if has_tensor else SATURATED):
        words = f"{rate / 1e12:.4g} TFLOP/s are {percent(rate / possible)} of what was measured"
        return ("tensor" if has_tensor else "arithmetic"), words
    return None


# ---------------------------------------------------------------- rungs "instructions" and "compiler"


def by_code(kernel: KernelEvidence, *, measured: bool = False) -> Finding | None:
    """The cause that the compiler's report and the machine code show.

    `measured`: bytes and operations did not explain its time, so that waiting (latency) is the remaining
    explanation.
    """
    for ask in (_spilled, _synchronised, _strided, _conflicting, _chasing, _rarely_resident, _busy_units):
        if found := ask(kernel):
            return found
    if measured and kernel.hot(*_GLOBAL):
        if found := _decoding(kernel):
            return found
        if kernel.hot("load_32", "load_8") and not kernel.hot("load_128", "load_64"):
            return "narrow_loads", "its loops load 4 bytes a thread at a time, and memory is not busy"
        return "latency", "neither memory nor arithmetic is near what was measured"
    return None


def _decoding(kernel: KernelEvidence) -> Finding | None:
    """Cause "decoding": values are unpacked and converted one by one. Index arithmetic alone converts nothing."""
    share, products = kernel.inner("integer", "convert"), kernel.inner("float", "double", "tensor")
    if kernel.inner("convert") < CONVERTING or share < max(DECODING, 4 * products):
        return None
    return (
        "decoding",
        f"{percent(share)} of its hot loop's instructions are integer ones or conversions, {percent(products)} compute",
    )


def _spilled(kernel: KernelEvidence) -> Finding | None:
    """Cause "spills" or "local_memory" from the compiler's report."""
    share = kernel.hot("local_load", "local_store")
    spilled = kernel.report.get("spill_bytes", 0.0)
    if spilled and (share >= 0.02 or "loops" not in kernel.report):
        registers = int(kernel.report.get("registers", 0))
        return "spills", f"{int(spilled)} bytes of registers spilled, {registers} registers a thread"
    return ("local_memory", f"{percent(share)} of its loops' instructions use local memory") if share >= 0.05 else None


def _synchronised(kernel: KernelEvidence) -> Finding | None:
    """Cause "atomics" or "barriers" from the instructions of its loops."""
    atomics, others = kernel.hot("atomic"), kernel.hot(*_GLOBAL)
    if atomics and atomics >= 0.3 * (atomics + others):
        return "atomics", f"{percent(atomics)} of its loops' instructions are atomic"
    barriers = kernel.hot("barrier")
    if barriers >= MANY_BARRIERS and not kernel.hot("tensor"):
        return "barriers", f"{percent(barriers)} of its loops' instructions are barriers"
    return None


def _strided(kernel: KernelEvidence) -> Finding | None:
    """Cause "uncoalesced" from the distance of neighbouring threads' addresses."""
    waste = kernel.report.get("waste", 0.0)
    if waste < 0:
        return "uncoalesced", "neighbouring threads' addresses lie an argument apart"
    return ("uncoalesced", f"neighbouring threads' addresses lie {waste:.3g} elements apart") if waste >= 4 else None


def _conflicting(kernel: KernelEvidence) -> Finding | None:
    """Cause "bank_conflicts" from the pattern of shared-memory addresses."""
    ways = kernel.report.get("ways", 1.0)
    share = kernel.hot("shared_load", "shared_store")
    if ways >= 4 and share >= 0.1:
        return "bank_conflicts", f"{int(ways)} threads of a warp meet in one bank of shared memory"
    return None


def _chasing(kernel: KernelEvidence) -> Finding | None:
    """Cause "latency": accesses wait for an address that was loaded just before."""
    chased = kernel.report.get("chased", 0.0)
    if chased and kernel.hot(*_GLOBAL) and not kernel.hot("tensor"):
        return "latency", f"{int(chased)} accesses wait for an address that was loaded just before"
    return None


def _rarely_resident(kernel: KernelEvidence) -> Finding | None:
    """Cause "low_occupancy" from registers and shared memory."""
    occupancy = kernel.report.get("occupancy")
    if occupancy is not None and occupancy < LOW_OCCUPANCY and not kernel.hot("tensor") and kernel.hot(*_GLOBAL):
        used = f"{int(kernel.report['registers'])} registers, {int(kernel.report['shared_bytes'])} shared bytes"
        return "low_occupancy", f"occupancy {percent(occupancy)} ({used})"
    return None


# Threads that a multiprocessor serves each clock (CUDA C++ Programming Guide, arithmetic instructions, 9.0).
_SERVED = {"float": 128, "integer": 64, "special": 16, "double": 64, "convert": 16, "shared_load": 32}
_NAMED = {"float": "arithmetic", "double": "arithmetic", "integer": "integer", "special": "special_functions"}


def _busy_units(kernel: KernelEvidence) -> Finding | None:
    """Cause named after the execution unit that a loop without memory accesses keeps busy longest."""
    if kernel.hot("reconverge") >= 0.1:
        return "divergence", f"{percent(kernel.hot('reconverge'))} of its loops' instructions bring a warp together"
    if kernel.hot("tensor") >= 0.08:
        return "tensor", f"{percent(kernel.hot('tensor'))} of its loops' instructions are the tensor cores'"
    if kernel.hot(*_GLOBAL):
        return None
    cycles = {kind: kernel.hot(kind) / served for kind, served in _SERVED.items()}
    slowest = max(cycles, key=lambda kind: cycles[kind])
    if not cycles[slowest] or slowest not in _NAMED:
        return None
    return _NAMED[
        slowest
    ], f"{percent(kernel.hot(slowest))} of its loops' instructions, the slowest of them, need one unit"
