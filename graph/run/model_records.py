"""Records of what each model of a run has brought and cost so far, read from its tables."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from foundry.graph.run.events import EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.merit import CORRECT

IMPROVEMENT = math.log(1.1)  # a kernel that is right where its parent was not counts as this gain
MOST = math.log(4.0)  # the largest gain of one step: a slow parent is easily improved


@dataclass(frozen=True)
class ModelRecord:
    """The yield and cost of one model.

    `steps`: proposals that it was asked for; `kernels`: those that were evaluated. `gain`: the sum of the logarithms by
    which they were faster than their parents.
    """

    name: str
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    steps: int = 0
    kernels: int = 0
    gain: float = 0.0
    priced: bool = True

    @property
    def cost(self) -> float:
        """Dollars if all prices are known, else millions of tokens."""
        return self.dollars if self.priced else 1e-6 * self.tokens

    @property
    def words(self) -> str:
        """A line for people: its steps, kernels, gains and cost."""
        dollars = f"${self.dollars:.4f}" if self.priced else "price unknown"
        brought = f"{self.kernels} kernels, gains over their parents {math.exp(self.gain):.2f}x in all"
        return f"{self.name}: {self.steps} steps, {brought}; {self.calls} calls, {self.tokens} tokens, {dollars}"


def read_records(run: RunDirectory) -> list[ModelRecord]:
    """A record for each model of the run, in the order in which the user named them, then those that thought before."""
    log = EventLog(run.database, reading=True)
    found = {spec.name: ModelRecord(spec.name, priced=spec.price.known) for spec in run.request.models.specs}
    asked: dict[str, set[str]] = defaultdict(set)
    for event in log.read("expert"):
        name = event.data.get("model", "")
        if not name:
            continue
        was = found.get(name, ModelRecord(name))
        if event.data["purpose"] == "propose" and event.data["requests"]:
            asked[name].add(event.step)
        found[name] = replace(
            was,
            calls=was.calls + int(event.data["requests"]),
            tokens=was.tokens + int(event.data["tokens"]),
            dollars=was.dollars + float(event.data["dollars"]),
        )
    for name, (kernels, gain) in (_gains(run, set(found)) if found else {}).items():
        found[name] = replace(found[name], kernels=kernels, gain=gain)
    return [replace(record, steps=len(asked[record.name])) for record in found.values()]


def _gains(run: RunDirectory, names: set[str]) -> dict[str, tuple[int, float]]:
    """(kernels that were evaluated, sum of their gains over their parents) by model."""
    merits = {row[0]: row[1] for row in run.database.run("SELECT candidate, merit FROM evaluations ORDER BY at")}
    found: dict[str, tuple[int, float]] = {}
    for decision in run.decisions():
        proposal = decision.proposal
        if proposal is None or proposal.brain not in names or decision.candidate.id not in merits:
            continue
        kernels, gain = found.get(proposal.brain, (0, 0.0))
        child, parent = merits[decision.candidate.id] - CORRECT, merits.get(proposal.parent, 0.0) - CORRECT
        found[proposal.brain] = (kernels + 1, gain + gain_of(child, parent))
    return found


def gain_of(child_speedup: float, parent_speedup: float) -> float:
    """The logarithm of a step's speedup over its parent, from 0 to MOST. A speedup of 0 is a wrong kernel."""
    if child_speedup <= 0.0:
        return 0.0
    if parent_speedup <= 0.0:
        return IMPROVEMENT
    return min(MOST, max(0.0, math.log(child_speedup / parent_speedup)))
