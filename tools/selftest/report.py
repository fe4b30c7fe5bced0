"""The outcome of a self-test as a table and as JSON. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foundry.tools.selftest.faults.fault import FAMILIES, Fault

MIN_CAUGHT = 0.98  # share of faults to catch, if the user names none

FaultStanding = Literal["caught", "missed", "equivalent", "not planted"]


@dataclass(frozen=True)
class FaultResult:
    """The result for one planted fault: the gate that caught it with its evidence, or the reason why none did."""

    fault: Fault
    standing: FaultStanding
    gate: str
    evidence: str
    seconds: float
    outcome: str = ""  # the grader's outcome: wrong_result, inaccurate, nondeterministic, crash, timeout, ...


@dataclass(frozen=True)
class SelfTestReport:
    """The results of all faults planted for one task. `kernel` describes the kernel that they were planted into."""

    task: str
    target: str
    device: str
    kernel: str
    seed: int
    findings: tuple[FaultResult, ...]
    seconds: float

    def count(self, standing: FaultStanding) -> int:
        """Number of faults with this standing."""
        return sum(finding.standing == standing for finding in self.findings)

    @property
    def counted(self) -> int:
        """Number of faults that count: they compile and change the kernel's outputs."""
        return self.count("caught") + self.count("missed")

    @property
    def rate(self) -> float:
        """Share of the counted faults that were caught; 0 if none counts."""
        return self.count("caught") / self.counted if self.counted else 0.0

    def to_json(self) -> dict[str, Any]:
        """The document of `foundry verify --self-test --json`."""
        return {
            "task": self.task,
            "target": self.target,
            "device": self.device,
            "kernel": self.kernel,
            "seed": self.seed,
            "rate": round(self.rate, 4),
            "caught": self.count("caught"),
            "missed": self.count("missed"),
            "equivalent": self.count("equivalent"),
            "not_planted": self.count("not planted"),
            "families": family_counts(self.findings),
            "faults": [_row(finding) for finding in self.findings],
            "seconds": round(self.seconds, 1),
        }


def _row(finding: FaultResult) -> dict[str, Any]:
    """One fault's part of the JSON document."""
    return {
        "family": finding.fault.family,
        "what": finding.fault.what,
        "where": finding.fault.where,
        "standing": finding.standing,
        "gate": finding.gate,
        "outcome": finding.outcome,
        "evidence": finding.evidence,
        "seconds": round(finding.seconds, 2),
    }


def family_counts(findings: Sequence[FaultResult]) -> dict[str, list[int]]:
    """Family -> [faults caught, faults that count]."""
    counts: dict[str, list[int]] = {}
    for family in FAMILIES:
        standings = [finding.standing for finding in findings if finding.fault.family == family]
        counted = [standing for standing in standings if standing in ("caught", "missed")]
        if counted:
            counts[family] = [counted.count("caught"), len(counted)]
    return counts


def lines(report: SelfTestReport) -> list[str]:
    """The report for a terminal: one line for each fault, then the sums."""
    families = list(FAMILIES)
    rows = sorted(report.findings, key=lambda finding: families.index(finding.fault.family))
    width = max((len(finding.fault.family) for finding in rows), default=0)
    gates = max((len(finding.gate) for finding in rows), default=0)
    found = [f"self-test of {report.task} on {report.device}: {len(rows)} faults planted into {report.kernel}"]
    for finding in rows:
        about = f"{finding.fault.what} ({finding.fault.where})"
        judged = f"{finding.gate:{gates}}  {finding.seconds:5.1f} s"
        found.append(f"{finding.standing:11}  {finding.fault.family:{width}}  {judged}  {about}")
        if finding.standing != "caught":
            found.append(f"{'':11}  -> {finding.evidence}")
    by_family = [f"{family} {caught}/{counted}" for family, (caught, counted) in family_counts(rows).items()]
    rest = [f"{report.count(name)} {name}" for name in ("equivalent", "not planted") if report.count(name)]
    found.append("by family: " + ", ".join(by_family))
    found.append(
        f"{report.count('caught')} of {report.counted} faults caught ({100 * report.rate:.1f} %)"
        + (f"; not counted: {', '.join(rest)}" if rest else "")
        + f"; {report.seconds:.0f} s"
    )
    return found
