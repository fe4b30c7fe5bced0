"""Services for LangGraph's server, which runs the graph without our runtime context: opened from the state."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph.runtime import Runtime

from foundry.agents.models.settings import read_models
from foundry.graph.run.events import Event
from foundry.graph.run.opening import Opened, Parts, create, open_services
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.services import Services
from foundry.knowledge.codec import decode
from foundry.knowledge.errors import UsageError

BLOCKING = "LANGGRAPH_ALLOW_BLOCKING"  # set by `langgraph dev`: "false" unless it is told otherwise
_OPENED: dict[str, Opened] = {}


def _silent(_event: Event) -> None:
    """Ignores an event: the server streams events itself."""


async def services_of(state: Mapping[str, Any], runtime: Runtime[Services]) -> Services:
    """The context that `solve` gave, or the services of the run that the state names. Raises UsageError if it names
    none."""
    if isinstance(runtime.context, Services):
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
    if isinstance(runtime.context, Services) or state.get("run"):
        return {}
    if os.environ.get(BLOCKING, "true").lower() == "false":
        raise UsageError("this server fails runs that write a file by themselves", "langgraph dev --allow-blocking")
    if not state.get("task"):
        raise UsageError("the state names no task", 'start with {"task": "path of a task file"}')
    run = create(request_of(state), Parts())
    _OPENED[str(run.path)] = await open_services(run, Parts(), _silent)
    return {"run": str(run.path)}


def request_of(state: Mapping[str, Any]) -> SolveRequest:
    """The request that the state describes. Raises UsageError for values that make no sense."""
    wanted = {"task", "target", "effort", "model", "base_url", "ask"}
    said = {name: state[name] for name in wanted & set(state) if state[name] not in (None, "")}
    model, base_url = said.pop("model", None), said.pop("base_url", None)
    models = read_models([str(model)] if model else None, {"base_url": base_url})
    return replace(decode(SolveRequest, json.dumps(said)), models=models)


async def end(state: Mapping[str, Any]) -> None:
    """Closes what `begin` opened for this run."""
    opened = _OPENED.pop(state.get("run", ""), None)
    if opened is not None:
        await opened.close()
        opened.services.run.set("status", "finished")
        opened.services.run.close()
