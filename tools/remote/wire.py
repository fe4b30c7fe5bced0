"""Messages of a workbench in another process: JSON, with a length before each message. Free of torch.

Every message carries contents: texts, records, numbers. No path of one process means anything to the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Contest,
    ForeignName,
    Gate,
    Profile,
    Recipe,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.codec import pack, unpack
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.task import Policy
from foundry.tools.grade.host.workbench import BenchNotes, Intake, Workbench
from foundry.tools.process.channel import Message
from foundry.tools.profiling.gather import Seen
from foundry.tools.tune.tuner import TunedPlan

LENGTH_BYTES = 8  # bytes of the length before a message
LARGEST_BYTES = 1 << 30  # bytes; a longer message is refused


@dataclass(frozen=True)
class BenchCall:
    """A method of a workbench: types of its arguments and of its answer, and a function that calls it."""

    takes: tuple[Any, ...]
    gives: Any
    call: Callable[..., Awaitable[Any]]


CALLS: dict[str, BenchCall] = {
    "intake": BenchCall((), Intake, lambda bench: bench.intake()),
    "baseline": BenchCall((), Baseline, lambda bench: bench.baseline()),
    "expect_contest": BenchCall((tuple[RivalName, ...],), None, lambda bench, rivals: bench.expect_contest(rivals)),
    "contest": BenchCall(
        (str, Build | None, tuple[RivalName, ...], ForeignName | None),
        Contest,
        lambda bench, *given: bench.contest(*given),
    ),
    "build": BenchCall((str,), Build, lambda bench, text: bench.build(text)),
    "verify": BenchCall((str, Build, Stage), Verdict, lambda bench, *given: bench.verify(*given)),
    "audit": BenchCall((str, Build, Verdict, Policy), Audit, lambda bench, *given: bench.audit(*given)),
    "time": BenchCall(
        (str, Build, Stage, float | None, str),
        Timing,
        lambda bench, text, build, stage, incumbent_ms, beside: bench.time(
            text, build, stage, incumbent_ms=incumbent_ms, beside=beside
        ),
    ),
    "profile": BenchCall(
        (str, Build, Audit, Timing, Lowered | None), Profile, lambda bench, *given: bench.profile(*given)
    ),
    "tune": BenchCall(
        (Recipe, float, int, dict[str, float]),
        TunedPlan,
        lambda bench, recipe, seconds, seed, hints: bench.tune(recipe, seconds, seed=seed, hints=hints),
    ),
    "observe": BenchCall(
        (str, Build, float, bool),
        Seen,
        lambda bench, text, build, seconds, counted: bench.observe(text, build, seconds, counted=counted),
    ),
    "sanitize": BenchCall((str, Build), list[Gate], lambda bench, text, build: bench.sanitize(text, build)),
}


def question(number: int, name: str, given: tuple[Any, ...]) -> Message:
    """A call as a message."""
    taken = zip(CALLS[name].takes, given, strict=True)
    return {"number": number, "call": name, "given": [pack(kind, value) for kind, value in taken]}


async def answer(bench: Workbench, message: Message) -> Message:
    """Carries out the call in a message and returns the answer as a message."""
    asked = CALLS[message["call"]]
    given = [unpack(kind, plain) for kind, plain in zip(asked.takes, message["given"], strict=True)]
    found = await asked.call(bench, *given)
    notes = pack(BenchNotes, await asyncio.to_thread(lambda: bench.notes))  # may wait for a process's start
    return {"number": message["number"], "answer": pack(asked.gives, found), "notes": notes}


async def read_message(reader: asyncio.StreamReader) -> Message:
    """The next message; raises EOFError at the end, and ValueError for anything else."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > LARGEST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(await reader.readexactly(length))
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def write_message(writer: asyncio.StreamWriter, message: Message) -> None:
    """Writes a message as its length in bytes (big-endian) and JSON."""
    body = json.dumps(message).encode()
    writer.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
