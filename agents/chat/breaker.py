"""Circuit breaker: decides when an endpoint that does not answer is left alone, and when it is tried again.

Closed, every call goes out. After some unanswered calls in a row it opens: no call goes out until a pause is over, then
one alone, whose answer closes it and whose failure doubles the pause. Nothing opens it for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Permit = Literal["call", "probe"]


@dataclass(frozen=True)
class Pauses:
    """The first pause begins after `after` unanswered calls in a row; each further pause is twice as long."""

    after: int = 3
    first_s: float = 15.0
    longest_s: float = 300.0


class Breaker:
    """Decides for one endpoint, and all islands of a run, whether a call may go out. Used from one event loop."""

    def __init__(self, pauses: Pauses, clock: Callable[[], float] = time.monotonic) -> None:
        """A closed breaker. `clock` gives seconds."""
        self.pauses = pauses
        self.skipped = 0  # calls that were not made since it opened
        self._clock = clock
        self._unanswered = 0
        self._began = 0.0  # when the first of the unanswered calls failed
        self._pause_s = 0.0  # 0 while closed
        self._until = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """True from the failures that open it until a call is answered."""
        return self._pause_s > 0.0

    @property
    def retry_s(self) -> float:
        """Seconds until the next call may go out."""
        return max(0.0, self._until - self._clock()) if self.is_open else 0.0

    @property
    def lasted_s(self) -> float:
        """Seconds since the first of the calls without an answer failed, 0 if the last call was answered."""
        return self._clock() - self._began if self._unanswered else 0.0

    def permit(self) -> Permit | None:
        """A permit if a call may go out now, else None. The caller has to report how the call ended: by `note_answer`,
        `note_failure` or `note_abandoned`."""
        if not self.is_open:
            return "call"
        if self._probing or self.retry_s > 0.0:
            self.skipped += 1
            return None
        self._probing = True
        return "probe"

    def note_answer(self) -> bool:
        """Records that the endpoint answered a call, whenever that call began; True if this ends a pause."""
        was_open = self.is_open
        self._unanswered, self._pause_s, self._probing = 0, 0.0, False
        return was_open

    def note_failure(self, permit: Permit, *, hopeless: bool = False) -> bool:
        """Records that a call got no answer; True if a pause begins. `hopeless` (no access, no such model): the
        longest."""
        if not self._unanswered:
            self._began = self._clock()
        self._unanswered += 1
        if permit == "probe" and self._probing:
            self._probing = False
        elif self.is_open:
            return False  # began before the endpoint was left alone: says nothing new
        elif self._unanswered < self.pauses.after and not hopeless:
            return False
        else:
            self.skipped = 0
        doubled = 2.0 * self._pause_s or self.pauses.first_s
        self._pause_s = self.pauses.longest_s if hopeless else min(doubled, self.pauses.longest_s)
        self._until = self._clock() + self._pause_s
        return True

    def note_abandoned(self, permit: Permit) -> None:
        """Records that the call was never sent (a cap forbade it, the run was stopped), so that another one may go
        out."""
        if permit == "probe":
            self._probing = False
