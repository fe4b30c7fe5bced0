"""Solve a task, or go on with a run that was stopped or killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundry.graph.run.database import BUSY_MS, storage_failure
from foundry.graph.run.events import Event
from foundry.graph.run.opening import Asker, Opened, Parts, WarmParts, create, open_services
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import QUESTION, Summary, summarise
from foundry.graph.show.page.write import write_report
from foundry.knowledge.errors import FoundryError, NotComparable, UsageError
from foundry.knowledge.thought import Diagnosis

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

IN_STATE = (Diagnosis,)  # the classes of which the graph's state holds objects
STEPS_AT_MOST = 10_000_000  # the ledger ends a run, not LangGraph's recursion limit


async def nobody(_question: str) -> bool | None:
    """The asker of a run without a user beside it: the question waits for `resume`."""
    return None


def silent(_event: Event) -> None:
    """The listener that ignores a run's events."""


def unseen(_path: Path) -> None:
    """The listener that ignores the path of a run's folder."""


async def solve(
    request: SolveRequest,
    on_event: Callable[[Event], None] = silent,
    *,
    stop: asyncio.Event | None = None,
    parts: Parts | None = None,
    asker: Asker = nobody,
    on_folder: Callable[[Path], None] = unseen,
) -> Summary:
    """Runs the whole graph on a task. `stop`, once set, ends it at once with its state kept: the summary's verdict is
    then "interrupted", as it is when the run asks something (SolveRequest.ask) and `asker` gives no answer.
    `on_folder` hears of the run's folder before anything else happens. Raises TaskError, UsageError, MissingTool,
    StorageFailed."""
    began = time.time()
    with _begun(parts) as parts:
        run = create(request, parts)
        on_folder(run.path)
        return await _work(run, parts, on_event, stop, began=began, asker=asker)


async def resume(
    run_dir: Path,
    on_event: Callable[[Event], None] = silent,
    *,
    stop: asyncio.Event | None = None,
    parts: Parts | None = None,
    asker: Asker = nobody,
) -> Summary:
    """Goes on with a run where it was stopped or killed; a finished run only tells its summary again. Raises
    UsageError (no run, corrupt, in use), NotComparable (begun on another device)."""
    began = time.time()
    run = RunDirectory.open(run_dir)
    if run.get("status") == "finished":
        try:
            return summarise(run)
        finally:
            run.close()
    with _begun(parts) as parts:
        return await _work(run, parts, on_event, stop, began=began, asker=asker)


@contextlib.contextmanager
def _begun(parts: Parts | None) -> Iterator[Parts]:
    """A context manager with the caller's parts, or with own ones that are closed at its end."""
    own = None if parts else WarmParts()
    chosen = parts or own or Parts()
    chosen.begin()
    try:
        yield chosen
    finally:
        if own is not None:
            own.close()


async def _work(
    run: RunDirectory,
    parts: Parts,
    on_event: Callable[[Event], None],
    stop: asyncio.Event | None,
    began: float,
    asker: Asker,
) -> Summary:
    """Opens the run's services, runs the graph to its end or a stop, and returns the summary.

    Sets the run's status throughout: running, then finished, interrupted or failed with its reason.
    """
    try:
        with _one_line(run):
            if run.get("status") == "failed":
                run.set("ending", "")  # what failed may be mended by now
            run.set("status", "running")
            imported = asyncio.ensure_future(asyncio.to_thread(_import_graph))  # while the workers start
            opened = await open_services(run, parts, on_event, began=began)
            await imported
            try:
                finished = await run_graph(opened, stop, asker)
            finally:
                await opened.close()
            run.set("status", "finished" if finished else "interrupted")
            _report(run)
            return summarise(run)
    except (NotComparable, BrokenPipeError):  # the run waits for its own device, or for somebody who hears of it
        run.set("status", "interrupted")
        raise
    except FoundryError as error:
        with contextlib.suppress(FoundryError):  # the disk may be what failed
            run.set("status", "failed")
            run.set("ending", str(error))
            _report(run)
        raise
    finally:
        run.close()


