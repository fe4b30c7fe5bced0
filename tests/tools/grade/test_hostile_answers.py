"""Answers that no honest runner gives: each is one failure of the candidate, in one line, and the judge goes on."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.judge.link import ANSWER_BYTES, RunnerFailed, RunnerLink
from foundry.tools.grade.messages.runner import ObserveOrder
from foundry.tools.process.channel import Channel

SPECS = [TensorSpec((2,), (1,), "float32")]
NUMBER = "the order's own number"
SAYS = {"says": "done", "number": NUMBER}
RAN = {**SAYS, "ns": 1_000_000, "device_ns": 0, "faults": 0}
OBSERVED: dict[str, Any] = {"events": [], "calls": [], "operators": []}
FORGED, DIED, WRONG = ("cheating", "one answer to each question"), ("crash", ""), ("wrong_result", "")


def run(link: RunnerLink) -> object:
    return link.run([0])


def peek(link: RunnerLink) -> object:
    return link.peek([[0]])


def fetch(link: RunnerLink) -> object:
    return link.collect(SPECS)


def inspect(link: RunnerLink) -> object:
    return link.inspect()


def observe(link: RunnerLink) -> object:
    return link.ask(ObserveOrder(slot=0, calls=1, late=0, timed=False))


def asked(ask: Callable[[RunnerLink], object], answer: object) -> object:
    """The result of one question to a runner that gives this answer: a JSON value, or the bytes themselves."""
    ours, theirs = Channel.pair()
    link = RunnerLink(os.dup(ours.fileno()), load_limit_s=30.0, run_limit_s=30.0, side="reference")

    def answers() -> None:
        order = json.loads(theirs.receive_text()[0])
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        theirs.send_text(text.replace(json.dumps(NUMBER).encode(), str(order["number"]).encode()))

    thread = threading.Thread(target=answers)
    thread.start()
    try:
        return ask(link)
    finally:
        thread.join()
        link.close()
        ours.close()
        theirs.close()


def without(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != name}


@pytest.mark.parametrize(
    ("ask", "answer", "outcome", "words"),
    [
        (run, {**RAN, "ns": "1000"}, FORGED, "ns: Input should be a valid integer"),
        (run, {**RAN, "ns": True}, FORGED, "ns: Input should be a valid integer"),
        (run, {**RAN, "ns": float("nan")}, FORGED, "ns: Input should be a valid integer"),
        (run, {**RAN, "ns": 1e999}, FORGED, "ns: Input should be a valid integer"),
        (run, without(RAN, "ns"), FORGED, "ns: Field required"),
        (run, {**RAN, "ns": 0}, ("cheating", "clock"), "reported a time of 0 ns"),
        (run, {**RAN, "ns": -(10**30)}, ("cheating", "clock"), "reported a time of -1"),
        (run, {**RAN, "number": 7}, FORGED, "answered another question"),
        (run, without(RAN, "number"), FORGED, "answered another question"),
        (run, {**RAN, "says": "stolen"}, FORGED, "answered another question"),
        (run, without(RAN, "says"), FORGED, "answered another question"),
        (run, {}, FORGED, "answered another question"),
        (run, {"says": "refused", "number": NUMBER, "outcome": "what it likes", "line": "x" * 9999}, DIED, "x" * 600),
        (run, {"says": "refused", "number": NUMBER, "outcome": 3}, FORGED, "outcome"),
        (run, [RAN], DIED, "not a message"),
        (run, b"\xff{}", DIED, "not a message"),
        (run, b"[" * 50_000, DIED, "not a message"),
        (run, b'{"says": "done", "ns": ' + b"9" * 50_000 + b"}", DIED, "not a message"),
        (run, {**RAN, "more": "x" * (ANSWER_BYTES + 1)}, DIED, "larger than a message may be"),
        (peek, {**SAYS, "elements": [["fast"]]}, WRONG, "elements.0.0"),
        (peek, {**SAYS, "elements": [[1.0, 2.0]]}, WRONG, "gave other outputs"),
        (peek, SAYS, WRONG, "elements: Field required"),
        (fetch, {**SAYS, "written": 1}, WRONG, "written"),
        (fetch, {**SAYS, "written": False, "specs": [[[2], [1], "text"]]}, WRONG, "specs.0"),
        (fetch, {**SAYS, "written": False, "specs": []}, WRONG, "forward returned 0 tensors"),
        (inspect, SAYS, FORGED, "differences: Field required"),
        (inspect, {**SAYS, "differences": [["gate"]]}, FORGED, "differences.0"),
        (inspect, {**SAYS, "differences": [7] * 1_000_000}, FORGED, "differences.0"),
        (observe, {**SAYS, "seen": {**OBSERVED, "events": [["load"]]}}, FORGED, "seen.events.0"),
        (observe, {**SAYS, "seen": {**OBSERVED, "operators": [{"op": "aten.mm"}]}}, FORGED, "seen.operators.0.calls"),
        (observe, {**SAYS, "seen": {**OBSERVED, "kept": {str(n): "" for n in range(999)}}}, FORGED, "999 entries"),
    ],
)
def test_what_is_no_answer_is_the_candidate_s_failure(
    ask: Callable[[RunnerLink], object], answer: object, outcome: tuple[str, str], words: str
) -> None:
    with pytest.raises(RunnerFailed) as failed:
        asked(ask, answer)
    assert (failed.value.outcome, failed.value.gate) == outcome, failed.value.evidence
    assert words in failed.value.evidence
    assert len(failed.value.evidence) <= 700 and "\n" not in failed.value.evidence


def test_unknown_fields_and_numbers_that_are_none_are_ordinary_in_an_answer() -> None:
    assert asked(run, {**RAN, "more": {"of": "it"}})
    assert asked(peek, {**SAYS, "elements": [[float("-inf")]]}) == [[float("-inf")]]
