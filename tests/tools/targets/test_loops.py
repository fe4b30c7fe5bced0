"""Which loop of a function is the hot one, and what in it no turn passes by."""

from __future__ import annotations

import pytest

from foundry.knowledge.candidate import Resources
from foundry.tools.targets.cpu.build import CpuTarget
from foundry.tools.targets.cpu.rules import cpu_cause
from foundry.tools.targets.evidence import KernelEvidence, Whole
from foundry.tools.targets.loops import find_loops

HEAD = "#include <cmath>\n#include <cstdint>\n"
RARE = """extern "C" void k_scale(const float* x, float* out, long n) {
  for (long i = 0; i < n; ++i) {
    if (__builtin_expect(std::isinf(x[i]), 0)) out[i] = expf(x[i]);
    else out[i] = x[i] * 2.0f;
  }
}
"""
ALWAYS = RARE.replace("if (__builtin_expect(std::isinf(x[i]), 0)) out[i] = expf(x[i]);\n    else ", "").replace(
    "x[i] * 2.0f", "expf(x[i])"
)
NESTED = """extern "C" void k_sums(const float* x, float* out, long rows, long columns) {
  for (long r = 0; r < rows; ++r) out[r] = x[r] / (out[r] + 3.0f);
  for (long r = 0; r < rows; ++r) {
    float total = 0;
    for (long c = 0; c < columns; ++c) total = std::fma(x[r * columns + c], x[c], total);
    out[r] += total;
  }
}
"""
PACKED = """extern "C" void k_unpack(const uint8_t* packed, const float* x, float* out, long rows) {
  for (long r = 0; r < rows; ++r) {
    float total = 0;
    for (long c = 0; c < 64; ++c) {
      const uint8_t both = packed[r * 64 + c];
      total += (float)((int)(both & 15) - 8) * x[2 * c] + (float)((int)(both >> 4) - 8) * x[2 * c + 1];
    }
    out[r] = total;
  }
}
"""


def facts_of(code: str, flags: str = "-O3") -> tuple[dict[str, float], Resources]:
    about = {"target": "cpu", "compiler": "g++", "flags": [flags, "-mavx2", "-mfma", "-shared", "-fPIC", "-ffast-math"]}
    built = CpuTarget().build(f'FOUNDRY = {about!r}\nSOURCE = r"""{HEAD}{code}"""\n')
    assert built.ok, built.first_error
    (facts,) = [facts for name, facts in built.resources.instructions.items() if name.startswith("k_")]
    return facts, built.resources


def cause_of(facts: dict[str, float]) -> str:
    found = cpu_cause(KernelEvidence("k", facts), Whole())
    return found[0] if found else ""


def test_a_branch_that_is_never_taken_limits_nothing() -> None:
    """`profile` said that loops call the mathematical library for an exponential behind a test for infinities."""
    rare, _ = facts_of(RARE.replace("std::isinf(x[i])", "x[i] > 1e30f"), "-O2")
    always, _ = facts_of(ALWAYS, "-O2")
    assert rare["hot_maths_call"] == 1 and rare["maths_every_turn"] == 0
    assert cause_of({**rare, "scalar_loop": 0.0}) != "special_functions"
    assert always["maths_every_turn"] >= 1 and cause_of({**always, "scalar_loop": 0.0}) == "special_functions"


def test_the_hot_loop_is_told_by_itself() -> None:
    """All loops of a function were added up: the division of the loop before looked like a part of the hot one."""
    facts, _ = facts_of(NESTED)
    assert facts["hot_division"] >= 1 and not facts.get("inner_division")
    computing = facts.get("inner_fma", 0.0) + facts.get("inner_scalar_float", 0.0)
    assert computing >= 1 and facts["loops"] >= 3


def test_unpacking_is_integer_work_beside_few_products() -> None:
    facts, _ = facts_of(PACKED)
    integer = facts.get("inner_integer", 0.0) + facts.get("inner_convert", 0.0)
    assert integer >= 4 and cause_of({**facts, "scalar_loop": 0.0}) == "decoding"


@pytest.mark.parametrize(
    ("jumps", "wanted"),
    [
        ({8: 2}, [(2, 8, 0)]),
        ({5: 3, 8: 2}, [(2, 8, 0), (3, 5, 1)]),
        ({6: 2, 9: 4}, [(2, 9, 0)]),  # a rare block behind the loop jumps back into it
        ({3: 1, 8: 6}, [(1, 3, 0), (6, 8, 0)]),
        ({4: 2, 8: 2}, [(2, 8, 0)]),
    ],
)
def test_overlapping_loops_are_one(jumps: dict[int, int], wanted: list[tuple[int, int, int]]) -> None:
    class Step:
        falls_through = True

        def __init__(self, address: int) -> None:
            self.address, self.jumps_to = address, jumps.get(address)

    found = find_loops([Step(address) for address in range(10)])
    assert [(loop.begin, loop.end, loop.depth) for loop in found] == wanted
