"""A run's trace as OpenTelemetry spans with the GenAI conventions, written and sent by the SDK's own exporters.

Names of `gen_ai.*` attributes are those of the semantic conventions; everything else of ours is below `foundry.`.
Prompts and answers are left out unless they are asked for, as the conventions want it.

The spans are made from the record of a run, so no tracer is at work: a tracer draws identifiers at random, keeps 128
events of a span and obeys `OTEL_SDK_DISABLED`. The same run gives the same spans each time.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as Moment
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from foundry.graph.run.events import Event
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace.prompts import call_of, is_call
from foundry.graph.show.trace.selection import problem_of
from foundry.knowledge.errors import FoundryError, UsageError

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
# The standard's variables, which the SDK reads.
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
TIMEOUT = "OTEL_EXPORTER_OTLP_TIMEOUT"
MOMENTS = ("proposal", "evaluation", "directive", "retrieval", "note")
SPANS = ("node", "expert", "call", "tool")
LARGEST_INTEGER = 2**63 - 1  # largest integer that an attribute may hold


class NotSent(FoundryError):
    """A collector did not take the spans."""

    exit_code = 1


def spans_of(run: RunDirectory, events: Sequence[Event], *, prompts: bool = False) -> list[ReadableSpan]:
    """One trace: its root span is the run, and each other span an event that took time."""
    trace = _Trace(run, events)
    return [trace.root(), *(trace.span_of(event, prompts=prompts) for event in trace.own)]


def in_json(spans: Sequence[ReadableSpan]) -> str:
    """The spans in OTLP's JSON form, in one line."""
    out = io.StringIO()
    FileSpanExporter(stream=out).export(spans)
    return out.getvalue().rstrip("\n")


def send(spans: Sequence[ReadableSpan], address: str) -> None:
    """Sends the spans to a collector, with the headers and within the time that the standard's variables say. Raises
    UsageError, NotSent."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise UsageError(
            f"--to {address}", "the address of an OTLP/HTTP collector, such as http://localhost:4318/v1/traces"
        )
    heard, logger = _Heard(), logging.getLogger(trace_exporter.__name__)
    logger.addHandler(heard)
    try:
        exporter = trace_exporter.OTLPSpanExporter(endpoint=address)
        taken = exporter.export(spans) is SpanExportResult.SUCCESS
        exporter.shutdown()
    finally:
        logger.removeHandler(heard)
    if not taken:
        raise NotSent(
            f"{address} did not take the spans: {'; '.join(dict.fromkeys(heard.said[:1] + heard.said[-1:]))}",
            "is a collector there?",
        )


class _Heard(logging.Handler):
    """Keeps what the exporter logs, which is where it says why it failed."""

    def __init__(self) -> None:
        """Has heard nothing yet."""
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message in one line, cut at 300 characters."""
        self.said.append(" ".join(record.getMessage().split())[:300])


