"""Services for LangGraph's dev server, which runs the graph without our runtime context: opened from the state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langgraph.runtime import Runtime

from foundry.graph.run.events import Event
from foundry.graph.run.opening import Opened, Parts, create, open_services
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.services import Services
from foundry.knowledge.errors import UsageError

_OPENED: dict[str, Opened] = {}


def _silent(_event: Event) -> None:
    """The dev server watches the state instead."""


async def services_of(state: Mapping[str, Any], runtime: Runtime[Services]) -> Services:
    """The context that `solve` gave, or the services of the run that the state names."""
    if runtime.context is not None:
        return runtime.context
    path = state.get("run", "")
    if path in _OPENED:
        return _OPENED[path].services
    if not path:
        raise UsageError("the state names no run", 'start with {"task": "path of a task file"}')
    _OPENED[path] = await open_services(RunDirectory.open(Path(path)), Parts(), _silent)
    return _OPENED[path].services


async def begin(state: Mapping[str, Any], runtime: Runtime[Services]) -> dict[str, Any]:
    """The run of this state: a new one where it names only a task. Raises UsageError."""
    if runtime.context is not None or state.get("run"):
        return {}
    if not state.get("task"):
        raise UsageError("the state names no task", 'start with {"task": "path of a task file"}')
    run = create(SolveRequest(state["task"], target=state.get("target", "auto")), Parts())
    _OPENED[str(run.path)] = await open_services(run, Parts(), _silent)
    return {"run": str(run.path)}


async def end(state: Mapping[str, Any]) -> None:
    """Closes what `begin` opened for this run."""
    opened = _OPENED.pop(state.get("run", ""), None)
    if opened is not None:
        await opened.close()
        opened.services.run.set("status", "finished")
        opened.services.run.close()
