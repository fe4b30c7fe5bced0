"""The playbook's rationale: every step in words that a kernel engineer accepts, with the numbers behind them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.agents.brief import Brief
from foundry.agents.expert import Expert
from foundry.agents.experts.diagnostician import Suspect, undoes
from foundry.agents.playbook.ranking import Ranked
from foundry.agents.situation import Situation
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.step_words import change_words, spoken
from foundry.knowledge.thought import Directive, Move, Proposal


@dataclass(frozen=True)
class Draft:
    """A recipe and its reasons: the user's moves, the chosen ones, those that undo a suspect, and the elite crossed
    with."""

    recipe: Recipe
    asked: tuple[tuple[Move, Directive], ...]
    held: tuple[Directive, ...]
    chosen: tuple[Ranked, ...]
    undone: tuple[Suspect, ...]
    partner: str = ""


def proposal_of(draft: Draft, expert: Expert, situation: Situation) -> Proposal:
    """The draft as a typed proposal."""
    brief = situation.brief
    asked = tuple(move for move, _ in draft.asked)
    moves = (*asked, *(item.move for item in draft.chosen), *(item.move for item in draft.undone))
    return Proposal(
        id=f"{brief.step}.{expert.name}",
        expert=expert.name,
        parent=brief.parent.candidate.id,
        rationale=_rationale(draft, situation),
        expected=_expected(draft, situation),
        moves=moves,
        recipe=draft.recipe,
        cites=_cites(draft, brief),
    )


def _cites(draft: Draft, brief: Brief) -> tuple[str, ...]:
    """Ids of the directives and experience records that a step follows."""
    directives = [f"d{directive.id}" for directive in draft.held]
    known = [item.credit for item in draft.chosen if item.credit and item.move.key in brief.weights]
    followed = [credit for credit in known if credit.effect >= 1]
    return tuple(dict.fromkeys([*directives, *(f"x{record}" for credit in followed for record in credit.records)]))


def _rationale(draft: Draft, situation: Situation) -> str:
    """The draft's reasons as sentences: diagnosis, directives, crossover, chosen and undone moves."""
    diagnosis = situation.diagnosis
    about = f"{spoken(str(diagnosis.failure or diagnosis.limiter))}: {diagnosis.evidence}." if diagnosis else ""
    asked = [f"{_change(move)}, as directive d{directive.id} asks." for move, directive in draft.asked]
    crossed = [f"Takes over from {draft.partner}:"] if draft.partner else []
    chosen = [_why(item) for item in draft.chosen]
    undone = [f"Suspect: {undoes(item.move, situation)}; {item.because}." for item in draft.undone]
    fresh = {directive.id for _, directive in draft.asked}
    held = [f"d{directive.id}" for directive in draft.held if directive.id not in fresh]
    keeps = [f"Keeps to {', '.join(held)}."] if held else []
    return " ".join(part for part in (about, *asked, *crossed, *chosen, *undone, *keeps) if part)


def _change(move: Move) -> str:
    """The move as a clause, e.g. `unroll 1 -> 4 vectors in k0`."""
    if move.kind == "set":
        return f"{change_words(move.name, move.was, move.value, move.unit)} in {move.kernel}"
    verb = {"split": "Write {} to memory", "fuse": "Keep {} in registers", "rewrite": "Apply {}", "unwrite": "Undo {}"}
    return verb[move.kind].format(move.name)


def _why(item: Ranked) -> str:
    """The move with the reasons for it."""
    reasons = [item.opinion.because, _without_change(item.move)]
    if item.credit is not None:
        reasons.append(f"experience credits it with {item.credit.words}")
    told = "; ".join(dict.fromkeys(reason.rstrip(".") for reason in reasons if reason))
    return f"{_change(item.move)}: {told}." if told else f"{_change(item.move)}."


def _without_change(move: Move) -> str:
    """The compiler's reason without the change it repeats: `more vectors in flight` for `unroll 1 to 4 in k0: more
    vectors in flight`."""
    change, _, reason = move.reason.partition(": ")
    repeats = f"{move.name} {move.was} to {move.value} in {move.kernel}" if move.kind == "set" else f" {move.name} "
    return reason if reason and repeats in f"{change} " else move.reason


def _expected(draft: Draft, situation: Situation) -> str:
    """The effect to expect, so that the outcome can be compared with it: by credits, traffic saved, or the kernel's
    share of time."""
    if draft.undone:
        return "compiles and gives the right result again"
    credits = [item.credit for item in draft.chosen if item.credit is not None]
    if credits:
        together = math.exp(sum(credit.log_effect for credit in credits))
        steps = max(credit.steps for credit in credits)
        return f"about {together:.2f}x the parent's speed, as its moves are credited by up to {steps} steps each"
    moves = [move for move, _ in draft.asked] + [item.move for item in draft.chosen]
    saved = sum(2 * situation.value_bytes(move.name) for move in moves if move.kind == "fuse")
    if saved:
        part = f" ({100 * saved / situation.traffic_bytes:.0f} % of the traffic)" if situation.traffic_bytes else ""
        return f"{saved / 1e6:.4g} MB less to move{part}, one launch less"
    kernels = [move.kernel for move in moves if move.kernel]
    share = max((situation.shares.get(kernel, 0.0) for kernel in kernels), default=0.0)
    if share and situation.candidate_ms:
        fraction = situation.fraction_of_floor
        room = 1 - fraction if fraction is not None else 0.5
        gain = max(0.0, min(1.0, room)) * share
        if gain < 0.01:
            return "little: the roofline floor is reached; at most a steadier time"
        part = f"the kernel has {100 * share:.0f} % of {situation.candidate_ms:.4g} ms"
        return f"at most {100 * gain:.0f} % less time: {part}"
    return "a faster kernel at the same traffic"
