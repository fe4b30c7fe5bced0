"""compute-sanitizer on a kernel that is about to be called a winner: reads and writes outside of memory, and races in
shared memory, which no comparison of outputs has to show.

The tool starts the program itself and speaks with it over a socket, so both are confined together, by what this machine
allows. Where the tool does not work so confined, its check is not decided and says so. Only text that was found
correct, and that the audit found clean, is given to it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from foundry.knowledge import codec
from foundry.knowledge.candidate import Audit, Gate
from foundry.knowledge.device import TargetName
from foundry.knowledge.task import Task
from foundry.tools.grade.folders import prepare_folders
from foundry.tools.process.channel import close_all
from foundry.tools.process.child import Finished, Limits, run_command
from foundry.tools.process.sandbox import confine_tool
from foundry.tools.process.zygote import ALLOWED
from foundry.tools.targets.disassembly import tool_path

CHECKS = ("memcheck", "racecheck")
SECONDS = 90.0  # of each
_SUMMARY = re.compile(r"^=+ (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", re.M)
_FINDING = re.compile(
    r"^=+ ((?:Invalid|Misaligned|Error: |Warning: Race|Program hit|Out-of-range|Stack|Malloc).*)$", re.M
)
_OF_TOOL = re.compile(
    r"^=+ (?:Error: )?((?:Device not supported|Target application terminated|No attachable).*)$", re.M
)


def sanitize(
    task: Task, text: str, target: TargetName, *, means: Collection[str] = (), at_once: bool = False
) -> list[Gate]:
    """A gate for each check; one that could not be made passes and says why. Nothing where there is no GPU's code. With
    `at_once` the checks run beside each other: most of their time goes into starting Python and the tool."""
    tool = tool_path("compute-sanitizer")
    if target != "cuda":
        return []
    if tool is None:
        return [Gate("compute-sanitizer", True, "not asked: the tool is not installed here")]

    def gate(check: str) -> Gate:
        argv = [str(tool), "--tool", check, "--print-limit", "5"]
        return read_check(check, under_tool(argv, task, text, target, SECONDS, means))

    with ThreadPoolExecutor(len(CHECKS) if at_once else 1) as pool:
        return list(pool.map(gate, CHECKS))


def with_gates(audit: Audit, gates: Sequence[Gate]) -> Audit:
    """The audit with more gates; a failed one vetoes like any other."""
    return replace(audit, clean=audit.clean and all(gate.passed for gate in gates), gates=(*audit.gates, *gates))


def under_tool(
    tool: Sequence[str], task: Task, text: str, target: TargetName, seconds: float, means: Collection[str]
) -> Finished:
    """Runs a tool around the replay of a kernel file, confined by `means`. A tool that does not work under them is
    never run without: whether it worked is known from its output alone, and the candidate writes there too."""
    with tempfile.TemporaryDirectory(prefix="foundry-replay-") as name:
        folder = Path(name)
        (folder / "task.json").write_text(codec.encode(task), encoding="utf-8")
        (folder / "kernel.py").write_text(text, encoding="utf-8")
        (folder / "device.txt").write_text(target)
        own = prepare_folders(text, folder)
        environment = {key: value for key, value in os.environ.items() if key in ALLOWED} | own.environment
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # each tensor a block of its own: what lies beyond shows
        argv = confine_tool([*tool, sys.executable, "-m", "foundry.tools.grade.replay", name], own.sandbox, means)
        limits = Limits(wall_s=seconds, memory_bytes=64 << 30, cpu_s=3600, folder_bytes=2 << 30)
        try:
            return run_command(argv, limits, cwd=folder, env=environment)
        finally:
            close_all(own.locks)


def has_looked(output: str) -> bool:
    """Whether compute-sanitizer has watched a program to its end, or found something in it."""
    return _SUMMARY.search(output) is not None and ("replayed" in output or _FINDING.search(output) is not None)


def read_check(check: str, done: Finished) -> Gate:
    """What the tool found, as a gate."""
    if done.reason:
        return Gate(check, True, f"not decided: under compute-sanitizer it {done.reason}")
    summary = _SUMMARY.search(done.output)
    if summary is None or not has_looked(done.output):
        why = _OF_TOOL.search(done.output) or re.search(r"^\S.*$", done.output, re.M)
        words = why[why.lastindex or 0] if why else "it said nothing"
        return Gate(check, True, f"not decided: compute-sanitizer could not run it ({words[:160]})")
    count = int(summary[1] or summary[2])
    if not count:
        return Gate(check, True, "compute-sanitizer found nothing")
    first = _FINDING.search(done.output)
    return Gate(check, False, f"compute-sanitizer found {count}: {first[1].strip()[:200] if first else 'see its log'}")
