"""Tool calls of a chat model: their declaration, their reading from a reply, and their answers as messages.

An endpoint that takes tools is asked in its own way. Any other reads the same in words: the model answers with a JSON
object {"tool": ..., "arguments": {...}}, and gets the results as a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foundry.agents.chat.answers import AnswerError, KernelForm, ProposalAnswer, documents, with_fences
from foundry.agents.chat.authoring import NO_GRAPH, NO_LAUNCHES
from foundry.agents.chat.fences import FENCE
from foundry.agents.chat.proposal import Drafted
from foundry.agents.ledger import TokenUsage
from foundry.agents.prompt import render
from foundry.agents.talk import TOOLS, Takes, Talk, ToolCall, ToolRequest, Turn

ECHO_CHARS = 60_000  # characters of one call's own words that the model is shown again
NAME_CHARS = 60  # characters kept of a tool's name
LEAST_COPY = 200  # characters of a kernel; a shorter one costs no more than the words for it
PROBLEM_CHARS = 300  # characters kept of a problem, or of a query
_MARKS = re.compile(r"<(?=\s*/?\s*result)", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

NOTHING = ProposalAnswer.model_validate({})
Drafting = Callable[[ProposalAnswer], Drafted]
ChatMessage = tuple[str, str] | Turn  # role ("system", "human", "ai") and text, or calls with their answers


@dataclass(frozen=True)
class RawCall:
    """A call as the endpoint reported it, or as it stands in the text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ModelReply:
    """A model's reply. `truncated`: the server stopped it at the token limit; `calls`: tool calls that the endpoint
    reports."""

    text: str
    usage: TokenUsage
    dollars: float
    truncated: bool
    requests: int
    calls: tuple[RawCall, ...] = ()


class KernelArguments(KernelForm):
    """Arguments of a tool about a kernel: one that an answer could propose, or a candidate. Neither: the one at
    hand."""

    moves: list[int] = Field(default_factory=list, description="numbers of listed moves, made together")
    candidate: str = Field("", description='the id of a candidate of this run, such as "c7"')


class CandidateArguments(BaseModel):
    """Arguments of a tool about a candidate."""

    model_config = ConfigDict(extra="ignore")
    candidate: str = Field(description='its id, such as "c7"')


class QueryArguments(BaseModel):
    """Arguments of a tool that searches."""

    model_config = ConfigDict(extra="ignore")
    query: str = Field(description="words: operators, a limiter, a move")


class NoArguments(BaseModel):
    """Arguments of a tool that takes none."""

    model_config = ConfigDict(extra="ignore")


ARGUMENTS: Mapping[Takes, type[BaseModel]] = {
    "kernel": KernelArguments,
    "candidate": CandidateArguments,
    "query": QueryArguments,
    "nothing": NoArguments,
}


_SHORT = ("code", "launches", "source", "draft", "edits", "candidate")  # declared with every further tool


def tools_words(names: Sequence[str], most: int, *, proposes: bool) -> str:
    """The part of the system prompt that offers tools: the same at every step of an expert. `most`: calls allowed in
    one step."""
    draft = " Your answer may be a head with `draft` in the same way." if proposes else ""
    takes = {"kernel": "(a kernel)", "candidate": "(candidate)", "query": "(query)", "nothing": "()"}
    lines = [f"- `{name}` {takes[TOOLS[name].takes]}: {TOOLS[name].meaning}" for name in names]
    return render("tools", {"calls": str(most), "tools": "\n".join(lines), "draft": draft})


