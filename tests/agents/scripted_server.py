"""An OpenAI-compatible server that follows a script: the real client path is tested, not a mock of it.

    server = ScriptedServer([answer({"moves": [0]}), status(429, retry_after=0), endless()]).start()
    ... base_url=server.url ...
    server.requests, server.most_at_once, server.stop()

Replies are given in order, the last one for ever. Chat completions only; `stream` requests get server-sent events.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]  # the JSON body


@dataclass(frozen=True)
class Reply:
    """What the server does with one request."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 1000, "completion_tokens": 100})
    wait_s: float = 0.0
    body: bytes | None = None  # sent as it is instead of a completion
    endless: bool = False  # the body goes on until the client leaves
    drip_s: float = 0.0  # seconds between the pieces of an endless body


Script = Reply | Callable[[Request], Reply]


def answer(document: Any, **changes: Any) -> Reply:
    """A completion with this JSON document, or this text."""
    return Reply(document if isinstance(document, str) else json.dumps(document), **changes)


def status(code: int, *, retry_after: float | None = None, message: str = "scripted failure") -> Reply:
    """An error response."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    body = json.dumps({"error": {"message": message, "type": "scripted", "code": str(code)}}).encode()
    return Reply(status=code, headers=headers, body=body)


def truncated(text: str) -> Reply:
    """A completion that was cut at the token limit."""
    return Reply(text, finish_reason="length")


def endless(*, drip_s: float = 0.0) -> Reply:
    """A body without end: as fast as the client reads, or one byte every `drip_s` seconds."""
    return Reply(endless=True, drip_s=drip_s)


def garbage() -> Reply:
    """A success whose body is no chat completion."""
    return Reply(body=b"<html>It works!</html>", headers={"content-type": "text/html"})


class ScriptedServer:
    """Runs in a thread of this process on a free port of the loopback interface."""

    def __init__(self, replies: Sequence[Script]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []  # monotonic seconds at which each request came
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def start(self) -> ScriptedServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def prompt(self, index: int = -1) -> str:
        """The text of all messages of a request."""
        return "\n".join(str(message["content"]) for message in self.requests[index]["messages"])

    def _next(self, request: Request, headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            script = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return script if isinstance(script, Reply) else script(request)

    def _enter(self, change: int) -> None:
        with self._lock:
            self._at_once += change
            self.most_at_once = max(self.most_at_once, self._at_once)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server._enter(+1)
                try:
                    self._reply(server._next(request, dict(self.headers)), request)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has left, as it should
                finally:
                    server._enter(-1)

            def _reply(self, reply: Reply, request: Request) -> None:
                server._stopping.wait(reply.wait_s)
                body = reply.body if reply.body is not None else _completion(reply, request)
                kind = "text/event-stream" if request.get("stream") and reply.body is None else "application/json"
                self.send_response(reply.status)
                for name, value in {"content-type": kind, **reply.headers}.items():
                    self.send_header(name, value)
                if not reply.endless:
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                if not reply.endless:
                    self.wfile.write(body)
                    return
                while not server._stopping.wait(reply.drip_s):
                    self.wfile.write(b" " if reply.drip_s else b" " * 65536)
                    self.wfile.flush()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Quiet: the requests are recorded."""

        return Handler


def _completion(reply: Reply, request: Request) -> bytes:
    head = {"id": "scripted", "created": 0, "model": request.get("model", "")}
    usage = reply.usage and {**reply.usage, "total_tokens": sum(v for v in reply.usage.values() if isinstance(v, int))}
    if not request.get("stream"):
        message = {"role": "assistant", "content": reply.text}
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
        document = {**head, "object": "chat.completion", "choices": [choice]}
        return json.dumps({**document, "usage": usage} if usage else document).encode()
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": part}, "finish_reason": None}]}
        for part in (reply.text[: len(reply.text) // 2], reply.text[len(reply.text) // 2 :])
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]})
    if usage:
        chunks.append({"choices": [], "usage": usage})
    lines = [json.dumps({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
