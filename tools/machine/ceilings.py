"""Measures the ceilings of a device once and keeps them: what a roofline is drawn against."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.errors import MissingTool, UsageError
from foundry.knowledge.home import foundry_home
from foundry.knowledge.targets import load_part
from foundry.tools.machine.lock import DeviceLock

Started = subprocess.Popen[str]  # the process that measures, where that is one of its own


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
    """`with_ceilings` while this process alone uses the device.

    Another process that compiles or times meanwhile would lower the measured rates. They are kept for good, and a
    ceiling that is too low makes honest kernels look impossible. On a GPU the process that measures starts before the
    device is held for it.
    """
    if not device.present or device.ceilings is not None or _kept(_path(device)) is not None:
        return with_ceilings(device)
    started = await asyncio.to_thread(_toolchain(device).start_measuring)
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
    found: Ceilings = _toolchain(device).measure(started)
    if kept is not None:
        found = _better(kept, found)
    _keep(path, found)
    return found


def _better(one: Ceilings, other: Ceilings) -> Ceilings:
    """The best of both measurements, rate by rate: the higher throughput, the shorter launch."""
    return dataclasses.replace(
        other,
        copy_bytes_per_s=max(one.copy_bytes_per_s, other.copy_bytes_per_s),
        cache_bytes_per_s=max(one.cache_bytes_per_s, other.cache_bytes_per_s),
        ieee_flops_per_s=max(one.ieee_flops_per_s, other.ieee_flops_per_s),
        tf32_flops_per_s=max(one.tf32_flops_per_s, other.tf32_flops_per_s),
        half_flops_per_s=max(one.half_flops_per_s, other.half_flops_per_s),
        launch_ms=min(one.launch_ms, other.launch_ms),
    )


def _toolchain(device: Device) -> Any:
    """The toolchain of the device's target, for this device."""
    return load_part(device.traits.toolchain)(device)


def _path(device: Device) -> Path:
    """One file a physical device and version of its benchmark."""
    version = hashlib.sha256(_toolchain(device).benchmark.read_bytes()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", device.unit).strip("-").lower()
    return foundry_home() / "ceilings" / f"{slug}-{version}.json"


def _kept(path: Path) -> Ceilings | None:
    """The ceilings in a file; None if it is absent, broken or lacks a rate that is measured today."""
    try:
        return decode(Ceilings, path.read_bytes())
    except (OSError, UsageError):  # absent, cut short, or without a rate that is measured today: measure again
        return None


def _keep(path: Path, found: Ceilings) -> None:
    """Writes ceilings to a file in one step; errors of the file system are ignored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(encode(found) + "\n")
        Path(temporary).replace(path)
    except OSError:
        return
