"""The playbook's diagnosis: what broke, or which resource limits a correct candidate, from measured facts only.

The profiler's ladder (`tools/profiling/`) names the limit of a candidate; here it becomes an action. What was not
profiled, above all the task's own module, is placed on the roofline. Fractions are of the ceilings measured on this
device, never of a data sheet.
"""

from __future__ import annotations

from foundry.agents.brief import Brief
from foundry.agents.situation import Situation
from foundry.knowledge.candidate import Evaluation, Outcome
from foundry.knowledge.cards import cards
from foundry.knowledge.compiler.lowered import plan_name
from foundry.knowledge.limits import LAUNCH_SHARE, SATURATED, Limiter
from foundry.knowledge.ruling import rule
from foundry.knowledge.thought import Diagnosis, Failure

NEAR_FLOOR = 0.85  # fraction of the roofline floor from which only fewer bytes can help
FAR_MORE = 1.5  # bytes that kernels move over the least that the graph must move
_FAILURES: dict[Outcome, Failure] = {
    "compile_error": "compile_error",
    "launch_failure": "launch_failure",
    "crash": "crash",
    "timeout": "timeout",
    "wrong_result": "wrong_result",
    "inaccurate": "inaccurate",
    "nondeterministic": "nondeterministic",
    "stale_weights": "stale_weights",
    "cheating": "cheating",
    "not_allowed": "not_allowed",
    "not_judged": "not_judged",
}


def diagnose(brief: Brief) -> Diagnosis:
    """The diagnosis of `brief.parent`: its failure with the card's action, or else what limits its speed."""
    failure = failure_of(brief.parent)
    if failure:
        name, evidence = failure
        action = (_accurate_action(brief) if name == "inaccurate" else "") or cards()[name].action
        return Diagnosis(brief.parent.candidate.id, name, None, evidence, action)
    return limiter_of(Situation(brief))


def _accurate_action(brief: Brief) -> str:
    """The advice for products in TF32; "" if the candidate has none."""
    names = brief.lowered.recipe.rounded if brief.lowered else ()
    if not names:
        return ""
    many = f"{', '.join(names)} multiply" if len(names) > 1 else f"{names[0]} multiplies"
    return f"Keep the structure and multiply as accurately as float32 (tf32x3, half3 or ieee): {many} in TF32."


def failure_of(evaluation: Evaluation) -> tuple[Failure, str] | None:
    """The failure and its first line of evidence; None for a candidate that is correct or merely unproven."""
    ruling = rule(evaluation)
    failure = _FAILURES.get(ruling.outcome)
    return (failure, ruling.evidence or failure) if failure else None


def limiter_of(situation: Situation) -> Diagnosis:
    """A diagnosis of what limits a correct candidate: the profiler's word, else launches or the roofline."""
    profile = situation.profile
    is_told = profile is not None and profile.limiter is not None
    if profile is not None and profile.limiter is not None:
        limiter, evidence = profile.limiter, f"{profile.rung}: {profile.evidence}"
        evidence += f"; {_moved(situation)}" if _surplus(situation) else ""
    else:
        limiter, evidence = _by_launches(situation) or _by_roofline(situation)
    return Diagnosis(
        candidate=situation.brief.parent.candidate.id,
        failure=None,
        limiter=limiter,
        evidence="; ".join(part for part in (evidence, _floor(situation)) if part),
        action=_action(limiter, situation, named_by_profiler=is_told),
        kernel=_limited_kernel(situation),
    )


def _limited_kernel(situation: Situation) -> str:
    """The kernel that has the cause which the profiler names, else the one with most of the time."""
    profile = situation.profile
    found = [kernel.name for kernel in profile.kernels if kernel.cause == profile.cause] if profile else []
    names = [name for name in map(plan_name, found) if name in situation.kernels]
    return names[0] if profile and profile.cause and names else situation.dominant


def _by_launches(situation: Situation) -> tuple[Limiter, str] | None:
    """Launch overhead, if launches take a large share of the time."""
    total = situation.candidate_ms
    if not total or situation.launch_ms < LAUNCH_SHARE * total or situation.ceilings is None:
        return None
    each = f"{situation.launches} launches at {1e3 * situation.ceilings.launch_ms:.3g} us each"
    return "launch_overhead", f"{each} are {100 * min(1.0, situation.launch_ms / total):.0f} % of {total:.4g} ms"


def _by_roofline(situation: Situation) -> tuple[Limiter, str]:
    """The side of the roofline that limits, or the latency below both ceilings."""
    bandwidth = _fraction(situation.achieved_bytes_per_s, situation.bandwidth)
    arithmetic = _fraction(situation.achieved_flops_per_s, situation.flops_ceiling)
    evidence = _rates(situation, bandwidth, arithmetic)
    if situation.brief.graph is None:
        evidence = "; ".join(part for part in (_slowest_operators(situation), evidence) if part)
    is_untimed = situation.candidate_ms is None
    if situation.arithmetic_ms > situation.memory_ms:
        if is_untimed or arithmetic >= SATURATED or situation.reuses_values:
            return "compute", evidence
    elif is_untimed or bandwidth >= SATURATED:
        return "memory_bandwidth", evidence
    return "memory_latency", evidence


