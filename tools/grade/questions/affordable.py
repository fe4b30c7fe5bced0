"""Leaves questions of a proof out if the reference is too slow, or too large, to be asked all of them.

Each omission is a gate of the verdict and a label of the kernel (`not-asked:...`), which policy strict refuses.
"""

from __future__ import annotations

from foundry.knowledge.candidate import Gate
from foundry.knowledge.task import Policy
from foundry.tools.protocol.orders import NOT_ASKED
from foundry.tools.protocol.rules import Distribution, Parameters
from foundry.tools.task.limits import task_seconds

PROOF_LIMITS = 4.0  # multiple of FOUNDRY_TASK_SECONDS that the reference may spend on all questions of one case
RUNS_PER_QUESTION = 2.5  # forwards of the reference: in its own arithmetic, in float64, now and then with nudged inputs
# Asked at any cost, and before all others: they refused most kernels of the museum and of chat models.
FIRST = frozenset(
    (
        *("as given", "few elements changed", "elements rearranged", "x3", "x-1", "mixed exponents"),
        *("randomised parameters", "parameters rearranged", "few parameters changed", "running statistics changed"),
        *("other buffers", "other masks", "empty and full masks", "other indices", "other numbers"),
        *("few huge elements", "sixteenths", "constant", "non-finite", "NaN at edges"),
    )
)


# Kinds of parameters asked about if memory is short: they are drawn tensor by tensor, without a copy of all.
LEAN_KINDS: frozenset[Parameters] = frozenset(("seeded", "randomised", "statistics", "few changed", "few more"))


class QuestionBudget:
    """Decides which questions of one case are asked.

    `reference_ms`: one forward, as the baseline measured it. `is_lean`: the judge holds one copy of the model.
    """

    def __init__(self, reference_ms: float, policy: Policy, *, is_lean: bool = False) -> None:
        self._reference_s = reference_ms / 1e3
        self._is_lean = is_lean
        allowed_s = PROOF_LIMITS * task_seconds()
        self._left = float("inf")
        if policy != "strict" and self._reference_s > 0:
            self._left = allowed_s / (RUNS_PER_QUESTION * self._reference_s) - len(FIRST)

    def leaves_out(self, distribution: Distribution, skipped: dict[str, Gate]) -> bool:
        """True if a question is not asked; `skipped` gets the gate that says why. A question that is asked uses up
        budget."""
        if self._is_lean and distribution.parameters not in LEAN_KINDS:
            words = "each kind of parameters takes as much memory again"
            skipped[distribution.name] = Gate(distribution.name, True, f"{NOT_ASKED} memory: {words}")
            return True
        if distribution.name in FIRST:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        words = f"one forward of the reference takes {self._reference_s:.3g} s; FOUNDRY_TASK_SECONDS gives more"
        skipped[distribution.name] = Gate(distribution.name, True, f"{NOT_ASKED} time: {words}")
        return True
