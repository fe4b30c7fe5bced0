"""Observes a candidate's process for a diagnosis: kernels on a GPU, functions on a CPU."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from foundry.knowledge.candidate import Baseline, Build
from foundry.knowledge.device import Device
from foundry.knowledge.task import Task
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.replay import means_under, under_tool
from foundry.tools.machine.holds import Holds
from foundry.tools.profiling.gather import Seen, plain_kernel, seen_launches
from foundry.tools.targets.cpu.sampling import Samples, sampled
from foundry.tools.targets.cuda import nsight
from foundry.tools.targets.cuda.disassembly import tool_path

COUNT_S = 240.0  # seconds for one run of Nsight Compute
COUNTED_LAUNCHES = 64
NCU_TRIAL_S = 8.0  # seconds; ncu waits for ever if a filter keeps it from its program


def observe(
    grader: Grader, device: Device, text: str, build: Build, baseline: Baseline, seconds: float, holds: Holds
) -> Seen:
    """Calls the candidate's forward for `seconds` in a fresh process and returns kernel launches (GPU) or stack samples
    (CPU).

    Blocking. A bad candidate gives a Seen with a `problem`. On a GPU PyTorch's profiler in that process tells the
    kernels; on a CPU it is sampled from outside.
    """
    samples = Samples()
    watch = (lambda pid: sampled(pid, samples)) if device.traits.uses_host_cores else None
    answer, problem = grader.profile(text, build, baseline, seconds, watch=watch, holds=holds)
    if problem:
        return Seen(problem=problem)
    notes = (samples.problem,) if samples.problem else ()
    launches = seen_launches(answer.get("launches", ()))
    if not device.traits.uses_host_cores and not launches:
        notes = ("the profiler of PyTorch saw no kernels on this device (CUPTI is missing, or another tool holds it)",)
    return Seen(float(answer["ms"]), launches, samples.counts, samples.instructions, notes=notes)


def counting_means(means: Collection[str]) -> tuple[str, ...]:
    """The subset of the sandbox `means` under which ncu can run a program here; empty without ncu.

    Tried once and cached. The caller shares the device.
    """
    ncu = tool_path("ncu")
    return means_under((str(ncu),), tuple(means), seconds=NCU_TRIAL_S) if ncu else ()


def count(seen: Seen, task: Task, text: str, device: Device, means: Collection[str]) -> Seen:
    """The same observation with the hardware's counters of its kernels, or a note why they cannot be read. Runs Nsight
    Compute on the file; `means` confine the tool and its program."""
    if not device.traits.has_counters:
        return replace(seen, notes=(*seen.notes, "counters of a CPU are not read: rung 4 is the highest here"))
    ncu = tool_path("ncu")
    if ncu is None:
        return replace(seen, notes=(*seen.notes, "Nsight Compute (ncu) is not installed: rung 4 is the highest here"))
    plain = {plain_kernel(name).split("::")[-1] for name, _, blocks, _ in seen.launches if blocks}
    names = "|".join(sorted(map(re.escape, plain)))
    argv = nsight.arguments(str(ncu), f"^({names})$", launches=COUNTED_LAUNCHES)
    done = under_tool(argv, task, text, device.traits.torch_device, seconds=COUNT_S, means=counting_means(means))
    found = nsight.read_counters(done.output)
    problem = f"Nsight Compute {done.reason}" if done.reason else nsight.problem_of(done.output, found)
    return replace(seen, counters=tuple(found), notes=(*seen.notes, problem) if problem else seen.notes)
