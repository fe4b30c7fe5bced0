"""Last paragraph of a run that accepted nothing: what was tried, what stood in the way, and what to do next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foundry.graph.run.events import Event
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.step_words import spoken
from foundry.knowledge.task import Policy
from foundry.tools.words import to_paste

ObstacleKind = Literal[
    "not captured",
    "no kernel",
    "policy",
    "proof",
    "wrong",
    "slow kernels",
    "memory",
    "time",
    "model",
    "user",
    "error",
]
FINAL, EARLY = "final", "early proof"  # experts and notes of the run's proofs
LEFT_UNPROVEN = "left unproven"
MOST_CHARS = 300  # characters kept of a reason
LONGER = 4.0  # factor on the minutes that were not enough

_SCALED = re.compile(r"^x([0-9.*-]+):")  # the name of a question that scales its inputs
_PARTICULARS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{12,}\b|\bc\d+\b|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Closing:
    """Why a run accepted nothing. `command` is what most likely helps, ready to be pasted."""

    tried: str
    kind: ObstacleKind
    obstacle: str
    command: str

    @property
    def words(self) -> str:
        """One paragraph."""
        obstacle = self.obstacle.rstrip(".")
        return f"{self.tried}. What stood in the way: {obstacle}. Most likely to help: {self.command}"


@dataclass(frozen=True)
class EndedRun:
    """Facts about a run that has ended. `policy` is the one in force; `ending` says why the search ended."""

    run: str
    request: SolveRequest
    policy: Policy
    ending: str
    events: Sequence[Event]

    @property
    def has_model(self) -> bool:
        """True if the run was to use chat models."""
        return bool(self.request.models)

    def notes(self, name: str) -> list[Event]:
        """The run's notes of one name, in the order of `events`."""
        return [event for event in self.events if event.kind == "note" and event.name == name]

    @property
    def evaluations(self) -> list[Event]:
        """The events of evaluations, in order."""
        return [event for event in self.events if event.kind == "evaluation"]


def without_particulars(reason: str) -> str:
    """A reason without numbers, digests and names of candidates, which differ where the cause is the same."""
    return _PARTICULARS.sub("#", " ".join(reason.split()))


def close(ended: EndedRun) -> Closing:
    """The closing words of a run without a winner: kernels tried, the obstacle, and the command that most likely
    helps."""
    kind, obstacle = _obstacle(ended)
    tried = _tried(ended)
    if ended.ending and not (obstacle in ended.ending or ended.ending in obstacle or kind == "proof"):
        tried += f"; the search ended with {ended.ending}"
    return Closing(tried, kind, " ".join(obstacle.split())[:MOST_CHARS], _command(kind, obstacle, ended))


def _tried(ended: EndedRun) -> str:
    """How many kernels were tried, and how many of them compiled, were right and were put to the proof."""
    names = {event.name for event in ended.evaluations}
    right = {event.name for event in ended.evaluations if event.data["outcome"] == "correct"}
    proven = {event.name for event in ended.evaluations if event.data.get("expert") == FINAL}
    if not names:
        return "No kernel was tried"
    kernels = "1 kernel was" if len(names) == 1 else f"{len(names)} kernels were"
    compiled = {event.name for event in ended.evaluations if event.data["outcome"] != "compile_error"}
    if not compiled:
        return f"{kernels} written, and none compiled"
    words = f"{kernels} tried, {len(right) or 'none'} right in the search"
    return f"{words}, {len(proven)} put to the proof" if right or proven else words


def _obstacle(ended: EndedRun) -> tuple[ObstacleKind, str]:
    """Returns (kind, words) of the first reason that applies for a run without a winner.

    The reasons in order: the user ended it, nothing was evaluated, a proof failed, every kernel was wrong; else time.
    """
    if "by the user" in ended.ending or "the user did not want" in ended.ending:
        return "user", ended.ending
    if not ended.evaluations:
        return _before_any_kernel(ended)
    failures = _proof_failures(ended)
    if failures:
        return _kind_of_failure(failures[0]), _most_common(failures)
    wrong = [event for event in ended.evaluations if event.data["outcome"] != "correct"]
    if len(wrong) == len(ended.evaluations):
        reasons = [
            f"{spoken(event.data['outcome'])}: {event.data.get('evidence') or 'no reason given'}" for event in wrong
        ]
        return _kind_of_failure(_most_common(reasons), usual="wrong"), _most_common(reasons)
    return "time", ended.ending or "the search ended before a kernel was proven"


