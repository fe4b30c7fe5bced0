"""Tells what happens in a run, one line an event, until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from foundry.graph.run.events import Event
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.trace.selection import Selection

POLL_S = 0.3


def follow(path: Path, wanted: Selection, tell: Callable[[Event], None]) -> None:
    """Calls `tell` with every event once, when it is over; past events come first.

    Returns when no process works on the run any more; spans that a kill left open come last. Raises UsageError for a
    candidate that is not known yet.
    """
    reader = RunReader(path)
    try:
        takes = wanted.of_run(reader.run).takes
        left: dict[int, Event] = {}
        while True:
            ending = not reader.run.is_active  # asked first: what was written before the end is then in the news
            for event in reader.news():
                if event.ended is None:
                    left[event.id] = event
                    continue
                left.pop(event.id, None)
                if takes(event):
                    tell(event)
            if ending:
                break
            time.sleep(POLL_S)
        for event in filter(takes, left.values()):
            tell(event)
    finally:
        reader.close()
