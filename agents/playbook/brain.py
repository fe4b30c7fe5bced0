"""The playbook brain: a deterministic search over the kernel compiler's legal moves, without a model or an API key.

For a seed and a step it always draws the same proposal. It exploits by rank and explores by a seeded softmax over
the scores. If an island stagnates, it draws at a higher temperature and takes larger steps (several moves at once,
crossover).
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
from foundry.agents.playbook.rationale import Draft, proposal_of
from foundry.agents.situation import Situation
from foundry.agents.steps import far_settings, moves_towards
from foundry.agents.tuning import tuning_step
from foundry.knowledge.candidate import ROUNDED, Judgement, Recipe
from foundry.knowledge.compiler import moves as kernel_library
from foundry.knowledge.compiler.lowered import Lowered, Outline
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.record import Known
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Diagnosis, Directive, ExpertName, Move, Proposal

TEMPERATURE = 0.45  # softmax temperature of log-scores: a move with half the score is drawn a fifth as often
STAGNATING_TEMPERATURE = 1.2
FAR_WEIGHT = 0.5  # weight of a setting more than one step away: less is known about it
DRAWS = 24  # tries at a combined or random step before the ranked list is walked in order
OF_OTHERS = 0.4  # weight of another expert's moves within a larger step
PAIR_DEPTH = 12  # the best moves that are paired once all single moves are tried


class MoveLibrary(Protocol):
    """The part of the kernel compiler that the search needs (knowledge/compiler/moves.py)."""

    def moves(self, lowered: Lowered) -> tuple[Move, ...]: ...
    def apply(self, recipe: Recipe, move: Move) -> Recipe: ...
    def outline(self, recipe: Recipe, graph: OpGraph, device: Device) -> Outline: ...


class PlaybookBrain:
    """The Brain that searches by rules and a statistical model of measured speedups."""

    name = "playbook"

    def __init__(self, library: MoveLibrary | None = None) -> None:
        """`library` gives the legal moves, by default the kernel compiler; nothing is learnt yet."""
        self.library: MoveLibrary = library or kernel_library
        self._learnt: tuple[tuple[int, ...], Estimates] | None = None
        self._elsewhere: tuple[tuple[tuple[int, ...], frozenset[tuple[str, str]]], Elsewhere] | None = None

    async def diagnose(self, brief: Brief) -> Diagnosis:
        """The diagnosis of the parent, by rules."""
        return diagnose(brief)

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | None:
        """The expert's next step. None if the parent is no candidate of the kernel compiler, or every legal step has
        been tried."""
        if brief.lowered is None or brief.obedience is None:
            return None
        found = brief.diagnosis or diagnose(brief)
        if found.failure is None and (sweep := tuning_step(expert, brief)):
            return sweep
        search = _Search(
            experts()[expert],
            situation=Situation(brief, found),
            lowered=brief.lowered,
            obedience=brief.obedience,
            library=self.library,
            learn=self._learn,
        )
        draft = search.repair(found.failure) if found.failure else search.improve()
        return proposal_of(draft, experts()[expert], search.situation) if draft else None

    def _learn(self, known: Sequence[Known]) -> Estimates:
        """Speedup estimates from the known measurements. The last ones are kept, because the next step often knows
        the same measurements; the result depends on nothing else, so a replay computes the same."""
        own, pending = [one for one in known if not one.run and not one.pending], [one for one in known if one.pending]
        elsewhere = self._read([one for one in known if one.run], frozenset(tunables_of([*own, *pending])))
        mark = tuple(map(id, [elsewhere, *own]))
        if self._learnt is None or self._learnt[0] != mark:
            self._learnt = mark, Estimates(own, elsewhere)
        return self._learnt[1].believing(pending)

    def _read(self, others: Sequence[Known], tunables: frozenset[tuple[str, str]]) -> Elsewhere:
        """The estimator's part from earlier runs, for a run whose kernels have these (template, tunable) pairs."""
        mark = tuple(map(id, others)), tunables
        if self._elsewhere is None or self._elsewhere[0] != mark:
            self._elsewhere = mark, Elsewhere(others, tunables)
        return self._elsewhere[1]

    async def judge(self, evidence: AuditEvidence) -> Judgement:
        """An empty judgement: the ruling has already looked at every number that the playbook could look at."""
        return Judgement()

    async def answer(self, question: str, context: str) -> str:
        """An empty answer: the playbook cannot answer questions."""
        return ""


