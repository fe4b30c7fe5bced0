"""How the tests are spread over workers (`pytest -n 2 --dist loadgroup`)."""

from __future__ import annotations

from pathlib import Path

import pytest

MUSEUM = "test_museum.py"
LARGEST = "softmax"  # the task of half of the exhibits: these go to whichever worker is free


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file stay on one worker, which makes the file's fixtures once; those that read the solved run stay
    together, because the run takes a minute; the museum's stay together by task, whose workbench takes seconds."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str:
    """The name of a test's group, "" for a test that may run on any worker."""
    fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
    if "solved" in fixtures:
        return "the solved run"
    if item.path.name != MUSEUM:
        return item.nodeid.split("::")[0]
    values = getattr(getattr(item, "callspec", None), "params", {})
    task: Path | None = values["case"].task if "case" in values else values.get("path")
    return "" if task is None or task.stem == LARGEST else f"museum: {task.stem}"
