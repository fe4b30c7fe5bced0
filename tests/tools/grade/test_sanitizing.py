"""compute-sanitizer on winners: what its output means as a gate, and the program that it watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import graph_of

from foundry.knowledge.candidate import Audit, Build, Candidate, Evaluation, Gate, Recipe, Resources, Timing, Verdict
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.device import Device
from foundry.knowledge.ruling import Ruling, rule
from foundry.knowledge.targets import CPU, CUDA
from foundry.tools.grade.host.folders import extension_folder
from foundry.tools.grade.host.replay import LONG_S, Replaying, means_under, under_tool
from foundry.tools.grade.host.sanitizing import Sanitizer, first_blocks, may_share, read_check, with_gates
from foundry.tools.process.child import Finished
from foundry.tools.process.linux import FILES, NETWORK, SYSCALLS
from foundry.tools.process.sandbox import LOCAL_TOOL, OPEN_TOOL, available
from foundry.tools.targets.cuda.disassembly import tool_path
from foundry.tools.targets.cuda.sass import read_disassembly
from foundry.tools.task.file import read_task

HEAD = "========= COMPUTE-SANITIZER\n"
OUTSIDE = (
    "========= Invalid __global__ write of size 4 bytes\n"
    "=========     at probe(float *)+0x90\n"
    "=========     by thread (31,0,0) in block (7,0,0)\n"
)
RACE = "========= Error: Race reported between Write access at probe+0x50 and Read access at probe+0xa0 [124 hazards]\n"
CASES = {
    "nothing": ("memcheck", HEAD + "replayed\n========= ERROR SUMMARY: 0 errors\n", "", True, "found nothing"),
    "no race": ("racecheck", HEAD + "replayed\n========= RACECHECK SUMMARY: 0 hazards displayed\n", "", True, "found"),
    "outside": ("memcheck", HEAD + OUTSIDE + "========= ERROR SUMMARY: 3 errors\n", "", False, "Invalid __global__"),
    "a race": (
        "racecheck",
        HEAD + RACE + "replayed\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n",
        "",
        False,
        "Race reported between",
    ),
    "refused": ("memcheck", HEAD + "========= Error: Device not supported\n", "", True, "Device not supported"),
    "slow": ("memcheck", HEAD, "did not finish in 45 s", True, "not decided: under compute-sanitizer it did not"),
    "silent": ("memcheck", "", "", True, "it said nothing"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_tool_says_is_a_gate(name: str) -> None:
    check, output, reason, passed, words = CASES[name]
    gate = read_check(check, Finished(0, output, 1.0, reason))
    assert (gate.gate, gate.passed) == (check, passed) and words in gate.evidence


def test_a_failed_check_rejects_a_kernel_that_all_else_accepts() -> None:
    timing = Timing("full", 1.0, 2.0, 2.0, (1.9, 2.1), 20, 0.01, 1.0)
    candidate = Candidate("c1", -1, 0, "cuda", "user", "0" * 64)
    passed, failed = Gate("memcheck", True, "found nothing"), Gate("memcheck", False, "Invalid __global__ write")

    def ruled(gate: Gate) -> Ruling:
        audit = with_gates(Audit(True, "fair"), [gate])
        return rule(Evaluation(candidate, Build(True, 0.1), Verdict("correct", "full"), audit, timing))

    assert ruled(passed).accepted
    found = ruled(failed)
    assert not found.accepted and "memcheck" in [gate.gate for gate in found.reasons]


def test_the_replayed_program_calls_the_kernel_and_gets_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x\n"
        "def get_inputs():\n  return [torch.rand(4)]\n"
    )
    text = (
        "import os, torch\nclass ModelNew(torch.nn.Module):  # a load_inline of its own\n  def forward(self, x):\n"
        "    print('called', x.numel(), os.environ.get('OPENAI_API_KEY'), os.environ['TORCH_EXTENSIONS_DIR'])\n"
        "    return x\n"
    )
    done = under_tool([], read_task(path), text, "cpu", 60.0, available().active)
    said = f"called 4 None {extension_folder(text)}"  # what it has compiled already is there
    assert done.output.split("\n")[:3] == [said, said, "replayed"]
    spying = text.replace("'called'", f"open({str(path)!r}).read()")
    if FILES in available().active:  # it is confined as in any other process of a candidate
        assert "FileNotFoundError" in under_tool([], read_task(path), spying, "cpu", 60.0, available().active).output


def test_a_kernel_under_a_tool_runs_once_and_only_confined(tmp_path: Path) -> None:
    """A candidate that makes the tool fail gets no second run with fewer means."""
    active = available().active
    if NETWORK not in active or FILES not in active:
        pytest.skip("this machine confines no tool")
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x\n"
        "def get_inputs():\n  return [torch.rand(4)]\n"
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    silent = (
        "import os, torch\nclass ModelNew(torch.nn.Module):\n  def forward(self, x):\n"
        f"    try:\n      open({str(marks / 'was-here')!r}, 'w')\n    finally:\n      os._exit(0)\n"
    )
    done = under_tool([], read_task(path), silent, "cpu", 60.0, active)
    assert "replayed" not in done.output and list(marks.iterdir()) == []


def test_a_process_that_waits_calls_what_it_is_given_and_ends_when_it_is_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nN = 64\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x\n"
        "def get_inputs():\n  x = torch.rand(N)\n  print(x.device)\n  return [x]\n"
    )
    (tmp_path / "task.toml").write_text("extra_shapes = [{ N = 128 }, { N = 16 }]\n")
    text = "import torch\nclass ModelNew(torch.nn.Module):\n  def forward(self, x):\n    print(x.numel())\n"
    task, means, offers = read_task(path), available().active, list[str]()
    used, late, unused = made = [Replaying([], task, "cpu", means, smallest=True) for _ in range(3)]
    try:
        unused.close()
        assert late.is_waiting and late.finish(text, 0.01).reason == "did not finish in 0.01 s"
        done = used.finish(text, 60.0, lambda: offers.append("may time"))
    finally:
        used.close()
        late.close()
    assert not any(one.is_waiting or one.folder.exists() for one in made)
    assert done.output.splitlines() == [*["meta"] * 3, "cpu", "16", "replayed at N=16"], "once, at the smallest shape"
    assert offers == ["may time"] * 2, "before its inputs and before the call"
    looked = f"{HEAD}replayed at N=16\n========= RACECHECK SUMMARY: 0 hazards displayed\n"
    assert read_check("racecheck", Finished(0, looked, 1.0)).evidence == "compute-sanitizer found nothing at N=16"


def test_others_may_time_within_a_long_call_under_a_tool(tmp_path: Path) -> None:
    """A network takes half a minute under compute-sanitizer; other processes should not wait for the GPU that long."""
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x\n"
        "def get_inputs():\n  return [torch.rand(4)]\n"
    )
    text = "import time, torch\nclass ModelNew(torch.nn.Module):\n  def forward(self, x):\n"
    text += "    for _ in range(12):\n      time.sleep(0.1)\n    print('called')\n"
    began, offers = time.monotonic(), list[float]()
    used = Replaying([], read_task(path), "cpu", available().active, smallest=True)
    try:
        done = used.finish(text, 60.0, lambda: offers.append(time.monotonic() - began))
    finally:
        used.close()
    assert done.output.splitlines() == ["called", "replayed"]
    assert len(offers) >= 5, "before its inputs, before the call, and every quarter of a second in it"


@pytest.mark.slow
def test_a_long_call_under_a_tool_is_not_made_twice_and_the_gate_says_so(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x\n"
        "def get_inputs():\n  return [torch.rand(4)]\n"
    )
    text = "import time, torch\nclass ModelNew(torch.nn.Module):\n  def forward(self, x):\n"
    text += f"    time.sleep({1.1 * LONG_S})\n"
    done = under_tool([], read_task(path), text, "cpu", 60.0, available().active)
    looked = f"{HEAD}{done.output}========= ERROR SUMMARY: 0 errors\n"
    assert read_check("memcheck", Finished(0, looked, 1.0)).evidence == "compute-sanitizer found nothing in one call"


def test_a_tool_is_tried_with_a_program_of_ours(tmp_path: Path) -> None:
    """It gets the most means under which that program works; where it works in no case, all."""
    active = tuple(available().active)
    if {NETWORK, SYSCALLS} - {*active}:
        pytest.skip("this machine confines no tool")
    plug = "import socket; socket.socket(socket.AF_FAMILY, socket.SOCK_DGRAM); print('works', True)"
    assert means_under((), active, (sys.executable, "-c", "print('works', True)")) == active
    fewer = tuple(name for name in active if name != SYSCALLS)
    for family, instead in (("AF_UNIX", LOCAL_TOOL), ("AF_NETLINK", OPEN_TOOL)):
        ours = (sys.executable, "-c", plug.replace("AF_FAMILY", family))
        assert means_under((), active, ours) == (*fewer, instead)
    tracing = "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0; print('works', True)"
    assert means_under((), active, (sys.executable, "-c", tracing)) == fewer
    assert means_under((), active, (sys.executable, "-c", "raise OSError")) == active
    importing = "from foundry.tools.grade import replay; print('works', replay is not None)"
    assert means_under((), active, (sys.executable, "-c", importing)) == active, "it finds this package"


def test_races_are_looked_for_where_the_machine_code_may_touch_shared_memory() -> None:
    recorded = Path(__file__).parents[1] / "targets" / "recorded" / "kernels.sass"
    codes = {name: code.facts() for name, code in read_disassembly(recorded.read_text()).items()}

    def build(read: Sequence[str], unread: Sequence[str] = (), shared_bytes: int = 0) -> Build:
        kernels = {name: {"registers": 32.0} for name in (*read, *unread)}
        instructions = {name: codes[name] for name in read}
        return Build(True, 0.1, resources=Resources(32, 0, shared_bytes, kernels=kernels, instructions=instructions))

    assert not may_share(build(["stream_copy", "strided_32"]))
    assert may_share(build(["stream_copy", "banks_16"])) and may_share(build(["half_products"]))
    assert may_share(build(["stream_copy"], ["another"])) and may_share(build(["stream_copy"], shared_bytes=1024))
    assert may_share(Build(True, 0.1))  # a file that compiles itself


def test_the_first_blocks_of_each_launch_of_the_library_are_looked_at() -> None:
    graph = graph_of(torch.matmul, torch.empty(1024, 512), torch.empty(512, 4096))
    device = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
    text = lower([graph], Recipe("cuda"), task_source="", device=device).source

    def grids(text: str) -> list[tuple[int, int, int]]:
        scope: dict[str, Any] = {}
        table = text[text.index("_LAUNCHES_0 = [") :]
        exec(table[: table.index("\n]") + 2], scope)
        return [grid for _, grid, *_ in scope["_LAUNCHES_0"]]

    asked = first_blocks(text)
    assert grids(asked) == [(min(x, 64), 1, 1) for x, _, _ in grids(text)] and grids(asked) != grids(text)
    assert asked[: asked.index("_LAUNCHES_0")] == text[: text.index("_LAUNCHES_0")]  # what is compiled is the same
    assert first_blocks(asked) == asked
    assert first_blocks(f"# tile += gridDim.x\n{text}").endswith(text)


def test_a_cpu_kernel_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("import torch\nclass Model(torch.nn.Module):\n  def forward(self, x): ...\ndef get_inputs(): ...\n")
    assert Sanitizer(read_task(path), CPU).check("", Build(True, 0.1), (), at_once=True) == []


@pytest.mark.gpu
@pytest.mark.skipif(tool_path("compute-sanitizer") is None, reason="compute-sanitizer is not here")
def test_a_write_outside_of_memory_is_found(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x):\n    return x + 1\n"
        "def get_inputs():\n  return [torch.rand(1024)]\n"
    )
    text = """
import torch, triton
import triton.language as tl

@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at % n) + 1)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        add[(SIZE,)](x, y, 1024, BLOCK=1024)
        return y
"""
    pytest.importorskip("triton")
    for size, passed in (("1", True), ("8", False)):
        found = Sanitizer(read_task(path), CUDA).check(text.replace("SIZE", size), Build(True, 0.1), (), at_once=False)
        gates = {gate.gate: gate for gate in found}
        assert gates["memcheck"].passed is passed, gates["memcheck"].evidence
        assert "not decided" not in gates["memcheck"].evidence
