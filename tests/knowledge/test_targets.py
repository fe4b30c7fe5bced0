"""Targets are found by name, Foundry's own and those of installed packages."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from foundry.knowledge import targets
from foundry.knowledge.errors import UsageError

CLONE = replace(targets.CPU, name="clone")
NO_TARGET = "not a record"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three entry points as packages would bring them: one target, one that is none, one that does not load."""
    places = {"clone": f"{__name__}:CLONE", "none": f"{__name__}:NO_TARGET", "broken": "no_such_module:TARGET"}
    points = EntryPoints(EntryPoint(name, place, targets.GROUP) for name, place in places.items())
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **wanted: points.select(**wanted))
    monkeypatch.setattr(targets, "find_target", targets.find_target.__wrapped__)


@pytest.mark.usefixtures("installed")
def test_a_package_brings_a_target_by_an_entry_point() -> None:
    assert targets.find_target("clone") == CLONE
    assert targets.target_names() == ("cpu", "cuda", "broken", "clone", "none")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["none", "broken", "missing"])
def test_what_is_no_target_is_one_clear_line(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        targets.find_target(name)


def test_the_own_targets_need_no_entry_point() -> None:
    assert [targets.find_target(name).name for name in ("cpu", "cuda")] == ["cpu", "cuda"]