@dataclass(frozen=True)
class _Search:
    """The search for one step of one expert from one parent."""

    expert: Expert
    situation: Situation
    lowered: Lowered
    obedience: Obedience
    library: MoveLibrary
    learn: Callable[[Sequence[Known]], Estimates]

    @cached_property
    def stream(self) -> random.Random:
        """Random numbers seeded by run, step and expert."""
        brief = self.situation.brief
        return random.Random(f"{brief.seed}:{brief.step}:{self.expert.name}")

    @cached_property
    def obeyed(self) -> tuple[tuple[Move, Directive], ...]:
        """Moves that the user's directives still ask for: part of every step from this parent."""
        return self.obedience.required

    @cached_property
    def ranked(self) -> list[Ranked]:
        """The expert's allowed moves, best first, including settings more than one step away at a lower weight."""
        near = self.library.moves(self.lowered)
        far = rank(self._legal(far_settings(self.lowered, near)), self.expert, self.situation)
        weight = 1.0 if self.situation.stagnating else FAR_WEIGHT
        found = rank(self._legal(near), self.expert, self.situation)
        # what experience has measured is as good a step from afar
        preferred = self.situation.brief.weights
        found += [item if item.move.key in preferred else replace(item, score=weight * item.score) for item in far]
        return sorted(found, key=lambda item: -item.score)

    def _legal(self, moves: Sequence[Move]) -> list[Move]:
        """The moves that the user does not forbid, that are not part of every step anyway, and that leave products as
        accurate as PyTorch's."""
        asked = {(move.kind, move.kernel, move.name) for move, _ in self.obeyed}
        fresh = [move for move in moves if (move.kind, move.kernel, move.name) not in asked]
        fresh = [move for move in fresh if move.value not in ROUNDED or move.kernel not in self.unrounded]
        return [move for move in fresh if self.obedience.forbids(move) is None]

    @cached_property
    def unrounded(self) -> frozenset[str]:
        """The kernels of products that PyTorch computes without TF32, by name, whatever is fused."""
        brief = self.situation.brief
        products = brief.baseline.unrounded_in(brief.graph).products if brief.graph else ()
        kernels = (kernel.name for kernel in self.lowered.kernels if set(kernel.ops) & set(products))
        return frozenset((*kernels, *(f"k_{name}" for name in products)))

    def improve(self) -> Draft | None:
        """A step that follows the user's directives, if some are not followed yet; else a step drawn by seed; else
        the next one of the ranked list. None if all were tried."""
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
        """The untried step with the largest expected improvement by the estimates; None if there is none."""
        structural = [item for item in self.judged(self.library.moves(self.lowered)) if item.move.kind != "set"]
        parent = Outline(self.lowered.recipe, self.lowered.kernels)
        brief = self.situation.brief
        leaps = Leaps(
            brief, parent, near=structural, adviser=self, stream=self.stream, estimates=self.learn(brief.known)
        )
        return next((draft for moves in leaps.ranked() if (draft := self._draft(moves))), None)

    def judged(self, moves: Sequence[Move]) -> list[Ranked]:
        """The moves of all experts that the user does not forbid, ranked by this expert."""
        return rank(self._legal(moves), self.expert, self.situation, of_others=OF_OTHERS)

    def outlined(self, recipe: Recipe) -> Outline:
        """The kernels of a recipe, without code. Raises CannotLower."""
        graph = self.situation.brief.graph
        if graph is None:
            raise CannotLower("there is no graph")
        return self.library.outline(recipe, graph, self.situation.brief.device)

    def applied(self, recipe: Recipe, moves: Sequence[Move]) -> Recipe:
        """The recipe after the moves."""
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
        """True if the user forbids the move that undoes the suspect."""
        return self.obedience.forbids(suspect.move) is not None

    def _draws(self) -> Iterator[Callable[[], Draft | None]]:
        """Yields kinds of steps drawn by seed; larger steps are more frequent if the island stagnates."""
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
        """A step of one move."""
        return self._draft((self._draw(self.ranked),))

    def _pair(self) -> Draft | None:
        """A step of up to two moves."""
        return self._draft(self._draw_moves(2))

    def _several(self) -> Draft | None:
        """A step of up to three moves."""
        return self._draft(self._draw_moves(3))

    def _draw_moves(self, count: int) -> tuple[Ranked, ...]:
        """Up to `count` compatible moves. After the first, moves of the same kernel are preferred, because the sides
        of a tile pay only together."""
        chosen = [self._draw(self.ranked)]
        while len(chosen) < count:
            fitting = [item for item in self.ranked if all(_compatible(item.move, other.move) for other in chosen)]
            same = [item for item in fitting if item.move.kernel == chosen[0].move.kernel]
            if not fitting:
                break
            chosen.append(self._draw(same or fitting))
        return tuple(chosen)

    def _cross(self) -> Draft | None:
        """A crossover step: takes over up to four random choices in which another elite differs; None without an
        elite."""
        partners = [item for item in self.situation.brief.elites if item.candidate.recipe is not None]
        partners = [item for item in partners if item.candidate.id != self.situation.brief.parent.candidate.id]
        if not partners:
            return None
        partner = self.stream.choice(partners)
        recipe = partner.candidate.recipe
        moves = self._legal(list(moves_towards(self.lowered, recipe))) if recipe is not None else []
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
        """Yields every single move by rank, then pairs of the best."""
        yield from (self._draft((item,)) for item in self.ranked)
        best = self.ranked[:PAIR_DEPTH]
        for index, one in enumerate(best):
            yield from (self._draft((one, two)) for two in best[index + 1 :] if _compatible(one.move, two.move))

    def _draft(
        self, chosen: tuple[Ranked, ...], *, undone: tuple[Suspect, ...] = (), partner: str = ""
    ) -> Draft | None:
        """The recipe after the user's moves and the chosen ones. None if it equals the parent's, was tried before,
        or cannot be lowered."""
        asked = [move for move, _ in self.obeyed]
        moves = (*asked, *(item.move for item in chosen), *(item.move for item in undone))
        recipe = self.applied(self.lowered.recipe, moves)
        fresh = fresh_recipe(recipe, self.situation.brief, self.library)
        return (
            Draft(fresh, asked=self.obeyed, held=self.obedience.holds(), chosen=chosen, undone=undone, partner=partner)
            if fresh
            else None
        )


def fresh_recipe(recipe: Recipe, brief: Brief, library: MoveLibrary) -> Recipe | None:
    """The recipe in its canonical form. None if it equals the parent's, was tried before, or cannot be lowered."""
    known = brief.tried | ({brief.lowered.recipe.digest} if brief.lowered else set())
    if recipe.digest in known or brief.graph is None:
        return None
    try:
        found = library.outline(recipe, brief.graph, brief.device).recipe
    except CannotLower:
        return None
    return None if found.digest in known else found


def _compatible(one: Move, other: Move) -> bool:
    """True if two moves can be made at once: they change different things, and either both are settings or neither
    is. A new structure may replace kernels, so that their settings would be lost."""
    if one.kind == "set" and other.kind == "set":
        return (one.kernel, one.name) != (other.kernel, other.name)
    return one.kind != "set" and other.kind != "set" and one.name != other.name
