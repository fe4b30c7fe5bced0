"""Leaves out questions of a proof if the reference is too slow for all of them.

Each omission is a gate of the verdict and a label of the kernel (`not-asked:...`), which policy strict refuses.
"""

from __future__ import annotations

from foundry.knowledge.candidate import Gate
from foundry.knowledge.task import Policy
from foundry.tools.protocol.orders import NOT_ASKED
from foundry.tools.protocol.rules import COUNTS, Distribution
from foundry.tools.task.limits import task_seconds

PROOF_LIMITS = 4.0  # multiple of FOUNDRY_TASK_SECONDS that the reference may spend on all questions of one case
RUNS_PER_QUESTION = 2.5  # forwards of the reference: in its own arithmetic, in float64, now and then with nudged inputs
# Always asked, and first: these questions refused most kernels of the museum and of chat models.
FIRST = frozenset(
    (
        *("as given", "few elements changed", "elements rearranged", "x3", "x-1", "mixed exponents"),
        *("randomised parameters", "parameters rearranged", "few parameters changed", "running statistics changed"),
        *("other buffers", "other masks", "empty and full masks", "other indices", "other numbers", *COUNTS),
        *("few huge elements", "sixteenths", "constant", "non-finite", "NaN at edges"),
    )
)


class QuestionBudget:
    """Decides for one case which questions are asked. `reference_ms`: one forward, as the baseline measured it."""

    def __init__(self, reference_ms: float, policy: Policy) -> None:
        """Works out how many further questions the proof's time allows; no limit under policy strict or without a
        time."""
        self._reference_s = reference_ms / 1e3
        allowed_s = PROOF_LIMITS * task_seconds()
        self._left = float("inf")
        if policy != "strict" and self._reference_s > 0:
            usual = len(FIRST) - len(COUNTS)  # few tasks have lengths, offsets or classes
            self._left = allowed_s / (RUNS_PER_QUESTION * self._reference_s) - usual

    def leaves_out(self, distribution: Distribution, skipped: dict[str, Gate]) -> bool:
        """True if a question is not asked; `skipped` gets the gate that says why. One that is asked counts."""
        if distribution.name in FIRST:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        words = f"one forward of the reference takes {self._reference_s:.3g} s; FOUNDRY_TASK_SECONDS gives more"
        skipped[distribution.name] = Gate(distribution.name, True, f"{NOT_ASKED} time: {words}")
        return True
