"""The pages in a real browser: nothing fails, nothing is loaded, everything is reached by keys and can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.graph.finished import HOSTILE

from foundry.graph.doors.bench.page import write_page
from foundry.graph.doors.bench.results import TaskResult
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.page.write import write_report

from .browser import CONTRAST, chromium, opened

pytestmark = pytest.mark.slow
INTERACTIVE_MS = 1000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def page_of(run: Path) -> str:
    opened_run = RunDirectory.inspect(run)
    address = write_report(opened_run).as_uri()
    opened_run.close()
    return address


@pytest.fixture(scope="module")
def pages(grown: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of a run of 500 evaluations and of a bench of 250 tasks."""
    folder = tmp_path_factory.mktemp("bench")
    known: dict[str, Any] = {"compile_speedup": 1.3, "speedup_vs_compile": 1.1, "candidate_ms": 1.0, "baseline_ms": 2.0}
    lines = [
        TaskResult(
            f"level{n % 3}/{n}",
            "d",
            "accepted" if n % 9 else "failed",
            speedup=0.5 + n / 50 if n % 9 else None,
            speedup_ci95=(0.4 + n / 50, 0.6 + n / 50) if n % 9 else None,
            fraction_of_floor=(n % 100) / 100,
            reason="" if n % 9 else HOSTILE,
            **known,
        )
        for n in range(250)
    ]
    return {"run": page_of(grown(500)), "bench": write_page(lines, folder).as_uri()}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["run", "bench"])
def test_a_page_opens_quickly_and_without_a_complaint(
    browser: Any, pages: dict[str, str], kind: str, width: int
) -> None:
    took = []
    for _ in range(3):
        with opened(browser, pages[kind], width=width) as found:
            took.append(found.page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive"))
            assert found.complaints == []
            assert found.asked == [pages[kind]], "a page loads nothing"
            assert found.page.evaluate("document.documentElement.scrollWidth") <= width
            for figure in found.page.locator("figure").all():  # drawn when they come near
                figure.scroll_into_view_if_needed()
                figure.locator("svg, p").first.wait_for()
            assert found.page.locator("figure svg").count() >= (6 if kind == "run" else 3)
            assert found.complaints == []
    print(kind, width, f"interactive after {min(took):.0f} ms")
    assert min(took) < INTERACTIVE_MS


def test_hostile_text_is_shown_as_text(browser: Any, hostile: Path) -> None:
    with opened(browser, page_of(hostile)) as found:
        page = found.page
        assert "owned" in page.title() and page.title().startswith("</script>"), "the title is the task's name"
        assert "</script><script>" in page.locator("h1").inner_text()
        assert page.locator("main img, header img, main script").count() == 0
        for name in page.locator("#candidates button.row").all()[:6]:
            name.click()
            page.keyboard.press("Escape")
        page.locator("#code summary").last.click()
        assert "onerror" in page.locator("#code pre").last.inner_text()
        assert found.complaints == [] and len(found.asked) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["run", "bench"])
def test_text_can_be_read(browser: Any, pages: dict[str, str], kind: str, scheme: str) -> None:
    with opened(browser, pages[kind], scheme=scheme) as found:
        assert found.page.evaluate(CONTRAST) == []
        found.page.keyboard.press("t")
        assert found.page.evaluate("document.documentElement.dataset.theme") == (
            "light" if scheme == "dark" else "dark"
        )
        assert found.page.evaluate(CONTRAST) == []


def test_everything_is_reached_by_keys(browser: Any, pages: dict[str, str]) -> None:
    with opened(browser, pages["run"]) as found:
        page = found.page
        page.keyboard.press("/")
        page.keyboard.type("compile_error")
        page.locator("#found:not(:empty)").wait_for()
        shown = page.locator("#candidates tbody tr:visible")
        assert 0 < shown.count() < 500 and "found" in page.locator("#found").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("#candidates tbody tr:visible").count() >= 500
        page.locator("#candidates button.row").first.focus()
        page.keyboard.press("j")
        second = page.locator("#candidates button.row").nth(1)
        assert second.evaluate("button => button === document.activeElement")
        page.keyboard.press("Enter")
        assert second.inner_text() in page.locator("dialog h2").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("dialog").count() == 0
        assert second.evaluate("button => button === document.activeElement"), "the focus comes back"
        page.keyboard.press("?")
        assert "search" in page.locator("dialog").inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("3")
        assert page.evaluate("location.hash") == "#lineage"
        head = page.get_by_role("button", name="speedup", exact=True).first
        head.focus()
        page.keyboard.press("Enter")
        best = page.locator("#candidates tbody tr").first.inner_text()
        assert "x" in best and page.locator("#candidates th[aria-sort=descending]").count() == 1
        assert found.complaints == []
