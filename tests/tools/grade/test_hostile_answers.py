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
from foundry.tools.grade.messages.runner import RunnerCommands
from foundry.tools.process.channel import Channel
from foundry.tools.process.messages import asking

SPECS = [TensorSpec((2,), (1,), "float32")]
NUMBER = "the order's own number"
RAN = {"ns": 1_000_000, "device_ns": 0, "faults": 0}
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
    return link.ask(asking(RunnerCommands.observe, slot=0, calls=1, late=0, timed=False))


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


def says(answer: object, **other: object) -> dict[str, Any]:
    return {"says": "done", "number": NUMBER, "answer": answer, **other}


@pytest.mark.parametrize(
    ("ask", "answer", "outcome", "words"),
    [
        (run, says({**RAN, "ns": "1000"}), FORGED, "answer.ns: Input should be a valid integer"),
        (run, says({**RAN, "ns": True}), FORGED, "answer.ns: Input should be a valid integer"),
        (run, says({**RAN, "ns": float("nan")}), FORGED, "answer.ns: Input should be a valid integer"),
        (run, says({**RAN, "ns": 1e999}), FORGED, "answer.ns: Input should be a valid integer"),
        (run, says({"device_ns": 0, "faults": 0}), FORGED, "answer.ns: Field required"),
        (run, says([RAN]), FORGED, "answer: "),
        (run, says({**RAN, "ns": 0}), ("cheating", "clock"), "reported a time of 0 ns"),
        (run, says({**RAN, "ns": -(10**30)}), ("cheating", "clock"), "reported a time of -1"),
        (run, says(RAN, number=7), FORGED, "answered another question"),
        (run, {"says": "done", "answer": RAN}, FORGED, "answered another question"),
        (run, says(RAN, says="stolen"), FORGED, "answered another question"),
        (run, {"number": NUMBER, "answer": RAN}, FORGED, "answered another question"),
        (run, {}, FORGED, "answered another question"),
        (run, {"says": "failed", "number": NUMBER, "kind": "what it likes", "line": "x" * 9999}, DIED, "x" * 600),
        (run, {"says": "failed", "number": NUMBER, "kind": 3, "line": ""}, FORGED, "kind"),
        (run, [says(RAN)], DIED, "not a message"),
        (run, b"\xff{}", DIED, "not a message"),
        (run, b"[" * 50_000, DIED, "not a message"),
        (run, b'{"says": "done", "number": ' + b"9" * 50_000 + b"}", DIED, "not a message"),
        (run, says(RAN, more="x" * (ANSWER_BYTES + 1)), DIED, "larger than a message may be"),
        (peek, says([["fast"]]), WRONG, "answer.0.0"),
        (peek, says([[1.0, 2.0]]), WRONG, "gave other outputs"),
        (peek, {"says": "done", "number": NUMBER}, WRONG, "answer: Field required"),
        (fetch, says({"written": 1}), WRONG, "written"),
        (fetch, says({"written": False, "specs": [[[2], [1], "text"]]}), WRONG, "specs.0"),
        (fetch, says({"written": False, "specs": []}), WRONG, "forward returned 0 tensors"),
        (inspect, says(None), FORGED, "answer: Input should be a valid array"),
        (inspect, says([["gate"]]), FORGED, "answer.0"),
        (inspect, says([7] * 1_000_000), FORGED, "answer.0"),
        (observe, says({**OBSERVED, "events": [["load"]]}), FORGED, "answer.events.0"),
        (observe, says({**OBSERVED, "operators": [{"op": "aten.mm"}]}), FORGED, "answer.operators.0.calls"),
        (observe, says({**OBSERVED, "kept": {str(n): "" for n in range(999)}}), FORGED, "999 entries"),
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
    assert asked(run, says({**RAN, "more": 1}, more={"of": "it"}))
    assert asked(peek, says([[float("-inf")]])) == [[float("-inf")]]
