"""An early proof: the proof's questions and the audit's own runs, asked of the first right kernel of a structure.

What refuses all kernels of a run is known after the first of them then, and can be repaired. An early proof times
nothing, and a kernel that passes it is proven again at the end like any other.
"""

from __future__ import annotations

import time

from foundry.graph.proofs.causes import FailureCause, Kin, Outlook, ProofOutcome, cause_of, kin_of
from foundry.graph.run.closing import EARLY
from foundry.graph.run.journal import Diverged
from foundry.graph.run.services import Services
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.compiler.lowered import Lowered

FIRST_SHARE = 0.3  # largest share of the search's time for one early proof while none has passed
SCREENS, LEAST_S = 8.0, 5.0  # what one is expected to take: so many verifications of the screen, and seconds
MOST_FAILED = 3  # early proofs of a run that may fail before one passes


def outlook_of(services: Services) -> Outlook:
    """The outcomes of the run's early proofs so far."""
    return Outlook([ProofOutcome.from_data(event.data) for event in services.log.read_notes(EARLY)])


async def prove_early(
    services: Services, evaluation: Evaluation, text: str, lowered: Lowered | None, step: str
) -> Evaluation | None:
    """The records of an early proof that refuse a candidate which its screen accepts; None if it passes, or is not
    asked: its structure is known, or the search has too little time."""
    candidate = evaluation.candidate
    kin = kin_of(candidate, lowered)
    try:
        is_due = services.journal.plain(f"{step}/early", "outside", lambda: _is_due(services, evaluation, kin))
    except Diverged:  # a recording from before there were early proofs
        return None
    if not is_due:
        return None
    start = time.monotonic()
    found = await services.measure.examine(candidate, text, "full", upto="audit", lowered=lowered)
    outcome = ProofOutcome(candidate.id, kin, cause_of(found), time.monotonic() - start)
    services.log.note_once("note", EARLY, **outcome.to_data())
    return found if outcome.cause else None


def common_cause(services: Services) -> FailureCause | None:
    """The one cause for which every early proof of the run failed, once that is more than chance."""
    return outlook_of(services).common_cause()


def _is_due(services: Services, evaluation: Evaluation, kin: Kin) -> bool:
    """True if an early proof of this kernel is worth its time.

    Not if its structure has passed already or failed twice, nor if the expected seconds exceed the share of the budget.
    """
    outlook = outlook_of(services)
    failed_alike = sum(item.kin.structure == kin.structure for item in outlook.failures)
    if kin.structure in outlook.passed or failed_alike > 1 or services.effort.early_share <= 0:
        return False
    allowed_s = 60.0 * services.ledger.allowed().minutes
    left_s = allowed_s - 60.0 * services.ledger.spent().minutes
    verdict = evaluation.verdict
    expected_s = LEAST_S + SCREENS * (verdict.seconds if verdict else 0.0)
    if outlook.outcomes:
        expected_s = max(item.seconds for item in outlook.outcomes)
    if expected_s > left_s:
        return False
    if not outlook.passed:
        return len(outlook.failures_that_tell(kin)) < MOST_FAILED and expected_s <= FIRST_SHARE * allowed_s
    spent_s = sum(item.seconds for item in outlook.outcomes)
    return spent_s + expected_s <= services.effort.early_share * allowed_s
