"""Times the reference."""

from __future__ import annotations

import asyncio
import contextlib

from foundry.graph.proofs.pace import PLAN, plan_words
from foundry.graph.run.services import Services
from foundry.graph.search.first_texts import FEWEST_SEEDS, as_asked
from foundry.graph.search.state import RunState, Update
from foundry.knowledge.errors import CannotLower, TellsNothing


async def baseline(state: RunState, services: Services) -> Update:
    """Has `services.measure` time the reference and find its numerical error, while first candidates compile; leaves
    notes and no state. Without a device only a note; raises TellsNothing for a task that proves nothing."""
    if not services.device.present:
        services.log.note_once(
            "note", "no device", reason=f"no {services.device.target} device is here: nothing can run"
        )
        return {}
    found, _ = await asyncio.gather(services.measure.baseline(), _build_ahead(services))
    if found.degenerate:
        raise TellsNothing(f"the task proves nothing: {found.degenerate}", "give it outputs that depend on its inputs")
    if found.label:
        services.log.note_once("note", "what tells", reason=found.label)
    services.log.note_once("note", PLAN, reason=await plan_words(services))
    return {}


async def _build_ahead(services: Services) -> None:
    """Compiles the likely first candidates into the build cache while the reference is timed.

    Does nothing where the device uses the host's cores: compilers would disturb the timing.
    """
    machine, graphs = services.measure.machine, await services.graphs()
    if machine is None or services.device.traits.uses_host_cores or not graphs:
        return
    with contextlib.suppress(CannotLower):  # the seeds say so
        recipes = services.library.seeds(graphs[0], services.device)[:FEWEST_SEEDS]
        texts = [(await services.lower_to_try(as_asked(recipe, services))).source for recipe in recipes]
        await asyncio.gather(*map(machine.build, texts))
