"""Messages of a workbench in another process: JSON, with a length before each message. Free of torch.

Every message carries contents: texts, records, numbers. No path of one process means anything to the other. A question
is a method of `Workbench`; the first one opens the workbench.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

from pydantic import ConfigDict

from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.task import Task
from foundry.tools.grade.host.workbench import BenchNotes
from foundry.tools.process.messages import A, Asked, Done, Message

LENGTH_BYTES = 8  # bytes of the length before a message
LARGEST_BYTES = 1 << 30  # bytes; a longer message is refused


class BenchOpening(Protocol):
    """The first question: opens a workbench in its part of the host's cores."""

    def open(self, task: Task, target: TargetName, seed: int, share: tuple[int, int]) -> Device: ...


class Cancel(Asked):
    """Ends the question with this number."""

    do: Literal["cancel"] = "cancel"


class BenchDone(Done[A]):
    """An answer, and what the workbench knows besides."""

    notes: BenchNotes


class AnswerHead(Message):
    """The fields of an answer that are read before it is known whose it is."""

    model_config = ConfigDict(extra="ignore")
    number: int
    notes: BenchNotes | None = None


async def read_text(reader: asyncio.StreamReader) -> bytes:
    """The next message's text; raises EOFError at the end, and ValueError if it is too long."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > LARGEST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def write_text(writer: asyncio.StreamWriter, text: bytes) -> None:
    """Writes a message's length in bytes (big-endian) and its text."""
    writer.write(len(text).to_bytes(LENGTH_BYTES, "big") + text)
