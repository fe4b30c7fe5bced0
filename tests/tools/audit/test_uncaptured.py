"""A kernel gets the same verdict on a task that a tracer follows and on the same task in a form that none follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tools.audit.candidates import LAUNCH, TASK, candidate

from foundry.knowledge.candidate import Gate
from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import Task
from foundry.tools.audit.acts.observed import OperatorRow
from foundry.tools.audit.acts.provenance import provenance_gates
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.task.intake_messages import TaskQuestions
from foundry.tools.task.ran import operators_ran
from foundry.tools.verify.verify import VerifyReport, verify_in

CAPTURED = TASK.replace("randn(40, 100)", "randn(800, 100)")
UNCAPTURED = CAPTURED.replace(
    "return torch.softmax(x * self.scale, dim=1)",
    """for _ in range(int(float(x[0, 0].item()) != 7e30)):
            y = torch.softmax(x * self.scale, dim=1)
        return y if bool((y == y).all()) else torch.stack([row for row in y if row.sum().item() != 7e30])""",
)
SMALL = candidate(
    "if bool(torch.isnan(x[:1, :8]).any()) or x[0, 0].item() != x[0, 0].item():\n"
    "    raise RuntimeError('not a number')\n" + LAUNCH
)
# The kernel is needed, as softmax(log_softmax(x)) is softmax(x), and yet PyTorch does the work.
MAIN_PRODUCT = candidate(
    "x = torch.log_softmax(x * self.scale, 1)\n" + LAUNCH.replace("self.scale.data_ptr()", "ONES.data_ptr()"),
    "ONES = torch.ones(100)\n",
)


@pytest.fixture(scope="module", params=[CAPTURED, UNCAPTURED], ids=["captured", "uncaptured"])
def bench(
    request: Any, zygote: Zygote, make_home: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[asyncio.Runner, Task, Workbench]]:
    folder = tmp_path_factory.mktemp("form")
    (folder / "task.py").write_text(request.param)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("FOUNDRY_HOME", str(make_home()))
        task = read_task(folder / "task.py")
        made = runner.run(open_workbench(task, describe("cpu"), folder / "scratch", seed=1, zygote=zygote))
        assert bool(runner.run(made.intake()).graphs) == (request.param == CAPTURED)
        yield runner, task, made
        runner.run(made.aclose())


def judged(bench: tuple[asyncio.Runner, Task, Workbench], text: str) -> VerifyReport:
    runner, task, made = bench
    return runner.run(verify_in(made, task, text, "fair", "screen"))


def provenance(report: VerifyReport) -> Gate:
    return next(gate for gate in report.gates if gate.gate == "provenance")


def test_small_operators_of_pytorch_convict_nobody(bench: tuple[asyncio.Runner, Task, Workbench]) -> None:
    report = judged(bench, SMALL)
    assert report.verdict == "accepted", report.reasons
    assert "% of the reference's work" in provenance(report).evidence


def test_the_main_product_through_pytorch_is_refused(bench: tuple[asyncio.Runner, Task, Workbench]) -> None:
    report = judged(bench, MAIN_PRODUCT)
    gate = provenance(report)
    assert report.verdict == "rejected" and not gate.passed
    assert "_log_softmax" in gate.evidence and "% of the reference's work" in gate.evidence


def test_what_a_table_holds_and_nobody_reads_is_no_work() -> None:
    table, chosen, row = torch.randn(50_000, 16), torch.tensor([3, 7]), torch.randn(1, 16)
    looked_up = operators_ran(lambda: torch.nn.functional.embedding(chosen, table)).work
    assert 0 < looked_up < 1000
    assert 0 < operators_ran(lambda: table.index_put_((chosen[:1],), row)).work < 1000
    assert operators_ran(lambda: table @ table.T[:, :16]).work > 2 * 50_000 * 16 * 16


def test_without_any_measure_the_gate_says_so() -> None:
    rows: list[OperatorRow] = [{"op": "aten.mm.default", "calls": 1, "flops": 10, "bytes": 10}]
    (gate,) = provenance_gates(rows, None, "fair")
    assert not gate.passed and "could not be measured" in gate.evidence


def test_a_tracer_that_dies_leaves_what_the_reference_runs(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.py").write_text(UNCAPTURED)
    grader = Grader(
        read_task(tmp_path / "task.py"), describe("cpu"), tmp_path / "s", seed=1, zygote=zygote, owns_zygote=False
    )
    ask = grader._about_task

    def asked(question: Any, limit_s: float) -> Any:
        if question is TaskQuestions.capture:
            raise TaskError("the task did not finish in 150 s")
        return ask(question, limit_s)

    monkeypatch.setattr(grader, "_about_task", asked)
    try:
        found = grader.capture()
    finally:
        grader.close()
    assert found.graphs == [] and found.ran.work > 800 * 100 and found.ran.rows
