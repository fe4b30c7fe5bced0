"""Why candidates fail their proofs, in a form that can be compared between candidates."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foundry.graph.run.closing import without_particulars
from foundry.knowledge.candidate import Candidate, Evaluation
from foundry.knowledge.ruling import objection

MOST_ALIKE = 2  # proofs that may fail for one cause before no other kernel is proven that could share it
MOST_UNTRIED = 3  # the same, where the next kernel has a structure that has not failed yet
WORDS_COMPARED = 160  # characters of the evidence


@dataclass(frozen=True)
class FailureCause:
    """The gate that refused a candidate, and its evidence. Causes with equal `key` count as one."""

    gate: str
    evidence: str

    @property
    def key(self) -> str:
        """The gate and the evidence without numbers and names."""
        return f"{self.gate}: {without_particulars(self.evidence)[:WORDS_COMPARED]}"

    @property
    def words(self) -> str:
        evidence = " ".join(self.evidence.split())
        return evidence if evidence.startswith(f"{self.gate}:") else f"{self.gate}: {evidence}"


def cause_of(evaluation: Evaluation) -> FailureCause | None:
    """Why a candidate is refused by its records; None if nothing speaks against it so far."""
    found = objection(evaluation)
    if found is None:
        return None
    reason = found.reasons[0] if found.reasons else None
    return FailureCause(reason.gate if reason else found.outcome, (reason.evidence if reason else "") or found.evidence)


def structure_of(candidate: Candidate) -> str:
    """What candidates share that differ in numbers only: what is fused, rewritten and authored. A whole file is its
    own structure."""
    recipe = candidate.recipe
    if recipe is None:
        return candidate.source
    authored = recipe.authored.digest if recipe.authored else ""
    text = repr((sorted(recipe.materialise), sorted(recipe.rewrites), authored))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ProofOutcome:
    """How one proof ended. `cause` is None for a kernel that passed as far as it was asked."""

    candidate: str
    structure: str
    cause: FailureCause | None
    seconds: float = 0.0

    def to_data(self) -> dict[str, Any]:
        """For a note in the run's log."""
        gate, evidence = (self.cause.gate, self.cause.evidence) if self.cause else ("", "")
        return {"candidate": self.candidate, "structure": self.structure, "seconds": self.seconds} | {
            "gate": gate,
            "evidence": evidence,
            "reason": f"{self.candidate} would fail its proof: {self.cause.words}" if self.cause else "",
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ProofOutcome:
        cause = FailureCause(str(data["gate"]), str(data["evidence"])) if data["gate"] else None
        return ProofOutcome(str(data["candidate"]), str(data["structure"]), cause, float(data["seconds"]))


@dataclass
class Outlook:
    """What the proofs of a run say about those to come."""

    outcomes: list[ProofOutcome] = field(default_factory=list)

    @property
    def passed(self) -> set[str]:
        """Structures of which a kernel has passed."""
        return {item.structure for item in self.outcomes if item.cause is None}

    @property
    def failures(self) -> list[ProofOutcome]:
        return [item for item in self.outcomes if item.cause is not None]

    def common_cause(self) -> FailureCause | None:
        """The cause of all failures where each proof so far failed for the same one, and enough did; else None."""
        causes = [item.cause for item in self.failures if item.cause]
        is_common = len(causes) >= MOST_ALIKE and not self.passed and len({cause.key for cause in causes}) == 1
        return causes[0] if is_common else None

    def shared_cause(self, structure: str) -> FailureCause | None:
        """The cause for which a kernel of this structure would probably fail as well; None if it should be proven."""
        if structure in self.passed:
            return None
        own = [item.cause for item in self.failures if item.structure == structure and item.cause]
        counts = Counter(item.cause.key for item in self.failures if item.cause)
        for cause in own:
            if counts[cause.key] >= MOST_ALIKE:
                return cause
        if self.passed or own:
            return None
        return next(
            (item.cause for item in self.failures if item.cause and counts[item.cause.key] >= MOST_UNTRIED), None
        )

    def order(self, names: Iterable[str], structures: Mapping[str, str]) -> Sequence[str]:
        """The same candidates; those whose structure has failed and never passed come last."""
        failed = {item.structure for item in self.failures} - self.passed
        return sorted(names, key=lambda name: structures[name] in failed)
