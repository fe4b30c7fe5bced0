"""`foundry serve`: the list of runs, each run's page, what is new in it, and what a person says to its experts."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from foundry.graph.doors.serve.gallery import Gallery
from foundry.graph.doors.serve.guard import Access, Guard
from foundry.graph.show.page.page import as_json, render
from foundry.graph.show.page.write import run_page
from foundry.graph.show.words.conversation import say
from foundry.knowledge.errors import FoundryError, UsageError

HOST = "127.0.0.1"
TICK_S = 0.2  # seconds; longest time between the server's end and a stream's
LIST_S, RUN_S = 2.0, 0.5  # seconds between two reads of the list, and of a run
MOST_CHARS = 4000  # longest line of a user, in characters
WATCHING, TALKING = "watch.js", "talk.js"  # scripts of graph/show/page
GRACE_S = 1  # seconds that open pages get when the server ends


@dataclass(frozen=True)
class Site:
    """The server's answers to requests. `writing` False is the read-only mode: users' lines are refused."""

    gallery: Gallery
    writing: bool
    is_ending: Callable[[], bool]

    async def list(self, _request: Request) -> Response:
        """The page with the list of runs."""
        facts = await asyncio.to_thread(self.gallery.runs)
        plain = [f"{run.id}  {run.verdict}" for run in facts.runs]
        return HTMLResponse(render(facts, "Foundry: runs", plain, "runs.js", live=(WATCHING,)))

    async def list_data(self, _request: Request) -> Response:
        """Answers with the list of all runs as JSON."""
        return Response(as_json(await asyncio.to_thread(self.gallery.runs)), media_type="application/json")

    async def run(self, request: Request) -> Response:
        """The page of one run."""
        shown = await asyncio.to_thread(self.gallery.run, request.path_params["name"])
        return HTMLResponse(run_page(shown.facts, live=(WATCHING, TALKING) if self.writing else (WATCHING,)))

    async def run_data(self, request: Request) -> Response:
        """The facts of one run as JSON."""
        shown = await asyncio.to_thread(self.gallery.run, request.path_params["name"])
        return Response(shown.text, media_type="application/json")

    async def run_news(self, request: Request) -> Response:
        """Says when there is something new to show of a run."""
        name, gallery = request.path_params["name"], self.gallery
        await asyncio.to_thread(gallery.run, name)  # an unknown run is told at once
        return self._stream(request, lambda: gallery.run(name).facts.change, RUN_S)

    async def list_news(self, request: Request) -> Response:
        """Answers with a stream of events: one whenever the list of runs has changed, looked at every LIST_S
        seconds."""
        return self._stream(request, lambda: self.gallery.runs().change, LIST_S)

    async def say(self, request: Request) -> Response:
        """Says a person's line to the run and returns the reply as JSON; refuses in the read-only mode and for another
        form."""
        if not self.writing:
            return PlainTextResponse("this server only shows", 403)
        try:
            words = str(json.loads(await request.body())["words"]).strip()[:MOST_CHARS]
        except (ValueError, KeyError, TypeError):
            return PlainTextResponse('a JSON object with "words" is expected', 400)

        def answer() -> str:
            """Says the line to the run's experts and returns the answer's text."""
            run = self.gallery.open(request.path_params["name"], reading=False)
            try:
                return say(run, words).text
            finally:
                run.close()

        return JSONResponse({"text": await asyncio.to_thread(answer)})

    def _stream(self, request: Request, look: Callable[[], str], pause_s: float) -> Response:
        """Server-sent events: `state` with what `look` sees, so that a page knows whether it shows something older. It
        is said again and again, so that a page that is gone is noticed."""

        async def states() -> AsyncIterator[str]:
            """Yields the state as server-sent events until the reader or the server ends."""
            due = 0.0
            while not (self.is_ending() or await request.is_disconnected()):
                if time.monotonic() >= due:
                    yield f"event: state\ndata: {await asyncio.to_thread(look)}\n\n"
                    due = time.monotonic() + pause_s
                await asyncio.sleep(TICK_S)

        return StreamingResponse(states(), media_type="text/event-stream")


async def _error_response(_request: Request, error: Exception) -> Response:
    """The response to one of Foundry's errors: its text, with status 404 for a UsageError (unknown run), else 500."""
    return PlainTextResponse(str(error), 404 if isinstance(error, UsageError) else 500)


def make_app(runs: Path, access: Access, *, writing: bool, is_ending: Callable[[], bool] = lambda: False) -> Starlette:
    """The application; `writing` False is the read-only mode. Streams end when `is_ending` says so."""
    site = Site(Gallery(runs), writing, is_ending)
    routes = [
        Route("/", site.list),
        Route("/data", site.list_data),
        Route("/news", site.list_news),
        Route("/runs/{name}", site.run),
        Route("/runs/{name}/data", site.run_data),
        Route("/runs/{name}/news", site.run_news),
        Route("/runs/{name}/say", site.say, methods=["POST"]),
    ]
    handlers = {FoundryError: _error_response}
    return Starlette(routes=routes, middleware=[Middleware(Guard, access=access)], exception_handlers=handlers)


def serve(runs: Path, port: int, *, writing: bool, tell: Callable[[str], None]) -> None:
    """Serves until Ctrl-C, to this machine only. Raises UsageError for a port that is taken."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be had: {error.strerror}", "another one: --port N, 0 for any"
            ) from error
        access = Access(listening.getsockname()[1])
        tell(access.address)
        app = make_app(runs, access, writing=writing, is_ending=lambda: server.should_exit)
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=GRACE_S)
        server = uvicorn.Server(config)
        server.run(sockets=[listening])
