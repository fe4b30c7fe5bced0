"""Every way in which a candidate's file can fail: the right verdict, one clear line, the next one unharmed, no
process left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.waiting import until

from foundry.knowledge.task import Task
from foundry.tools.grade.host.grader import Allowance
from foundry.tools.grade.host.workbench import LocalWorkbench, open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.child import descendants
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.verify.verify import VerifyReport, verify_in

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return torch.tanh(x * self.gain)

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return [256]
"""
HONEST = TASK[: TASK.index("def get_inputs")].replace("class Model(", "class ModelNew(")
RUN_S, LOAD_S = 1.5, 3.0  # of those that hang
PATIENT_S = 60.0  # of all others: a busy machine takes its time


def before(code: str) -> str:
    """Code that runs when the file is imported."""
    return f"{code}\n{HONEST}"


def forward(code: str) -> str:
    return HONEST.replace("return torch.tanh(x * self.gain)", code)


def build(code: str) -> str:
    return HONEST.replace("super().__init__()", f"super().__init__()\n        {code}")


CASES = {
    "no package": (before("import no_such_package"), "ModuleNotFoundError: No module named 'no_such_package' (line 1)"),
    "raises": (before("x = 1\nraise RuntimeError('two\\nlines')"), "RuntimeError: two (line 2)"),
    "leaves": (before("import sys; sys.exit(0)"), "SystemExit: 0 (line 1)"),
    "ends": (before("import os; os._exit(0)"), "exited with code 0"),
    "falls": (before("import ctypes; ctypes.string_at(0)"), "was killed by SIGSEGV"),
    "aborts": (before("import os; os.abort()"), "was killed by SIGABRT"),
    "hangs": (before("while True: pass"), "loading the file did not finish in 3 s"),
    "sleeps": (before("import time; time.sleep(1e6)"), "loading the file did not finish in 3 s"),
    "eats": (before("k = [bytearray(1 << 26) for _ in range(10**6)]"), "memory"),
    "outside a function": ("return 1\n" + HONEST, "'return' outside function (line 1)"),
    "a function": ("def ModelNew(): ...\n", "no class ModelNew(nn.Module)"),
    "no module": ("class ModelNew: ...\n", "no class ModelNew(nn.Module)"),
    "other arguments": (HONEST.replace("self, n", "self"), "takes 1 positional argument but 2 were given"),
    "no forward": (HONEST.replace("def forward", "def run"), "forward"),
    "hangs while building": (build("while True: pass"), "building the model did not finish in 3 s"),
    "falls while building": (build("import ctypes; ctypes.string_at(0)"), "was killed by SIGSEGV"),
    "hangs in forward": (forward("while True: pass"), "forward did not finish in 1.5 s"),
    "ends in forward": (forward("import os; os._exit(0)"), "exited with code 0"),
    "recursion": (forward("return self.forward(x)"), "RecursionError"),
    "another shape": (
        forward("return torch.tanh(x)[1:]"),
        "output 0 has shape [63, 256], the reference's",
    ),
    "nothing": (forward("pass"), "returned 0 tensors"),
    "text": (forward("return 'tanh'"), "forward returned a str"),
}
HANGING: dict[str, tuple[str, object]] = {  # the limit that ends it
    "hangs": ("_load_limit_s", LOAD_S),
    "sleeps": ("_load_limit_s", LOAD_S),
    "hangs while building": ("_load_limit_s", LOAD_S),
    "hangs in forward": ("_limits", {"run_limit_s": RUN_S}),
}
VERDICTS = {"another shape": "incorrect", "nothing": "incorrect", "text": "incorrect"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(
    tmp_path_factory: pytest.TempPathFactory, make_home: Callable[[], Path], zygote: Zygote
) -> AsyncIterator[tuple[LocalWorkbench, Task]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(make_home()))
        folder = tmp_path_factory.mktemp("failures")
        (folder / "tanh.py").write_text(TASK)
        task = read_task(folder / "tanh.py")
        allowance = Allowance(run_limit_s=PATIENT_S, load_limit_s=PATIENT_S, memory_bytes=1 << 30)
        others = descendants(os.getpid())  # what this worker's other fixtures keep running
        made = await open_workbench(
            task, describe("cpu"), folder / "scratch", seed=0, allowance=allowance, zygote=zygote
        )
        assert isinstance(made, LocalWorkbench)
        yield made, task

        def running() -> set[int]:
            return set(descendants(os.getpid())) - set(others)

        # One that was killed leaves when the kernel has taken its memory back.
        until(lambda: len(running()) < 8, "judges and a reference, and not one for each of these files")
        await made.aclose()
        until(lambda: not running(), "the end of all of them")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_it_fails_in_one_clear_line(
    bench: tuple[LocalWorkbench, Task], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, task = bench
    text, words = CASES[name]
    if name in HANGING:
        monkeypatch.setattr(machine._grader, *HANGING[name])
    report: VerifyReport = await verify_in(machine, task, text, "fair", "screen")
    assert report.verdict == VERDICTS.get(name, "failed"), report.reasons
    evidence = report.reasons[0].evidence
    assert words in evidence and "\n" not in evidence and len(evidence) < 600, evidence
    assert report.speedup is None


@pytest.mark.asyncio(loop_scope="module")
async def test_an_honest_file_is_still_judged(bench: tuple[LocalWorkbench, Task]) -> None:
    machine, task = bench
    report = await verify_in(machine, task, HONEST, "fair", "screen")
    assert report.verdict == "rejected" and report.evaluation.audit is not None  # PyTorch itself, right and audited
    assert report.evaluation.timing is None and report.speedup is None and "time" not in report.seconds


@pytest.mark.parametrize("verbose", [False, True])
async def test_a_failed_build_says_what_the_compiler_said(verbose: bool, zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "tanh.py").write_text(TASK)
    task = read_task(tmp_path / "tanh.py")
    build = f"load_inline('none', '', extra_cflags=['-no-such-flag'], verbose={verbose})"
    text = before(f"from torch.utils.cpp_extension import load_inline\n{build}")
    machine = await open_workbench(task, describe("cpu"), tmp_path, seed=0, zygote=zygote)
    report = await verify_in(machine, task, text, "fair", "screen")
    await machine.aclose()
    assert report.verdict == "failed"
    assert "error: unrecognized command-line option" in report.reasons[0].evidence, report.reasons
