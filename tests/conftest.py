"""How the tests are spread over workers (`pytest -n 2 --dist loadgroup`)."""

from __future__ import annotations

import pytest

SPREAD = frozenset({"test_museum.py"})  # every test here stands alone and takes seconds


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file stay on one worker, which makes the file's fixtures once; those that read the solved run stay
    together, because the run takes a minute; tests of SPREAD go to whichever worker is free."""
    for item in items:
        if item.get_closest_marker("xdist_group") is not None or item.path.name in SPREAD:
            continue
        fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
        group = "the solved run" if "solved" in fixtures else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
