"""Ranks the legal moves of one candidate by a score, the product of weights for:

- the move's aspect on the diagnosis' card, the expert, and the island's role;
- the kernel's share of the time;
- the effect that experience credits the move with;
- the archive's hints;
- tunables that the tuner has already swept for this structure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.agents.expert import Expert, Opinion
from foundry.agents.route import ROLES
from foundry.agents.situation import Situation
from foundry.agents.tuning import is_tuned
from foundry.knowledge.cards import cards
from foundry.knowledge.experience.record import Credit
from foundry.knowledge.thought import Aspect, Move

TUNED = 0.3  # weight of a tunable of a structure that the tuner has swept: it found better values, or none exist
CREDIT_POWER = 4.0  # a credit of 1.2 counts like a card's weight of 2
# Coordinate of the archive -> aspects of moves that change it.
COORDINATES: dict[str, tuple[Aspect, ...]] = {
    "d_mem": ("tile", "vector", "memory"),
    "d_algo": ("algorithm", "fusion", "rewrite"),
    "d_sync": ("parallel",),
}


NO_OPINION = Opinion(1.0)


@dataclass(frozen=True)
class Ranked:
    """A move with its score (1 is neutral), the expert's opinion, and the effect that experience credits it with."""

    move: Move
    score: float
    opinion: Opinion
    credit: Credit | None = None


def rank(moves: Sequence[Move], expert: Expert, situation: Situation, *, of_others: float = 0.0) -> list[Ranked]:
    """The moves with a positive score, best first; equal scores keep the compiler's order. `of_others`: the weight
    of moves whose aspect belongs to other experts."""
    ranked = [_score(move, expert, situation, of_others) for move in moves]
    return sorted((item for item in ranked if item.score > 0), key=lambda item: -item.score)


def _score(move: Move, expert: Expert, situation: Situation, of_others: float) -> Ranked:
    """The move with its score: the product of all weights."""
    if not (liked := expert.aspects.get(move.aspect, of_others)):
        return Ranked(move, 0.0, NO_OPINION)
    opinion = expert.opinion(move, situation)
    credit = next((item for item in situation.brief.credits if item.move == move.key), None)
    factors = (
        liked,
        opinion.weight,
        cards()[situation.limiter].weight(move.aspect) if situation.limiter else 1.0,
        ROLES[situation.brief.role].get(move.aspect, 1.0),
        _share(move, situation),
        weigh_credit(credit) if credit and situation.brief.credits_choose else 1.0,
        _weigh_hints(move, situation),
        TUNED if move.kind == "set" and move.aspect != "precision" and is_tuned(situation.brief) else 1.0,
    )
    return Ranked(move, math.prod(factors), opinion, credit)


def weigh_credit(credit: Credit) -> float:
    """The weight of a credit: its effect to the power CREDIT_POWER, so that measured experience outweighs rules."""
    return math.exp(CREDIT_POWER * credit.log_effect)


def _share(move: Move, situation: Situation) -> float:
    """The weight of the kernel's share of the time: tuning a kernel that takes a tenth of the time gains at most a
    tenth (Amdahl 1967)."""
    if not move.kernel or len(situation.shares) < 2:
        return 1.0
    return 0.1 + situation.shares.get(move.kernel, 0.0) * len(situation.shares)


def _weigh_hints(move: Move, situation: Situation) -> float:
    """The weight of the archive's hints: a hint to go up favours the aspects behind its coordinate, one to go down
    the others."""
    factor = 1.0
    for hint in situation.brief.hints:
        if move.aspect in COORDINATES[hint.coordinate]:
            factor *= 1.4 if hint.direction == "up" else 0.8
    return min(2.0, max(0.5, factor))