def _report(run: RunDirectory) -> None:
    """Writes the page of a run that has ended. A full disk takes nothing from a result: `foundry agent report` says
    what is wrong."""
    with contextlib.suppress(FoundryError):
        write_report(run)


def _import_graph() -> None:
    """Imports LangGraph and the graph, which takes seconds."""
    for name in ("foundry.graph.app", "langgraph.checkpoint.sqlite.aio"):
        importlib.import_module(name)


async def run_graph(opened: Opened, stop: asyncio.Event | None = None, asker: Asker = nobody) -> bool:
    """Runs or goes on with the graph of a run; False when `stop` ended it early, or a question has no answer yet."""
    from langgraph.types import Command

    from foundry.graph.app import make_graph

    run = opened.services.run
    run.set(QUESTION, "")
    async with checkpoints(run.path / "checkpoints.sqlite") as saver:
        thread: RunnableConfig = {"configurable": {"thread_id": run.id}, "recursion_limit": STEPS_AT_MOST}
        begun = await saver.aget_tuple(thread) is not None
        graph = make_graph(saver)
        given: Any = None if begun else {"run": str(run.path)}
        while True:
            work = graph.ainvoke(given, thread, context=opened.services, durability="sync")
            left = await _until(asyncio.ensure_future(work), stop)
            if left is None:
                return False
            asked = left.get("__interrupt__")
            if not asked:
                return True
            answer = await _answer(opened, str(asked[0].value["text"]), asker, stop)
            if answer is None:
                return False
            given = Command(resume=answer)


async def _answer(opened: Opened, question: str, asker: Asker, stop: asyncio.Event | None) -> bool | None:
    """The asker's answer to a question; None if the question waits. The seconds until then do not count as budget."""
    began = time.monotonic()
    opened.services.run.set(QUESTION, question)
    answer: bool | None = await _until(asyncio.ensure_future(asker(question)), stop)
    opened.services.ledger.excuse_waiting(time.monotonic() - began)
    if answer is not None:
        opened.services.run.set(QUESTION, "")
    return answer


async def _until(work: asyncio.Future[Any], stop: asyncio.Event | None) -> Any:
    """The result of `work`, or None once `stop` is set, which cancels it; `resume` repeats the steps under way."""
    watch = asyncio.ensure_future(stop.wait()) if stop is not None else None
    awaited: set[asyncio.Future[Any]] = {work, watch} if watch else {work}
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        for task in (work, watch):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


@contextlib.asynccontextmanager
async def checkpoints(path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    """An async context manager with LangGraph's checkpointer on one SQLite file."""
    import aiosqlite
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with aiosqlite.connect(path, timeout=BUSY_MS / 1000, factory=_Rollback) as connection:
        await connection.execute("PRAGMA synchronous = NORMAL")  # safe against kill -9, which is what we promise
        yield AsyncSqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=IN_STATE))


class _Rollback(sqlite3.Connection):
    """Closed in the middle of a write, SQLite keeps its lock as long as anything remembers the write's cursor, as
    tracebacks of cancelled tasks do."""

    def close(self) -> None:
        """Rolls back an open transaction, then closes the connection."""
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
        super().close()


@contextlib.contextmanager
def _one_line(run: RunDirectory) -> Iterator[None]:
    """Turns what a full disk or a corrupt file raises below LangGraph into the one line a user reads."""
    try:
        yield
    except BrokenPipeError:  # the listener has ended; the run's files are intact
        raise
    except sqlite3.Error as error:
        path = run.path / "checkpoints.sqlite"
        if "not a database" in str(error) or "malformed" in str(error):
            raise UsageError(f"{path} is corrupt", "delete it: the run goes on from its journal") from error
        raise storage_failure(error, path) from error
    except (NotADirectoryError, FileExistsError, PermissionError) as error:
        place = error.filename or run.path
        raise UsageError(f"cannot write {place}: {error.strerror}", "name a folder that you may write to") from error
    except OSError as error:
        raise storage_failure(error, Path(error.filename or run.path)) from error