def _slowest_operators(situation: Situation) -> str:
    """The operators that PyTorch runs in a task that could not be traced, by its own profiler."""
    rows = situation.brief.ran
    whole_ms = sum(row.ms for row in situation.brief.ran)
    if not rows:
        return "the reference could not be traced, and nothing was seen of its operators"
    shown = [
        f"{row.name.removeprefix('aten::')} {row.calls}x" + (f" {100 * row.ms / whole_ms:.0f} %" if whole_ms else "")
        for row in rows[:5]
    ]
    calls = sum(row.calls for row in rows)
    return f"the reference, which could not be traced, runs {calls} operators one by one: {', '.join(shown)}"


def _fraction(achieved: float | None, ceiling: float | None) -> float:
    """achieved / ceiling; 0 if either is unknown."""
    return achieved / ceiling if achieved and ceiling else 0.0


def _rates(situation: Situation, bandwidth: float, arithmetic: float) -> str:
    """Traffic, arithmetic and their fractions of the ceilings, as a sentence; only what is known of the parent's time
    and traffic."""
    if not situation.traffic_bytes:
        return "" if situation.candidate_ms is None else f"{situation.candidate_ms:.4g} ms"
    moved = _moved(situation)
    if situation.achieved_bytes_per_s is None or situation.bandwidth is None:
        return (
            f"{moved}, not timed" if situation.candidate_ms is None else f"{moved} in {situation.candidate_ms:.4g} ms"
        )
    rates = (
        f"{situation.achieved_bytes_per_s / 1e9:.3g} GB/s is {100 * bandwidth:.0f} % of the measured "
        f"{situation.bandwidth / 1e9:.3g} GB/s"
    )
    if situation.fits_cache and situation.ceilings is not None:
        cold = situation.achieved_bytes_per_s / situation.ceilings.copy_bytes_per_s
        rates += f" in cache, and {100 * cold:.0f} % of memory's, since kernels are timed with cold caches"
    if situation.achieved_flops_per_s and situation.flops_ceiling and situation.flops:
        rates += (
            f", {situation.achieved_flops_per_s / 1e9:.3g} GFLOP/s is {100 * arithmetic:.0f} % of the measured peak"
        )
    return f"{moved}; {rates}"


def _moved(situation: Situation) -> str:
    """The traffic and arithmetic of its kernels, as a sentence."""
    whose = "its kernels move" if situation.kernels else "its operators move"
    moved = f"{whose} {situation.traffic_bytes / 1e6:.4g} MB by their buffers{_surplus(situation)}"
    return f"{moved}, {situation.flops / 1e6:.4g} MFLOP"


def _surplus(situation: Situation) -> str:
    """How many times the least they move, where it is far more."""
    graph, least = situation.brief.graph, situation.least_bytes
    if graph is not None and graph.min_bytes:  # as rewritten, weights may be larger than they are stored
        least = min(least, graph.min_bytes)
    if not least or situation.traffic_bytes < FAR_MORE * least:
        return ""
    return f" ({situation.traffic_bytes / least:.2g} times the {least / 1e6:.4g} MB that must move)"


def _floor(situation: Situation) -> str:
    """The candidate's time against the roofline floor, as a sentence; "" without one."""
    floor_ms = situation.floor_ms
    if not floor_ms or not situation.candidate_ms or situation.is_reference:
        return ""
    share = floor_ms / situation.candidate_ms
    return f"{situation.candidate_ms:.4g} ms against the roofline floor of {floor_ms:.4g} ms ({100 * share:.0f} %)"


def _action(limiter: Limiter, situation: Situation, *, named_by_profiler: bool) -> str:
    """The profiler's or the card's action, made concrete if the numbers point to one thing."""
    if situation.is_reference and limiter in ("memory_bandwidth", "memory_latency", "launch_overhead"):
        return "Fuse: write one kernel for operators that follow each other; what lies between stays in registers."
    surplus = situation.traffic_bytes - situation.least_bytes
    if limiter in ("memory_bandwidth", "launch_overhead") and len(situation.kernels) > 1 and surplus > 0:
        return (
            f"Fuse: {len(situation.kernels)} kernels move {surplus / 1e6:.4g} MB more than the "
            f"{situation.least_bytes / 1e6:.4g} MB that the graph needs."
        )
    if limiter in ("memory_bandwidth", "memory_latency") and _surplus(situation):
        return "Move fewer bytes: keep values in registers, and weights in the form in which they are stored."
    fraction = situation.fraction_of_floor
    if limiter == "memory_bandwidth" and fraction is not None and fraction >= NEAR_FLOOR:
        return "At the roofline: only a rewrite that removes bytes can still help."
    if named_by_profiler and situation.profile is not None:
        return situation.profile.action
    return cards()[limiter].action
