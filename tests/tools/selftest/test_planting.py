"""Planted faults: they compute something else than the correct program, in every family that the kernel has room
for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.tools.selftest.conftest import written

from foundry.knowledge.device import Device
from foundry.knowledge.errors import UsageError
from foundry.tools.selftest.faults import on_graph, on_kernels
from foundry.tools.selftest.faults.any_source import faults as source_faults
from foundry.tools.selftest.faults.fault import FAMILIES, Mutant
from foundry.tools.selftest.faults.native_text import native_texts
from foundry.tools.selftest.faults.original import Original, original_of
from foundry.tools.selftest.planting import library_mutants, source_mutants
from foundry.tools.task.capture import capture
from foundry.tools.task.loading import load

FOREIGN = '''import ctypes, torch
cpp_source = """
#include <cmath>
// for (int i = 0; i < n; ++i) in a comment is no loop
extern "C" void scale(const float* x, float* y, long n) {
  if (n < 1) return;
  for (long i = 0; i < n; ++i) {
    float sum = 0;
    sum += std::exp(x[i]) * 0.5f;
    y[i] = sum / x[i];
  }
}
"""
'''


def of(mutants: list[Mutant], family: str) -> list[Mutant]:
    return [mutant for mutant in mutants if mutant.fault.family == family]


def test_every_mutant_is_another_program_and_says_what_was_planted(original: Original) -> None:
    mutants = library_mutants(original, 1000, 0)
    texts = [mutant.text for mutant in mutants]
    assert len(mutants) > 60 and len(set(texts)) == len(texts) and original.text not in texts
    for mutant in mutants:
        ast.parse(mutant.text)
        assert mutant.fault.family in FAMILIES and mutant.fault.what and mutant.fault.where
    normalised = {"missing stabilisation"}  # softmax of normalised values cannot overflow
    assert {mutant.fault.family for mutant in mutants} == set(FAMILIES) - normalised


def test_what_is_selected_wrongly(tmp_path: Path, device: Device) -> None:
    source = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
    source += "        return x.topk(20).values\n\n\ndef get_inputs():\n    return [torch.randn(3, 1100)]\n"
    task = written(tmp_path, source)
    loaded = load(task)
    known = original_of(task, [capture(loaded.build_model(0), loaded.inputs(0), overrides={})], device)
    found = {item.fault.what for item in on_kernels.faults(known)}
    assert {"the smallest elements are taken", "the last of a row's 1100 elements is left out"} <= found


def test_families_take_turns_and_the_seed_decides_within_one(original: Original) -> None:
    few = library_mutants(original, 12, 0)
    assert len(few) == 12 and len({mutant.fault.family for mutant in few}) == 12
    assert few == library_mutants(original, 12, 0) != library_mutants(original, 12, 1)


def test_a_dropped_operator_is_dropped_wherever_the_kernel_needs_it(original: Original) -> None:
    (dropped,) = [item for item in on_graph.faults(original) if item.fault.what.startswith("relu is left out")]
    text = dropped.make()
    assert "math::relu(" in kernels_of(original.text) and "math::relu(" not in kernels_of(text)


def test_a_maximum_that_only_stabilises_is_left_alone(original: Original) -> None:
    """Softmax does not depend on it: rounding it or leaving elements out would be no fault."""
    for mutant in library_mutants(original, 1000, 0):
        assert not re.search(r"softmax_max is rounded", mutant.fault.what), mutant.fault
        assert not re.search(r", max softmax_max", mutant.fault.where), mutant.fault


def test_lower_precision_is_planted_in_operands_sums_and_parameters(original: Original) -> None:
    what = " ".join(mutant.fault.what for mutant in of(library_mutants(original, 1000, 0), "lower precision"))
    for name in ("x is rounded to bfloat16", "p_linear_weight is rounded to half", "acc is rounded", "sum is rounded"):
        assert name in what


def test_the_epsilon_and_the_count_of_a_normalisation_have_faults(original: Original) -> None:
    what = [mutant.fault.what for mutant in library_mutants(original, 1000, 0)]
    assert "the epsilon 1e-05 is left out" in what and "div with 69 instead of 70" in what
    assert any("p_norm_weight is left out" in item for item in what)


def test_foreign_sources_get_faults_where_code_is_and_none_in_comments() -> None:
    mutants = source_mutants(FOREIGN, 100, 0)
    families = {mutant.fault.family for mutant in mutants}
    assert {"missing last element", "off by one", "wrong reduction", "wrong constant", "lower precision"} <= families
    assert "missing bounds check" not in families  # `if (n < 1) return;` guards nothing that an index reaches
    comment = "// for (int i = 0; i < n; ++i) in a comment"
    assert all(comment in mutant.text for mutant in mutants)
    rounded = of(mutants, "lower precision")[0].text
    source = native_texts(rounded)[0].source
    assert source.index("#include <cmath>") < source.index("foundry_rounded(FoundryT value)") < source.index("extern")


def test_a_file_of_the_library_has_faults_in_its_kernels_only(original: Original) -> None:
    (native,) = native_texts(original.text)
    first = native.line(native.begin)
    runtime = {rule_line(proposal.fault.where) < first for proposal in source_faults(original.text)}
    assert native.begin > 0 and False in runtime
    general = [
        item for item in source_faults(original.text) if item.fault.what.startswith("a loop ends one step early")
    ]
    assert general and all(rule_line(item.fault.where) >= first for item in general)


def test_what_is_no_python_or_has_no_native_source_is_said() -> None:
    with pytest.raises(UsageError, match="not a Python file"):
        source_mutants("def (", 5, 0)
    assert source_mutants("import torch\n", 5, 0) == []


def rule_line(where: str) -> int:
    found = re.match(r"line (\d+)", where)
    assert found
    return int(found[1])


def kernels_of(text: str) -> str:
    (native,) = native_texts(text)
    return native.source[native.begin :]
