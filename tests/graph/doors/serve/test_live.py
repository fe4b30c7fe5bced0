"""The server as a user starts it, and its pages in a browser while a run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'foundry[serve]'")

from tests.graph.finished import grow
from tests.graph.show.page.browser import CONTRAST, chromium, opened

from foundry.graph.run.run_directory import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@contextmanager
def serving(runs: Path, *more: str) -> Iterator[str]:
    """The address that the command prints, while it serves."""
    words = [sys.executable, "-m", "foundry.cli", "serve", "--runs", str(runs), "--port", "0", *more]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert child.stdout
    try:
        yield child.stdout.readline().strip()
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == 130


@pytest.fixture
def at_work(finished: Path, tmp_path: Path) -> Iterator[RunDirectory]:
    """A run that goes on, in a folder of runs."""
    path = tmp_path / "runs" / finished.name
    shutil.copytree(finished, path)
    run = RunDirectory.open(path)
    run.set("status", "running")
    run.set("winner", "")
    yield run
    run.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_follows_its_run_and_talks_to_it(
    browser: Any, at_work: RunDirectory, finished: Path, tmp_path: Path, width: int
) -> None:
    with serving(at_work.path.parent) as address, opened(browser, address, width=width) as found:
        page = found.page
        assert "token" not in page.url
        page.locator("#runs a.row").click()
        page.locator("#candidates tbody tr").first.wait_for()
        assert page.locator("#candidates tbody tr").count() == 24 and "running" in page.locator("#verdict").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
        page.locator("#candidates button.row").nth(3).focus()
        other = RunDirectory.inspect(grow(finished, tmp_path / "grown", 48), reading=True)
        for table, columns in (("evaluations", 7), ("decisions", 5), ("events", 10)):
            marks = ", ".join("?" * columns)
            at_work.database.run_many(
                f"INSERT OR IGNORE INTO {table} VALUES ({marks})", other.database.run(f"SELECT * FROM {table}")
            )
        other.close()
        page.locator("#candidates tbody tr").nth(47).wait_for(state="attached", timeout=20_000)
        assert page.locator("#candidates button.row").nth(3).evaluate("one => one === document.activeElement")
        page.locator("#words").fill("@tiling avoid unroll 8")
        page.keyboard.press("Enter")
        page.locator("#talk pre").wait_for()
        assert "d2" in page.locator("#talk pre").inner_text()
        page.get_by_text("@tiling avoid unroll 8").nth(1).wait_for(timeout=20_000)
        assert found.complaints == []
    assert [said.text for said in at_work.inbox.read()][-1] == "@tiling avoid unroll 8"
