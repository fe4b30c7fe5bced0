"""The whole way: real builds, real workers, the real protocol; and the bitwise comparison behind "equivalent"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foundry.knowledge.device import Device
from foundry.tools.process.zygote import Zygote
from foundry.tools.selftest.command import self_test
from foundry.tools.selftest.examination import Comparer
from foundry.tools.selftest.faults.original import Original

from .conftest import written

STATISTICS = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls += 1
        return x * 2.0


def get_inputs():
    return [torch.randn(5, 7)]
"""


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A device lock for this test alone, so that it waits for no other process's timing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def test_the_grader_catches_what_is_planted_into_the_librarys_kernel(shared_zygote: None, tmp_path: Path) -> None:
    report = self_test(written(tmp_path), target="cpu", faults=10)
    assert report.count("caught") == 10 and report.count("missed") == 0, report.to_json()["faults"]
    assert report.rate == 1.0 and len(report.findings) == 10
    assert {finding.outcome for finding in report.findings} <= {
        "wrong_result",
        "inaccurate",
        "nondeterministic",
        "crash",
        "",
    }


def test_a_candidate_of_the_users_own_is_mutated_in_its_source(
    shared_zygote: None, tmp_path: Path, original: Original
) -> None:
    report = self_test(written(tmp_path), original.text, target="cpu", faults=4)
    assert report.kernel == "the candidate's source" and len(report.findings) == 4
    assert report.count("missed") == 0 and report.count("caught") >= 2, report.to_json()["faults"]


async def test_the_same_bits_are_told_from_a_difference_in_a_buffer(
    tmp_path: Path, device: Device, zygote: Zygote
) -> None:
    task = written(tmp_path, STATISTICS)
    correct = STATISTICS.replace("class Model(", "class ModelNew(")
    comparer = Comparer(task, device, tmp_path, zygote)
    assert await comparer(correct, correct + "# the same program\n") == ""
    assert await comparer(correct, correct.replace("x * 2.0", "x + x")) == ""
    assert await comparer(correct, correct.replace("self.calls += 1", "self.calls += 2")) == "as given"
    rare = await comparer(correct, correct.replace("x * 2.0", "torch.where(x.abs() < 9, x * 2, x)"))
    assert rare not in ("", "as given")
    assert "ended early" in await comparer(correct, correct.replace("x * 2.0", "__import__('os')._exit(3)"))
