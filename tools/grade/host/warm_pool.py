"""Pool of processes made before they are needed: a chosen number of each kind waits. Free of torch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from foundry.tools.process.zygote import Worker

AT_ONCE = 4  # processes of one batch; a timing may come in between two batches
STOCKED = 3  # processes of a stock made at once
RESTOCKED = 2  # pairs started at once where a timing goes on: contexts made together take half as long
STALE_S = 60.0  # s: a candidate that was not timed by then is not timed at all

Starting = Callable[[], contextlib.AbstractContextManager[Callable[[], object]]]  # gives what lets others time
Make = Callable[[Sequence[str], str], Iterator[tuple[str, Worker]]]  # kinds, and the text of the candidate to make for


def do_nothing() -> None:
    """Does nothing: the default where no caller wants to be told."""


@contextlib.contextmanager
def no_turns() -> Iterator[Callable[[], object]]:
    """A context manager that holds nothing; what it gives lets no other process in (there is none)."""
    yield do_nothing


@dataclass
class _Kind:
    """The processes of one kind. `coming` ones are the part of `starting` whose contexts are being made."""

    ready: list[Worker] = field(default_factory=list)
    starting: int = 0
    coming: int = 0
    awaited: int = 0  # coming ones that a caller waits for

    @property
    def known(self) -> int:
        """Processes of this kind that wait or are being started."""
        return len(self.ready) + self.starting


@dataclass(frozen=True)
class _Wish:
    """A request of one candidate under way."""

    wanted: Counter[str]
    since: float  # time.monotonic(), seconds


class WarmPool:
    """Processes that wait, by kind; thread-safe.

    `make` starts processes and yields each with its kind once it is ready, and ends those that are not. `reap` ends one
    that waited in vain. A pool that is not used makes none ahead: on a CPU they would take its cores.

    A kind that is a candidate's text serves that candidate alone.
    """

    def __init__(self, make: Make, reap: Callable[[Worker], object], *, is_used: bool) -> None:
        """An empty pool; starts nothing."""
        self._make, self._reap, self._is_used = make, reap, is_used
        self._kinds: dict[str, _Kind] = {}
        self._wishes: dict[str, _Wish] = {}  # a candidate's text: its request
        self._most = 0  # that may wait, as told last
        self._changed = threading.Condition()  # guards all of it; notified when a process is ready or given up

    def ready(self) -> dict[str, list[Worker]]:
        """The waiting processes by kind."""
        with self._changed:
            return {name: list(kind.ready) for name, kind in self._kinds.items() if kind.ready}

    def want(
        self,
        text: str,
        wanted: Mapping[str, int],
        most: int,
        *,
        starting: Starting = no_turns,
        begins: Callable[[], object] = do_nothing,
    ) -> None:
        """Makes so many processes of each kind wait for a candidate, beside those for others; returns when they are
        ready.

        No more than `most` wait at a time, for all candidates together. `begins` is called when the first of them is
        about to come; `starting` is held while any is made. Forgets candidates that asked more than STALE_S ago.
        """
        for other in self._stale():
            self.forget(other)
        with self._changed:
            self._most = most
            self._wishes[text] = _Wish(Counter(wanted), time.monotonic())
        self._fill(text, lambda: most_wanted_first(self._missing(wanted)), starting, begins)

    def stock(
        self,
        text: str,
        wanted: Mapping[str, int],
        most: int,
        *,
        at_once: int = STOCKED,
        starting: Starting = no_turns,
    ) -> bool:
        """Starts up to `at_once` of the processes missing for `wanted`; returns True if there were any to start.

        They are for whatever comes next; candidates under way take from them first.
        """
        with self._changed:
            self._most = most
        return self._fill(
            text, lambda: most_wanted_first(self._missing(wanted, at_least=Counter(wanted)))[:at_once], starting
        )

    def restock(self, text: str, kinds: Sequence[str], starting: Starting = no_turns) -> None:
        """Starts further pairs for a timing that takes more than it asked for, if one of `kinds` has none waiting."""

        def missing() -> list[str]:
            """The kinds to start now, in turns, up to RESTOCKED of each; empty if every kind has one waiting."""
            waiting = {name: len(self._of(name).ready) for name in kinds}
            if all(waiting.values()):
                return []
            return [name for turn in range(RESTOCKED) for name in kinds if waiting[name] <= turn][: self._room()]

        self._fill(text, missing, starting)

    def take(self, name: str) -> Worker | None:
        """Removes and returns a ready process of this kind; waits for one that is coming. None if there is neither.

        Contexts are made one after the other, so a new process would come later.
        """
        with self._changed:
            kind = self._of(name)
            while not kind.ready and kind.coming > kind.awaited:
                kind.awaited += 1
                self._changed.wait()
                kind.awaited -= 1
            return kind.ready.pop() if kind.ready else None

    def forget(self, text: str) -> None:
        """Drops a candidate's request and ends the processes that only it could use; others stay for the next one."""
        with self._changed:
            self._wishes.pop(text, None)
        self._end([text])

    def end_all(self) -> None:
        """Ends all waiting processes."""
        self._end(list(self._kinds))

    def _end(self, names: Sequence[str]) -> None:
        """Ends the waiting processes of these kinds."""
        with self._changed:
            found = [worker for name in names for worker in self._of(name).ready]
            for name in names:
                self._of(name).ready.clear()
        for worker in found:
            self._reap(worker)

    def _stale(self) -> list[str]:
        """Candidates that asked more than STALE_S ago."""
        with self._changed:
            return [text for text, wish in self._wishes.items() if time.monotonic() - wish.since > STALE_S]

    # ------------------------------------------------------------ inside; the caller of these three holds the guard

    def _of(self, name: str) -> _Kind:
        """The kind's record, made if there is none."""
        return self._kinds.setdefault(name, _Kind())

    def _room(self) -> int:
        """Number of further processes that may wait."""
        return max(0, self._most - sum(kind.known for kind in self._kinds.values()))

    def _missing(self, names: Iterable[str], *, at_least: Counter[str] | None = None) -> list[str]:
        """The kinds to start now, one entry a process: what all requests, or `at_least`, exceed the known ones by,
        within the room."""
        asked = sum((wish.wanted for wish in self._wishes.values()), Counter[str]())
        asked |= at_least or Counter[str]()  # the larger of each
        return [name for name in names for _ in range(asked[name] - self._of(name).known)][: self._room()]

    # ------------------------------------------------------------ inside

    def _fill(
        self,
        text: str,
        missing: Callable[[], list[str]],
        starting: Starting,
        begins: Callable[[], object] = do_nothing,
    ) -> bool:
        """Starts the processes that `missing` lists, AT_ONCE at a time, once `starting` is held; True if there were
        any.

        Returns at once if none is missing. Lets others time between two batches.
        """
        with self._changed:
            if not self._is_used or not missing():
                return False
        with starting() as let_others:
            with self._changed:
                left = missing()
                self._count(left, starting=1)
            is_any = bool(left)
            try:
                while left:
                    some, left = left[:AT_ONCE], left[AT_ONCE:]
                    self._make_some(some, text, begins)
                    if left:
                        begins = do_nothing
                        let_others()
            finally:
                with self._changed:
                    self._count(left, starting=-1)
        return is_any

    def _make_some(self, names: Sequence[str], text: str, begins: Callable[[], object]) -> None:
        """Starts one batch of processes and adds each to its kind when it is ready; counts them as coming until
        then."""
        left = list(names)  # neither ready nor given up
        with self._changed:
            self._count(left, coming=1)
        try:
            begins()
            for name, worker in self._make(names, text):
                left.remove(name)
                self._settle([name], worker)
        finally:
            self._settle(left)

    def _settle(self, names: Sequence[str], ready: Worker | None = None) -> None:
        """Counts processes as no longer coming: the first of `names` is `ready`, or all are given up. Wakes waiting
        takers."""
        with self._changed:
            self._count(names, starting=-1, coming=-1)
            if ready is not None:
                self._of(names[0]).ready.append(ready)
            self._changed.notify_all()

    def _count(self, names: Iterable[str], *, starting: int = 0, coming: int = 0) -> None:
        """Changes the counts of starting and coming processes of each of `names` by these amounts."""
        for name in names:
            kind = self._of(name)
            kind.starting += starting
            kind.coming += coming


def most_wanted_first(names: Iterable[str]) -> list[str]:
    """Sorts kinds so that the most requested come first: correctness and audit want candidates before pairs are
    timed."""
    left, ordered = Counter(names), list[str]()
    while left.total():
        ordered.append(max(left, key=lambda name: left[name]))
        left[ordered[-1]] -= 1
    return ordered
