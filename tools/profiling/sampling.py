"""Where the time of a process on the CPU goes, by function, seen from outside: the system's perf asks a thousand times
a second which function each thread is in. The process needs to allow nothing and is told nothing."""

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
from foundry.tools.profiling.cpu_rules import WAITING
from foundry.tools.targets.cpu import read_library

RATE_HZ = 997  # no multiple of what programs do by the clock
START_S, END_S = 10.0, 20.0
MOST_LIBRARIES = 8  # of the candidate's, whose machine code is read
UNKNOWN = "[unknown]"  # perf, of an address for which a library has no name
REMEDY = "apt-get install linux-perf, and sudo sysctl kernel.perf_event_paranoid=2"
_LINE = re.compile(r"^\s*[0-9a-f]+\s+(.+?)(?:\+0x[0-9a-f]+)?\s+\((.*)\)\s*$")


class Samples:
    """How often each (function, library) was met, and what the loops of each function in a library of the candidate's
    consist of; `problem` says why nothing was seen."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.instructions: dict[str, dict[str, float]] = {}
        self.problem = ""


@contextlib.contextmanager
def sampled(pid: int, into: Samples) -> Iterator[None]:
    """Looks at a process while the block runs."""
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
    """The innermost function of each sample, and the path of its library, in the output of `perf script`."""
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        if match := _LINE.match(line):
            found[match[1], match[2]] += 1
    return found


def by_function(counts: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """Shares of the samples: functions of OpenMP by their name, those of the system and of installed packages by their
    library; all others were built by the candidate and have their name in the source text."""
    whole = sum(counts.values())
    shares: Counter[str] = Counter()
    for (symbol, place), count in counts.items():
        if symbol.startswith(WAITING) or "libgomp" in place:
            shares[f"gomp_{symbol.removeprefix('gomp_')}"] += count
        elif not _is_own(place):
            shares[f"({Path(place).name})"] += count
        else:  # stripped of its names, it is one kernel
            shares[Path(place).stem if symbol == UNKNOWN else plain_name(symbol)] += count
    return {name: count / whole for name, count in shares.most_common()} if whole else {}


def _is_own(place: str) -> bool:
    """Whether a mapped file is a library that the candidate built; `[vdso]` and `//anon` are no files."""
    return place.startswith("/") and not place.startswith("//") and not is_installed(place)


def _instructions(places: Iterable[str]) -> dict[str, dict[str, float]]:
    """What the loops of each function consist of, for the libraries of the candidate's that are still there."""
    found: dict[str, dict[str, float]] = {}
    for place in sorted(filter(_is_own, places))[:MOST_LIBRARIES]:
        if Path(place).is_file():
            found.update(read_library(Path(place)).instructions)
    return found


def plain_name(symbol: str) -> str:
    """`void rows<8>(float*) [clone ._omp_fn.0]` is `rows`, and so is `_Z4rowsPf._omp_fn.0`."""
    if mangled := re.match(r"_ZL?(\d+)", symbol):
        return symbol[mangled.end() :][: int(mangled[1])]
    before = re.split(r"[<(\[.]", symbol.strip())[0].strip()
    return before.split(" ")[-1].split("::")[-1]
