"""NVIDIA's disassemblers, found and asked: a cubin's or a library's machine code, kept beside it once read."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sysconfig
import tempfile
from pathlib import Path

from foundry.tools.process.child import Limits, run_command
from foundry.tools.targets.base import compiler_environment
from foundry.tools.targets.cuda.describe import nvcc_path
from foundry.tools.targets.cuda.sass import read_disassembly

SECONDS = 30.0
INSTALL = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"


@functools.cache
def tool_path(name: str) -> Path | None:
    """A program of NVIDIA's toolkit: on the PATH, beside nvcc, or from pip packages; None where there is none."""
    found = shutil.which(name)
    if found:
        return Path(found)
    nvcc = nvcc_path()
    packages = Path(sysconfig.get_paths()["purelib"])
    places = [nvcc.parent / name, nvcc.resolve().parent / name] if nvcc else []
    places += [*sorted(packages.glob(f"nvidia/*/bin/{name}")), packages / "triton/backends/nvidia/bin" / name]
    places += sorted(Path("/usr/local").glob(f"cuda*/bin/{name}"))
    return next((path for path in places if path.is_file()), None)


def instructions(binary: Path) -> dict[str, dict[str, float]]:
    """Kernel name -> counts of its instructions by class, for a cubin or library; {} without a disassembler."""
    kept = binary.with_name(f"{binary.name}.sass.json")
    with contextlib.suppress(OSError, ValueError):
        known: dict[str, dict[str, float]] = json.loads(kept.read_text(encoding="utf-8"))
        return known
    text = disassembled(binary)
    if not text:
        return {}
    found = {name: code.facts() for name, code in read_disassembly(text).items()}
    with contextlib.suppress(OSError):
        partial = kept.with_name(f".{kept.name}.part")
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(kept)
    return found


def disassembled(binary: Path) -> str:
    """The disassembly, "" where no tool is here or it refuses. The file may be anybody's: the tool is confined."""
    with tempfile.TemporaryDirectory(prefix="sass-") as folder:
        copy = Path(folder) / binary.name
        shutil.copyfile(binary, copy)
        for name, option in (("cuobjdump", "-sass"), ("nvdisasm", "-c")):
            tool = tool_path(name)
            if tool is None:
                continue
            limits = Limits(wall_s=SECONDS, memory_bytes=2 << 30, cpu_s=int(SECONDS), tasks=16, file_bytes=1 << 20)
            environment = compiler_environment(folder)
            environment["PATH"] = f"{tool.parent}:{environment['PATH']}"  # cuobjdump calls nvdisasm
            argv = [str(tool), option, str(copy)]
            done = run_command(argv, limits, cwd=Path(folder), env=environment, confined_to=Path(folder))
            if done.returncode == 0 and not done.reason and "/*0000*/" in done.output:
                return done.output
    return ""
