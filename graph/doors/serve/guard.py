"""Access control: a request needs the token, a name of this machine as host, and the server's own page as origin."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "foundry"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest stands in each page, which knows its scripts
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Access:
    """The token that a request must have, and the port and names of this machine that the server answers at."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def address(self) -> str:
        """The address that the user opens. The first answer redirects to an address without the token."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    @property
    def hosts(self) -> frozenset[str]:
        """The allowed values of the Host header; other names that resolve to here (DNS rebinding) are refused."""
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost"))

    def knows(self, token: str) -> bool:
        """True if the token is right, compared in constant time."""
        return hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """Refuses requests without access, and sets the security headers of every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Guards `app` by the rules of `access`."""
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers an HTTP request with a refusal, or passes it on; adds the security headers to the response."""

        async def send_guarded(message: Message) -> None:
            """Sends a message; adds the headers to the start of a response."""
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] == "http":
            await (self._refusal(Request(scope)) or self.app)(scope, receive, send_guarded)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        """The response that replaces the requested one; None if the request is allowed."""
        access = self.access
        if request.headers.get("host", "") not in access.hosts:
            return PlainTextResponse("this server is asked as 127.0.0.1", 421)
        given = request.query_params.get("token")
        if given is not None and request.method == "GET" and access.knows(given):
            clean = RedirectResponse(request.url.path, 303)
            clean.set_cookie(COOKIE, access.token, httponly=True, samesite="strict", path="/")
            return clean
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not (access.knows(request.cookies.get(COOKIE, "")) or access.knows(bearer)):
            return PlainTextResponse("open the address that foundry serve printed: it holds the token", 401)
        origin = request.headers.get("origin")
        if request.method != "GET" and (origin is None or urlsplit(origin).netloc not in access.hosts):
            return PlainTextResponse("only the server's own pages may say something", 403)
        return None
