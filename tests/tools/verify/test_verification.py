"""`foundry verify` on whole pairs: our own kernel is accepted, PyTorch in disguise, wrong and broken ones are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foundry.knowledge.candidate import Audit, Build, Candidate, Evaluation, Gate, Judgement, Timing, Verdict
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.errors import MissingTool
from foundry.knowledge.ruling import rule
from foundry.knowledge.task import Task
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.linux import MEANS
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.orders import LEADS
from foundry.tools.task.file import read_task
from foundry.tools.verify.receipt import check_same_pair, compare, read_receipt, write_receipt
from foundry.tools.verify.verdict_lines import verdict_lines
from foundry.tools.verify.verify import VerifyReport, verify_in, verify_pair

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x, y):
        return torch.tanh(x * self.gain) * 0.5 + y

def get_inputs():
    return [torch.randn(512, 512), torch.randn(512, 512)]

def get_init_inputs():
    return [512]
"""


@pytest.fixture(scope="module", autouse=True)
def home(make_home: Callable[[], Path]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(make_home()))
        yield


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "gated.py").write_text(TASK)
    return read_task(tmp_path / "gated.py")


def in_torch(forward: str) -> str:
    return TASK.replace("class Model(", "class ModelNew(").replace("torch.tanh(x * self.gain) * 0.5 + y", forward)


async def judged(task: Task, text: str, scratch: Path, zygote: Zygote) -> VerifyReport:
    """The result of `verify_pair`, with its processes replaced."""
    bench = await open_workbench(task, describe("cpu"), scratch, seed=0, zygote=zygote)
    try:
        return await verify_in(bench, task, text, "fair", "screen")
    finally:
        await bench.aclose()


async def test_our_own_kernel_is_accepted_with_a_receipt(
    task: Task, zygote: Zygote, shared_zygote: None, tmp_path: Path
) -> None:
    device = describe("cpu")
    bench = await open_workbench(task, device, tmp_path, seed=0, zygote=zygote)
    graphs = (await bench.intake()).graphs
    await bench.aclose()
    text = lower(graphs, seeds(graphs[0], device)[0], task_source=task.source, device=device).source
    report = await asyncio.to_thread(verify_pair, task, text, target="cpu", command="foundry verify gated.py kernel.py")
    assert report.verdict == "accepted", report.reasons
    assert report.reasons == () and report.accuracy_class == "ieee"
    assert report.speedup is not None and report.speedup_ci95 is not None
    assert report.speedup_ci95[0] <= report.speedup <= report.speedup_ci95[1] > 1.0
    assert len(report.gates) > 8 and {"open", "build", "verify", "audit", "time"} <= set(report.seconds)
    document = json.loads(json.dumps(report.to_json()))
    promised = ["verdict", "reasons", "speedup", "speedup_ci95", "baseline_ms", "candidate_ms", "target"]
    assert all(key in document for key in promised) and document["target"] == "cpu"
    assert report.receipt is not None
    write_receipt(tmp_path / "receipt.json", report.receipt)
    receipt = read_receipt(tmp_path / "receipt.json")
    assert check_same_pair(receipt, task, text) == "" and len(receipt.errors) >= 6 and len(receipt.seeds) >= 6
    assert compare(receipt, report.speedup, report.speedup_ci95)[0] == "confirmed"


@pytest.mark.parametrize(
    ("text", "verdict", "gate", "evidence"),
    [
        (in_torch("torch.tanh(x) * 0.5 + y"), "incorrect", "randomised parameters", "first wrong element"),
        (in_torch("(torch.tanh(x * self.gain) * 0.5 + y) / 0.0"), "incorrect", "as given", "inf, want"),
        (in_torch("torch.ops.no.such(x)"), "failed", "as given", "AttributeError"),
    ],
)
async def test_what_is_not_accepted_says_why(
    task: Task, zygote: Zygote, tmp_path: Path, text: str, verdict: str, gate: str, evidence: str
) -> None:
    report = await judged(task, text, tmp_path, zygote)
    assert report.verdict == verdict
    found = [reason for reason in report.reasons if gate in reason.gate and evidence in reason.evidence]
    assert found, report.reasons


def test_what_is_rejected_has_no_receipt(task: Task, shared_zygote: None) -> None:
    report = verify_pair(task, in_torch("torch.tanh(x * self.gain) * 0.5 + y"), target="cpu", stage="screen")
    assert report.verdict == "rejected" and any("tanh" in reason.evidence for reason in report.reasons)
    assert report.receipt is None


def test_the_report_in_words() -> None:
    evaluation = Evaluation(
        Candidate("verify", -1, 0, "cpu", "user", "0" * 64),
        Build(True, 1.0),
        Verdict("correct", "full", (Gate("x3", True, "fine"),), "ieee"),
        Audit(True, "fair", (Gate(LEADS, True, "line 3: exec makes code"),), ("layout",)),
        Timing("full", 2.0, 4.0, 2.0, (1.9, 2.1), 12, 0.01, 1.0),
        judgement=Judgement("", "line 12: torch.softmax did 98 % of the bytes\x1b[2J"),
    )
    report = VerifyReport(
        evaluation,
        rule(evaluation),
        "cpu:Test CPU:2",
        "fair",
        "softmax",
        isolation=("session", "limits", *MEANS[1:]),
        seconds={"open": 1.94, "time": 6.0},
    )
    standing = {"standing": "not confirmed", "standing_evidence": "rejected here"}
    assert verdict_lines({**report.to_json(), **standing}) == [
        "rejected on cpu:Test CPU:2 (policy fair): it could not be judged or believed",
        "  judgement: line 12: torch.softmax did 98 % of the bytes\ufffd[2J",
        "  beside it, leads in the text: line 3: exec makes code",
        "2.00x the speed of PyTorch eager, 95 % interval 1.90 to 2.10 (2.0000 ms against 4.0000 ms)",
        "accuracy class: ieee (float32 arithmetic in full)",
        "allowed practices that it uses (labels): layout",
        "not confirmed: rejected here",
        "checks (gates): 4 of 5 passed",
        f"isolation: session, limits, {', '.join(MEANS[1:])}; not active: {MEANS[0]}",
        "time: 7.9 s (start 1.9, timing 6.0)",
    ]


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        ("", "the file is empty"),
        ("class ModelNew(:", "line 1: invalid syntax"),
        ("x = 1\n", "the file defines no class ModelNew"),
        ("x = " + "-" * 100_000 + "1\nclass ModelNew: ...", "nested"),
        ("class ModelNew: ...\n\0", "null bytes"),
    ],
)
def test_a_hopeless_file_fails_before_any_process_starts(task: Task, text: str, evidence: str) -> None:
    report = verify_pair(task, text, target="cpu")
    assert report.verdict == "failed" and report.seconds == {} and report.receipt is None
    assert evidence in report.reasons[0].evidence


async def test_a_task_that_proves_nothing_is_never_a_win(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "zero.py").write_text(TASK.replace("torch.tanh(x * self.gain) * 0.5 + y", "x * 0.0 * self.gain"))
    report = await judged(read_task(tmp_path / "zero.py"), in_torch("torch.zeros_like(x)"), tmp_path, zygote)
    assert report.verdict == "rejected"
    assert any(reason.evidence == "zeros are accepted as its output" for reason in report.reasons)


def test_without_the_device_there_is_nothing_to_verify(task: Task) -> None:
    if describe("cuda").present:
        pytest.skip("this machine has a GPU")
    with pytest.raises(MissingTool, match="there is no cuda device here"):
        verify_pair(task, in_torch("x"), target="cuda")
