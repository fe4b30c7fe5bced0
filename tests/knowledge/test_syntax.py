"""The parser in several threads, with what makes CPython 3.11 hand over in the middle of a tree."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foundry.knowledge.syntax import parse


class Slow:
    """A cycle whose finalizer gives other threads the interpreter."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0.0005)


@pytest.fixture
def collecting() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collecting")
def test_threads_may_parse_at_once() -> None:
    text = "".join(f"def f{index}(a, b):\n    return (a + b) * {index}\n" for index in range(200))

    def work(_: int) -> int:
        Slow()
        return len(parse(text).body)

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(work, range(90))) == {200}


def test_nothing_else_parses() -> None:
    root = Path(__file__).parents[2]
    for folder in ("agents", "graph", "knowledge", "tools"):
        for path in (root / folder).rglob("*.py"):
            assert path.name == "syntax.py" or "ast.parse(" not in path.read_text(encoding="utf-8"), path
