"""A target: what turns candidate files into something that runs, and says what the device is."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from foundry.knowledge.candidate import Build
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.device import Ceilings, Device, TargetName
from foundry.tools.process.child import Limits
from foundry.tools.targets.evidence import Finding, KernelEvidence, Whole
from foundry.tools.task.plain_file import parse_python

ERROR_CHARS = 4_000
Started = subprocess.Popen[str]


class Target(Protocol):
    """`build` blocks (call it in a thread) and never raises for a bad candidate: its failure is in the Build."""

    @property
    def name(self) -> TargetName:
        """The target's name, as `--target` takes it."""

    def build(self, text: str) -> Build:
        """Compiles a candidate file; an earlier build of the same text is reused."""

    def describe(self) -> Device:
        """The device, read from the system. Raises MissingTool without a compiler."""

    def is_here(self) -> bool:
        """True if the compiler and a device of the target's own are here: `--target auto` takes it."""

    def unfit(self, printed: PrintedKernel) -> str:
        """The reason why the device cannot start a kernel, found before any compiler runs; "" if it can."""

    def cause(self, kernel: KernelEvidence, whole: Whole) -> Finding | None:
        """The cause that limits a kernel, and the evidence; None if no rule matches."""

    def cause_outside(self, kernels: Sequence[KernelEvidence], whole: Whole) -> Finding | None:
        """The cause outside the kernels that limits a forward, if it takes most of the time; else None."""

    @property
    def install_reader(self) -> str:
        """The command that installs the disassembler."""

    @property
    def benchmark(self) -> Path:
        """The file that measures the device's best rates; they are measured again when its text changes."""

    def start_measuring(self) -> Started | None:
        """Starts the measuring process before the device is held alone; None on targets where that takes no time."""

    def measure(self, started: Started | None) -> Ceilings:
        """The device's best rates; ends what was started. Raises FoundryError when the measurement fails."""


@dataclass(frozen=True)
class Literals:
    """The literals of a Foundry candidate file, read without running it."""

    about: dict[str, Any]  # FOUNDRY
    source: str  # SOURCE


def read_literals(text: str) -> Literals | None:
    """FOUNDRY and SOURCE of a candidate file; None when it has none (files that compile themselves at import).

    Raises SyntaxError for text that is not Python.
    """
    found: dict[str, Any] = {}
    for node in parse_python(text).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("FOUNDRY", "SOURCE"):
                try:
                    found[name] = ast.literal_eval(node.value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    return None
    about, source = found.get("FOUNDRY"), found.get("SOURCE")
    if not isinstance(about, dict) or not isinstance(source, str):
        return None
    flags = about.get("flags", [])
    if not isinstance(flags, list | tuple) or not all(isinstance(flag, str) and _is_flag(flag) for flag in flags):
        raise SyntaxError("FOUNDRY: flags is a list of compiler options", ("candidate.py", 1, 0, ""))
    return Literals(about, source)


def _is_flag(text: str) -> bool:
    """True for 1 to 4,095 printable characters."""
    return 0 < len(text) < 4096 and text.isprintable()


def first_error(log: str) -> str:
    """The first line of a compiler's log that says what is wrong, else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for mark in ("error:", "Error:", "undefined reference", "undefined symbol", "error"):
        for line in lines:
            if mark in line:
                return line[:300]
    return lines[0][:300] if lines else ""


def errors_of(log: str) -> str:
    """A compiler's log from its first error on, without what follows from it for pages."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and "ptxas info" not in line]
    first = next((number for number, line in enumerate(lines) if "error" in line.lower()), 0)
    return "\n".join(lines[max(0, first - 2) :])[:ERROR_CHARS]


def build_cache() -> Path:
    """The folder that keeps builds; the candidate's own loader looks in the same place."""
    return Path(os.environ.get("FOUNDRY_BUILD_CACHE") or Path.home() / ".cache" / "foundry" / "build")


def built_file(build: Build) -> Path:
    """The absolute path of a build's artifact on this machine."""
    return build_cache().absolute() / build.artifact


def compiler_environment(folder: str) -> dict[str, str]:
    """The whole environment of a compiler: the user's PATH, and `folder` as home and for temporary files."""
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {"PATH": path, "LC_ALL": "C", "TMPDIR": folder, "HOME": folder, "CCACHE_DISABLE": "1"}


def compiler_limits(compile_s: float, memory_bytes: int) -> Limits:
    """The limits of one compilation. `compile_s`: wall-clock seconds, and one CPU second more."""
    return Limits(
        wall_s=compile_s,
        memory_bytes=memory_bytes,
        cpu_s=int(compile_s) + 1,
        tasks=64,
        file_bytes=1 << 30,
        shared_bytes=memory_bytes,
        folder_bytes=2 << 30,
        folder_files=2_000,
    )