def _before_any_kernel(ended: EndedRun) -> tuple[ObstacleKind, str]:
    """(kind, words) of the first reason that applies for a run that evaluated nothing."""
    if failed := ended.notes("island failed"):
        data = failed[-1].data
        return "error", f"{data.get('node')}: {data.get('error')}"
    if ended.has_model:
        said = [event for event in ended.events if event.name in ("model unavailable", "model refuses")]
        return "model", str(said[-1].data.get("text")) if said else ended.ending
    if captured := ended.notes("not captured"):
        return "not captured", f"the task could not be captured: {captured[-1].data.get('reason')}"
    if lowered := ended.notes("cannot lower"):
        reason = str(lowered[-1].data.get("reason"))
        bare = reason.split("; a chat model may write")[0].split("; --policy open")[0]
        return "policy" if "--policy open" in reason else "no kernel", bare
    if ended.ending.startswith("budget"):
        return "time", ended.ending
    return "no kernel", ended.ending


def _proof_failures(ended: EndedRun) -> list[str]:
    """The reasons why proofs failed, each as `gate: evidence`; those of early proofs only if there is none at the
    end."""
    found = [
        str(event.data.get("evidence") or spoken(event.data["outcome"]))
        for event in ended.evaluations
        if event.data.get("expert") == FINAL and event.data["outcome"] != "correct"
    ]
    early = [event for event in ended.notes(EARLY) if event.data.get("gate")]
    return found or [f"{event.data['gate']}: {event.data['evidence']}" for event in early]


def _most_common(reasons: Sequence[str]) -> str:
    """The most common reason, particulars aside, with the number of kernels if there are several."""
    ((key, count),) = Counter(map(without_particulars, reasons)).most_common(1)
    reason = next(" ".join(reason.split()) for reason in reasons if without_particulars(reason) == key)
    reason = _SCALED.sub(r"asked with all inputs times \1:", reason)
    return f"{reason} ({count} kernels)" if count > 1 else reason


def _kind_of_failure(reason: str, usual: ObstacleKind = "proof") -> ObstacleKind:
    """The obstacle that a failure's text names: policy, memory or slow kernels; else `usual`."""
    if "policy open allows" in reason or "; strict " in reason:
        return "policy"
    if "memory" in reason and ("used up" in reason or "GB" in reason or "out of memory" in reason):
        return "memory"
    if "did not finish in" in reason:
        return "slow kernels"
    return usual


def _command(kind: ObstacleKind, obstacle: str, ended: EndedRun) -> str:
    """The command that most likely helps after this obstacle, ready to be pasted.

    Another policy, a smaller scale, more minutes, a fork, a doctor's look at the model, the trace, or a chat model.
    """
    task, request = ended.request.task, ended.request
    solve = ("foundry", "agent", "solve", task)
    if kind == "policy":
        return to_paste(*solve, "--policy", "fair" if ended.policy == "strict" else "open")
    if kind == "memory":
        if request.scale and request.scale > 1:
            return to_paste(*solve, "--scale", max(1, request.scale // 2))
        return f"{to_paste(*solve)} after its sizes are made smaller"
    if kind == "time":
        return to_paste(*solve, "--minutes", f"{max(2.0, LONGER * request.max_minutes):g}")
    if kind == "user":
        return to_paste("foundry", "agent", "fork", ended.run, "--minutes", 10)
    if kind == "model":
        return to_paste("foundry", "doctor", "--model", request.models.title)
    if kind in ("error", "proof") and ended.has_model:
        return to_paste("foundry", "agent", "fork", ended.run, "--minutes", 10)
    if kind == "error":
        return to_paste("foundry", "agent", "trace", ended.run)
    if ended.has_model:
        return to_paste("foundry", "agent", "fork", ended.run, "--minutes", f"{LONGER * request.max_minutes:g}")
    reads = kind == "not captured"
    why = "a chat model reads the source and needs no graph" if reads else "a chat model writes kernels"
    return f"{to_paste(*solve)} --model NAME ({why})"
