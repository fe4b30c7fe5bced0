"""The searches that an agent began: each is a `foundry agent solve` of its own, at most a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from foundry.agents.expert import experts
from foundry.agents.models.models import PLAYBOOK
from foundry.graph.doors.mcp.commands import CommandFailed, Ended, end, finish, start
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.errors import UsageError

MOST_SEARCHES = 2  # searches at a time, which share the machine's cores and its device
LOOK_S = 0.2
Tell = Callable[[float, float], Awaitable[None]]  # evaluations so far, of how many


class Searches:
    """Begins searches below a folder of runs, and ends them with the server; their state is kept."""

    def __init__(self, runs: Path) -> None:
        """No search is under way yet; `runs` is the folder of their runs."""
        self.runs = runs
        self._work: dict[asyncio.Task[Ended], asyncio.subprocess.Process] = {}
        self._began: dict[Path, asyncio.Task[Ended]] = {}

    async def begin(self, task: str, words: list[str]) -> Path:
        """The folder of a new run. Raises UsageError where enough are at work, CommandFailed if it does not begin."""
        if sum(not task.done() for task in self._work) >= MOST_SEARCHES:
            raise UsageError(
                f"{MOST_SEARCHES} searches are at work", "wait for one with `status`, or end it with `say` stop"
            )
        child = await start("agent", "solve", *words, "--runs", str(self.runs), "--json", "--", task)
        work = asyncio.ensure_future(finish(child))
        self._work[work] = child
        while (run := self._folder_of(child.pid)) is None:
            if work.done():
                raise CommandFailed(work.result().line)
            await asyncio.sleep(LOOK_S)
        self._began[run] = work
        return run

    async def wait(self, run: Path, seconds: float, tell: Tell) -> dict[str, Any] | None:
        """The summary of a search that this server began, None while it is at work after so many seconds. `tell` hears
        how far it is."""
        task = self._began[run]
        opened = RunDirectory.inspect(run)
        try:
            until = asyncio.get_running_loop().time() + seconds
            while not task.done() and asyncio.get_running_loop().time() < until:
                await asyncio.wait({task}, timeout=min(1.0, max(0.01, until - asyncio.get_running_loop().time())))
                await tell(opened.evaluation_count(), opened.request.max_evaluations)
        finally:
            opened.close()
        found: dict[str, Any] | None = task.result().json if task.done() else None
        return found

    async def close(self) -> None:
        """Ends what is at work, all at once."""
        await asyncio.gather(*(end(child) for child in self._work.values()))
        await asyncio.gather(*self._work, return_exceptions=True)

    def _folder_of(self, pid: int) -> Path | None:
        """The run whose lock a process holds: it writes its id there."""
        for lock in self.runs.glob("*/lock"):
            if lock.read_text().strip() == str(pid) and (lock.parent / "run.sqlite").is_file():
                return lock.parent
        return None


def without_models() -> list[str]:
    """The options of a search in which no model thinks, whatever the environment and foundry.toml say."""
    return [word for name in ("", *(f"{expert}=" for expert in experts())) for word in ("--model", f"{name}{PLAYBOOK}")]
