"""One candidate's process looked at while it works, for a diagnosis: kernels on a GPU, functions on a CPU."""

from __future__ import annotations

from foundry.knowledge.candidate import Baseline, Build
from foundry.knowledge.device import Device
from foundry.tools.grade.grader import Grader
from foundry.tools.profiling.gather import Seen, seen_launches
from foundry.tools.profiling.sampling import Samples, sampled
from foundry.tools.targets.base import build_cache


def observe(grader: Grader, device: Device, text: str, build: Build, baseline: Baseline, seconds: float) -> Seen:
    """What was seen of the candidate's forward, called again and again for `seconds`. Blocking; never raises for a bad
    candidate. On a GPU its own process says which kernels ran, on a CPU the system does."""
    samples = Samples()
    watch = (lambda pid: sampled(pid, samples)) if device.target == "cpu" else None
    answer, problem = grader.profile(text, build, baseline, seconds, watch)
    if problem:
        return Seen(problem=problem)
    notes = (samples.problem,) if samples.problem else ()
    launches = seen_launches(answer.get("launches", ()))
    if device.target == "cuda" and not launches:
        notes = ("the profiler of PyTorch saw no kernels on this device (CUPTI is missing, or another tool holds it)",)
    builds = str(build_cache().absolute())
    return Seen(float(answer["ms"]), launches, samples.counts, builds, notes=notes)
