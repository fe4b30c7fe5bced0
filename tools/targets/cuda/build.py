"""The CUDA target: nvcc to a cubin in a child that can be killed, builds kept by content, resources from ptxas, the
instructions from the disassembly.

A cubin is all a candidate needs: it is launched through the driver, so no host code is compiled. Without a GPU the
same build still tells registers, spills, shared memory, theoretical occupancy and what the machine code does.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundry.knowledge.candidate import Build, Resources
from foundry.knowledge.compiler.file.assemble import build_key
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.device import Ceilings, Device, TargetName
from foundry.knowledge.errors import MissingTool
from foundry.tools.machine.device import version_line
from foundry.tools.process.child import run_command
from foundry.tools.targets.base import (
    Literals,
    Started,
    build_cache,
    compiler_environment,
    compiler_limits,
    errors_of,
    first_error,
    read_literals,
)
from foundry.tools.targets.cuda.ceilings import BENCHMARK, measure_cuda, start_cuda
from foundry.tools.targets.cuda.describe import INSTALL_NVCC, describe_cuda, has_gpu, nvcc_path
from foundry.tools.targets.cuda.disassembly import INSTALL, instructions
from foundry.tools.targets.cuda.occupancy import occupancy
from foundry.tools.targets.cuda.rules import gpu_cause, idle_cause
from foundry.tools.targets.cuda.unfit import unfit
from foundry.tools.targets.evidence import Finding, KernelEvidence, Whole

_LOG_BYTES = 256 * 1024
_FORBIDDEN_FLAGS = ("-run", "--run", "-ccbin", "--compiler-bindir", "-Xcompiler", "--options-file", "-optf")


@dataclass(frozen=True)
class CudaTarget:
    """Builds CUDA candidates for `device` (the machine's, or sm_90 where there is none)."""

    device: Device | None = None
    compile_s: float = 120.0
    memory_bytes: int = 6 << 30
    disassembles: bool = True  # what the machine code does is part of the resources; reading it takes a process

    @property
    def name(self) -> TargetName:
        """ "cuda"."""
        return "cuda"

    def describe(self) -> Device:
        """The given device, else this machine's GPU."""
        return self.device or describe_cuda()

    def is_here(self) -> bool:
        """True if this machine has a GPU."""
        return has_gpu()

    def unfit(self, printed: PrintedKernel) -> str:
        """Reason why the kernel cannot run on the device; "" if it can."""
        return unfit(printed, self.describe())

    def cause(self, kernel: KernelEvidence, whole: Whole) -> Finding | None:
        """The cause that limits a kernel; None if no rule applies."""
        return gpu_cause(kernel, whole)

    def cause_outside(self, kernels: Sequence[KernelEvidence], whole: Whole) -> Finding | None:
        """The cause of the time in which the GPU runs no kernel; None if there is none."""
        return idle_cause(kernels, whole)

    @property
    def install_reader(self) -> str:
        """Command that installs the disassembler."""
        return INSTALL

    @property
    def benchmark(self) -> Path:
        """Source file of the benchmark that measures the ceilings."""
        return BENCHMARK

    def start_measuring(self) -> Started:
        """Starts the process that measures the GPU's ceilings; it waits to be told."""
        return start_cuda()

    def measure(self, started: Started | None) -> Ceilings:
        """Measures the ceilings with the started process, or with a new one."""
        return measure_cuda(started or start_cuda())

    def build(self, text: str) -> Build:
        """Compiles a candidate file's SOURCE to a cubin unless the cache has it. Raises MissingTool without nvcc."""
        start = time.monotonic()
        try:
            literals = read_literals(text)
        except SyntaxError as error:
            return Build(ok=False, seconds=0.0, first_error=f"line {error.lineno}: {error.msg}")
        if literals is None:
            return Build(ok=True, seconds=0.0)
        problem = _refusal(literals)
        if problem:
            return Build(ok=False, seconds=0.0, first_error=problem)
        nvcc = nvcc_path()
        if nvcc is None:
            raise MissingTool("no CUDA compiler: the cuda target needs nvcc", INSTALL_NVCC)
        arch = self.describe().arch
        if literals.about.get("arch") == f"{arch}a":  # it uses instructions of this one architecture
            arch += "a"
        flags = [str(flag) for flag in literals.about["flags"]]
        cubin = build_cache() / f"{build_key(literals.source, flags, version_line(str(nvcc), '--version'), arch)}.cubin"
        log = cubin.with_suffix(".log")
        if cubin.exists() and log.exists():
            resources = resources_of(log.read_text(encoding="utf-8"), literals.about, arch, self._code(cubin))
            return Build(True, time.monotonic() - start, True, cubin.name, resources=resources)
        cubin.parent.mkdir(parents=True, exist_ok=True)
        return self._compile(literals, [str(nvcc), *flags, f"-arch={arch}"], cubin, arch, start)

    def _compile(self, literals: Literals, command: list[str], cubin: Path, arch: str, start: float) -> Build:
        """Runs nvcc in a confined child; keeps cubin, log, and a copy whose name lacks the compiler's version.

        A failure is a Build with its errors.
        """
        limits = compiler_limits(self.compile_s, self.memory_bytes)
        log = cubin.with_suffix(".log")
        with tempfile.TemporaryDirectory(prefix="build-", dir=cubin.parent) as folder:
            source, partial = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
            source.write_text(literals.source, encoding="utf-8")
            argv, place = [*command, str(source), "-o", str(partial)], Path(folder)
            finished = run_command(argv, limits, cwd=place, env=compiler_environment(folder), confined_to=place)
            output = finished.output.replace(f"{folder}/", "")[:_LOG_BYTES]
            log.write_text(output, encoding="utf-8")
            ok = finished.returncode == 0 and not finished.reason and partial.exists()
            if ok:
                # A machine without nvcc cannot know the compiler's version: the same build under a name without it.
                flags = [str(flag) for flag in literals.about["flags"]]
                plain = cubin.with_name(f"{build_key(literals.source, flags, 'any', arch)}.cubin")
                shutil.copyfile(partial, Path(folder) / "plain.cubin")
                (Path(folder) / "plain.cubin").replace(plain)
                partial.replace(cubin)
        seconds = time.monotonic() - start
        if not ok:
            said = first_error(output) or f"nvcc exited with {finished.returncode}"
            problem = f"the compiler was stopped: {finished.reason}" if finished.reason else said
            return Build(False, seconds, first_error=problem, errors=errors_of(output))
        resources = resources_of(output, literals.about, arch, self._code(cubin))
        return Build(True, seconds, False, cubin.name, resources=resources)

    def _code(self, cubin: Path) -> dict[str, dict[str, float]]:
        """Counts of instructions by class for each kernel of a cubin; {} without a disassembler."""
        return instructions(cubin) if self.disassembles else {}


def _refusal(literals: Literals) -> str:
    """Why a candidate file is not built here, "" when it is."""
    about = literals.about
    if about.get("target") != "cuda":
        return f"a candidate for target {about.get('target')!r} cannot build for cuda"
    if about.get("compiler") != "nvcc":
        return f"compiler {about.get('compiler')!r} is not nvcc"
    if not isinstance(about.get("flags"), list) or "-cubin" not in about["flags"]:
        return "FOUNDRY['flags'] must contain -cubin"
    bad = next((str(flag) for flag in about["flags"] if str(flag).split("=")[0] in _FORBIDDEN_FLAGS), "")
    return f"the flag {bad} is not allowed" if bad else ""


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_ptxas(log: str) -> dict[str, dict[str, float]]:
    """Registers, spilled bytes and static shared memory of each kernel in `ptxas -v`'s output."""
    kernels: dict[str, dict[str, float]] = {}
    name = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name = match[1]
            kernels[name] = {"registers": 0, "spill_bytes": 0, "shared_bytes": 0}
        elif name and (match := _SPILL.search(line)):
            kernels[name]["spill_bytes"] = int(match[1]) + int(match[2])
        elif name and (match := _USED.search(line)):
            shared = _SHARED.search(match[2])
            kernels[name]["registers"] = int(match[1])
            kernels[name]["shared_bytes"] = int(shared[1]) if shared else 0
    return kernels


def resources_of(
    log: str, about: Mapping[str, Any], arch: str, code: Mapping[str, dict[str, float]] | None = None
) -> Resources:
    """Resources of a build from its log, the launch sizes in FOUNDRY["launches"] and what its machine code does;
    occupancy is the lowest of the kernels' whose block size is known."""
    kernels = parse_ptxas(log)
    launches = about.get("launches")
    for name, facts in kernels.items():
        launch = launches.get(name) if isinstance(launches, dict) else None
        if not isinstance(launch, dict):
            continue
        facts["threads"] = math.prod(launch["block"])
        facts["blocks"] = math.prod(launch["grid"])
        facts["shared_bytes"] += launch["shared_bytes"]
        found = occupancy(arch, int(facts["registers"]), int(facts["shared_bytes"]), int(facts["threads"]))
        facts["occupancy"] = found.fraction
    known = [facts["occupancy"] for facts in kernels.values() if "occupancy" in facts]
    return Resources(
        registers=int(max((facts["registers"] for facts in kernels.values()), default=0)),
        spill_bytes=int(sum(facts["spill_bytes"] for facts in kernels.values())),
        shared_bytes=int(max((facts["shared_bytes"] for facts in kernels.values()), default=0)),
        occupancy=min(known, default=None),
        vector_bytes=16,
        kernels=kernels,
        instructions={name: dict(facts) for name, facts in (code or {}).items() if name in kernels},
    )


def resource_lines(resources: Resources, arch: str) -> list[str]:
    """One line a kernel, as a person reads it: what it uses and what limits how many of its blocks are resident."""
    lines = []
    for name, facts in resources.kernels.items():
        registers, shared = int(facts["registers"]), int(facts["shared_bytes"])
        spills = f"{int(facts['spill_bytes'])} bytes spilled" if facts["spill_bytes"] else "no spills"
        line = f"{name}: {registers} registers, {spills}, {shared} bytes shared"
        if "threads" in facts:
            threads = int(facts["threads"])
            found = occupancy(arch, registers, shared, threads)
            share = f"occupancy {100 * found.fraction:.0f} % (limited by {found.limiter})"
            line += f", {int(facts['blocks'])} blocks of {threads} threads, {share}"
        lines.append(line)
    return lines
