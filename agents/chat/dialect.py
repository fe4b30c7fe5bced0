"""Learns from an endpoint's refusals which parameters it accepts, because no API tells it beforehand.

OpenAI's reasoning models refuse `max_tokens`, older servers refuse `max_completion_tokens`, and all refuse both at
once. Some models take no temperature, some servers no seed, no response format or no tools; some models are served by
the Responses API only. One rule for all: a parameter that a refusal names is renamed or left out, for as long as the
client lives.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

TokenField = Literal["max_completion_tokens", "max_tokens"]
Api = Literal["chat", "responses"]

# how servers name, when they refuse it, what a request can do without
OPTIONAL = {
    "response_format": re.compile(r"response_format|text\.format|json_schema|schema|grammar|structured"),
    "seed": re.compile(r"\bseed\b"),
    "temperature": re.compile(r"\btemperature\b"),
    "reasoning_effort": re.compile(r"reasoning[._ ]effort|\breasoning\b"),
    "tools": re.compile(r"\btools?\b|\btool[_ -](?:choice|use|call)|\bfunctions?\b|function[_ -]call"),
}
SERVED_WITHOUT = ("response_format", "tools")  # llama.cpp's server answers 500 where it cannot build a grammar for them
_TOKENS = {
    "max_completion_tokens": re.compile(r"\bmax_completion_tokens\b"),
    "max_tokens": re.compile(r"\bmax_tokens\b"),
}
# the field is known and its value is not liked: another name would not help
_ABOUT_VALUE = re.compile(r"too (?:large|high|big|many)|exceed|at (?:most|least)|maximum|(?:greater|less|larger) than")
_ABOUT_LENGTH = re.compile(r"context[ _](?:length|window|size)|prompt is too long")
_RESPONSES_ONLY = re.compile(r"v1/responses|not a chat model")


@dataclass(frozen=True)
class Refusal:
    """An endpoint's error: HTTP status, the parameter it is about if the endpoint says so, its text."""

    status: int
    param: str
    text: str


@dataclass(frozen=True)
class EndpointDialect:
    """`without` holds the parameters that the endpoint refuses."""

    token_field: TokenField
    api: Api = "chat"
    without: frozenset[str] = frozenset()
    has_switched: bool = False  # the other token field was refused: this one is the last

    @classmethod
    def of(cls, *, is_openai: bool, is_provider: bool = False) -> EndpointDialect:
        """The first guess: OpenAI has deprecated the older name, which every other server knows. A provider's own class
        takes langchain's name, and neither seed nor schema."""
        if is_provider:
            return cls("max_tokens", without=frozenset({"seed", "response_format"}), has_switched=True)
        return cls("max_completion_tokens" if is_openai else "max_tokens")

    def body(self, answer_tokens: int, wanted: dict[str, Any]) -> dict[str, Any]:
        """The parameters of a request; those of `wanted` that are None or refused are left out."""
        said = {name: value for name, value in wanted.items() if value is not None and name not in self.without}
        if self.api == "chat":
            return {self.token_field: answer_tokens, **said}
        if "reasoning_effort" in said:
            said["reasoning"] = {"effort": said.pop("reasoning_effort")}
        return {"max_output_tokens": answer_tokens, "store": False, **said}


def adapt(dialect: EndpointDialect, refusal: Refusal, offered: Collection[str]) -> tuple[EndpointDialect, str] | None:
    """(the dialect after a refusal, what was learnt in words); None if the refusal names nothing that can be renamed or
    left out. `offered`: optional parameters of the refused request."""
    text = refusal.text.lower()
    if dialect.api == "chat" and refusal.status in (400, 404) and _RESPONSES_ONLY.search(text):
        # which has no seed
        return replace(dialect, api="responses", without=dialect.without | {"seed"}), "asked through the Responses API"
    if refusal.status == 404 and "tools" in offered and "tool" in text:  # a router without a provider that takes them
        return replace(dialect, without=dialect.without | {"tools"}), "tools is left out"
    if refusal.status not in (400, 422, 500, 501) or _ABOUT_LENGTH.search(text):
        return None
    name = _first_named(dialect, refusal.param.lower(), offered) or _first_named(dialect, text, offered)
    if name in OPTIONAL:
        if refusal.status >= 500 and name not in SERVED_WITHOUT:  # other server errors are no refusals
            return None
        return replace(dialect, without=dialect.without | {name}), f"{name} is left out"
    if not name or refusal.status >= 500 or dialect.has_switched or _ABOUT_VALUE.search(text):
        return None
    other: TokenField = "max_tokens" if name == "max_completion_tokens" else "max_completion_tokens"
    return replace(dialect, token_field=other, has_switched=True), f"{other} instead of {name}"


def _first_named(dialect: EndpointDialect, text: str, offered: Collection[str]) -> str:
    """The parameter of the request that the text names first, "" for none: later ones may be advice or an echo."""
    patterns = {name: pattern for name, pattern in OPTIONAL.items() if name in offered and name not in dialect.without}
    if dialect.api == "chat":
        patterns[dialect.token_field] = _TOKENS[dialect.token_field]
    found = {name: match.start() for name, pattern in patterns.items() if (match := pattern.search(text))}
    return min(found, key=lambda name: found[name], default="")
