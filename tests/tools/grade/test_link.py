"""The judge's end of a link, to a process that answers late."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from mmap import mmap

import pytest

from foundry.tools.grade.judge import link as links
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.process.channel import Channel

SLICE_S = 0.15


def answers_late(channel: Channel, counted: mmap) -> None:
    """A first command at once, the next after five slices of work that can be seen."""
    for slices in (0, 5):
        message, _ = channel.receive()
        end = time.process_time() + slices * SLICE_S
        while time.process_time() < end:
            counted[0] = (counted[0] + 1) % 256
        channel.send({"says": "done", "number": message["number"], "answer": {"ns": 1_000_000}})


@pytest.fixture
def counted() -> Iterator[mmap]:
    memory = mmap(-1, 1)
    yield memory
    memory.close()


@pytest.fixture
def linked(counted: mmap) -> Iterator[Callable[[str, Callable[[], None]], RunnerLink]]:
    """Makes the link to such a process; its side, and what is done in a pause."""
    children = list[int]()

    def make(side: str, pause: Callable[[], None]) -> RunnerLink:
        ours, theirs = Channel.pair()
        child = os.fork()
        if not child:
            answers_late(theirs, counted)
            os._exit(0)
        children.append(child)
        theirs.close()
        link = RunnerLink(os.dup(ours.fileno()), load_limit_s=30.0, run_limit_s=30.0, side=side, pause=pause)
        link.run([0])
        return link

    yield make
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_others_may_time_while_pytorch_compiles_and_it_stands_still(
    linked: Callable[[str, Callable[[], None]], RunnerLink], counted: mmap, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SLICE_S", SLICE_S)

    looks = list[bool]()

    def look() -> None:
        before = counted[0]
        time.sleep(0.05)
        looks.append(counted[0] == before)

    link = linked(side, look)
    looks.clear()
    link.may_build(60.0)
    link.run([0])
    before_it, *meanwhile = looks
    assert before_it and all(meanwhile), "it works in no pause"
    assert len(meanwhile) >= 3 if side == "reference" else not meanwhile, "a candidate is never waited for"
    link.close()


def test_a_late_answer_passes_for_no_forged_one() -> None:
    """A stalled machine lets an honest process answer after its limit: the next question got that answer."""
    ours, theirs = Channel.pair()
    child = os.fork()
    if not child:
        for wait_s in (0.0, 0.6, 0.0, 0.0):
            message, _ = theirs.receive()
            time.sleep(wait_s)
            theirs.send({"says": "done", "number": message["number"], "answer": {"ns": 1_000_000}})
        os._exit(0)
    theirs.close()
    link = RunnerLink(os.dup(ours.fileno()), load_limit_s=30.0, run_limit_s=0.3, side="candidate", pause=lambda: None)
    try:
        link.run([0])
        for _ in range(2):
            with pytest.raises(RunnerFailed, match="did not finish in") as failed:
                link.run([0])
            assert failed.value.outcome == "timeout"
            time.sleep(0.5)  # the answer is there by now
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
