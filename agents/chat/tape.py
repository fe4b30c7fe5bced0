"""Conversations of a run on file, one request with its answer a line, and answers given from such a file.

A request is known by its digest: what is said, to which model, in which form, with which options. Where it is asked and
how that endpoint wants it worded is no part of it. No key is written: a text that holds one has `***` in its place.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict, deque
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foundry.agents.chat.options import TapeOptions
from foundry.knowledge.errors import UsageError


class NotRecorded(UsageError):
    """A replay was asked something that the recording does not hold: the run cannot go on as it went."""


class TapedAnswer(BaseModel):
    """A model's answer as the endpoint gave it; or why it gave none, or was not asked."""

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    calls: list[tuple[str, str, str]] = Field(default_factory=list)
    """Of tools: id, name, arguments."""
    truncated: bool = False
    usage: tuple[int, int, int, bool] = (0, 0, 0, False)
    """Tokens of prompt, of answer, of the prompt from a cache; whether they are estimated."""
    failure: str = ""
    hopeless: bool = False
    budget: str = ""
    """Which cap forbade the request."""
    skipped: bool = False
    """It was not made, because the endpoint was left alone for a while."""


class TapedLine(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    asked: dict[str, Any]
    answer: TapedAnswer


def digest_of(asked: dict[str, Any]) -> str:
    """SHA-256 of the request's JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class Tape:
    """A recording that all models of a run share."""

    def __init__(self, options: TapeOptions) -> None:
        """Reads the recording to replay and opens the one to write. Raises UsageError if a file cannot be read or
        written."""
        self.options = options
        self._lock = threading.Lock()
        self._answers: dict[str, deque[TapedAnswer]] = defaultdict(deque)
        if options.replay is not None:
            self._read(Path(options.replay))
        if options.record is not None:
            self._write("")

    def recall(self, asked: dict[str, Any]) -> TapedAnswer | None:
        """The recorded answer to a request; None if the model is to be asked. Raises NotRecorded.

        Several answers to the same request come one after the other, then the last one again.
        """
        if self.options.replay is None:
            return None
        digest = digest_of(asked)
        with self._lock:
            known = self._answers.get(digest)
            if known:
                return known.popleft() if len(known) > 1 else known[0]
        if self.options.ask_missing:
            return None
        raise NotRecorded(
            f"{self.options.replay} holds no answer to a request to {asked['model']} (digest {digest[:12]}): the run "
            "does not go as the recorded one went",
            "replay it on the journal of its own run with `foundry agent replay RUN`, or --ask-missing",
        )

    def keep(self, asked: dict[str, Any], answer: TapedAnswer, key: str | None) -> None:
        """Adds a request with its answer to the file."""
        if self.options.record is None:
            return
        line = TapedLine(digest=digest_of(asked), asked=asked, answer=answer).model_dump_json()
        self._write((line.replace(json.dumps(key)[1:-1], "***") if key else line) + "\n")

    def _read(self, path: Path) -> None:
        """Reads every line of a recording. Raises UsageError."""
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        self._add_line(line, f"{path} line {number}")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}: {error}", "name a file that --record has written") from error

    def _add_line(self, line: str, place: str) -> None:
        """Adds one recorded answer, a line of JSON, to those that can be replayed. Raises UsageError."""
        try:
            found = TapedLine.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise UsageError(f"{place} is no recorded request: {where}: {first['msg']}") from error
        self._answers[found.digest].append(found.answer)

    def _write(self, text: str) -> None:
        """Appends text to the recording's file. Raises UsageError."""
        path = Path(self.options.record or "")
        try:
            with self._lock, path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", "name another file with --record") from error
