"""Turns a chat model's answer into a proposal that can be evaluated.

A fault becomes an error message from which the model can repair its answer. Nothing of the answer is executed here.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from foundry.agents.brief import Brief
from foundry.agents.chat.answers import AnswerError, EditAnswer, ProposalAnswer, changes_something
from foundry.agents.chat.authoring import authored_recipe
from foundry.agents.expert import Expert
from foundry.agents.playbook.brain import MoveLibrary, fresh_recipe
from foundry.agents.playbook.ranking import rank
from foundry.agents.prompt_text.messages import MOST_MOVES
from foundry.agents.prompt_text.source import WHOLE_CHARS, fold
from foundry.agents.situation import Situation
from foundry.knowledge import syntax
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.whole_file import expand_foundry_lines
from foundry.knowledge.thought import Diagnosis, Edit, Move, Proposal, apply_edits

LONGEST_FILE_CHARS = 400_000


@dataclass(frozen=True)
class Menu:
    """The choices of an expert: the legal moves in the playbook's order."""

    brief: Brief
    diagnosis: Diagnosis
    expert: Expert
    library: MoveLibrary

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The legal moves, best first, at most MOST_MOVES; empty if the parent is not the kernel compiler's."""
        lowered, obedience = self.brief.lowered, self.brief.obedience
        if lowered is None or obedience is None:
            return ()
        legal = [move for move in self.library.moves(lowered) if obedience.forbids(move) is None]
        ranked = rank(legal, self.expert, Situation(self.brief, self.diagnosis))
        return tuple(item.move for item in ranked[:MOST_MOVES])


def proposal_of(answer: ProposalAnswer, menu: Menu, brain: str) -> Proposal:
    """The answer as a proposal. If it gives several kernels, the most explicit one counts. Raises AnswerError.

    Order: a whole file, a draft, code with launches, edits, moves. It must differ from what the run has evaluated.
    """
    brief = menu.brief
    proposal = Proposal(
        id=f"{brief.step}.{menu.expert.name}",
        expert=menu.expert.name,
        parent=brief.parent.candidate.id,
        rationale=answer.rationale.strip() or "no reason given",
        expected="; measure: ".join(part for part in (answer.expected.strip(), answer.measure.strip()) if part),
        cites=_known_cites(answer, brief),
        brain=brain,
    )
    if answer.source.strip():
        return replace(proposal, source=_check_new(_written(answer, brief), brief))
    if answer.draft and not changes_something(answer):
        return _take_draft(answer.draft, proposal, menu)
    base = _base_of(answer.draft, brief)
    if (recipe := authored_recipe(answer, brief, base.recipe)) is not None:
        return replace(proposal, recipe=recipe)
    if answer.edits and answer.draft:
        return replace(proposal, source=_check_new(_written(answer, brief, base.text), brief))
    if answer.edits:
        edits = place_edits(answer.edits, brief.parent_text)
        _check_new(_check_form(_apply(edits, brief.parent_text)), brief)
        return replace(proposal, edits=edits)
    if answer.moves:
        moves, recipe = _choose_moves(answer.moves, menu)
        return replace(proposal, moves=moves, recipe=recipe)
    raise AnswerError(
        "it changes nothing: give moves, replacements, a kernel with its launches, a whole file or a draft"
    )


def _written(answer: ProposalAnswer, brief: Brief, base: str = "") -> str:
    """The whole file of an answer, with Foundry's own texts written out. Raises AnswerError.

    Its replacements are made in `base`, or in the parent.
    """
    task = brief.task
    return file_of(
        answer.source,
        answer.edits,
        base or brief.parent_text,
        lambda text: expand_foundry_lines(text, brief.device, task.text, task.overrides),
    )


def file_of(
    source: str,
    edits: Sequence[EditAnswer],
    parent_text: str,
    expand: Callable[[str], str] = lambda text: text,
) -> str:
    """The whole file that a model means: `source`, or the parent with `edits`. Raises AnswerError if it has no
    ModelNew.

    `expand` writes out the lines that stand for Foundry's texts.
    """
    if source.strip():
        return _check_form(expand(fold(parent_text).restore(source)))
    return _check_form(_apply(place_edits(edits, parent_text), parent_text))


@dataclass(frozen=True)
class Drafted:
    """A kernel that a tool is to be called with: a whole file, or what the kernel compiler prints."""

    text: str = ""
    recipe: Recipe | None = None
    moves: tuple[Move, ...] = ()


def drafted(answer: ProposalAnswer, menu: Menu) -> Drafted:
    """The kernel that an answer would propose, for a tool call; it may have been tried before. Raises AnswerError."""
    base = _base_of(answer.draft, menu.brief)
    if answer.draft and not changes_something(answer):
        return base
    recipe = None if answer.source.strip() else authored_recipe(answer, menu.brief, base.recipe)
    if recipe is not None:
        return Drafted(recipe=recipe)
    if answer.source.strip() or answer.edits:
        return Drafted(_written(answer, menu.brief, base.text if answer.draft else ""))
    moves, chosen = _choose_moves(answer.moves, menu)
    return Drafted(recipe=chosen, moves=moves)


