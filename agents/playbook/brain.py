"""The playbook brain: a deterministic search over the kernel library's legal moves, no model and no key.

For a seed and a step it always draws the same proposal. It exploits by rank and explores by a seeded softmax over the
scores; when an island stagnates it draws hotter and takes larger steps (several moves at once, crossover).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from foundry.agents.brief import Brief
from foundry.agents.expert import Expert, experts
from foundry.agents.experts.diagnostician import Suspect, suspects, without_tf32
from foundry.agents.judgement import AuditEvidence
from foundry.agents.obedience import Obedience
from foundry.agents.playbook.diagnosis import diagnose
from foundry.agents.playbook.estimates import Elsewhere, Estimates, tunables_of
from foundry.agents.playbook.leaps import Leaps
from foundry.agents.playbook.ranking import Ranked, rank
from foundry.agents.playbook.words import Draft, proposal_of
from foundry.agents.situation import Situation
from foundry.agents.steps import far_settings, towards
from foundry.agents.tuning import tuning_step
from foundry.knowledge.candidate import Judgement, Recipe
from foundry.knowledge.compiler import moves as kernel_library
from foundry.knowledge.compiler.lowered import Lowered, Outline
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.record import Known
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Diagnosis, Directive, ExpertName, Move, Proposal

TEMPERATURE = 0.45  # of the log-scores: a move with half the score is drawn a fifth as often
STAGNATING_TEMPERATURE = 1.2
FAR_WEIGHT = 0.5  # of a value more than one step away: its neighbours say more about it than nothing does
DRAWS = 24  # tries at a combined or random step before the ranked list is walked in order
OF_OTHERS = 0.4  # the weight of moves that are another expert's, within a larger step
PAIR_DEPTH = 12  # the ranked walk pairs the best so many moves once all single moves are tried


class MoveLibrary(Protocol):
    """The part of the kernel library that the search needs (knowledge/compiler/moves.py)."""

    def moves(self, lowered: Lowered) -> tuple[Move, ...]: ...
    def apply(self, recipe: Recipe, move: Move) -> Recipe: ...
    def outline(self, recipe: Recipe, graph: OpGraph, device: Device) -> Outline: ...


class PlaybookBrain:
    """Implements Brain."""

    name = "playbook"

    def __init__(self, library: MoveLibrary | None = None) -> None:
        self.library: MoveLibrary = library or kernel_library
        self._learnt: tuple[tuple[int, ...], Estimates] | None = None
        self._elsewhere: tuple[tuple[tuple[int, ...], frozenset[tuple[str, str]]], Elsewhere] | None = None

    async def diagnose(self, brief: Brief) -> Diagnosis:
        return diagnose(brief)

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | None:
        """None when the parent is no library candidate or every legal step has been tried."""
        if brief.lowered is None or brief.obedience is None:
            return None
        found = brief.diagnosis or diagnose(brief)
        if found.failure is None and (sweep := tuning_step(expert, brief)):
            return sweep
        search = _Search(
            experts()[expert], Situation(brief, found), brief.lowered, brief.obedience, self.library, self._learn
        )
        draft = search.repair(found.failure) if found.failure else search.improve()
        return proposal_of(draft, experts()[expert], search.situation) if draft else None

    def _learn(self, known: Sequence[Known]) -> Estimates:
        """What the measurements say, kept for the next step, which often knows the same of what is measured. It
        depends on nothing else, so that a replay thinks the same."""
        own, pending = [one for one in known if not one.run and not one.pending], [one for one in known if one.pending]
        elsewhere = self._read([one for one in known if one.run], frozenset(tunables_of([*own, *pending])))
        mark = tuple(map(id, [elsewhere, *own]))
        if self._learnt is None or self._learnt[0] != mark:
            self._learnt = mark, Estimates(own, elsewhere)
        return self._learnt[1].believing(pending)

    def _read(self, others: Sequence[Known], tunables: frozenset[tuple[str, str]]) -> Elsewhere:
        """What earlier runs say to a run whose kernels have these tunables."""
        mark = tuple(map(id, others)), tunables
        if self._elsewhere is None or self._elsewhere[0] != mark:
            self._elsewhere = mark, Elsewhere(others, tunables)
        return self._elsewhere[1]

    async def judge(self, evidence: AuditEvidence) -> Judgement:
        return Judgement()  # the ruling has looked at every number that the playbook could look at

    async def answer(self, question: str, context: str) -> str:
        return ""


@dataclass(frozen=True)
class _Search:
    """One step of one expert from one parent."""

    expert: Expert
    situation: Situation
    lowered: Lowered
    obedience: Obedience
    library: MoveLibrary
    learn: Callable[[Sequence[Known]], Estimates]

    @cached_property
    def stream(self) -> random.Random:
        brief = self.situation.brief
        return random.Random(f"{brief.seed}:{brief.step}:{self.expert.name}")

    @cached_property
    def obeyed(self) -> tuple[tuple[Move, Directive], ...]:
        """Moves that the user's directives still ask for: part of every step from this parent."""
        return self.obedience.required

    @cached_property
    def ranked(self) -> list[Ranked]:
        near = self.library.moves(self.lowered)
        far = rank(self._legal(far_settings(self.lowered, near)), self.expert, self.situation)
        weight = 1.0 if self.situation.stagnating else FAR_WEIGHT
        found = rank(self._legal(near), self.expert, self.situation)
        # what experience has measured is as good a step from afar
        chosen = self.situation.brief.credits_choose
        found += [item if item.credit and chosen else replace(item, score=weight * item.score) for item in far]
        return sorted(found, key=lambda item: -item.score)

    def _legal(self, moves: Sequence[Move]) -> list[Move]:
        """The moves that the user does not forbid and that are not part of every step anyway."""
        asked = {(move.kind, move.kernel, move.name) for move, _ in self.obeyed}
        fresh = [move for move in moves if (move.kind, move.kernel, move.name) not in asked]
        return [move for move in fresh if self.obedience.forbids(move) is None]

    def improve(self) -> Draft | None:
        """A step that follows the user's directives, if some are not followed yet; else a drawn step; else the next one
        of the ranked list."""
        wish = self._draft(())
        if self.obeyed and wish:
            return wish
        if self.situation.brief.known and (draft := self._leap()):
            return draft
        for draw in self._draws():
            draft = draw()
            if draft:
                return draft
        return next((draft for draft in self._in_order() if draft), None)

    def _leap(self) -> Draft | None:
        """The step that promises most by what was measured."""
        structural = [item for item in self.judged(self.library.moves(self.lowered)) if item.move.kind != "set"]
        parent = Outline(self.lowered.recipe, self.lowered.kernels)
        brief = self.situation.brief
        leaps = Leaps(brief, parent, structural, self, self.stream, self.learn(brief.known))
        return next((draft for moves in leaps.ranked() if (draft := self._draft(moves))), None)

    def judged(self, moves: Sequence[Move]) -> list[Ranked]:
        """The moves that the user does not forbid, whoever's they are, ranked by this expert."""
        return rank(self._legal(moves), self.expert, self.situation, of_others=OF_OTHERS)

    def outlined(self, recipe: Recipe) -> Outline:
        graph = self.situation.brief.graph
        if graph is None:
            raise CannotLower("there is no graph")
        return self.library.outline(recipe, graph, self.situation.brief.device)

    def applied(self, recipe: Recipe, moves: Sequence[Move]) -> Recipe:
        for move in moves:
            recipe = self.library.apply(recipe, move)
        return recipe

    def repair(self, failure: str) -> Draft | None:
        """Make an inaccurate candidate's products accurate; undo the most suspicious untried choice, then pairs."""
        brief = self.situation.brief
        in_tf32 = without_tf32(brief, self.lowered) if failure == "inaccurate" else ()
        accurate = tuple(item for item in in_tf32 if not self._is_forbidden(item))
        if accurate and (draft := self._draft((), undone=accurate)):
            return draft
        found = [item for item in suspects(brief, self.lowered, failure) if not self._is_forbidden(item)]
        for suspect in found:
            draft = self._draft((), undone=(suspect,))
            if draft:
                return draft
        pairs = (
            (one, two) for one in found[:PAIR_DEPTH] for two in found[:PAIR_DEPTH] if _compatible(one.move, two.move)
        )
        return next((draft for one, two in pairs if (draft := self._draft((), undone=(one, two)))), None)

    def _is_forbidden(self, suspect: Suspect) -> bool:
        return self.obedience.forbids(suspect.move) is not None

    def _draws(self) -> Iterator[Callable[[], Draft | None]]:
        """Random kinds of steps, drawn by seed; larger steps are more frequent when the island stagnates."""
        kinds: tuple[Callable[[], Draft | None], ...] = (self._single, self._pair, self._several, self._cross)
        weights = (2.0, 3.0, 3.0, 3.0) if self.situation.stagnating else (7.0, 2.0, 0.5, 1.0)
        for _ in range(DRAWS if self.ranked else 0):
            yield self.stream.choices(kinds, weights)[0]

    def _draw(self, items: list[Ranked]) -> Ranked:
        """One move by softmax over the log-scores."""
        temperature = STAGNATING_TEMPERATURE if self.situation.stagnating else TEMPERATURE
        best = items[0].score
        weights = [math.exp(math.log(item.score / best) / temperature) for item in items]
        return self.stream.choices(items, weights)[0]

    def _single(self) -> Draft | None:
        return self._draft((self._draw(self.ranked),))

    def _pair(self) -> Draft | None:
        return self._draft(self._draw_moves(2))

    def _several(self) -> Draft | None:
        return self._draft(self._draw_moves(3))

    def _draw_moves(self, count: int) -> tuple[Ranked, ...]:
        """Up to `count` compatible moves. After the first, moves of the same kernel are preferred, because the sides of
        a tile pay only together."""
        chosen = [self._draw(self.ranked)]
        while len(chosen) < count:
            fitting = [item for item in self.ranked if all(_compatible(item.move, other.move) for other in chosen)]
            same = [item for item in fitting if item.move.kernel == chosen[0].move.kernel]
            if not fitting:
                break
            chosen.append(self._draw(same or fitting))
        return tuple(chosen)

    def _cross(self) -> Draft | None:
        """Some of an elite's differing choices, carried over as moves."""
        partners = [item for item in self.situation.brief.elites if item.candidate.recipe is not None]
        partners = [item for item in partners if item.candidate.id != self.situation.brief.parent.candidate.id]
        if not partners:
            return None
        partner = self.stream.choice(partners)
        recipe = partner.candidate.recipe
        moves = self._legal(list(towards(self.lowered, recipe))) if recipe is not None else []
        theirs = rank(moves, self.expert, self.situation)
        if not theirs:
            return None
        count = self.stream.randint(1, min(4, len(theirs)))
        taken: list[Ranked] = []
        for item in self.stream.sample(theirs, len(theirs)):
            if len(taken) < count and all(_compatible(item.move, other.move) for other in taken):
                taken.append(item)
        return self._draft(tuple(taken), partner=partner.candidate.id)

    def _in_order(self) -> Iterator[Draft | None]:
        """Every single move by rank, then pairs of the best."""
        yield from (self._draft((item,)) for item in self.ranked)
        best = self.ranked[:PAIR_DEPTH]
        for index, one in enumerate(best):
            yield from (self._draft((one, two)) for two in best[index + 1 :] if _compatible(one.move, two.move))

    def _draft(
        self, chosen: tuple[Ranked, ...], *, undone: tuple[Suspect, ...] = (), partner: str = ""
    ) -> Draft | None:
        """The recipe after the user's moves and the chosen ones; None if it equals the parent's, was tried before, or
        cannot be lowered."""
        asked = [move for move, _ in self.obeyed]
        moves = (*asked, *(item.move for item in chosen), *(item.move for item in undone))
        recipe = self.applied(self.lowered.recipe, moves)
        fresh = fresh_recipe(recipe, self.situation.brief, self.library)
        return Draft(fresh, self.obeyed, self.obedience.holds(), chosen, undone, partner) if fresh else None


def fresh_recipe(recipe: Recipe, brief: Brief, library: MoveLibrary) -> Recipe | None:
    """The recipe in its canonical form; None when it leads to the parent, to what was tried, or nowhere."""
    known = brief.tried | ({brief.lowered.recipe.digest} if brief.lowered else set())
    if recipe.digest in known or brief.graph is None:
        return None
    try:
        found = library.outline(recipe, brief.graph, brief.device).recipe
    except CannotLower:
        return None
    return None if found.digest in known else found


def _compatible(one: Move, other: Move) -> bool:
    """Whether two moves can be made at once: not the same thing twice, and only settings beside a change of structure
    that does not rename kernels (settings of kernels that a new structure replaces would be lost)."""
    if one.kind == "set" and other.kind == "set":
        return (one.kernel, one.name) != (other.kernel, other.name)
    return one.kind != "set" and other.kind != "set" and one.name != other.name
