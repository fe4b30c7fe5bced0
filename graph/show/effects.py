"""Effects of a user's directives: their readers, the reasons why they cannot be followed, the candidates that follow.

A candidate's gain is its speedup over its parent's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from foundry.graph.run.events import Event
from foundry.graph.run.inbox import Acknowledgement
from foundry.knowledge.step_words import key_words, spoken
from foundry.knowledge.thought import Directive

MOST_CHARS = 100  # characters of a step's reasons in a line
WAITS = "waits for the next step"


@dataclass(frozen=True)
class Evaluated:
    """The end of a candidate's evaluation: its outcome, and its speedup over PyTorch eager if it was timed."""

    outcome: str
    speedup: float | None


@dataclass(frozen=True)
class Step:
    """A proposal as the log records it."""

    candidate: str
    parent: str
    expert: str
    step: str
    rationale: str
    moves: tuple[str, ...]  # keys
    cites: tuple[str, ...]
    words: str = ""  # the moves in words

    @property
    def change(self) -> str:
        """The step's changes in words; its reasons if it wrote a kernel of its own."""
        reasons = " ".join(self.rationale.split())
        reasons = reasons if len(reasons) <= MOST_CHARS else f"{reasons[: MOST_CHARS - 3]}..."
        return self.words or ", ".join(map(key_words, self.moves)) or reasons


@dataclass
class History:
    """The proposals of a run and what came of them, collected from its events."""

    steps: list[Step] = field(default_factory=list)
    outcomes: dict[str, Evaluated] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """The history that these events tell."""
        found = cls()
        for event in events:
            found.take(event)
        return found

    def take(self, event: Event) -> None:
        """Adds a proposal or an evaluation; ignores other events."""
        data = event.data
        if event.kind == "proposal":
            moves, cites = tuple(data["moves"]), tuple(data["cites"])
            self.steps.append(
                Step(
                    candidate=data["candidate"],
                    parent=data["parent"],
                    expert=event.name,
                    step=event.step,
                    rationale=data["rationale"],
                    moves=moves,
                    cites=cites,
                    words=data.get("words", ""),
                )
            )
        elif event.kind == "evaluation":
            self.outcomes[event.name] = Evaluated(data["outcome"], data["speedup"])

    def lift(self, step: Step) -> float | None:
        """A candidate's speedup over its parent's; None if either is unknown or incorrect."""
        after, before = self.outcomes.get(step.candidate), self.outcomes.get(step.parent)
        if after is None or before is None or after.outcome != "correct" or not after.speedup or not before.speedup:
            return None
        return after.speedup / before.speedup

    def gain(self, step: Step) -> float:
        """The share of speed that a step won over its parent; 0.0 if unknown."""
        return (self.lift(step) or 1.0) - 1.0

    def result(self, step: Step) -> str:
        """The step's candidate with its gain over the parent in percent, its speedup, or its outcome if it is not
        correct.

        `c57 (+12 %)`, `c57 (2.31x)`, `c57 (wrong result)`; only `c57` while it is under way.
        """
        after = self.outcomes.get(step.candidate)
        if after is None:
            return step.candidate
        before = self.outcomes.get(step.parent)
        if after.outcome != "correct" or not after.speedup:
            return f"{step.candidate} ({spoken(after.outcome)})"
        if before is None or not before.speedup:
            return f"{step.candidate} ({after.speedup:.2f}x)"
        return f"{step.candidate} ({100 * self.gain(step):+.0f} %)"

    def followers(self, directive: Directive, readers: Iterable[Acknowledgement]) -> list[Step]:
        """The steps that follow a directive; `readers` have taken it."""
        taken = list(readers)
        return [step for step in self.steps if self._follows(step, directive, taken)]

    def effect(self, directive: Directive, taken: Iterable[Acknowledgement]) -> str:
        """A directive's effect in one line: `taken by @tiling in i0g4 -> c57 (+12 %)`; else its readers, why it cannot
        be followed, or that it waits."""
        readers = [item for item in taken if item.directive == directive.id]
        following = next((step for step in self.steps if self._follows(step, directive, readers)), None)
        if following is not None:
            return f"taken by @{following.expert} in {following.step} -> {self.result(following)}"
        if not readers:
            return WAITS
        refused = [item for item in readers if item.answer]
        if refused:
            return f"cannot be followed by {_names(refused)}: {refused[0].answer}"
        return f"taken by {_names(readers)} in {', '.join(dict.fromkeys(item.step for item in readers))}"

    def _follows(self, step: Step, directive: Directive, readers: list[Acknowledgement]) -> bool:
        """True if a step cites the directive, or starts from the candidate that the directive names."""
        if f"d{directive.id}" in step.cites:
            return True
        is_start = directive.verb == "from" and step.parent == directive.command["candidate"]
        return is_start and step.step in {item.step for item in readers}  # of a run whose steps do not cite it yet


def _names(readers: list[Acknowledgement]) -> str:
    """`the run`, `island 2`, `islands 0, 1, 2`."""
    numbers = [item.reader.removeprefix("island ") for item in readers if item.reader.startswith("island ")]
    if not numbers:
        return "the run"
    return f"island{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
