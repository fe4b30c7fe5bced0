"""Reads a kernel in an answer (code, launches, tunables) as a recipe for the kernel compiler: checked, never
executed."""

from __future__ import annotations

from collections.abc import Iterator

from foundry.agents.brief import Brief
from foundry.agents.chat.answers import AnswerError, ProposalAnswer
from foundry.knowledge.candidate import (
    AuthoredKernel,
    AuthoredLaunch,
    AuthoredScratch,
    AuthoredTunable,
    Choice,
    Recipe,
)
from foundry.knowledge.compiler.authored.planning import NAME
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.moves import outline
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.thought import Edit, apply_edits

NO_GRAPH = "the task could not be captured, so no buffers are known to launch with: give a whole file as `source`"
NO_LAUNCHES = "`launches` is missing: which functions of the code run, in order, each with its `args`"


def authored_recipe(answer: ProposalAnswer, brief: Brief, base: Recipe | None) -> Recipe | None:
    """The recipe of a kernel that an answer writes, or changes in `base` (the parent's or a draft's recipe); else None.

    Raises AnswerError if it cannot be wrapped or has been tried already.
    """
    parent = base.authored if base is not None else None
    declares = any(part is not None for part in (answer.tunables, answer.constraints, answer.scratch))
    changes = parent is not None and (answer.edits or answer.launches or declares)
    if answer.source.strip() or not (answer.code.strip() or changes):
        return None
    if brief.graph is None:
        raise AnswerError(NO_GRAPH)
    kernel = _kernel(answer, parent)
    choices: dict[str, dict[str, Choice]] = {}
    if parent is not None and base is not None:
        choices = {NAME: dict(base.choices.get(NAME, {}))}
    ieee_only = brief.task.options.policy == "strict"
    recipe = Recipe(brief.device.target, choices=choices, ieee_only=ieee_only, authored=kernel)
    try:
        recipe = outline(recipe, brief.graph, brief.device).recipe
        for graph in brief.further_graphs:
            print_plan(graph, recipe, brief.device)
    except CannotLower as error:
        raise AnswerError(f"the kernel cannot be wrapped: {error}") from error
    if recipe.digest in brief.tried or (brief.lowered and recipe.digest == brief.lowered.recipe.digest):
        raise AnswerError("this kernel has been tried already: change something that matters")
    return recipe


def _kernel(answer: ProposalAnswer, parent: AuthoredKernel | None) -> AuthoredKernel:
    """The kernel as the answer leaves it; what it does not say stays as it is in the parent. Raises AnswerError if
    there are no launches and no parent."""
    if not answer.launches and parent is None:
        raise AnswerError(NO_LAUNCHES)
    return AuthoredKernel(
        code=_code(answer, parent).replace("\r\n", "\n"),
        launches=tuple(_launches(answer)) if answer.launches or parent is None else parent.launches,
        tunables=tuple(_tunables(answer)) if answer.tunables is not None or parent is None else parent.tunables,
        constraints=tuple(answer.constraints or ())
        if answer.constraints is not None or parent is None
        else parent.constraints,
        scratch=tuple(_scratch(answer)) if answer.scratch is not None or parent is None else parent.scratch,
    )


def _code(answer: ProposalAnswer, parent: AuthoredKernel | None) -> str:
    """The kernel's code: the answer's own, or the parent's with the answer's edits. Raises AnswerError."""
    if answer.code.strip() or parent is None:
        return answer.code
    try:
        return apply_edits(parent.code, [Edit(edit.old, edit.new) for edit in answer.edits])
    except ValueError as error:
        raise AnswerError(f"{error}; search in the parent's code as it is shown") from error


def _launches(answer: ProposalAnswer) -> Iterator[AuthoredLaunch]:
    """Yields the answer's launches as records."""
    for item in answer.launches:
        args, grid, block = tuple(item.args), tuple(item.grid), tuple(item.block)
        yield AuthoredLaunch(item.kernel, args, grid, block, shared_bytes=item.shared_bytes, once=item.once)


def _tunables(answer: ProposalAnswer) -> Iterator[AuthoredTunable]:
    """Yields the answer's tunables with sorted values, the default among them. Raises AnswerError for one without
    values."""
    for name, item in (answer.tunables or {}).items():
        if not item.values:
            raise AnswerError(f"tunables.{name}: it has no values")
        default = item.values[0] if item.default is None else item.default
        values = tuple(sorted({*item.values, default}))
        yield AuthoredTunable(name, values, default, item.meaning)


def _scratch(answer: ProposalAnswer) -> Iterator[AuthoredScratch]:
    """Yields the answer's scratch tensors as records."""
    for name, item in (answer.scratch or {}).items():
        yield AuthoredScratch(name, item.count, item.dtype, item.kept)