def _base_of(number: int, brief: Brief) -> Drafted:
    """The kernel in which replacements are made: that of tool call `number` of this step, or for 0 the parent.

    Raises AnswerError if there is no such call, or it had no kernel.
    """
    if not number:
        return Drafted(brief.parent_text, brief.lowered.recipe if brief.lowered else None)
    calls = brief.talk.calls
    if not 0 < number <= len(calls):
        raise AnswerError(f"draft: you have made {len(calls)} tool calls, there is no call {number}")
    call, answered = calls[number - 1]
    if answered.recipe is not None:
        return Drafted(recipe=answered.recipe, moves=answered.moves)
    if call.recipe is None and not call.text:
        raise AnswerError(f"draft: call {number} was given no kernel of yours")
    return Drafted(call.text, call.recipe, call.moves)


def _take_draft(number: int, proposal: Proposal, menu: Menu) -> Proposal:
    """The proposal with the kernel of a tool call of this step; raises AnswerError."""
    base = _base_of(number, menu.brief)
    if base.recipe is None:
        return replace(proposal, source=_check_new(base.text, menu.brief))
    fresh = fresh_recipe(base.recipe, menu.brief, menu.library)
    if fresh is None:
        raise AnswerError("this has been tried already: choose another step")
    return replace(proposal, recipe=fresh, moves=base.moves)


def place_edits(edits: Sequence[EditAnswer], parent_text: str) -> tuple[Edit, ...]:
    """A model's edits, each at its place in the parent's file. Raises AnswerError.

    A model sees that file folded, in its prompt or by the tool `show`. So `old` must occur exactly once there; hidden
    text may hold it any number of times.
    """
    views = fold(parent_text), fold(parent_text, WHOLE_CHARS)
    found = []
    for number, edit in enumerate(edits):
        file = next((view for view in views if edit.old and view.text.count(edit.old) == 1), None)
        if file is None:
            count = max(view.text.count(edit.old) for view in views) if edit.old else 0
            raise AnswerError(
                f"edits[{number}].old occurs {count} times in the parent's code as it was shown, it must occur once"
            )
        start = file.text.index(edit.old)
        place = file.place(start, start + len(edit.old))
        if place is None:
            raise AnswerError(f"edits[{number}].old cuts a line that stands for text which is not shown: keep it whole")
        found.append(Edit(parent_text[slice(*place)], file.restore(edit.new), place[0]))
    return tuple(found)


def _apply(edits: Sequence[Edit], parent_text: str) -> str:
    """The parent's text with the edits made; raises AnswerError."""
    try:
        return apply_edits(parent_text, edits)
    except ValueError as error:
        raise AnswerError(str(error)) from error


def _choose_moves(numbers: list[int], menu: Menu) -> tuple[tuple[Move, ...], Recipe]:
    """The listed moves with these numbers after those that the user asked for, and the recipe that they give.

    Raises AnswerError for an unknown number, two settings of one tunable, or a recipe tried already.
    """
    brief = menu.brief
    if brief.lowered is None or brief.obedience is None:
        raise AnswerError("the parent is not the kernel compiler's, so there are no moves: give edits or source")
    unknown = [number for number in numbers if not 0 <= number < len(menu.moves)]
    if unknown:
        raise AnswerError(f"moves: {unknown[0]} is not in the list (0 to {len(menu.moves) - 1})")
    asked = tuple(move for move, _ in brief.obedience.required)
    moves = (*asked, *(menu.moves[number] for number in dict.fromkeys(numbers)))
    settings = [(move.kernel, move.name) for move in moves if move.kind == "set"]
    if len(settings) != len(set(settings)):
        raise AnswerError("moves: two of them set the same tunable")
    recipe = brief.lowered.recipe
    for move in moves:
        recipe = menu.library.apply(recipe, move)
    fresh = fresh_recipe(recipe, brief, menu.library)
    if fresh is None:
        raise AnswerError("this combination of moves has been tried already or cannot be lowered: choose another")
    return moves, fresh


def _check_form(source: str) -> str:
    """Returns the file if it parses and defines ModelNew, else raises AnswerError; it is not executed."""
    if len(source) > LONGEST_FILE_CHARS:
        raise AnswerError(f"source: {len(source)} characters, the most is {LONGEST_FILE_CHARS}")
    try:
        tree = syntax.parse(source)
    except SyntaxError as error:
        raise AnswerError(f"source: Python syntax error in line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, absurd nesting
        raise AnswerError(f"source: cannot be parsed as Python ({error})") from error
    if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        raise AnswerError("source: there is no class ModelNew at module level")
    return source


def _check_new(source: str, brief: Brief) -> str:
    """Returns the file if this run has not evaluated it, else raises AnswerError."""
    digest = hashlib.sha256(source.encode()).hexdigest()
    if source == brief.parent_text or digest in brief.tried or digest[:16] in brief.tried:
        raise AnswerError("this file has been tried already: change something that matters")
    return source


def _known_cites(answer: ProposalAnswer, brief: Brief) -> tuple[str, ...]:
    """The cited ids of directives and experience that the brief really holds, each once; other cites are dropped."""
    known = {f"d{item.id}" for item in brief.directives} | {f"x{hit.record.id}" for hit in brief.hits}
    return tuple(dict.fromkeys(cite for cite in answer.cites if cite in known))
