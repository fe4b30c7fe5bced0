"""The states of reductions in CUDA's runtime header: each begins as its identity, wherever it stands, and keeps what it
has counted."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests.emulator.emulator import build_emulation, run_emulation

import foundry
from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.launches import Launch

HEADERS = sorted((Path(foundry.__file__).parent / "knowledge/compiler/cuda").rglob("*.cu*"))
# A member with an initialiser, in a class that is written over several lines.
INITIALISED = re.compile(r"^ {4}(?:T|S|int|unsigned|float|double|bool)\b[^()]* = ")
KERNEL = """
extern "C" __global__ void least(const float* x, float* y) {
    Extreme<float, false> state[2][2];
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) state[i][j].add(x[2 * i + j]), y[2 * i + j] = state[i][j].value;
}
"""

MEANS = """
extern "C" __global__ void means(const float* x, float* mean) {  // a row of partial states, each of 128 elements
    Moments<float> total;
    for (int e = 0; e < 300; ++e) {
        Moments<float> part;
        part.count = e == 7 ? 0.0f : 128.0f;
        part.mean = e == 7 ? 0.0f : x[threadIdx.x * 300 + e];
        if (threadIdx.x % 2) total.merge(part);
        else part.merge(total), total = part;
    }
    mean[threadIdx.x] = total.mean;
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


def test_a_mean_of_many_partial_states_loses_little_at_each_merge(tmp_path: Path) -> None:
    """What is normalised and averaged again is a difference of means, in which an error of each merge stays."""
    rows = 512
    parts = numpy.random.default_rng(0).normal(0.3, 0.01, (rows, 300)).astype(numpy.float32)
    found = means(parts, tmp_path)
    assert (found[0::2] != 0).all()
    truth = numpy.delete(parts.astype(numpy.float64), 7, axis=1).mean(axis=1)
    units = (found - truth) / numpy.spacing(truth.astype(numpy.float32))
    assert numpy.sqrt((units**2).mean()) < 5.0, "25 where means are multiplied by their counts"
    parts[3, 5] = numpy.inf
    parts[4, 0] = -numpy.inf
    parts[5, 299] = numpy.nan
    last = means(parts, tmp_path)
    assert last[3] == numpy.inf and last[4] == -numpy.inf and numpy.isnan(last[5])
    assert (numpy.delete(last, [3, 4, 5]) == numpy.delete(found, [3, 4, 5])).all()


def means(parts: numpy.ndarray[Any, Any], folder: Path) -> numpy.ndarray[Any, Any]:
    rows = len(parts)
    launch = Launch("means", (1, 1, 1), (rows, 1, 1), ("x", "mean"))
    library, names = build_emulation(runtime_header() + MEANS, [launch], folder)
    found = numpy.zeros(rows, dtype=numpy.float32)
    run_emulation(library, names, {"x": parts.ctypes.data, "mean": found.ctypes.data})
    return found
