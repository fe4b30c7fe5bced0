"""A real OpenTelemetry collector takes a run's spans and writes what it took. Which one: CONTRIBUTING.md."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typer.testing import CliRunner

from foundry.cli import app
from foundry.graph.run.events import EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace.otel import MOMENTS, SPANS, send, spans_of

COLLECTOR = "FOUNDRY_TEST_COLLECTOR"  # the binary, if it is not on PATH
READY_S, WRITTEN_S = 60.0, 60.0
CLIENT, ERROR = 3, 2  # a span's kind, and its status
OTELCOL = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{otlphttp: {{endpoint: "{sink}", compression: none}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [otlphttp]}}}}
"""


def find_collector() -> Path:
    """The collector of the environment, on PATH, or in the package `rotel`; skips without one."""
    package = importlib.util.find_spec("rotel")
    beside = [str(Path(package.origin).parent / "rotel-agent")] if package and package.origin else []
    names = [os.environ.get(COLLECTOR, ""), "otelcol-contrib", "otelcol", "rotel-agent", *beside]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no OpenTelemetry collector here: set {COLLECTOR}, or pip install rotel")
    return Path(found)


def command(binary: Path, port: int, sink: str, folder: Path) -> list[str]:
    """The collector listens on this port for OTLP over HTTP, and hands what it took on to the sink."""
    if "rotel" not in binary.name:
        config = folder / "collector.yaml"
        config.write_text(OTELCOL.format(port=port, sink=sink))
        return [str(binary), "--config", str(config)]
    receives = ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
    sends = ["--exporter", "otlp", "--otlp-exporter-endpoint", sink, "--otlp-exporter-protocol", "http"]
    return [str(binary), "start", *receives, *sends, "--pid-file", str(folder / "collector.pid")]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Sink:
    """Where the collector writes: OTLP over HTTP in protobuf, which only it has made."""

    address: str
    spans: list[Any]

    def wait_for(self, count: int) -> list[Any]:
        until = time.monotonic() + WRITTEN_S
        while len(self.spans) < count and time.monotonic() < until:
            time.sleep(0.05)
        return sorted(self.spans, key=lambda span: span.span_id)  # as their events were numbered; the run is the first


@contextmanager
def open_sink() -> Iterator[Sink]:
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            request = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
            )
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Sink(f"http://127.0.0.1:{server.server_port}", spans)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def collecting(folder: Path, sink: str) -> Iterator[tuple[str, Path]]:
    """(address that takes spans, log) of a collector at work."""
    port, log = free_port(), folder / "collector.log"
    with log.open("w") as said:
        child = subprocess.Popen(command(find_collector(), port, sink, folder), cwd=folder, stdout=said, stderr=said)
        try:
            until = time.monotonic() + READY_S
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert child.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/v1/traces", log
        finally:
            child.terminate()
            child.wait(timeout=30)


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@pytest.mark.slow
def test_a_collector_takes_a_run_and_hands_on_the_same_spans(finished: Path, tmp_path: Path) -> None:
    """Structure, conventions and counts as in the journal, after a collector has read them and written them anew."""
    run = RunDirectory.inspect(finished, reading=True)
    events = EventLog(run.database, reading=True).read()
    run.close()
    expected = [event for event in events if event.kind in SPANS]
    with open_sink() as sink, collecting(tmp_path, sink.address) as (address, log):
        sent = CliRunner().invoke(app, ["agent", "trace", str(finished), "--export", "otel", "--to", address])
        assert sent.exit_code == 0, sent.output
        spans = sink.wait_for(len(expected) + 1)
    said = log.read_text()
    assert not re.search(r"\berror\b", said, re.IGNORECASE), said
    assert len(spans) == len(expected) + 1, "one for each span of the journal, and the run"
    root = spans[0]
    assert root.name == "invoke_agent foundry" and not root.parent_span_id
    ids = {event.id: span.span_id for event, span in zip(expected, spans[1:], strict=True)}
    assert len({*ids.values(), root.span_id}) == len(spans)
    for event, span in zip(expected, spans[1:], strict=True):
        assert span.trace_id == root.trace_id
        assert span.parent_span_id == ids.get(event.parent or 0, root.span_id)
        assert attributes(span).get("foundry.step", "") == event.step and span.name.endswith(event.name)
    moments = Counter(moment.name for span in spans for moment in span.events)
    assert moments == Counter(f"foundry.{event.kind} {event.name}" for event in events if event.kind in MOMENTS)
    operations = Counter(attributes(span).get("gen_ai.operation.name", "") for span in spans)
    tools = sum(event.kind in ("tool", "call") for event in expected)
    agents = sum(event.kind == "expert" for event in expected)
    assert (operations["execute_tool"], operations["invoke_agent"]) == (tools, agents + 1) and tools and agents
    assert attributes(root)["gen_ai.conversation.id"] == finished.name
    assert any(span.status.code == ERROR and "too many registers" in span.status.message for span in spans)


@pytest.mark.slow
def test_a_collector_hands_on_what_a_model_was_asked(thought: RunDirectory, tmp_path: Path) -> None:
    made = spans_of(thought, EventLog(thought.database, reading=True).read(), prompts=True)
    with open_sink() as sink, collecting(tmp_path, sink.address) as (address, _):
        send(made, address)
        spans = sink.wait_for(5)
    (chat,) = (span for span in spans if span.name == "chat qwen")
    facts = attributes(chat)
    assert chat.kind == CLIENT and chat.status.code == ERROR
    assert (facts["gen_ai.operation.name"], facts["gen_ai.request.model"]) == ("chat", "qwen")
    assert (facts["gen_ai.usage.input_tokens"], facts["gen_ai.usage.output_tokens"]) == (20, 10)
    assert json.loads(facts["gen_ai.output.messages"])[0]["parts"][0]["content"] == "{}"
    thinks = next(span for span in spans if span.span_id == chat.parent_span_id)
    assert thinks.name == "invoke_agent tiling" and attributes(thinks)["gen_ai.agent.name"] == "tiling"