class _Trace:
    """The events of a run as spans, each with the moments that happened in it."""

    def __init__(self, run: RunDirectory, events: Sequence[Event]) -> None:
        """Sorts events into spans and the moments in them; the trace's id follows from the run's."""
        release = version("foundry")
        self.run, self.events = run, events
        self.number = int(hashlib.sha256(f"{run.id} {run.get('created')}".encode()).hexdigest()[:32], 16)
        self.own = [event for event in events if event.kind in SPANS]
        self.known = {event.id for event in self.own}
        self.scope = InstrumentationScope("foundry", release, SCHEMA_URL)
        self.resource = Resource({"service.name": "foundry", "service.version": release}, SCHEMA_URL)
        self.moments: dict[int, list[Event]] = {}
        for event in events:
            if event.kind in MOMENTS:
                self.moments.setdefault(self._around(event), []).append(event)

    def _around(self, event: Event) -> int:
        """The number of the span around an event; 0 is the run."""
        return event.parent if event.parent in self.known and event.parent is not None else 0

    def root(self) -> ReadableSpan:
        """The span around the whole run."""
        run, started = self.run, min((event.started for event in self.events), default=0.0)
        facts = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "foundry",
            "gen_ai.conversation.id": run.id,
            **_ours({key: run.get(key) for key in ("task_name", "device_key", "status", "winner")}),
        }
        ended = max((event.ended or event.started for event in self.events), default=started)
        problem = run.get("ending") if run.get("status") == "failed" else ""
        return self._span(0, "invoke_agent foundry", (started, ended), facts, problem)

    def span_of(self, event: Event, *, prompts: bool) -> ReadableSpan:
        """An event as a span with the attributes of the GenAI conventions; with `prompts` the texts too."""
        facts = _ours({"kind": event.kind, "step": event.step, "island": event.island})
        name, started = f"{event.kind} {event.name}", event.started
        if is_call(event):
            name, started = f"chat {event.data['model']}", event.started - float(event.data["call_s"])
            facts |= _call_facts(self.run, event, prompts=prompts)
        elif event.kind == "expert":
            name = f"invoke_agent {event.name}"
            facts |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": event.name}
        elif event.kind in ("tool", "call"):
            name = f"execute_tool {event.name}"
            facts |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": event.name}
            facts["gen_ai.tool.type"] = "function"
        problem = problem_of(event) or ("" if event.ended is not None else "the run was killed in it")
        if problem:
            facts["error.type"] = str(event.data.get("outcome") or problem.split(":")[0])[:100]
        lasted = (started, event.ended or event.started)
        return self._span(event.id, name, lasted, {**facts, **_plain_facts(event)}, problem, parent=self._around(event))

    def _span(
        self,
        number: int,
        name: str,
        lasted: tuple[float, float],
        facts: Mapping[str, Any],
        problem: str,
        parent: int | None = None,
    ) -> ReadableSpan:
        """A span of the SDK: number, times in seconds, attributes, the moments in it, and its status."""
        moments = [
            Moment(f"foundry.{one.kind} {one.name}", _attributes(_moment_facts(one)), _nanoseconds(one.started))
            for one in self.moments.get(number, [])
        ]
        return ReadableSpan(
            name,
            self._context(number),
            parent=None if parent is None else self._context(parent),
            resource=self.resource,
            attributes=_attributes(facts),
            events=moments,
            kind=SpanKind.CLIENT if facts.get("gen_ai.operation.name") == "chat" else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, problem[:500]) if problem else Status(StatusCode.OK),
            start_time=_nanoseconds(lasted[0]),
            end_time=_nanoseconds(lasted[1]),
            instrumentation_scope=self.scope,
        )

    def _context(self, number: int) -> SpanContext:
        """The span context of the event at this index of the run's trace, marked as sampled."""
        return SpanContext(self.number, number + 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _call_facts(run: RunDirectory, event: Event, *, prompts: bool) -> dict[str, Any]:
    """The attributes of a chat model's call; with `prompts` its messages as JSON."""
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
    texts = call_of(run, event).said if prompts else []
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


def _plain_facts(event: Event) -> dict[str, Any]:
    """The event's text, numbers and booleans as attributes below `foundry.`; empty ones and tables are left out."""
    return _ours({name: value for name, value in event.data.items() if isinstance(value, str | int | float | bool)})


def _ours(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that are not empty, their names behind "foundry."."""
    return {f"foundry.{name}": value for name, value in facts.items() if value not in (None, "")}


def _moment_facts(event: Event) -> dict[str, Any]:
    """An event's step, island and plain facts."""
    return {**_ours({"step": event.step, "island": event.island}), **_plain_facts(event)}


def _attributes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that are not empty, as values that OpenTelemetry takes."""
    return {name: _value(value) for name, value in facts.items() if value not in (None, "")}


def _value(value: Any) -> Any:
    """The value as OTLP can hold it: 64-bit integers, finite numbers, text without lone surrogates."""
    is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST_INTEGER
    return value if is_number else str(value).encode("utf-8", "replace").decode()


def _nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return int(seconds * 1e9)
