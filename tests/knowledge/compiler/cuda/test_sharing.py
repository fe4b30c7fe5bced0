"""Kernels of a file that differ in names and sizes only are one text, and compute what each of them would have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.cuda.conv_cases import PACKED, conv
from tests.knowledge.compiler.cuda.emulated import check_emulated
from tests.knowledge.compiler.cuda.test_module import EXAMPLE_SCRIPT, H200, run

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.cuda.launches import Launch, decode, encode
from foundry.knowledge.compiler.cuda.sharing import share_texts
from foundry.knowledge.compiler.ir.kernels import MapKernel, PrintedKernel
from foundry.knowledge.compiler.lower import lower
from foundry.tools.task.capture import capture

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cat([torch.softmax(x[:, begin : begin + 8], 1) for begin in (0, 8, 20, 28)], 1)
"""
PACKED_HALF: dict[str, Any] = {"algorithm": PACKED, "precision": "half", "weights": "kept"}
KERNEL = """
extern "C" __global__ void __launch_bounds__(64) foundry_NAME(const float* __restrict__ b_NAME, float* __restrict__ y) {
    constexpr int WIDE = 16 * 2;
    float held[4 * 2];
LINE
}
"""


@pytest.mark.slow
def test_launches_of_one_text_know_their_own_sizes(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec(MODEL, namespace)
    model, x = namespace["Model"](), torch.randn(5, 40)
    text = lower([capture(model, (x,))], Recipe("cuda"), task_source=MODEL, device=H200).source
    # the first reads at no offset
    names = re.findall(r"\('(foundry_\w+)', \(\d", text)
    assert len(names) == 4 and len(set(names)) == text.count('extern "C" __global__') == 2, (
        "nothing is added to the first"
    )
    saved = {"arguments": [], "state": {}, "inputs": [x], "truth": model(x.double()), "after": {}}
    torch.save(saved, tmp_path / "saved.pt")
    answer = run(forks, text, EXAMPLE_SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert isinstance(answer["error"], float) and answer["error"] < 1e-6


@pytest.mark.parametrize(
    ("line", "is_argument"),
    [
        ("    y[0] = b_NAME[row * SIZE + at + 7];", True),
        ("    y[0] = b_NAME[row * 9 + at + SIZE];", True),
        ("    if (row >= SIZE) return;", True),
        ("    const long long at = (long long)row * SIZELL;", True),
        ("    const int first_step = 0, end_step = SIZE;", True),
        ("    const int at = row / SIZE;", False),  # divided by a number is multiplied by another
        ("    const int at = row * SIZE / 4;", False),
        ("    const int tile = row % (2 * SIZE);", False),
        ("    for (int i = 0; i < SIZE; ++i) y[i] = 0;", False),  # unrolled or not
        ("    float more[4 * SIZE];", False),
        ("    Vec<float, 2 * SIZE> more;", False),
        ("    y[0] *= SIZE.5f;", False),
    ],
)
def test_what_costs_time_stays_a_number(line: str, is_argument: bool) -> None:
    printed = [kernel(name, line.replace("SIZE", size)) for name, size in (("a", "12"), ("b", "345"), ("c", "12"))]
    steps = [MapKernel(name, (1,), ()) for name in "abc"]
    first, second, third = share_texts(steps, printed)
    assert first and second and third and first.functions == third.functions
    assert (first.functions == second.functions) == is_argument
    launches = [decode(item.call)[0] for item in (first, second, third)]
    assert [launch.args for launch in launches] == [
        ("x", "y", *more) for more in ((12,), (345,), (12,))
    ] or not is_argument
    if is_argument:
        assert {launch.kernel for launch in launches} == {"foundry_a"}
        kind = "long long" if "LL" in line else "int"
        assert f"float* __restrict__ y, {kind} given_0) {{" in first.functions and "12" not in first.functions
    else:
        assert launches[1].args == ("x", "y") and launches[1].kernel == "foundry_b"


def test_sizes_that_go_together_are_one_argument() -> None:
    lines = "    y[at + {0}] = b_NAME[at + {0}];\n    y[at * {1}] = b_NAME[at * 8];"
    printed = [kernel(name, lines.format(*sizes)) for name, sizes in (("a", (5, 8)), ("b", (6, 8)), ("c", (6, 9)))]
    found = share_texts([MapKernel(name, (1,), ()) for name in "abc"], printed)
    assert [decode(item.call)[0].args[2:] for item in found if item] == [(5, 8), (6, 8), (6, 9)]
    assert all(item and "y[at + given_0] = b_a[at + given_0]" in item.functions for item in found)
    assert all(item and "y[at * given_1] = b_a[at * 8]" in item.functions for item in found)


def test_tables_that_differ_stand_in_one_array() -> None:
    text = "__device__ const int foundry_NAME_reads[2] = {ROW};\n" + KERNEL
    rows = {"a": "1, 2", "b": "3, 4, 5", "c": "1, 2"}
    printed = [
        kernel(name, "    y[0] = foundry_NAME_reads[at];", text.replace("ROW", row)) for name, row in rows.items()
    ]
    found = share_texts([MapKernel(name, (1,), ()) for name in rows], printed)
    assert [decode(item.call)[0].args[2:] for item in found if item] == [(0,), (2,), (0,)]
    assert len({item.functions for item in found if item}) == 1 and found[0]
    assert "foundry_a_reads[5] = {1, 2, 3, 4, 5};" in found[0].functions
    assert "y[0] = foundry_a_reads[given_0 + at];" in found[0].functions


def test_a_table_that_another_function_reads_is_its_own() -> None:
    text = "__device__ const int foundry_NAME_reads[1] = {ROW};\nDEVICE int f() { return foundry_NAME_reads[0]; }\n"
    printed = [kernel(name, "", text.replace("ROW", row) + KERNEL) for name, row in (("a", "1"), ("b", "2"))]
    first, second = share_texts([MapKernel(name, (1,), ()) for name in "ab"], printed)
    assert first and second and first.functions != second.functions


def test_convolutions_of_other_channels_are_one_text_and_right(tmp_path: Path) -> None:
    """Pieces of the input, steps of a window and weights in shared memory differ; so do the tables of what is read."""
    torch.manual_seed(7)
    cases = {
        f"of{planes}": conv(1, planes, 16, (6, 7), (3, 2), padding=1, **PACKED_HALF) for planes in (72, 88, 96, 104)
    }
    # 104 channels are 13 pieces as 72 are 9 and 88 are 11, each packed alone; 96 are 12, packed by four.
    assert check_emulated(cases, tmp_path, shares=True) == 2


def kernel(name: str, line: str, text: str = KERNEL) -> PrintedKernel:
    call = encode([Launch(f"foundry_{name}", (1, 1, 1), (64, 1, 1), ("x", "y"))])
    functions = text.replace("LINE", line).replace("NAME", name)
    return PrintedKernel(functions, call, "map", {}, ())
