"""`foundry profile`: finds the limit of one kernel file, with as many rungs of the profiling ladder as this machine
has."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foundry.knowledge.candidate import Audit, Build, Profile
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.limits import RUNGS
from foundry.knowledge.task import Task
from foundry.tools.audit.policies import practices
from foundry.tools.audit.text.source import Unreadable, read_source
from foundry.tools.command_line import print_json
from foundry.tools.grade.host.answers import no_timing
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.ceilings import with_known_ceilings
from foundry.tools.machine.device import describe
from foundry.tools.machine.scratch import scratch_folder
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.registry import target_of
from foundry.tools.task.file import read_task
from foundry.tools.task.plain_file import read_kernel
from foundry.tools.verify.receipt import sha256
from foundry.tools.words import make_printable

SECONDS = 1.0  # seconds for which forward is called repeatedly
TIMES = RUNGS.index("times") + 1  # number of the rung that measures times, counted from 1


@dataclass(frozen=True)
class ProfileRequest:
    """The arguments. `rung` is the highest to climb, counted from 1."""

    task: Path
    candidate: Path
    target: TargetName | Literal["auto"] = "auto"
    scale: int | None = None
    rung: int = TIMES
    model: str = ""  # the name of the model's class, if the user gave it


def show(request: ProfileRequest, *, as_json: bool) -> None:
    """Prints the profile as one JSON document, or in words."""
    document = run(request)
    if as_json:
        print_json(document)
    else:
        print("\n".join(profile_lines(document)))


def run(request: ProfileRequest, zygote: Zygote | None = None) -> dict[str, Any]:
    """Profiles a kernel; returns the JSON document. Proves nothing about the kernel: `foundry verify` does that.

    Raises FoundryError for bad input, a missing environment, or a kernel that does not build or run.
    """
    task = read_task(request.task, scale=request.scale, model=request.model)
    text = read_kernel(request.candidate)
    device = with_known_ceilings(describe(request.target))
    profile, ms = asyncio.run(_profiled(task, text, device, request.rung, zygote))
    facts = dataclasses.asdict(profile)
    place = {"task": task.name, "candidate_sha256": sha256(text), "target": device.target, "device": device.key}
    return {**place, "rung_number": RUNGS.index(profile.rung) + 1, "ms": ms or None, **facts}


async def _profiled(task: Task, text: str, device: Device, rung: int, zygote: Zygote | None) -> tuple[Profile, float]:
    """Builds and profiles a kernel; returns its profile and the time of forward in ms. Raises FoundryError if it does
    not build."""
    build = await asyncio.to_thread(target_of(device).build, text)
    if not build.ok:
        raise FoundryError(f"the kernel does not build: {build.first_error}")
    with scratch_folder("profile") as scratch:
        bench = await open_workbench(task, device, scratch, seed=0, zygote=zygote)
        try:
            return await profile_in(bench, text, build, rung)
        finally:
            await bench.aclose()


async def profile_in(bench: Workbench, text: str, build: Build, rung: int) -> tuple[Profile, float]:
    """The profile of a built kernel, and the time of its forward in ms (0 if it was not timed). Raises FoundryError if
    the kernel does not run."""
    timing = no_timing("screen", "")
    if rung >= TIMES and bench.device.present:
        seen = await bench.observe(text, build, SECONDS, counted=rung > TIMES)
        if seen.problem:
            raise FoundryError(f"the kernel does not run: {seen.problem}")
        timing = dataclasses.replace(timing, candidate_ms=seen.ms)
    source = read_source(text)
    labels = () if isinstance(source, Unreadable) else tuple(sorted(practices(source)))
    found = await bench.profile(text, build, Audit(True, "open", labels=labels), timing, None)
    notes = (*found.notes, *_missing(bench.device, build, rung))
    return dataclasses.replace(found, notes=notes), timing.candidate_ms


def _missing(device: Device, build: Build, rung: int) -> Iterator[str]:
    """Notes on rungs that this machine does not have, with a remedy."""
    if not device.present:
        yield f"no {device.target} device is here: nothing was run, so times and counters are missing"
    if build.artifact and not build.resources.instructions:
        yield f"the machine code was not read: {target_of(device).install_reader}"


# ---------------------------------------------------------------- in words


def profile_lines(document: dict[str, Any]) -> list[str]:
    """The document in words: the limit, the reason, the remedy; then rates and kernels."""
    rung = f"rung {document['rung_number']} of {len(RUNGS)}, {document['rung']}"
    named = f"{document['limiter']} ({document['cause']})" if document["limiter"] else "no limiter found"
    lines = [f"{named} on {document['device']} [{rung}]"]
    lines += [f"  {document['evidence']}"] if document["evidence"] else []
    lines += [f"  -> {document['action']}"] if document["action"] else []
    if document["ms"]:
        lines.append(f"{document['ms']:.4g} ms a forward, called again and again, {document['launches']} launches")
        lines += list(_rates(document))
    lines += [_kernel_line(kernel) for kernel in document["kernels"][:12]]
    return [make_printable(line) if not line.startswith("  ") else f"  {make_printable(line)}" for line in lines] + [
        f"note: {make_printable(note)}" for note in document["notes"]
    ]


def _rates(document: dict[str, Any]) -> Iterator[str]:
    """Achieved and possible bytes and FLOPs a second, in words."""
    for name, unit in (("bytes_per_s", "GB/s"), ("flops_per_s", "GFLOP/s")):
        achieved, possible = document[f"achieved_{name}"], document[f"possible_{name}"]
        if achieved and possible:
            yield f"{achieved / 1e9:.4g} {unit} of {possible / 1e9:.4g} possible ({100 * achieved / possible:.3g} %)"
    if document["fraction_of_floor"]:
        yield f"{100 * document['fraction_of_floor']:.3g} % of the floor of {document['floor_ms']:.4g} ms"


def _kernel_line(kernel: dict[str, Any]) -> str:
    """One kernel's time and cause, in words."""
    time = f"{kernel['ms']:.4g} ms ({100 * kernel['share']:.0f} %)" if kernel["ms"] else "not timed"
    cause = f"{kernel['cause']}: {kernel['evidence']}" if kernel["cause"] else "nothing stands out"
    return f"  {kernel['name']}: {time}, {cause}"
