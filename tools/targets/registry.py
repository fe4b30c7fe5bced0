"""The toolchain of a device's target, found by the target's name."""

from __future__ import annotations

from typing import Any

from foundry.knowledge.device import Device
from foundry.knowledge.targets import load_part
from foundry.tools.targets.base import Target


def target_of(device: Device, **limits: Any) -> Target:
    """Builds files for `device` and describes it. `limits`: `compile_s` and `memory_bytes` of one compilation, and
    `disassembles` (False: a build says nothing about its machine code, which saves a process)."""
    found: Target = load_part(device.traits.toolchain)(device, **limits)
    return found
