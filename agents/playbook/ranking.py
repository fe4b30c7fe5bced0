"""How the playbook ranks the legal moves of one candidate.

The score of a move is a product of weights: of its aspect on the diagnosis' card, of the expert, of the island's role,
of the kernel's share of the time, of the effect that experience credits it with, of the archive's hints, and of whether
the tuner has swept the structure's numbers.
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

TUNED = 0.3  # a number of a structure that the tuner has swept: it knows better ones, or none
CREDIT_POWER = 4.0  # a credit of 1.2 counts like a card's weight of 2
# Which aspects move a candidate along a coordinate of the archive.
COORDINATES: dict[str, tuple[Aspect, ...]] = {
    "d_mem": ("tile", "vector", "memory"),
    "d_algo": ("algorithm", "fusion", "rewrite"),
    "d_sync": ("parallel",),
}


NO_OPINION = Opinion(1.0)


@dataclass(frozen=True)
class Ranked:
    """A move with its score (1 is neutral), the expert's opinion, and what experience credits it with."""

    move: Move
    score: float
    opinion: Opinion
    credit: Credit | None = None


def rank(moves: Sequence[Move], expert: Expert, situation: Situation, *, of_others: float = 0.0) -> list[Ranked]:
    """The expert's moves, best first; equal scores keep the library's order. `of_others`: the weight of moves of other
    experts' aspects."""
    ranked = [_score(move, expert, situation, of_others) for move in moves]
    return sorted((item for item in ranked if item.score > 0), key=lambda item: -item.score)


def _score(move: Move, expert: Expert, situation: Situation, of_others: float) -> Ranked:
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
    """What experience is worth: the effect that it credits a move with, to a power that lets it win."""
    return math.exp(CREDIT_POWER * credit.log_effect)


def _share(move: Move, situation: Situation) -> float:
    """Tuning a kernel that takes a tenth of the time brings at most a tenth (Amdahl 1967)."""
    if not move.kernel or len(situation.shares) < 2:
        return 1.0
    return 0.1 + situation.shares.get(move.kernel, 0.0) * len(situation.shares)


def _weigh_hints(move: Move, situation: Situation) -> float:
    """The archive's gradients: a hint to go up favours the aspects behind its coordinate, one to go down the others."""
    factor = 1.0
    for hint in situation.brief.hints:
        if move.aspect in COORDINATES[hint.coordinate]:
            factor *= 1.4 if hint.direction == "up" else 0.8
    return min(2.0, max(0.5, factor))
