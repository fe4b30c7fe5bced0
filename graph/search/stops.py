"""Why a search or one of its islands ends."""

from __future__ import annotations

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.proofs.early import common_cause
from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.services import Services
from foundry.graph.search.orders import added_islands
from foundry.graph.search.state import IslandState, Stop

MISSES = 8  # proposals in a row without a new candidate after which an island gives up


def find_ordered_stop(services: Services, reserved: int = 0) -> Stop | None:
    """The reason why the whole search should end, None if it goes on. `reserved`: evaluations of steps under way.

    The first that applies: the user, the budget, a good enough result, or (playbook only) a shared cause that would
    fail every proof.
    """
    wanted, number = find_wanted_state(services.directives())
    if wanted == "stop":
        return Stop(kind="user", text=f"stopped by the user (d{number})")
    if spent := services.ledger.why_exhausted(reserved):
        return Stop(kind="budget", text=spent)
    if enough := services.ledger.why_satisfied(services.best()):
        return Stop(kind="satisfied", text=enough)
    if services.brain.name == PLAYBOOK and (cause := common_cause(services)):
        return Stop(kind="exhausted", text=f"every kernel would fail its proof for one reason: {cause.gate}")
    return None


def find_island_stop(state: IslandState, services: Services) -> Stop | None:
    """A user's stop of this island, or a pause of all because a user added an island; None if neither."""
    directives = services.directives()
    wanted, number = find_wanted_state(directives, state["island"])
    if wanted == "stop":
        return Stop(kind="user", text=f"stopped by the user (d{number})")
    if len(added_islands(directives)) > state["added"]:
        return Stop(kind="joined", text="another island joins")
    return None


def find_own_stop(state: IslandState, services: Services) -> Stop | None:
    """The island's own reason to stop (plateau, or too many misses in a row), or None."""
    if state["idle"] >= services.effort.plateau:
        return Stop(kind="plateau", text=f"plateau: {state['idle']} generations without a better candidate")
    if state["misses"] >= MISSES:
        return Stop(kind="exhausted", text=f"exhausted: {state['misses']} proposals in a row gave no new candidate")
    return None
