"""Kernels that begin before what they read is written, told from those that wait."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from foundry.knowledge.reasons import ReasonKind
from foundry.tools.audit import symbol_gates
from foundry.tools.audit.binary.dependence import DEPENDENCE, never_waits
from foundry.tools.targets.cuda.disassembly import tool_path

ANNOUNCES = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
WAITS = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
KERNEL = (
    'extern "C" __global__ void twice(const float* x, float* y) { @FIRST@ y[threadIdx.x] = 2 * x[threadIdx.x]; @LAST@ }'
)
LINES = """
		Function : twice
        /*0080*/                   STG.E desc[UR4][R4.64], R7 ;      /* 0x0000000704007986 */
        /*0090*/              @!P0 PREEXIT ;                         /* 0x000000000000782d */
        /*00a0*/                   EXIT ;                            /* 0x000000000000794d */
"""


def test_who_announces_has_to_wait_somewhere() -> None:
    assert never_waits(LINES)
    assert not never_waits(LINES.replace("PREEXIT", "NOP"))
    assert not never_waits(LINES + "        /*0040*/                   ACQBULK ;    /* 0x000000000000782e */\n")


@pytest.mark.skipif(
    shutil.which("nvcc") is None or tool_path("cuobjdump") is None, reason="nvcc and cuobjdump are not installed"
)
@pytest.mark.parametrize("kind", ["-cubin", "-shared"])
@pytest.mark.parametrize(
    ("first", "last", "races"), [("", ANNOUNCES, True), (WAITS, ANNOUNCES, False), ("", "", False)]
)
def test_in_what_nvcc_builds(tmp_path: Path, kind: str, first: str, last: str, races: bool) -> None:
    source = KERNEL.replace("@FIRST@", first).replace("@LAST@", last)
    built = tmp_path / "kernel.bin"
    extra = ["-Xcompiler", "-fPIC"] if kind == "-shared" else []
    command = ["nvcc", "-arch=sm_90", kind, *extra, "-x", "cu", "-", "-o", str(built)]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    gate = next(gate for gate in symbol_gates(built) if gate.gate == DEPENDENCE)
    assert gate.passed is not races
    assert {reason.kind for reason in gate.reasons} == ({ReasonKind.RACES} if races else set())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.skipif(tool_path("cuobjdump") is not None, reason="there is a disassembler here")
def test_code_that_nobody_can_read_is_not_called_clean(tmp_path: Path) -> None:
    built = tmp_path / "kernel.bin"
    source = KERNEL.replace("@FIRST@", "").replace("@LAST@", ANNOUNCES)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-x", "cu", "-", "-o", str(built)]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    gate = next(gate for gate in symbol_gates(built) if gate.gate == DEPENDENCE)
    assert gate.passed and "not looked at" in gate.evidence
