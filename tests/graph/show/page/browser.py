"""A real headless browser for the pages, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
NAMES = ("chromium", "chromium-browser", "google-chrome")

CONTRAST = Path(__file__).with_name("contrast.js").read_text()  # finds text that is hard to read


@dataclass
class Opened:
    """A page in the browser, and what went wrong in it or was asked of others."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no browser here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, *, width: int = 1280, scheme: str = "light") -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda request: found.asked.append(request.url))
    found.page.goto(address)
    yield found
    context.close()
