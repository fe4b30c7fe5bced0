"""A recorded exhaustive sweep of one kernel, and a bench that answers from it.

Search policies are compared on it without a device, by the seconds that the recorded machine took.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from foundry.knowledge.candidate import Choice
from foundry.tools.tune.space import Setting, setting_of
from foundry.tools.tune.sweep import Job


@dataclass(frozen=True)
class Recording:
    """Every configuration of a kernel with its samples in ms; a failed one has none."""

    kernel: str
    template: str
    device: str
    present: Setting
    samples: Mapping[Setting, list[float]]
    build_s: float  # seconds to build one configuration, with compilers on all cores
    sample_s: float  # seconds for one sample, with its cold cache

    @cached_property
    def best_ms(self) -> float:
        """The smallest of the configurations' median times, in milliseconds."""
        return min(_median(found) for found in self.samples.values() if found)

    def median_ms(self, setting: Setting) -> float:
        """Median time of a configuration, in milliseconds."""
        return _median(self.samples[setting])


def _median(found: Sequence[float]) -> float:
    """The upper median."""
    return sorted(found)[len(found) // 2]


class RecordedSpace:
    """Implements SettingSpace from a recording: the configurations that the printer accepted."""

    def __init__(self, recording: Recording) -> None:
        """Reads the tunables and their values from the recorded configurations."""
        self.present = recording.present
        self._known = recording.samples
        self._nearest: dict[Setting, Setting | None] = {}
        names = sorted({name for setting in self._known for name, _ in setting})
        self._values = {name: self._all(name) for name in names}

    def _all(self, name: str) -> list[Choice]:
        """All recorded values of a tunable."""
        return list(dict.fromkeys(dict(setting)[name] for setting in self._known if name in dict(setting)))

    def values(self, setting: Setting) -> Mapping[str, Sequence[Choice]]:
        """The values of each tunable that occur in the recording, for tunables that vary and that this configuration
        has."""
        here = dict(setting)
        return {name: found for name, found in self._values.items() if name in here and len(found) > 1}

    def legal(self, wanted: Mapping[str, Choice]) -> Setting | None:
        """The configuration with most of the wanted values (the printer replaces what does not fit), or None."""
        exact = setting_of(wanted)
        if exact in self._known:
            return exact
        if exact not in self._nearest:
            agreeing = {setting: sum(wanted.get(name) == value for name, value in setting) for setting in self._known}
            best = max(agreeing.values(), default=0)
            found = [setting for setting, count in agreeing.items() if count == best]
            self._nearest[exact] = found[0] if best >= len(wanted) - 1 else None
        return self._nearest[exact]


@dataclass
class RecordedBench:
    """Implements Bench from a recording, on a clock that counts the recorded machine's seconds."""

    recording: Recording
    overlaps: bool = False
    clock_s: float = 0.0
    looks: dict[Setting, int] = field(default_factory=dict)

    def elapsed_s(self) -> float:
        """Seconds that the recorded sweep would have taken so far."""
        return self.clock_s

    async def build(self, jobs: Sequence[Job]) -> dict[Job, str]:
        """Advances the recorded clock; "failed" for each configuration without samples."""
        self.clock_s += self.recording.build_s * len(jobs)
        return {job: "failed" for job in jobs if not self.recording.samples[job.setting]}

    async def run(self, jobs: Sequence[Job], samples: int, limit_s: float) -> dict[Job, list[float] | str]:
        """Advances the recorded clock; the recorded times of each configuration."""
        self.clock_s += self.recording.sample_s * samples * len(jobs)
        return {job: [self._next(job.setting) for _ in range(samples)] for job in jobs}

    def _next(self, setting: Setting) -> float:
        """The configuration's next sample, in recorded order, starting over at the end."""
        known = self.recording.samples[setting]
        at = self.looks.get(setting, 0)
        self.looks[setting] = at + 1
        return known[at % len(known)]


def write_recordings(path: Path, found: Sequence[Recording]) -> None:
    """Writes one line of JSON for each kernel and one for each configuration."""
    lines = []
    for item in found:
        head = {"kernel": item.kernel, "template": item.template, "device": item.device, "present": dict(item.present)}
        lines.append(json.dumps({**head, "build_s": item.build_s, "sample_s": item.sample_s}))
        lines += [
            json.dumps({"choices": dict(setting), "ms": [float(f"{ms:.4g}") for ms in times]})
            for setting, times in item.samples.items()
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_recordings(path: Path) -> list[Recording]:
    """The recordings in a file; raises ValueError if it holds something else."""
    found: list[Recording] = []
    samples: dict[Setting, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        if "kernel" in item:
            samples = {}
            present = setting_of(item.pop("present"))
            found.append(Recording(**item, present=present, samples=samples))
        else:
            samples[setting_of(item["choices"])] = item["ms"]
    return found
