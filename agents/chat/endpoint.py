"""Finds where a chat model is asked, and which key goes there.

A key is sent only to the host it is for. OPENAI_API_KEY belongs to OpenAI, and to the server that OPENAI_BASE_URL names
beside it; any other server gets the key that the user names for it, or none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from foundry.knowledge.errors import UsageError

OPENAI_URL = "https://api.openai.com/v1"
KEY = "OPENAI_API_KEY"
URLS = ("OPENAI_BASE_URL", "OPENAI_API_BASE")  # the names that openai and langchain-openai read


@dataclass(frozen=True)
class Endpoint:
    """An endpoint's URL, key and provider.

    `key` is None if none is sent; it is never shown, recorded or compared. `provider` is langchain's name of one
    without an OpenAI-compatible interface, whose own package knows its address and reads its key ("" for `url`).
    """

    url: str
    key: str | None = field(default=None, repr=False, compare=False)
    provider: str = ""

    @property
    def host(self) -> str:
        """The host for people: `api.openai.com`, `localhost:8080`, or the provider's name."""
        if self.provider:
            return self.provider
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2] or self.url

    @property
    def is_openai(self) -> bool:
        """True if `url` is https at one of OpenAI's own hosts."""
        return _is_openai(urlsplit(self.url))


def endpoint_of(model: str, base_url: str | None, key_env: str | None = None, provider: str | None = None) -> Endpoint:
    """The endpoint from options, else environment; OPENAI_API_KEY goes only to OpenAI and the environment's server,
    `key_env`'s to any; `provider` skips the URL's checks. Raises UsageError for a bad URL or a missing needed key."""
    if provider is not None:
        return Endpoint(base_url or "", _named_key(key_env, provider) if key_env else None, provider)
    named = next((os.environ[name] for name in URLS if os.environ.get(name)), None)
    url = base_url or named or OPENAI_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url} is no endpoint", "give a URL such as http://localhost:8080/v1")
    if key_env is not None:
        return Endpoint(url, _named_key(key_env, parts.hostname))
    ours = _is_openai(parts) or (named is not None and _same_server(parts, urlsplit(named)))
    key = os.environ.get(KEY) or None if ours else None
    if key is None and _is_openai(parts):
        raise UsageError(f"no access to the model {model}", f"set {KEY}, or name a server with --base-url")
    return Endpoint(url, key)


def _named_key(key_env: str, whose: str) -> str:
    """The key in the environment variable `key_env`; raises UsageError if it is not set."""
    key = os.environ.get(key_env)
    if not key:
        raise UsageError(f"no key for {whose}: the environment variable {key_env} is not set", f"export {key_env}=...")
    return key


def _is_openai(parts: SplitResult) -> bool:
    """True for an https URL whose host is api.openai.com or ends with ".api.openai.com"."""
    host = parts.hostname or ""
    return parts.scheme == "https" and (host == "api.openai.com" or host.endswith(".api.openai.com"))


def _same_server(one: SplitResult, other: SplitResult) -> bool:
    """True if scheme, host and port are equal."""
    return (one.scheme, one.hostname, one.port) == (other.scheme, other.hostname, other.port)
