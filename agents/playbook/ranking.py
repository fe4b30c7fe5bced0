"""Ranks the legal moves of one candidate by a score.

The score is a product of six weights:
- the move's aspect on the diagnosis' card
- the expert's opinion
- the island's role
- the kernel's share of the time
- the strategies' opinion
- `TUNED`, if the tuner has swept the structure's numbers
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
from foundry.knowledge.thought import Move

TUNED = 0.3  # a number of a structure that the tuner has swept: it knows better ones, or none

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
    """The move with its score: the product of the expert's, card's, role's, kernel's and user's weights; 0 for a
    disliked aspect."""
    if not (liked := expert.aspects.get(move.aspect, of_others)):
        return Ranked(move, 0.0, NO_OPINION)
    opinion, weights = expert.opinion(move, situation), situation.brief.weights
    credit = next((item for item in situation.brief.credits if item.move == move.key), None)
    factors = (
        liked,
        opinion.weight,
        cards()[situation.limiter].weight(move.aspect) if situation.limiter else 1.0,
        ROLES[situation.brief.role].get(move.aspect, 1.0),
        _share(move, situation),
        weights.get(move.key, 1.0) * weights.get(move.aspect, 1.0),
        TUNED if move.kind == "set" and move.aspect != "precision" and is_tuned(situation.brief) else 1.0,
    )
    return Ranked(move, math.prod(factors), opinion, credit)


def _share(move: Move, situation: Situation) -> float:
    """The weight of the kernel's share of the time: tuning a kernel that takes a tenth of the time gains at most a
    tenth (Amdahl 1967)."""
    if not move.kernel or len(situation.shares) < 2:
        return 1.0
    return 0.1 + situation.shares.get(move.kernel, 0.0) * len(situation.shares)
