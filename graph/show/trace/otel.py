"""A run's trace as OpenTelemetry spans with the GenAI conventions, in OTLP's JSON form: what any collector takes.

Names of `gen_ai.*` attributes are those of the semantic conventions; everything else of ours is below `foundry.`.
Prompts and answers are left out unless they are asked for, as the conventions want it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from foundry.graph.run.events import Event
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace.prompts import call_of, is_call
from foundry.graph.show.trace.selection import problem_of
from foundry.knowledge.errors import FoundryError, UsageError

INTERNAL, CLIENT = 1, 3  # kinds of a span
OK, ERROR = 1, 2  # codes of its status
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"  # the standard's variable: name=value,name=value
SEND_S = 30.0
MOMENTS = ("proposal", "evaluation", "directive", "retrieval", "migration", "note")
SPANS = ("node", "expert", "call", "tool")


class NotSent(FoundryError):
    """A collector did not take the spans."""

    exit_code = 1


def export(run: RunDirectory, events: Sequence[Event], *, prompts: bool = False) -> dict[str, Any]:
    """The document: one trace, its root span the run."""
    trace = hashlib.sha256(f"{run.id} {run.get('created')}".encode()).hexdigest()[:32]
    spans = [event for event in events if event.kind in SPANS]
    moments: dict[int | None, list[Event]] = {}
    known = {event.id for event in spans}
    for event in events:
        if event.kind in MOMENTS:
            moments.setdefault(event.parent if event.parent in known else None, []).append(event)
    made = [_root(run, events, moments.get(None, []), trace)]
    for event in spans:
        texts = [(who, text) for who, text in call_of(run, event).said] if prompts and is_call(event) else []
        made.append(
            _span(run, event, moments.get(event.id, []), trace, event.parent if event.parent in known else 0, texts)
        )
    scope = {"name": "foundry", "version": version("foundry")}
    resource = {"attributes": _attributes({"service.name": "foundry", "service.version": version("foundry")})}
    inside = {"scope": scope, "spans": made, "schemaUrl": SCHEMA_URL}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [inside], "schemaUrl": SCHEMA_URL}]}


def _root(run: RunDirectory, events: Sequence[Event], moments: Sequence[Event], trace: str) -> dict[str, Any]:
    started = min((event.started for event in events), default=0.0)
    ended = max((event.ended or event.started for event in events), default=started)
    facts = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "foundry",
        "gen_ai.conversation.id": run.id,
        **_ours({key: run.get(key) for key in ("task_name", "device_key", "status", "winner")}),
    }
    status = {"code": ERROR, "message": run.get("ending")} if run.get("status") == "failed" else {"code": OK}
    return {
        "traceId": trace,
        "spanId": _span_id(0),
        "name": "invoke_agent foundry",
        "kind": INTERNAL,
        "startTimeUnixNano": _nanoseconds(started),
        "endTimeUnixNano": _nanoseconds(ended),
        "attributes": _attributes(facts),
        "events": [_moment(event) for event in moments],
        "status": status,
    }


def _span(
    run: RunDirectory, event: Event, moments: Sequence[Event], trace: str, parent: int, texts: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    facts = _ours({"kind": event.kind, "step": event.step, "island": event.island})
    name, kind, started = f"{event.kind} {event.name}", INTERNAL, event.started
    if is_call(event):
        name, kind, started = f"chat {event.data['model']}", CLIENT, event.started - float(event.data["call_s"])
        facts |= _call_facts(run, event, texts)
    elif event.kind == "expert":
        name = f"invoke_agent {event.name}"
        facts |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": event.name}
    elif event.kind in ("tool", "call"):
        name = f"execute_tool {event.name}"
        facts |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.name,
            "gen_ai.tool.type": "function",
        }
    problem = problem_of(event) or ("" if event.ended is not None else "the run was killed in it")
    if problem:
        facts["error.type"] = str(event.data.get("outcome") or problem.split(":")[0])[:100]
    return {
        "traceId": trace,
        "spanId": _span_id(event.id),
        "parentSpanId": _span_id(parent),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": _nanoseconds(started),
        "endTimeUnixNano": _nanoseconds(event.ended or event.started),
        "attributes": _attributes({**facts, **_own(event)}),
        "events": [_moment(moment) for moment in moments],
        "status": {"code": ERROR, "message": problem[:500]} if problem else {"code": OK},
    }


def _call_facts(run: RunDirectory, event: Event, texts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    data = event.data
    facts: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",  # of the interface that is spoken; the endpoint may be anybody's
        "gen_ai.request.model": data["model"],
        "gen_ai.agent.name": event.name,
        "gen_ai.conversation.id": run.id,
        "gen_ai.usage.input_tokens": int(data["prompt_tokens"]),
        "gen_ai.usage.output_tokens": int(data["completion_tokens"]),
    }
    if texts:
        said = [{"role": who, "parts": [{"type": "text", "content": text}]} for who, text in texts]
        system = [part for message in said if message["role"] == "system" for part in message["parts"]]
        talk = [message for message in said if message["role"] != "system"]
        answered = bool(talk) and talk[-1]["role"] == "assistant"
        answers = [{**talk[-1], "finish_reason": "stop"}] if answered else []
        facts["gen_ai.system_instructions"] = json.dumps(system)
        facts["gen_ai.input.messages"] = json.dumps(talk[:-1] if answered else talk)
        facts["gen_ai.output.messages"] = json.dumps(answers)
    return facts


def _own(event: Event) -> dict[str, Any]:
    """The event's own facts, those that say something in themselves."""
    return _ours({name: value for name, value in event.data.items() if isinstance(value, str | int | float | bool)})


def _ours(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {f"foundry.{name}": value for name, value in facts.items() if value not in (None, "")}


def _moment(event: Event) -> dict[str, Any]:
    facts = {**_ours({"step": event.step, "island": event.island}), **_own(event)}
    return {
        "timeUnixNano": _nanoseconds(event.started),
        "name": f"foundry.{event.kind} {event.name}",
        "attributes": _attributes(facts),
    }


def _attributes(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in facts.items() if value not in (None, "")]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # JSON's numbers have 53 bits
    if isinstance(value, float):
        return {"doubleValue": value} if value == value and abs(value) != float("inf") else {"stringValue": str(value)}
    return {"stringValue": str(value)}


def _span_id(event: int) -> str:
    return f"{event + 1:016x}"  # zero is no id


def _nanoseconds(seconds: float) -> str:
    return str(int(seconds * 1e9))


def send(document: Mapping[str, Any], address: str, headers: str) -> None:
    """Posts the spans to a collector, `headers` as the standard's variable holds them. Raises UsageError, NotSent."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise UsageError(
            f"--to {address}", "the address of an OTLP/HTTP collector, such as http://localhost:4318/v1/traces"
        )
    more = dict(pair.split("=", 1) for pair in headers.split(",") if "=" in pair)
    asked = {
        "Content-Type": "application/json",
        **{name.strip(): unquote(value.strip()) for name, value in more.items()},
    }
    request = Request(address, json.dumps(document).encode(), asked)
    try:
        with urlopen(request, timeout=SEND_S) as answer:
            answer.read()
    except (URLError, OSError, ValueError) as error:
        raise NotSent(f"{address} did not take the spans: {error}", "is a collector there?") from error
