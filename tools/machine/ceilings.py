"""Measures the ceilings of a device once and keeps them: what a roofline is drawn against."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from subprocess import PIPE

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import Ceilings, Device, TargetName
from foundry.knowledge.errors import FoundryError, MissingTool, UsageError
from foundry.knowledge.home import foundry_home
from foundry.tools.machine.device import gxx_path
from foundry.tools.machine.lock import DeviceLock

BENCHMARKS: dict[TargetName, Path] = {
    "cpu": Path(__file__).parents[1] / "targets/cpu/ceilings.cpp",
    "cuda": Path(__file__).parents[1] / "targets/cuda/measuring.py",
}
Started = subprocess.Popen[str]
CPU_SECONDS = 1.5
LIMIT_SECONDS = 120.0


def with_ceilings(device: Device) -> Device:
    """The device with its ceilings, measured now unless an earlier figure is kept. A device that is not present comes
    back unchanged."""
    if not device.present or device.ceilings is not None:
        return device
    return dataclasses.replace(device, ceilings=ceilings(device))


def with_known_ceilings(device: Device) -> Device:
    """The device with the ceilings of an earlier measurement, if there was one. Measures nothing."""
    if not device.present or device.ceilings is not None:
        return device
    return dataclasses.replace(device, ceilings=_kept(_path(device)))


async def measure_alone(device: Device) -> Device:
    """`with_ceilings` while nobody else uses the device.

    Another process that compiles or times meanwhile would lower the measured rates. They are kept for good, and a
    ceiling that is too low makes honest kernels look impossible. On a GPU the process that measures starts before the
    device is held for it.
    """
    if not device.present or device.ceilings is not None or _kept(_path(device)) is not None:
        return with_ceilings(device)
    started = await asyncio.to_thread(_start_cuda) if device.target == "cuda" else None
    async with DeviceLock(device).exclusive():
        return dataclasses.replace(device, ceilings=await asyncio.to_thread(ceilings, device, started=started))


def ceilings(device: Device, *, again: bool = False, started: Started | None = None) -> Ceilings:
    """The device's best rates, from $FOUNDRY_HOME/ceilings or measured now (under 3 s on a CPU) and kept there.

    `again` measures even when a figure is kept, and keeps the better of both for each rate: load can only lower them.
    `started`: the process that measures, if there is one already; it is ended.
    Raises MissingTool without a compiler or a device, FoundryError when the measurement fails. A home that cannot be
    written costs a measurement each time, nothing else.
    """
    if not device.present:
        raise MissingTool(f"no {device.target} device here, so nothing can be measured")
    path = _path(device)
    kept = _kept(path)
    if kept is not None and not again:
        if started is not None:
            started.kill()
        return kept
    found = _measure_cpu(device) if device.target == "cpu" else _measure_cuda(started or _start_cuda())
    if kept is not None:
        found = _better(kept, found)
    _keep(path, found)
    return found


def _better(one: Ceilings, other: Ceilings) -> Ceilings:
    return dataclasses.replace(
        other,
        copy_bytes_per_s=max(one.copy_bytes_per_s, other.copy_bytes_per_s),
        cache_bytes_per_s=max(one.cache_bytes_per_s, other.cache_bytes_per_s),
        ieee_flops_per_s=max(one.ieee_flops_per_s, other.ieee_flops_per_s),
        tf32_flops_per_s=max(one.tf32_flops_per_s, other.tf32_flops_per_s),
        half_flops_per_s=max(one.half_flops_per_s, other.half_flops_per_s),
        launch_ms=min(one.launch_ms, other.launch_ms),
    )


def _path(device: Device) -> Path:
    """One file a physical device and version of its benchmark."""
    version = hashlib.sha256(BENCHMARKS[device.target].read_bytes()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", device.unit).strip("-").lower()
    return foundry_home() / "ceilings" / f"{slug}-{version}.json"


def _kept(path: Path) -> Ceilings | None:
    try:
        return decode(Ceilings, path.read_bytes())
    except (OSError, UsageError):  # absent, cut short, or without a rate that is measured today: measure again
        return None


def _keep(path: Path, found: Ceilings) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(encode(found) + "\n")
        Path(temporary).replace(path)
    except OSError:
        return


def _measure_cpu(device: Device) -> Ceilings:
    with tempfile.TemporaryDirectory(prefix="foundry-ceilings-") as folder:
        program = Path(folder) / "ceilings"
        _answer(
            [str(gxx_path()), "-O3", "-march=native", "-fopenmp", str(BENCHMARKS["cpu"]), "-o", str(program)],
            "the benchmark did not compile",
        )
        environment = {**os.environ, "OMP_NUM_THREADS": str(device.cores), "OMP_DYNAMIC": "false"}
        text = _answer(
            [str(program), str(device.cache_bytes), str(CPU_SECONDS)], "the benchmark did not run", environment
        )
    rates: dict[str, float] = json.loads(text)
    return Ceilings(
        copy_bytes_per_s=rates["copy_bytes_per_s"],
        cache_bytes_per_s=max(rates["cache_bytes_per_s"], rates["copy_bytes_per_s"]),
        ieee_flops_per_s=rates["flops_per_s"],
        tf32_flops_per_s=rates["flops_per_s"],
        half_flops_per_s=rates["half_flops_per_s"],
        launch_ms=rates["launch_ms"],
        measured_on=datetime.date.today().isoformat(),
    )


def _start_cuda() -> Started:
    """The process that measures a GPU, with PyTorch imported and a context; it waits for a line."""
    command = [sys.executable, "-m", "foundry.tools.targets.cuda.measuring"]
    started = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    watchdog = threading.Timer(LIMIT_SECONDS, started.kill)
    watchdog.start()
    try:
        if started.stdout is not None:
            started.stdout.readline()  # "ready"; whatever else shows when it is asked to measure
    finally:
        watchdog.cancel()
    return started


def _measure_cuda(started: Started) -> Ceilings:
    problem = "the GPU measurement failed"
    try:
        answer, said = started.communicate("measure\n", timeout=LIMIT_SECONDS)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        started.kill()
        raise FoundryError(f"{problem}: no answer within {LIMIT_SECONDS:.0f} s") from None
    if started.returncode != 0:
        raise FoundryError(f"{problem}: {_complaint(said, started.returncode)}")
    rates: dict[str, float] = json.loads(answer.strip().splitlines()[-1])
    return Ceilings(**rates, measured_on=datetime.date.today().isoformat())


def _complaint(said: str, code: int) -> str:
    """The line of a program's standard error that says what is wrong."""
    lines = [line for line in said.splitlines() if line.strip()] or [f"exit {code}"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:300]


def _answer(command: list[str], problem: str, environment: dict[str, str] | None = None) -> str:
    """Standard output of a child process; raises FoundryError with its first line of complaint."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise FoundryError(f"{problem}: no answer within {LIMIT_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise FoundryError(f"{problem}: {_complaint(done.stderr, done.returncode)}")
    return done.stdout
