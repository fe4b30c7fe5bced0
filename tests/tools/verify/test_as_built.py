"""Kernels as people publish them: constants folded into their parameters, or parameters under names of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.audit.candidates import TASK, candidate

from foundry.knowledge.errors import UsageError
from foundry.knowledge.task import ParametersUsed, Policy, Task
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.verify.command import VerifyRequest, command_line, run
from foundry.tools.verify.verify import VerifyReport, verify_in

FOLDING_TASK = (
    TASK.replace("self.scale = nn.Parameter(torch.randn(100))", "self.scale = nn.Parameter(torch.randn(100))\n" + (
        "        self.gain = nn.Parameter(torch.ones(100))"))
    .replace("torch.softmax(x * self.scale, dim=1)", "torch.softmax(x * self.scale * 0.5, dim=1) * self.gain")
)  # fmt: skip
LAUNCH = """\
out = torch.empty_like(x)
if LIBRARY.softmax(x.data_ptr(), self.WEIGHT.data_ptr(), out.data_ptr(), *x.shape):
    raise RuntimeError("the kernel failed")
return out"""


def built(constructor: str, weight: str) -> str:
    """A kernel whose parameters are its own affair."""
    lines = "\n".join(f"        {line}" for line in constructor.splitlines())
    own = "        self.scale = nn.Parameter(torch.randn(100))\n"
    text = candidate(LAUNCH.replace("WEIGHT", weight))
    assert own in text
    return text.replace(own, lines + "\n")


FOLDED = built(
    "self.scale = nn.Parameter(0.5 * torch.randn(100))\nself.gain = nn.Parameter(torch.ones(100))",
    "scale",
)
RENAMED = built("self.register_buffer('folded', 0.5 * torch.randn(100))", "folded")
OTHERS = built("self.register_buffer('folded', 0.5 * torch.randn(200)[100:])", "folded")


@pytest.fixture(scope="module", autouse=True)
def home(make_home: Callable[[], Path]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(make_home()))
        yield


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("folded") / "task.py"
    path.write_text(FOLDING_TASK)
    return read_task(path)


@pytest.fixture(scope="module")
def judge(
    task: Task, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, ParametersUsed, Policy], VerifyReport]]:
    with asyncio.Runner() as runner:
        asked = {used: replace(task, parameters=used) for used in ("loaded", "as-built")}
        benches = {
            used: runner.run(open_workbench(one, describe("cpu"), tmp_path_factory.mktemp(used), seed=1, zygote=zygote))
            for used, one in asked.items()
        }
        yield lambda text, used, policy: runner.run(verify_in(benches[used], asked[used], text, policy, "screen"))
        for bench in benches.values():
            runner.run(bench.aclose())


Judge = Callable[[str, ParametersUsed, Policy], VerifyReport]


@pytest.mark.parametrize(
    ("text", "outcome", "words"),
    [
        (FOLDED, "not_allowed", "right with the parameters that its constructor makes"),
        (RENAMED, "not_judged", "no counterpart with the same initial values"),
    ],
)
def test_what_is_built_otherwise_says_what_it_is_and_the_way_out(
    judge: Judge, text: str, outcome: str, words: str
) -> None:
    report = judge(text, "loaded", "fair")
    (gate,) = report.reasons
    assert (report.verdict, report.ruling.outcome, gate.gate) == ("rejected", outcome, "parameters"), gate
    assert words in gate.evidence and "--parameters as-built" in gate.evidence
    assert report.to_json()["outcome"] == outcome


@pytest.mark.parametrize("text", [FOLDED, RENAMED])
def test_it_is_judged_as_it_was_built(judge: Judge, text: str) -> None:
    report = judge(text, "as-built", "fair")
    assert report.verdict == "accepted", report.reasons
    assert "own-parameters" in report.labels and report.to_json()["parameters"] == "as-built"


def test_other_numbers_are_wrong_all_the_same(judge: Judge) -> None:
    report = judge(OTHERS, "as-built", "fair")
    assert (report.verdict, report.ruling.outcome) == ("incorrect", "wrong_result")
    assert "must draw them as the reference's does" in report.reasons[0].evidence


def test_strict_refuses_it(judge: Judge, task: Task, tmp_path: Path) -> None:
    report = judge(RENAMED, "as-built", "strict")
    assert report.verdict == "rejected" and "own parameters" in [gate.gate for gate in report.reasons]
    (tmp_path / "kernel.py").write_text(RENAMED)
    asked = VerifyRequest(Path(task.path), tmp_path / "kernel.py", policy="strict", parameters="as-built")
    with pytest.raises(UsageError, match="strict"):
        run(asked)


def test_the_command_that_measures_again_says_so(task: Task) -> None:
    request = VerifyRequest(Path("task.py"), Path("kernel.py"), write_receipt=Path("r.json"))
    assert command_line(request, replace(task, parameters="as-built")).endswith("--parameters as-built")
    assert "--parameters" not in command_line(request, task)
