"""Why candidates fail their proofs, in a form that can be compared between candidates."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foundry.graph.run.closing import without_particulars
from foundry.knowledge.candidate import Candidate, Evaluation
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.ruling import objection

MOST_ALIKE = 2  # proofs that may fail for one cause before no other kernel is proven that could share it
MOST_UNTRIED = 3  # the same, where the next kernel has a structure that has not failed yet
WORDS_COMPARED = 160  # characters of the evidence
MOST_NAMED = 3  # kernels in a message


@dataclass(frozen=True)
class FailureCause:
    """The gate that refused a candidate, its evidence, and the ruling's word. Causes with equal `key` count as one."""

    gate: str
    evidence: str
    outcome: str = ""

    @property
    def key(self) -> str:
        """The gate and the evidence without numbers and names."""
        return f"{self.gate}: {without_particulars(self.evidence)[:WORDS_COMPARED]}"

    @property
    def words(self) -> str:
        """The cause as "gate: evidence" on one line."""
        evidence = " ".join(self.evidence.split())
        return evidence if evidence.startswith(f"{self.gate}:") else f"{self.gate}: {evidence}"


def cause_of(evaluation: Evaluation) -> FailureCause | None:
    """Why a candidate is refused by its records; None if nothing speaks against it so far."""
    found = objection(evaluation)
    if found is None:
        return None
    reason = found.reasons[0] if found.reasons else None
    evidence = (reason.evidence if reason else "") or found.evidence
    return FailureCause(reason.gate if reason else found.outcome, evidence, found.outcome)


@dataclass(frozen=True)
class Kin:
    """The common properties of candidates that would fail alike: the structure, and the kernels that multiply in TF32.

    A structure is all of a recipe but its tunables: fusion, rewrites, authored code, the precision of each product. A
    whole file is a structure of its own. `has_variants`: the compiler can print the same task with another structure.
    """

    structure: str
    rounded: frozenset[str] = frozenset()
    has_variants: bool = False


def kin_of(candidate: Candidate, lowered: Lowered | None = None) -> Kin:
    """The kin of a candidate. Only of a lowered one it is known whether it has variants."""
    recipe = candidate.recipe
    if recipe is None:
        return Kin(candidate.source)
    authored = recipe.authored.digest if recipe.authored else ""
    precisions = sorted((name, chosen["precision"]) for name, chosen in recipe.choices.items() if "precision" in chosen)
    text = repr((sorted(recipe.materialise), sorted(recipe.rewrites), authored, *([precisions] if precisions else [])))
    changes = (lowered.fused, lowered.materialised, lowered.rewrites_open, lowered.rewrites_applied) if lowered else ()
    structure = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Kin(structure, frozenset(recipe.rounded), any(changes) or bool(recipe.rounded))


def tf32_words(kernels: Iterable[str]) -> str:
    """The clause that names or counts the kernels that multiply in TF32; "" without any."""
    names = sorted(kernels)
    if len(names) > MOST_NAMED:
        return f"{len(names)} kernels multiply in TF32"
    return f"{' and '.join(names)} {'multiply' if len(names) > 1 else 'multiplies'} in TF32" if names else ""


