"""Directives of users to an island: acknowledges them, and keeps their orders.

Orders are to try a file, to start from a candidate or freeze it, and the island's role.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from foundry.agents.directives import ISLAND_ORDERS
from foundry.agents.explanation import explain
from foundry.agents.models.models import PLAYBOOK
from foundry.graph.run.inbox import in_force, split_instructions
from foundry.graph.search.known import first_kernels, structures
from foundry.knowledge.candidate import REFERENCE
from foundry.knowledge.errors import CannotLower, TaskError
from foundry.knowledge.thought import Directive, Proposal, Role

if TYPE_CHECKING:
    from foundry.graph.run.services import Services
    from foundry.graph.search.state import IslandState
    from foundry.knowledge.compiler.lowered import Lowered
    from foundry.knowledge.opgraph import OpGraph

MOST_CHANGES = 64  # changes of a kernel's structure that are tried before an instruction is refused
USER = "user"  # expert of a proposal that is a user's file


class UserOrders(TypedDict):
    """Open orders of users, and those that stay in force; numbers are ids of directives."""

    tries: list[int]
    starts: list[tuple[int, str]]  # (directive, candidate)
    frozen: list[str]
    role: Role | None  # None: any


def no_orders() -> UserOrders:
    """Orders of an island that no user has given any."""
    return UserOrders(tries=[], starts=[], frozen=[], role=None)


def orders_after(before: UserOrders, said: Sequence[Directive], known: Sequence[Directive]) -> UserOrders:
    """The orders after what was `said` to this island since; `known` are all directives, for those taken back."""
    orders = UserOrders(
        tries=[*before["tries"]], starts=[*before["starts"]], frozen=[*before["frozen"]], role=before["role"]
    )
    for directive in sorted(said, key=lambda item: item.id):
        command, candidate = directive.command, str(directive.command.get("candidate", ""))
        if directive.verb == "try":
            orders["tries"].append(directive.id)
        elif directive.verb == "from":
            orders["starts"].append((directive.id, candidate))
        elif directive.verb == "freeze":
            orders["frozen"] = [*dict.fromkeys([*orders["frozen"], candidate])]
        elif directive.verb == "thaw":
            orders["frozen"] = [name for name in orders["frozen"] if name != candidate]
        elif directive.verb == "role":
            orders["role"] = command["role"]  # type: ignore[typeddict-item]  # the form names the four
        elif directive.verb == "withdraw":
            _take_back(orders, next((item for item in known if item.id == command["directive"]), None))
    return orders


def _take_back(orders: UserOrders, directive: Directive | None) -> None:
    """Removes the order that a withdrawn directive gave: its tries and starts, its freezing or thawing, its role."""
    if directive is None:
        return
    candidate = str(directive.command.get("candidate", ""))
    orders["tries"] = [number for number in orders["tries"] if number != directive.id]
    orders["starts"] = [item for item in orders["starts"] if item[0] != directive.id]
    if directive.verb == "freeze":
        orders["frozen"] = [name for name in orders["frozen"] if name != candidate]
    elif directive.verb == "thaw":
        orders["frozen"] = [*dict.fromkeys([*orders["frozen"], candidate])]
    elif directive.verb == "role":
        orders["role"] = None


def wanted_model(said: Sequence[Directive]) -> str:
    """The model that users named last for the whole run, "" if none."""
    names = [str(item.command["name"]) for item in said if item.verb == "model" and item.island is None]
    return names[-1] if names else ""


def begin_again(state: IslandState) -> UserOrders:
    """The orders after a step that gave no candidate: a start that the user ordered holds for the next step too."""
    orders, ordered = state["orders"], state.get("ordered", 0)
    return {**orders, "starts": [(ordered, state["parent"]), *orders["starts"]]} if ordered else orders


def added_islands(directives: Sequence[Directive]) -> list[str]:
    """The role of each island that users added, "" where they named none."""
    return [str(item.command.get("role", "")) for item in in_force(directives) if item.verb == "add"]


def users_proposal(directive: Directive, step: str, parent: str, text: str) -> Proposal:
    """The proposal of a step that evaluates a user's file (`text`), citing the directive that brought it."""
    return Proposal(
        id=f"{step}:{USER}",
        expert=USER,
        parent=parent,
        rationale=f"the user's file {directive.command['file']}",
        expected="",
        source=text,
        cites=(f"d{directive.id}",),
        brain=USER,
    )


async def acknowledge(
    island: int, population: Mapping[str, float], services: Services, step: str, said: Sequence[Directive]
) -> None:
    """Tells users who took their directives, and the reason for each that cannot be followed.

    Each is told once, also when a killed run executes the step again.
    """
    if not said:
        return
    kernels: list[Lowered] = []
    graph = None
    if any(directive.to != "run" for directive in said):
        kernels, graph = await _known_kernels(population, services)
    told = services.log.ids_taken_at(step)
    for directive in said:
        is_for_run = directive.to == "run"
        is_shared = is_for_run and directive.island is None and directive.verb not in ISLAND_ORDERS
        reader = "run" if is_shared else f"island {island}"
        why = "" if is_for_run or not directive.command else explain(directive, kernels, graph)
        if services.run.inbox.acknowledge(directive.id, reader, step, why) != step or f"d{directive.id}" in told:
            continue
        services.log.note(
            "directive",
            "taken",
            directive=f"d{directive.id}",
            reader=reader,
            to=directive.to,
            text=directive.text,
            answer=why,
            understood=bool(directive.command) or services.brain.name != PLAYBOOK,
        )


def answer_untaken(services: Services) -> None:
    """Tells users at the end of a run which directives came too late: acknowledges each as "run" and notes it in the
    log."""
    inbox = services.run.inbox
    taken = {item.directive for item in inbox.acknowledgements()}
    for directive in in_force(inbox.read()):
        if directive.id not in taken:
            why = "the search had ended before it could be taken"
            inbox.acknowledge(directive.id, "run", "finish", why)
            services.log.note(
                "directive",
                "taken",
                directive=f"d{directive.id}",
                reader="run",
                to=directive.to,
                text=directive.text,
                answer=why,
                understood=True,
            )


async def check_instructions(services: Services) -> None:
    """Raises TaskError for an instruction of the task that neither a first kernel nor one a step away could follow.

    Chat refuses the same words. Checks nothing with a model (it may write such a kernel), in a replay, or without a
    graph.
    """
    said, graphs = split_instructions(services.task.options.instructions)[0], await services.graphs()
    if services.request.models or services.recorded is not None or not graphs:
        return
    for directive in said:
        if not explain(directive, await first_kernels(graphs[0], services), graphs[0]):
            continue
        if why := explain(directive, await first_kernels(graphs[0], services, MOST_CHANGES), graphs[0]):
            raise TaskError(f"the task's instructions, {directive.text!r}: {why}")


async def _known_kernels(population: Mapping[str, float], services: Services) -> tuple[list[Lowered], OpGraph | None]:
    """(kernels of an island that the compiler prints, each structure once, best first; the graph or None)."""
    graphs = await services.graphs()
    names = sorted(population, key=lambda name: -population[name])
    recipes = [services.evaluation(name).candidate.recipe for name in names if name != REFERENCE]
    lowered = []
    for recipe in structures(filter(None, recipes)):
        with contextlib.suppress(CannotLower):
            lowered.append(await services.lower(recipe))
    return lowered, graphs[0] if graphs else None
