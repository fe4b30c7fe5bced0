"""Constants that were measured on one card: where they come from, and what another card gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.devices import FIRST, constant, has_constants, measured_cards

ROOT = Path(__file__).resolve().parents[2]
H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)


def test_each_constant_says_where_it_was_measured() -> None:
    for card in measured_cards().values():
        for name, found in card.constants.items():
            assert found.unit in ("FLOP/s", "byte/s", "s", "cycle", "byte/cycle") and found.value > 0 and found.what, (
                name
            )
            assert found.date.year >= 2026 and (ROOT / found.file).is_file(), name


def test_the_card_s_own_constants_are_taken_as_they_are() -> None:
    first = measured_cards()[FIRST]
    busy = replace(H200, ceilings=Ceilings(1e12, 1e12, 1e12, 1e12, 1e12, 0.001, "2026-11-29"))
    assert has_constants(H200)
    for name, found in first.constants.items():
        assert constant(H200, name) == constant(busy, name) == found.value


def test_another_card_scales_rates_by_its_own_ceilings() -> None:
    first = measured_cards()[FIRST]
    other = replace(H200, name="NVIDIA B200")
    assert not has_constants(other) and constant(other, "packing") == first.constants["packing"].value
    rates = Ceilings(2 * first.bytes_per_s, 1.0, 1.0, 1.0, 3 * first.flops_per_s, 0.001, "2026-11-29")
    known = replace(other, ceilings=rates)
    assert constant(known, "packing") == pytest.approx(2 * first.constants["packing"].value)
    assert constant(known, "packed_product") == pytest.approx(3 * first.constants["packed_product"].value)
    for name in ("packing_launch", "state_handover", "weight_reading"):
        assert constant(known, name) == first.constants[name].value
    with pytest.raises(KeyError):
        constant(known, "no such constant")
