"""Rules for the cause that limits a function on a CPU: its share of the time, and the instructions of its loops."""

from __future__ import annotations

from foundry.tools.targets.evidence import Finding, KernelEvidence, Whole, percent

DECODING = 0.3  # share of the hot loop's instructions that are integer ones or conversions
WAITING = ("gomp_", "omp_", "futex", "sched_yield", "pthread_barrier", "do_wait")


def cpu_cause(kernel: KernelEvidence, whole: Whole) -> Finding | None:
    """The cause that limits one function, with its evidence; None if its instructions show nothing. A function that
    only waits, or that is not the kernel's, is a cause once its time is known."""
    if kernel.ms and kernel.name.startswith(WAITING):
        return "barriers", "threads wait for each other in the OpenMP runtime"
    if kernel.ms and kernel.name.startswith(("(libm.", "(libmvec", "(libsvml")):
        return "special_functions", "the mathematical library computes one number a call, or few"
    if kernel.report.get("is_outside"):
        return "outside", "the time passes in PyTorch, Python or the system, not in a kernel"
    for ask in (_scalar, _gathers, _costly, _decoding, _narrow):
        if found := ask(kernel):
            return found
    return None


def _scalar(kernel: KernelEvidence) -> Finding | None:
    """Cause "scalar_loop": instructions of its loops work on one number each."""
    count = kernel.report.get("scalar_loop", 0.0)
    return ("scalar_loop", f"{int(count)} instructions of its loops work on one number each") if count else None


def _gathers(kernel: KernelEvidence) -> Finding | None:
    """Cause "gathers": 5 % or more of the hot loop's instructions gather or scatter."""
    share = kernel.inner("gather_scatter")
    return ("gathers", f"{percent(share)} of its hot loop's instructions gather or scatter") if share >= 0.05 else None


def _costly(kernel: KernelEvidence) -> Finding | None:
    """Cause "special_functions": divisions, roots, or calls of the mathematical library in a loop."""
    share = kernel.inner("division")
    if share >= 0.05:
        return "special_functions", f"{percent(share)} of its hot loop's instructions divide or take roots"
    calls = int(kernel.report.get("maths_every_turn", 0.0))
    every = f"{calls} call{'s' * (calls != 1)} of the mathematical library in every turn of a loop"
    return ("special_functions", every) if calls else None


def _decoding(kernel: KernelEvidence) -> Finding | None:
    """Cause "decoding": integer work beside little floating-point arithmetic, as in unpacking weights one by one."""
    share, products = kernel.inner("integer", "convert"), kernel.inner("fma", "vector_float", "scalar_float")
    if share < DECODING or share < 2 * products:
        return None
    words = (
        f"{percent(share)} of its hot loop's instructions are integer ones or conversions, {percent(products)} compute"
    )
    return "decoding", words


def _narrow(kernel: KernelEvidence) -> Finding | None:
    """Cause "narrow_vectors": its loops use shorter vectors than the machine has."""
    width, possible = kernel.report.get("vector_bytes", 0.0), kernel.report.get("machine_vector_bytes", 0.0)
    if 0 < width < possible:
        return "narrow_vectors", f"its loops use {int(width)}-byte vectors, the machine has {int(possible)}"
    return None
