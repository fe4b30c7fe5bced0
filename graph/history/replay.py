"""Replays a run: the same search, its answers from the outside world taken from the recorded run's journal.

No machine, no store and no clock is asked; with the playbook brain every thought is thought again. What the search
decides must then be the same, step by step; what differs is listed.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from foundry.agents.chat.options import TapeOptions
from foundry.graph.run.journal import Diverged
from foundry.graph.run.opening import Parts, open_services
from foundry.graph.run.run_directory import MIXED, Decision, RunDirectory
from foundry.graph.search.final import Finalists
from foundry.graph.solve import run_graph, silent
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.errors import UsageError
from foundry.knowledge.step_words import step_words

COPIED = ("task", "task_name", "device", "device_key", "target", "present", "brain", MIXED)


@dataclass(frozen=True)
class Replayed:
    """`decisions` counts the recorded steps; `differences` names, in words, each one that came out otherwise."""

    decisions: int
    differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """True if the replay differs from the recording in nothing."""
        return not self.differences


async def replay(run_dir: Path, parts: Parts | None = None, *, tape: Path | None = None) -> Replayed:
    """Replays a finished run in a temporary folder and compares. With the `tape` of its models' conversations they are
    thought again from its answers, instead of read in the journal. Raises UsageError when it is no finished run,
    NotRecorded for a request that the tape does not hold."""
    recorded = RunDirectory.inspect(run_dir)
    try:
        if recorded.get("status") != "finished":
            raise UsageError(f"run {recorded.id} has not finished", "resume it first")
        with tempfile.TemporaryDirectory(prefix="foundry-replay-") as folder:
            played = TapeOptions(replay=str(tape)) if tape else TapeOptions()
            again = RunDirectory.create(replace(recorded.request, runs=folder, tape=played))
            try:
                for key in COPIED:
                    again.set(key, recorded.get(key))
                opened = await open_services(again, parts or Parts(), silent, recorded=recorded)
                with contextlib.suppress(Diverged):  # compare() then tells where
                    await run_graph(opened)
                await opened.close()
                return compare(recorded, again)
            finally:
                again.close()
    finally:
        recorded.close()


def compare(recorded: RunDirectory, again: RunDirectory) -> Replayed:
    """Every decision of two runs side by side: parents, experts, proposals, candidates, finalists, winner."""
    theirs = {decision.step: decision for decision in recorded.decisions()}
    ours = {decision.step: decision for decision in again.decisions()}
    differences = []
    for step in sorted({*theirs, *ours}):
        if step not in ours:
            differences.append(f"{step}: not reached; the recording made {theirs[step].candidate.id}")
        elif step not in theirs:
            differences.append(f"{step}: made {ours[step].candidate.id}; the recording made nothing")
        elif encode(ours[step]) != encode(theirs[step]):
            differences.append(f"{step}: {_describe(ours[step])}; recorded {_describe(theirs[step])}")
    if _finalists(recorded) != _finalists(again):
        differences.append(f"finalists: {_finalists(again)}; recorded {_finalists(recorded)}")
    if recorded.get("winner") != again.get("winner"):
        differences.append(f"winner: {again.get('winner')!r}; recorded {recorded.get('winner')!r}")
    return Replayed(len(theirs), tuple(differences))


def _describe(decision: Decision) -> str:
    """A decision as one line: candidate, parent, expert, moves."""
    proposal = decision.proposal
    if proposal is None:
        return f"{decision.candidate.id} (seed)"
    change = step_words(proposal.moves, names_kernels=True) or "a whole kernel"
    return f"{decision.candidate.id} from {proposal.parent} by {proposal.expert}: {change}"


def _finalists(run: RunDirectory) -> list[str]:
    """Ids of the recorded run's finalists; empty if it chose none."""
    rows = run.database.run("SELECT value FROM journal WHERE key = 'finalists'")
    return list(decode(Finalists, rows[0][0]).candidates) if rows else []