@cache
def declarations(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The tools as endpoints want them declared, kept short because a request pays for every word of it.

    Meanings stand once in the prompt. Only the first tool that takes a kernel declares in full how it is given.
    """
    found = []
    known: set[Takes] = set()
    for name in names:
        takes = TOOLS[name].takes
        schema = ARGUMENTS[takes].model_json_schema()
        parameters = _plain_schema(schema, schema)
        if takes in known and takes == "kernel":
            parts = parameters["properties"]
            parameters = {"type": "object", "properties": {part: _schema_type(parts[part]) for part in _SHORT}}
        known.add(takes)
        found.append({"type": "function", "function": {"name": name, "parameters": parameters}})
    return found


def _schema_type(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema without its parts; an array says that it has objects, because some endpoints refuse it
    otherwise."""
    return {"type": part["type"], **({"items": {"type": "object"}} if part["type"] == "array" else {})}


def _plain_schema(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without references, titles, defaults and descriptions; of several alternatives only the first."""
    if reference := schema.get("$ref"):
        return _plain_schema(whole["$defs"][reference.rpartition("/")[2]], whole)
    if alternatives := schema.get("anyOf"):
        return _plain_schema(alternatives[0], whole)
    found = {name: schema[name] for name in ("type", "required") if name in schema}
    if "properties" in schema:
        found["properties"] = {name: _plain_schema(part, whole) for name, part in schema["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            found[name] = _plain_schema(schema[name], whole)
    return found


def read_request(reply: ModelReply, offered: Sequence[str], left: int, draft: Drafting) -> ToolRequest | None:
    """The tool calls of a reply, from its text if the endpoint reports none; None if it makes no call.

    At most `left` calls, but at least one. `draft` makes a kernel of arguments, and raises AnswerError.
    """
    native = bool(reply.calls)
    asked = list(reply.calls or _calls_in(reply.text))[: max(1, left)]
    if not asked:
        return None
    said = "" if native else reply.text
    calls = tuple(_as_call(call, offered, draft, said) for call in asked)
    tokens = reply.usage.prompt_tokens + reply.usage.answer_tokens
    return ToolRequest(calls, reply.text[:ECHO_CHARS], tokens, native)


def _calls_in(text: str) -> list[RawCall]:
    """The first JSON object of a text that calls a tool, as a list of one call; else an empty list."""
    for document in documents(text):
        name, given = document.get("tool"), document.get("arguments", document.get("parameters", {}))
        if name is None and "arguments" in document:
            name = document.get("name")  # as models were trained to write it
        if isinstance(name, str):
            return [RawCall("", name, given if isinstance(given, str) else json.dumps(given))]
    return []


def _as_call(raw: RawCall, offered: Sequence[str], draft: Drafting, said: str) -> ToolCall:
    """A tool call with its arguments checked; a fault becomes its `problem`."""
    call = ToolCall(raw.name[:NAME_CHARS], id=raw.id, arguments=raw.arguments[:ECHO_CHARS])
    try:
        if raw.name not in offered:
            raise AnswerError(f"there is no tool {raw.name[:NAME_CHARS]!r} here; there are {', '.join(offered)}")
        return _with_arguments(call, raw, draft, said)
    except AnswerError as error:
        return replace(call, problem=" ".join(str(error).split())[:PROBLEM_CHARS])


def _with_arguments(call: ToolCall, raw: RawCall, draft: Drafting, said: str) -> ToolCall:
    """The call with its candidate, query or kernel filled in from the arguments; raises AnswerError."""
    given = _validated(ARGUMENTS[TOOLS[raw.name].takes], raw.arguments)
    match given:
        case KernelArguments():
            return _with_kernel(call, given, draft, said)
        case CandidateArguments():
            return replace(call, candidate=given.candidate.strip())
        case QueryArguments():
            return replace(call, query=" ".join(given.query.split())[:PROBLEM_CHARS])
    return call


def _with_kernel(call: ToolCall, given: KernelArguments, draft: Drafting, said: str) -> ToolCall:
    """The call with the kernel that its arguments, and the fences beside them, mean; raises AnswerError."""
    if given.candidate.strip():
        return replace(call, candidate=given.candidate.strip())
    plain = ProposalAnswer.model_validate(given.model_dump(exclude={"candidate"}))
    answer = with_fences(plain, said)
    if answer == NOTHING:
        return call
    try:
        kernel = draft(answer)
    except AnswerError as error:
        if plain == NOTHING and str(error) in (NO_LAUNCHES, NO_GRAPH):
            return call  # an illustration beside a call about the kernel at hand
        raise
    return replace(call, text=kernel.text, recipe=kernel.recipe, moves=kernel.moves)


def _validated(kind: type[BaseModel], arguments: str) -> BaseModel:
    """The arguments, JSON text, as a record of `kind`. Raises AnswerError."""
    try:
        return kind.model_validate(json.loads(arguments or "{}", strict=False))
    except ValidationError as error:
        first = error.errors()[0]
        raise AnswerError(f"{'.'.join(map(str, first['loc'])) or 'the arguments'}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the arguments are no JSON object: {error}") from error


def _without_copies(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """Yields the messages with each kernel that the model sent again replaced by the number of the call that has it."""
    known: dict[str, int] = {}
    number = 0
    for message in messages:
        if not isinstance(message, Turn):
            yield message
            continue
        calls = []
        for call in message.request.calls:
            number += 1
            given = _plain(call.arguments)
            for name in ("code", "source"):
                text = given.get(name)
                if isinstance(text, str) and len(text) >= LEAST_COPY:
                    first = known.setdefault(text, number)
                    given[name] = text if first == number else f"(the same as in call {first}: `draft` names it)"
            calls.append(replace(call, arguments=json.dumps(given)) if given else call)
        said = _without_known_fences(message.request.said, known, number)
        yield replace(message, request=replace(message.request, calls=tuple(calls), said=said))


def _without_known_fences(text: str, known: dict[str, int], number: int) -> str:
    """A text with each fenced kernel that an earlier call sent replaced by that call's number; adds new ones to
    `known`."""

    def shown(found: re.Match[str]) -> str:
        """The fence as it is, or the words that stand for it."""
        body = found[2]
        first = known.setdefault(body, number) if len(body) >= LEAST_COPY else number
        return found[0] if first == number else f"(the same as in call {first}: `draft` names it)"

    return FENCE.sub(shown, text)


def rendered(messages: Sequence[ChatMessage], most: int, *, native: bool) -> list[Any]:
    """The messages as a request holds them; tool calls and their results as the endpoint's own (`native`), or in
    words."""
    found: list[Any] = []
    number = 0
    for message in _without_copies(messages):
        if not isinstance(message, Turn):
            found.append(message)
            continue
        results = results_of(message, number, most)
        number += len(results)
        found += _natively(message, results) if native and message.request.native else _in_words(message, results)
    return found


def results_of(turn: Turn, before: int, most: int) -> list[str]:
    """The tool results of a turn as texts, numbered after `before`, between marks that nothing inside can close."""
    found = []
    for number, (call, answer) in enumerate(zip(turn.request.calls, turn.answers, strict=True), before + 1):
        text = _MARKS.sub("< ", _UNPRINTABLE.sub(" ", answer.text))
        name = re.sub(r"\W", "_", call.name)
        found.append(f'<result call="{number}" of="{most}" tool="{name}">\n{text}\n</result>')
    return found


def said_since(talk: Talk, most: int) -> str:
    """The tool results that the model was told last, as one text for the trace; "" if there are none."""
    if not talk.turns:
        return ""
    return "\n".join(results_of(talk.turns[-1], len(talk.calls) - len(talk.turns[-1].answers), most))


def _natively(turn: Turn, results: Sequence[str]) -> list[Any]:
    """A turn as langchain's messages: the calls, then a result for each."""
    from langchain_core.messages import AIMessage, ToolMessage

    calls = [{"name": call.name, "args": _plain(call.arguments), "id": call.id} for call in turn.request.calls]
    answers = [ToolMessage(text, tool_call_id=call.id) for call, text in zip(turn.request.calls, results, strict=True)]
    return [AIMessage(turn.request.said, tool_calls=calls), *answers]


def _plain(arguments: str) -> dict[str, Any]:
    """The arguments, JSON text, as a dict; {} if they are no JSON object, which endpoints refuse."""
    try:
        found = json.loads(arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_words(turn: Turn, results: Sequence[str]) -> list[tuple[str, str]]:
    """A turn as plain messages: the calls as JSON, then all results in one message."""
    said = turn.request.said
    if turn.request.native:
        calls = [{"tool": call.name, "arguments": _plain(call.arguments)} for call in turn.request.calls]
        said = "\n".join([*([said] if said else []), *(json.dumps(call) for call in calls)])
    return [("ai", said), ("human", "\n".join(results))]


def bytes_of(message: ChatMessage) -> int:
    """Approximate length of a message in bytes, tool calls and results included."""
    if not isinstance(message, Turn):
        return len(message[1].encode(errors="replace"))
    asked = [call.arguments for call in message.request.calls]
    told = [answer.text for answer in message.answers]
    texts = [message.request.said, *asked, *told]
    return sum(len(text.encode(errors="replace")) for text in texts) + 60 * len(told)
