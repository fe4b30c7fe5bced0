"""Time limits of a task follow what its reference was measured to take."""

from __future__ import annotations

import pytest

from foundry.tools.task.limits import SECONDS, FirstForward, TimeLimits


def test_a_quick_reference_has_the_fixed_limits() -> None:
    limits = TimeLimits()
    assert limits.read_measurement(FirstForward(seconds=0.01).encoded()) == pytest.approx(60.0, rel=0.01)
    assert (limits.capture_s, limits.baseline_s, limits.judge_s, limits.contest_s) == (150.0, 180.0, 900.0, 1800.0)
    assert limits.runner_cpu_s(2) == 3600 and limits.measured == ""


def test_a_slow_reference_is_given_its_time() -> None:
    limits = TimeLimits()
    assert limits.read_measurement(FirstForward(seconds=20.0).encoded()) == 60.0 + 12 * 20.0
    assert limits.capture_s == 800.0 and limits.baseline_s == 1600.0 and limits.judge_s == 16_000.0
    assert limits.runner_cpu_s(2) == 32_000
    assert limits.measured == "one forward of the reference took 20 s"


def test_other_messages_change_nothing() -> None:
    limits = TimeLimits()
    assert limits.read_measurement(b'{"says":"done"}') is None and limits.forward_s == 0.0


def test_a_user_s_limit_counts_where_it_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "400")
    limits = TimeLimits()
    assert limits.capture_s == 400.0 and limits.read_measurement(FirstForward(seconds=1.0).encoded()) == 412.0
