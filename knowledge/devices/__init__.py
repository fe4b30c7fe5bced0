"""Constants of kernels that were measured on one card: a file a card, looked up by the device's name.

A card without a file takes those of the first one, scaled by the rates that were measured on the device itself.
`foundry doctor` says which of both is true here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

from foundry.knowledge.device import Device

FIRST = "NVIDIA H200"  # the card on which every constant was measured


@dataclass(frozen=True)
class MeasuredConstant:
    """One measured number. `unit` is "FLOP/s", "byte/s", "s", "cycle" or "byte/cycle"."""

    value: float
    unit: str
    what: str
    date: date
    file: str  # path of the measurement's record in this repository


@dataclass(frozen=True)
class MeasuredCard:
    """A card's constants, and its ceilings at that time in FLOP/s of 16-bit products and bytes/s of a copy."""

    card: str
    flops_per_s: float
    bytes_per_s: float
    constants: dict[str, MeasuredConstant]


@cache
def measured_cards() -> dict[str, MeasuredCard]:
    """Every card with a file, by its name. Raises TypeError or KeyError for a file that lacks something."""
    found = {}
    for entry in resources.files("foundry.knowledge.devices").iterdir():
        if entry.name.endswith(".toml"):
            told: dict[str, Any] = tomllib.loads(entry.read_text(encoding="utf-8"))
            name, ceilings = str(told.pop("card")), told.pop("ceilings")
            constants = {key: MeasuredConstant(**item) for key, item in told.items()}
            found[name] = MeasuredCard(name, constants=constants, **ceilings)
    return found


def has_constants(device: Device) -> bool:
    """True if the device's own card was measured."""
    return any(device.name.startswith(name) for name in measured_cards())


def constant(device: Device, name: str) -> float:
    """A constant for the device: its card's own, or the first card's, whose rates are scaled by the device's ceilings
    where they are known. Raises KeyError for a name that no file has."""
    own = next((card for card in measured_cards().values() if device.name.startswith(card.card)), None)
    if own is not None and name in own.constants:
        return own.constants[name].value
    first = measured_cards()[FIRST]
    found, ceilings = first.constants[name], device.ceilings
    if ceilings is None or found.unit not in ("FLOP/s", "byte/s"):
        return found.value
    if found.unit == "FLOP/s":
        return found.value * ceilings.half_flops_per_s / first.flops_per_s
    return found.value * ceilings.copy_bytes_per_s / first.bytes_per_s
