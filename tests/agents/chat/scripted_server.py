"""An OpenAI-compatible server that follows a script: the real client path is tested, not a mock of it.

    server = ScriptedServer([answer({"moves": [0]}), status(429, retry_after=0), endless()]).start()
    ... base_url=server.url ...
    server.requests, server.most_at_once, server.stop()

Replies are given in order, the last one for ever. Chat completions, the Responses API (a request with `input`),
Anthropic's messages (by the path); `stream` requests of the first get server-sent events.
`like_openai`, `like_an_old_server` and `responses_only` refuse what real servers refuse, in their words.
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
    calls: tuple[tuple[str, str], ...] = ()  # of tools: name and arguments as the endpoint reports them


Script = Reply | Callable[[Request], Reply]


def answer(document: Any, **changes: Any) -> Reply:
    """A completion with this JSON document, or this text."""
    return Reply(document if isinstance(document, str) else json.dumps(document), **changes)


def calling(name: str, arguments: Any = None, *more: tuple[str, Any], text: str = "", **changes: Any) -> Reply:
    """A completion that calls tools in the endpoint's own way; arguments that are no text are sent as JSON."""
    asked = ((name, {} if arguments is None else arguments), *more)
    calls = tuple((tool, given if isinstance(given, str) else json.dumps(given)) for tool, given in asked)
    return Reply(text, finish_reason="tool_calls", calls=calls, **changes)


def without_tools(reply: Script, message: str, code: int = 400) -> Script:
    """A server that refuses tools in these words."""

    def take(request: Request) -> Reply:
        if "tools" in request:
            return refusal(message, code=code)
        return reply if isinstance(reply, Reply) else reply(request)

    return take


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


def refusal(message: str, *, code: int = 400, param: str | None = None) -> Reply:
    """OpenAI's answer to a request it does not take."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": "unsupported_parameter"}
    return Reply(status=code, body=json.dumps({"error": error}).encode())


def like_openai(reply: Reply) -> Script:
    """A reasoning model of OpenAI: the newer token field alone, no temperature."""

    def take(request: Request) -> Reply:
        if "max_tokens" in request and "max_completion_tokens" in request:
            return refusal(
                "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
                param="max_tokens",
            )
        if "max_tokens" in request:
            return refusal(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"
                " instead.",
                param="max_tokens",
            )
        if request.get("temperature", 1) != 1:
            return refusal(
                "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is"
                " supported.",
                param="temperature",
            )
        return reply

    return take


def like_an_old_server(reply: Reply, *takes: str) -> Script:
    """A server that validates its requests and knows none but the oldest fields, and those in `takes`."""
    known = {"model", "messages", "stream", "max_tokens", *takes}

    def take(request: Request) -> Reply:
        unknown = next((name for name in request if name not in known), None)
        if unknown is None:
            return reply
        problem = {"type": "extra_forbidden", "loc": ["body", unknown], "msg": "Extra inputs are not permitted"}
        body = {"object": "error", "message": {"detail": [{**problem, "input": request[unknown]}]}}
        return Reply(status=422, body=json.dumps(body).encode())

    return take


def responses_only(reply: Reply) -> Script:
    """A model that is served by the Responses API alone, which has no `seed`."""
    known = {"model", "input", "stream", "store", "text", "max_output_tokens", "temperature", "reasoning", "tools"}

    def take(request: Request) -> Reply:
        if "messages" in request:
            return refusal(
                "This model is only supported in v1/responses and not in v1/chat/completions.", code=404, param="model"
            )
        unknown = next((name for name in request if name not in known), None)
        return refusal(f"Unknown parameter: '{unknown}'.", param=unknown) if unknown else reply

    return take


class ScriptedServer:
    """Runs in a thread of this process on a free port of the loopback interface."""

    def __init__(self, replies: Sequence[Script]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []  # monotonic seconds at which each request came
        self.most_at_once = 0
        self.listed: Any = None  # what GET .../models answers, 404 for None
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
            def do_GET(self) -> None:
                body = json.dumps(server.listed).encode()
                self.send_response(404 if server.listed is None else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                try:
                    request = json.loads(body)
                except ValueError:
                    request = {"raw": repr(body)}  # no chat completion is asked for
                server._enter(+1)
                try:
                    self._reply(server._next(request, dict(self.headers)), request)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has left, as it should
                finally:
                    server._enter(-1)

            def _reply(self, reply: Reply, request: Request) -> None:
                server._stopping.wait(reply.wait_s)
                written = _response if "input" in request else _completion
                written = _message if self.path.endswith("/messages") else written
                body = reply.body if reply.body is not None else written(reply, request)
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


def _response(reply: Reply, request: Request) -> bytes:
    """The same reply as an object of the Responses API."""
    cut = reply.finish_reason == "length"
    usage = reply.usage or {}
    content = {"type": "output_text", "text": reply.text, "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [content]}
    calls = [
        {"type": "function_call", "id": f"fc_{number}", "call_id": f"c{number}", "name": name, "arguments": given}
        for number, (name, given) in enumerate(reply.calls)
    ]
    document = {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 0,
        "model": request["model"],
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [*([message] if reply.text or not reply.calls else []), *calls],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.get("prompt_tokens", 0),
            "output_tokens": usage.get("completion_tokens", 0),
            "total_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    return json.dumps(document).encode()


def _message(reply: Reply, request: Request) -> bytes:
    """The same reply as Anthropic's interface gives it."""
    usage = reply.usage or {}
    calls = [
        {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": json.loads(given)}
        for number, (name, given) in enumerate(reply.calls)
    ]
    document = {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [*([{"type": "text", "text": reply.text}] if reply.text else []), *calls],
        "stop_reason": {"length": "max_tokens", "tool_calls": "tool_use"}.get(reply.finish_reason, "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0)},
    }
    return json.dumps(document).encode()


def _completion(reply: Reply, request: Request) -> bytes:
    head = {"id": "scripted", "created": 0, "model": request.get("model", "")}
    usage = reply.usage and {**reply.usage, "total_tokens": sum(v for v in reply.usage.values() if isinstance(v, int))}
    if not request.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.calls:
            message["tool_calls"] = [
                {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": given}}
                for number, (name, given) in enumerate(reply.calls)
            ]
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
