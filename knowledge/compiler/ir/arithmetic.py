"""Divisions of sizes that round upwards."""

from __future__ import annotations


def ceil_divide(value: int, unit: int) -> int:
    """The number of units that hold `value`."""
    return -(-value // unit)


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit
