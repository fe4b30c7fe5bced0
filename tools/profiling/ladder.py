"""Turns evidence into a diagnosis: the kernel that limits a forward, the cause, and the rung that showed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import KernelProfile, Profile
from foundry.knowledge.device import Device
from foundry.knowledge.limits import CAUSES, LAUNCH_SHARE, REUSE_FLOPS_PER_BYTE, SATURATED, Rung
from foundry.tools.targets.base import Target
from foundry.tools.targets.evidence import Finding, KernelEvidence, Whole, percent

TIMED: tuple[Rung, ...] = ("times", "counters")  # rungs that know the time of each kernel


@dataclass(frozen=True)
class Climbed:
    """The ladder's diagnosis of one forward."""

    rung: Rung
    cause: str = ""
    evidence: str = ""
    kernels: tuple[KernelProfile, ...] = ()
    is_guess: bool = False  # True if the cause comes from code alone, without times of the kernels


def climb(kernels: Sequence[KernelEvidence], whole: Whole, target: Target) -> Climbed:
    """The kernel with most of the time (as far as it was measured), and its cause."""
    ordered = sorted(kernels, key=lambda kernel: (-kernel.ms, -kernel.traffic_bytes))
    total = sum(kernel.ms for kernel in ordered)
    shown = [_shown(kernel, target.cause(kernel, whole), total) for kernel in ordered]
    rung = rung_of(ordered)
    if outside := launch_cause(whole) or target.cause_outside(ordered, whole):
        return Climbed(rung, *outside, tuple(shown))
    has_shares = total > 0 or any(kernel.traffic_bytes for kernel in ordered)
    suspects = shown[:1] if has_shares or len(shown) == 1 else []  # a loop that hardly runs limits nothing
    named = next((kernel for kernel in suspects if kernel.cause), None)
    is_guess = rung not in TIMED
    if named is None:
        return Climbed(rung, kernels=tuple(shown), is_guess=is_guess)
    where = f"{named.name} ({percent(named.share)} of the time): " if named.share else f"{named.name}: "
    return Climbed(rung, named.cause, where + named.evidence, tuple(shown), is_guess)


def rung_of(kernels: Sequence[KernelEvidence]) -> Rung:
    """The highest rung for which a kernel has evidence: counters, times, instructions, compiler, or just roofline."""
    if any(kernel.counters for kernel in kernels):
        return "counters"
    if any(kernel.ms > 0 for kernel in kernels):
        return "times"
    if any("loops" in kernel.report for kernel in kernels):
        return "instructions"
    return "compiler" if any(kernel.report for kernel in kernels) else "roofline"


def launch_cause(whole: Whole) -> Finding | None:
    """The cause "launches" if starting kernels or regions takes LAUNCH_SHARE of a forward's time; else None."""
    share = whole.launches * whole.launch_ms / whole.ms if whole.ms > 0 else 0.0
    if share < LAUNCH_SHARE:
        return None
    each = f"{whole.launches} launches at {1e3 * whole.launch_ms:.3g} us each"
    return "launches", f"{each} are {percent(min(1.0, share))} of {whole.ms:.4g} ms"


def with_diagnosis(profile: Profile, climbed: Climbed, device: Device) -> Profile:
    """The profile with the ladder's diagnosis. Where no rule names a cause, the roofline does; without times of kernels
    it also overrules what the code shows: a poor loop limits nothing while a ceiling is reached."""
    ceilings = device.ceilings
    cause, evidence = climbed.cause, climbed.evidence
    if (_is_placed(profile) and climbed.is_guess) or (climbed.rung in TIMED and not cause):
        side, words = _by_roofline(profile)
        if not cause or side != "latency":
            cause, evidence = side, words
    return replace(
        profile,
        rung=climbed.rung,
        limiter=CAUSES[cause].limiter if cause else None,
        cause=cause,
        evidence=evidence,
        action=CAUSES[cause].action if cause else "",
        kernels=climbed.kernels,
        possible_bytes_per_s=_bandwidth(profile, device),
        possible_flops_per_s=ceilings.ieee_flops_per_s if ceilings else 0.0,
    )


def _bandwidth(profile: Profile, device: Device) -> float:
    """The ceiling in bytes/s of the memory that holds the data: cache or DRAM."""
    if device.ceilings is None:
        return 0.0
    fits = profile.facts.get("in_cache") == "yes"
    return device.ceilings.cache_bytes_per_s if fits else device.ceilings.copy_bytes_per_s


def _is_placed(profile: Profile) -> bool:
    """True if the forward's place on the roofline is known: its time, its work and a ceiling."""
    return "bandwidth_used" in profile.facts or "arithmetic_used" in profile.facts


def _by_roofline(profile: Profile) -> Finding:
    """The cause by the roofline: bandwidth, arithmetic, or latency if neither is saturated."""
    memory, arithmetic = profile.facts.get("bandwidth_used"), profile.facts.get("arithmetic_used")
    used = {
        "bandwidth": memory if isinstance(memory, float) else 0.0,
        "arithmetic": arithmetic if isinstance(arithmetic, float) else 0.0,
    }
    side = max(used, key=lambda name: used[name])
    where = "the cache's" if profile.facts.get("in_cache") == "yes" else "the memory's"
    words = f"{percent(used['bandwidth'])} of {where} rate and {percent(used['arithmetic'])} of the arithmetic's"
    intensity = profile.facts.get("flops_per_byte")
    reuses = side == "arithmetic" and isinstance(intensity, float) and intensity >= REUSE_FLOPS_PER_BYTE
    return (side if used[side] >= SATURATED or reuses else "latency"), words


def _shown(kernel: KernelEvidence, found: Finding | None, total_ms: float) -> KernelProfile:
    """One kernel's part of the profile."""
    cause, evidence = found or ("", "")
    share = kernel.ms / total_ms if total_ms > 0 else 0.0
    return KernelProfile(kernel.name, ms=kernel.ms, calls=kernel.calls, share=share, cause=cause, evidence=evidence)
