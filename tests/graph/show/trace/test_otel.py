"""A run as OpenTelemetry spans: read back by the project's own parser, names by its own conventions."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from typer.testing import CliRunner

from foundry.cli import app
from foundry.graph.run.events import EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace import otel
from foundry.graph.show.trace.otel import NotSent, in_json, send
from foundry.knowledge.errors import MissingTool, UsageError

IDS = re.compile(r'"(traceId|spanId|parentSpanId)": ?"([0-9a-f]+)"')


def parsed(document: str) -> Any:
    """As a collector reads it. OTLP's JSON has ids in hexadecimal; protobuf's own JSON wants base64."""
    text = IDS.sub(lambda found: f'"{found[1]}": "{base64.b64encode(bytes.fromhex(found[2])).decode()}"', document)
    return json_format.Parse(text, ExportTraceServiceRequest())


def spans_of(run: RunDirectory, **more: Any) -> list[Any]:
    found = parsed(in_json(otel.spans_of(run, EventLog(run.database, reading=True).read(), **more)))
    return list(found.resource_spans[0].scope_spans[0].spans)


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def test_a_run_is_one_trace_that_a_collector_can_read(finished: Path) -> None:
    run = RunDirectory.inspect(finished, reading=True)
    spans = spans_of(run)
    events = EventLog(run.database, reading=True).read()
    run.close()
    assert len({span.trace_id for span in spans}) == 1 and len(spans[0].trace_id) == 16
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans) and all(len(one) == 8 for one in ids)
    roots = [span for span in spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["invoke_agent foundry"]
    assert {span.parent_span_id for span in spans[1:]} <= ids
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    moments = [moment.name for span in spans for moment in span.events]
    assert len(spans) - 1 + len(moments) == len(events), "nothing is lost"
    assert any(name.startswith("foundry.evaluation c") for name in moments)
    failed = [span for span in spans if span.status.code == 2]
    assert any("too many registers" in span.status.message for span in failed)


def test_names_are_those_of_the_conventions(finished: Path, thought: RunDirectory) -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    run = RunDirectory.inspect(finished, reading=True)
    used = {name for span in [*spans_of(run), *spans_of(thought, prompts=True)] for name in attributes(span)}
    run.close()
    assert {name for name in used if name.startswith("gen_ai.")} <= known
    assert {"gen_ai.operation.name", "gen_ai.usage.input_tokens", "gen_ai.tool.name"} <= used
    assert all(name.startswith(("gen_ai.", "foundry.")) or name == "error.type" for name in used)


def test_a_model_s_call_is_a_chat_span_and_its_words_are_left_out_unless_asked_for(thought: RunDirectory) -> None:
    (chat,) = (span for span in spans_of(thought) if span.name == "chat qwen")
    facts = attributes(chat)
    assert (
        chat.kind == 3
        and chat.status.code == 2
        and chat.end_time_unix_nano - chat.start_time_unix_nano == pytest.approx(1.5e9)
    )
    assert (facts["gen_ai.usage.input_tokens"], facts["gen_ai.usage.output_tokens"]) == (20, 10)
    assert "gen_ai.input.messages" not in facts and "be brief" not in str(facts)
    (chat,) = (span for span in spans_of(thought, prompts=True) if span.name == "chat qwen")
    facts = attributes(chat)
    assert json.loads(facts["gen_ai.system_instructions"])[0]["content"] == "be brief"
    said = [message["parts"][0]["content"] for message in json.loads(facts["gen_ai.input.messages"])]
    assert said == ["what now?", "eh", "as JSON"]
    assert json.loads(facts["gen_ai.output.messages"])[0]["parts"][0]["content"] == "{}"
    (killed,) = (span for span in spans_of(thought) if span.name == "execute_tool build")
    assert killed.status.code == 2 and "killed" in killed.status.message


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[tuple[Any, Any]]]]:
    """A server that reads spans as a collector does; (address, what came)."""
    came: list[tuple[Any, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.headers, ExportTraceServiceRequest.FromString(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_are_sent_where_the_user_says_with_the_standard_s_headers(
    thought: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(otel.HEADERS, "x-api-key=a%20key, project=mine")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")  # is about programs that trace themselves
    spans = otel.spans_of(thought, EventLog(thought.database, reading=True).read())
    with collector() as (address, came):
        send(spans, address)
    (headers, body) = came[0]
    assert headers["x-api-key"] == "a key" and headers["project"] == "mine"
    assert len(body.resource_spans[0].scope_spans[0].spans) == len(spans)
    with collector(400) as (address, _), pytest.raises(NotSent, match=r"did not take the spans: .*400"):
        send(spans, address)
    with pytest.raises(UsageError, match="OTLP/HTTP"):
        send(spans, "file:///etc/passwd")


def test_a_collector_that_is_away_is_one_line(
    thought: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(otel.TIMEOUT, "3")
    spans = otel.spans_of(thought, [])
    with collector() as (address, _):
        pass
    with pytest.raises(NotSent, match="refused"):
        send(spans, address)
    assert capsys.readouterr().err == ""


def test_without_the_exporters_the_line_says_what_to_install(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, otel.__name__)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.json.file", None)
    told = CliRunner().invoke(app, ["agent", "trace", str(finished), "--export", "otel"])
    assert told.exit_code == MissingTool.exit_code and "pip install 'foundry[otel]'" in told.output


def test_a_text_or_a_number_that_otlp_cannot_hold_is_written_as_far_as_it_can_be(thought: RunDirectory) -> None:
    event = replace(
        EventLog(thought.database, reading=True).read()[0], data={"text": "a\ud800b", "much": 2**70, "no": math.nan}
    )
    facts = attributes(
        parsed(in_json(otel.spans_of(thought, [replace(event, kind="node")]))).resource_spans[0].scope_spans[0].spans[1]
    )
    assert (facts["foundry.text"], facts["foundry.much"], facts["foundry.no"]) == ("a?b", str(2**70), "nan")
