"""The states of reductions in CUDA's runtime header: each begins as its identity, wherever it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import foundry
from foundry.knowledge.library.cuda.dialect import runtime_header

HEADERS = sorted((Path(foundry.__file__).parent / "knowledge/library/cuda").rglob("*.cu*"))
# A member with an initialiser, in a class that is written over several lines.
INITIALISED = re.compile(r"^ {4}(?:T|S|int|unsigned|float|double|bool)\b[^()]* = ")
KERNEL = """
extern "C" __global__ void least(const float* x, float* y) {
    Extreme<float, false> state[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) state[i][j].add(x[2 * i + j]), y[2 * i + j] = state[i][j].value;
}
"""


def classes_of(text: str) -> list[str]:
    return re.findall(r"^(?:template <[^>]*> )?struct \w+[^;{]*\{[^\n]*\n(.*?)^\};", text, re.M | re.S)


def test_no_state_has_members_with_initialisers() -> None:
    """nvcc 13.0 gives them to the first row of an array of arrays only; the others are zeros."""
    assert INITIALISED.match("    T value = 0, error = 0;") and INITIALISED.match("    T maximum = -(T)INF, sum = 0;")
    bodies = [(path.name, body) for path in HEADERS for body in classes_of(path.read_text())]
    assert len(bodies) > 10
    found = [
        f"{name}: {line.strip()}"
        for name, body in bodies
        for line in body.splitlines()
        if INITIALISED.match(line) and "static constexpr" not in line
    ]
    assert not found


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_the_compiler_begins_every_state_of_an_array_of_arrays_as_its_identity(tmp_path: Path) -> None:
    source = tmp_path / "least.cu"
    source.write_text(runtime_header() + KERNEL)
    command = ["nvcc", "-ptx", "-O3", "-arch=sm_90a", str(source), "-o", str(tmp_path / "least.ptx")]
    subprocess.run(command, check=True, capture_output=True)
    printed = (tmp_path / "least.ptx").read_text()
    entry = printed[printed.index(".entry least") :]
    assert entry.count("0f7F800000") >= 4 and "0f00000000" not in entry, "zero is no least of all numbers"
