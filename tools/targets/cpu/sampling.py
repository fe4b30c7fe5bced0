"""Samples the CPU time of a process by function, from outside.

The system's perf asks a thousand times a second which function each thread is in. The process need not cooperate.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from foundry.tools.machine.installed import is_installed
from foundry.tools.targets.cpu.build import read_library
from foundry.tools.targets.cpu.rules import WAITING

RATE_HZ = 997  # not a multiple of common timer rates
START_S = 10.0
END_S = 20.0
MOST_LIBRARIES = 8  # libraries of the candidate whose machine code is read
UNKNOWN = "[unknown]"  # perf's name for an address without a symbol
REMEDY = "apt-get install linux-perf, and sudo sysctl kernel.perf_event_paranoid=2"
_LINE = re.compile(r"^\s*[0-9a-f]+\s+(.+?)(?:\+0x[0-9a-f]+)?\s+\((.*)\)\s*$")


class Samples:
    """Number of samples for each (function, library), and the loop instructions of functions in the candidate's
    libraries.

    `problem` says why nothing was sampled.
    """

    def __init__(self) -> None:
        """Empty counts."""
        self.counts: Counter[tuple[str, str]] = Counter()
        self.instructions: dict[str, dict[str, float]] = {}
        self.problem = ""


@contextlib.contextmanager
def sampled(pid: int, into: Samples) -> Iterator[None]:
    """Samples a process with perf while the `with` body runs; fills `into` with counts, or with the problem."""
    tool = shutil.which("perf")
    if tool is None:
        into.problem = f"times of single functions need perf: {REMEDY}"
        yield
        return
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        data = str(Path(folder) / "data")
        argv = [tool, "record", "-q", "-e", "cpu-clock:u", "-F", str(RATE_HZ), "-p", str(pid), "-o", data]
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as child:
            try:
                yield
            finally:
                child.send_signal(signal.SIGINT)
                said = child.communicate(timeout=END_S)[0].decode(errors="replace")
        listed = subprocess.run(
            [tool, "script", "-i", data, "-F", "ip,sym,dso"], capture_output=True, text=True, timeout=END_S
        )
        into.counts = read_samples(listed.stdout)
        into.instructions = _instructions({place for _, place in into.counts})
        if not into.counts:
            first = next((line.strip() for line in said.splitlines() if line.strip()), "it saw nothing")
            into.problem = f"perf cannot look at another process ({first[:160]}): {REMEDY}"


def read_samples(text: str) -> Counter[tuple[str, str]]:
    """Counts (innermost function, path of its library) over the samples in the output of `perf script`."""
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        if match := _LINE.match(line):
            found[match[1], match[2]] += 1
    return found


def by_function(counts: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """Share of the samples by function.

    OpenMP's functions keep their name; those of the system and of installed packages are merged by library. All
    others were built by the candidate and have their name in the source text.
    """
    whole = sum(counts.values())
    shares: Counter[str] = Counter()
    for (symbol, place), count in counts.items():
        if symbol.startswith(WAITING) or "libgomp" in place:
            shares[f"gomp_{symbol.removeprefix('gomp_')}"] += count
        elif not _is_own(place):
            shares[f"({Path(place).name})"] += count
        else:  # a library without symbols counts as one kernel
            shares[Path(place).stem if symbol == UNKNOWN else plain_name(symbol)] += count
    return {name: count / whole for name, count in shares.most_common()} if whole else {}


def _is_own(place: str) -> bool:
    """True if a mapped file is a library that the candidate built; `[vdso]` and `//anon` are no files."""
    return place.startswith("/") and not place.startswith("//") and not is_installed(place)


def _instructions(places: Iterable[str]) -> dict[str, dict[str, float]]:
    """Loop instructions of each function, for the candidate's libraries that still exist."""
    found: dict[str, dict[str, float]] = {}
    for place in sorted(filter(_is_own, places))[:MOST_LIBRARIES]:
        if Path(place).is_file():
            found.update(read_library(Path(place)).instructions)
    return found


def plain_name(symbol: str) -> str:
    """The bare name of a function: `void rows<8>(float*) [clone ._omp_fn.0]` and `_Z4rowsPf._omp_fn.0` become
    `rows`."""
    if mangled := re.match(r"_ZL?(\d+)", symbol):
        return symbol[mangled.end() :][: int(mangled[1])]
    before = re.split(r"[<(\[.]", symbol.strip())[0].strip()
    return before.split(" ")[-1].split("::")[-1]