@dataclass(frozen=True)
class ProofOutcome:
    """How one proof ended. `cause` is None for a kernel that passed as far as it was asked."""

    candidate: str
    kin: Kin
    cause: FailureCause | None
    seconds: float = 0.0

    @property
    def blames_tf32(self) -> bool:
        """True if it was inaccurate and has products in TF32: the same kernels with accurate products may pass."""
        return self.cause is not None and self.cause.outcome == "inaccurate" and bool(self.kin.rounded)

    def speaks_of(self, other: Kin) -> bool:
        """True if a candidate of this kin could fail for the same cause: it has in TF32 what was in TF32 here."""
        return not self.blames_tf32 or self.kin.rounded <= other.rounded

    def to_data(self) -> dict[str, Any]:
        """The outcome as facts of a note in the run's log, with the reason in words."""
        cause = self.cause or FailureCause("", "")
        reason = f"{self.candidate} would fail its proof: {cause.words}" if self.cause else ""
        if self.blames_tf32:
            reason += f". {tf32_words(self.kin.rounded)}; accurate products are tried next"
        return {
            "candidate": self.candidate,
            "structure": self.kin.structure,
            "rounded": sorted(self.kin.rounded),
            "has_variants": self.kin.has_variants,
            "seconds": self.seconds,
            "gate": cause.gate,
            "evidence": cause.evidence,
            "outcome": cause.outcome,
            "reason": reason,
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ProofOutcome:
        """The outcome from a note of the trace."""
        outcome = str(data.get("outcome", ""))
        cause = FailureCause(str(data["gate"]), str(data["evidence"]), outcome) if data["gate"] else None
        rounded, has_variants = frozenset(data.get("rounded", ())), bool(data.get("has_variants"))
        kin = Kin(str(data["structure"]), rounded, has_variants)
        return ProofOutcome(str(data["candidate"]), kin, cause, float(data["seconds"]))


@dataclass
class Outlook:
    """The outcomes of a run's proofs so far, and what they predict for later ones."""

    outcomes: list[ProofOutcome] = field(default_factory=list)

    @property
    def passed(self) -> set[str]:
        """Structures of which a kernel has passed."""
        return {item.kin.structure for item in self.outcomes if item.cause is None}

    @property
    def failures(self) -> list[ProofOutcome]:
        """The outcomes that have a cause of failure."""
        return [item for item in self.outcomes if item.cause is not None]

    def failures_that_tell(self, kin: Kin) -> list[ProofOutcome]:
        """The failures for causes that a candidate of this kin could share."""
        return [item for item in self.failures if item.speaks_of(kin)]

    def common_cause(self) -> FailureCause | None:
        """The cause of all failures where each proof so far failed for the same one, and enough did; else None.

        Kernels in TF32 say nothing about accurate ones. Two kernels of one structure say nothing about another that
        could be tried.
        """
        causes = [item.cause for item in self.failures if item.cause]
        if len(causes) < MOST_ALIKE or self.passed or len({cause.key for cause in causes}) > 1:
            return None
        if all(item.blames_tf32 for item in self.failures):
            return None
        is_one_of_several = len({item.kin.structure for item in self.failures}) == 1 and any(
            item.kin.has_variants for item in self.failures
        )
        return causes[0] if len(causes) >= MOST_UNTRIED or not is_one_of_several else None

    def shared_cause(self, kin: Kin) -> FailureCause | None:
        """The cause for which a kernel of this kin would probably fail as well; None if it should be proven."""
        if kin.structure in self.passed:
            return None
        telling = self.failures_that_tell(kin)
        own = [item.cause for item in telling if item.cause and (item.kin.structure == kin.structure)]
        own += [item.cause for item in telling if item.cause and item.blames_tf32]
        counts = Counter(item.cause.key for item in telling if item.cause)
        for cause in own:
            if counts[cause.key] >= MOST_ALIKE:
                return cause
        if self.passed or own:
            return None
        return next((item.cause for item in telling if item.cause and counts[item.cause.key] >= MOST_UNTRIED), None)

    def order(self, names: Iterable[str], kins: Mapping[str, Kin]) -> Sequence[str]:
        """The same candidates in an order that puts those last whose like has failed and never passed."""
        return sorted(names, key=lambda name: self._has_failed(kins[name]))

    def _has_failed(self, kin: Kin) -> bool:
        """True if a proof of such a kernel failed for a cause that would hit this one too, and none of its structure
        passed."""
        alike = [
            item for item in self.failures_that_tell(kin) if item.blames_tf32 or item.kin.structure == kin.structure
        ]
        return bool(alike) and kin.structure not in self.passed
