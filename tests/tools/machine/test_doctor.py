"""The examination says which means of isolation are active, and what would make the others work."""

from __future__ import annotations

import pytest

from foundry.tools.machine import doctor
from foundry.tools.process import sandbox
from foundry.tools.process.linux import FILES, MEANS, NETWORK, SYSCALLS, Confinement


def lines() -> dict[str, doctor.Capability]:
    return {finding.what: finding for finding in doctor.examine() if finding.what.startswith("isolation: ")}


def test_each_means_is_shown_as_it_was_tried() -> None:
    found = lines()
    assert {f"isolation: {name}" for name in MEANS} < set(found)
    for name in MEANS:
        assert (found[f"isolation: {name}"].state == "ok") == (name in sandbox.available().active)


def test_what_is_refused_comes_with_the_reason_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {NETWORK: "unshare: Operation not permitted", FILES: "landlock: Function not implemented"}
    monkeypatch.setattr(doctor, "available", lambda: Confinement([SYSCALLS], refused))
    found = lines()
    assert found[f"isolation: {SYSCALLS}"].state == "ok"
    assert found[f"isolation: {NETWORK}"].state == "missing"
    assert "Operation not permitted" in found[f"isolation: {NETWORK}"].detail
    assert "userns" in found[f"isolation: {NETWORK}"].climb and "landlock" in found[f"isolation: {FILES}"].climb
    assert all(finding.state in ("ok", "missing") for finding in found.values())
