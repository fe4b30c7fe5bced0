"""Candidates that hang, crash, lie or almost work, judged in real processes: each is one answer and nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.tools.grade import asking
from tests.waiting import PATIENCE_S, until

from foundry.knowledge.candidate import Baseline, Build, Stage, Verdict
from foundry.knowledge.codec import unpack
from foundry.knowledge.device import Device
from foundry.tools.audit.gates import LABELS
from foundry.tools.audit.policies import policy_gates
from foundry.tools.grade.host import judge_pool as judges
from foundry.tools.grade.host.answers import digest_of
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.judge import audit_questions
from foundry.tools.grade.judge.link import RunnerFailed
from foundry.tools.grade.messages.runner import CallFacts
from foundry.tools.machine.device import describe
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.channel import Message
from foundry.tools.process.child import descendants
from foundry.tools.process.messages import Packing
from foundry.tools.process.zygote import Worker, Zygote
from foundry.tools.protocol.orders import public_seeds
from foundry.tools.task import bundle
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 192


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x, y):
        return F.gelu(self.norm(x)) + y


def get_inputs():
    return [torch.randn(ROWS, 512), torch.randn(ROWS, 512)]


def get_init_inputs():
    return [512]
"""
STAGES: tuple[Stage, ...] = ("screen", "full")
BUILT = Build(ok=True, seconds=0.0, artifact="library.so")  # a short time limit for loading
LOADING_S = 0.4
HANG_S = 1.5  # the limit of a forward that hangs; that of all others tells a hang from a busy machine


def candidate(forward: str, *, top: str = "", init: str = "pass") -> str:
    """The task's model with another forward; `r` is the right result."""
    body = "\n".join("        " + line for line in forward.splitlines())
    return f"""
import ctypes, os, subprocess, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F
{top}

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.calls = 0
        {init}

    def forward(self, x, y):
        self.calls += 1
        r = F.gelu(self.norm(x)) + y
{body}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    return describe("cpu")


@pytest.fixture(scope="module")
def grader(device: Device, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("judge")
    (folder / "norm_gelu.py").write_text(TASK)
    (folder / "norm_gelu.toml").write_text("[[extra_shapes]]\nROWS = 7\n")
    task = read_task(folder / "norm_gelu.py")
    made = Grader(
        task, device, folder, seed=3, zygote=zygote, owns_zygote=False, run_limit_s=PATIENCE_S, memory_bytes=1000 << 20
    )
    yield made
    own = set(descendants(zygote.pid)) - {zygote.pid}
    assert own
    made.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in own) and Path(f"/proc/{zygote.pid}").exists()


@pytest.fixture(scope="module")
def baseline(grader: Grader) -> Baseline:
    made = grader.baseline()
    assert made.eager_ms > 0 and made.degenerate == "" and made.output_shapes == [(192, 512)]
    return made


FLOAT64_TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return (x.cumsum(0) * 0.5).sum(1, keepdim=True)


def get_inputs():
    return [torch.randn(300, 200, dtype=torch.float64)]
"""


MASKED_TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.table = nn.Embedding(90, n)

    def forward(self, x, mask, gain, rows):
        return ((self.norm(x) + gain) * mask * self.table(rows)).sum(1)


def get_inputs():
    lengths = torch.randint(20, 60, (400, 1))
    return [torch.randn(400, 64), torch.arange(64) < lengths, 0.25, torch.randint(30, (400,))]


def get_init_inputs():
    return [64]
"""
GUESSES = {
    "few (more )?parameters changed": (  # how few is drawn
        "self.norm(x)",
        "(self.norm(x) if (self.norm.weight == 1).double().mean() < 0.9 else F.layer_norm(x, (64,)))",
    ),
    "other masks": ("* mask", "* (torch.arange(64) < mask.sum(1, keepdim=True))"),
    "other numbers": ("+ gain", "+ 0.25"),
    "other indices": ("self.table(rows)", "self.table.weight[:30][rows.clamp(max=29)]"),
}


def test_guesses_about_parameters_masks_numbers_and_indices_show(
    device: Device, zygote: Zygote, tmp_path: Path
) -> None:
    (tmp_path / "masked.py").write_text(MASKED_TASK)
    grader = Grader(read_task(tmp_path / "masked.py"), device, tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    text = MASKED_TASK.replace("class Model(", "import torch.nn.functional as F\nclass ModelNew(")
    try:
        made = grader.baseline()
        assert verify(grader, made, text, "full").outcome == "correct"
        for distribution, (right, guess) in GUESSES.items():
            verdict = verify(grader, made, text.replace(right, guess), "full")
            assert not verdict.correct and re.match(distribution, verdict.evidence), verdict.evidence
        only_here = text.replace(
            "        return (", "        if gain != 0.25:\n            raise ValueError(gain)\n        return ("
        )
        verdict = verify(grader, made, only_here, "full")
        assert verdict.outcome == "correct"
        assert any(gate.gate == "other numbers" and "made for the numbers" in gate.evidence for gate in verdict.gates)
    finally:
        grader.close()


def test_a_task_in_float64_is_judged_in_float64(device: Device, zygote: Zygote, tmp_path: Path) -> None:
    """Its outputs are what errors are computed from: they must not be computed in."""
    (tmp_path / "sums.py").write_text(FLOAT64_TASK)
    grader = Grader(read_task(tmp_path / "sums.py"), device, tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    try:
        made = grader.baseline()
        assert made.degenerate == "" and made.output_shapes == [(300, 1)]
        text = FLOAT64_TASK.replace("class Model(", "class ModelNew(")
        for stage in STAGES:
            assert verify(grader, made, text, stage).outcome == "correct"
        coarse = verify(grader, made, text.replace("x.cumsum", "x.float().double().cumsum"))
        assert coarse.outcome in ("inaccurate", "wrong_result")
        timing = asking.time(grader, text, BUILT, "screen", made)
        assert timing.problem == "" and timing.speedup > 0
    finally:
        grader.close()


def verify(grader: Grader, baseline: Baseline, text: str, stage: Stage = "screen") -> Verdict:
    return asking.verify(grader, text, BUILT, stage, baseline)


def test_the_reference_itself_is_correct_at_every_stage(grader: Grader, baseline: Baseline) -> None:
    text = candidate("if self.calls == 1:\n    self.laid_out = torch.cat([self.norm.weight, self.norm.bias])\nreturn r")
    for stage, least in (("screen", 3), ("full", 9)):
        verdict = verify(grader, baseline, text, stage)  # type: ignore[arg-type]
        assert verdict.outcome == "correct" and verdict.accuracy_class == "ieee", verdict.evidence
        assert len(verdict.errors) >= least and all(gate.passed for gate in verdict.gates)
    names = [error.distribution for error in verdict.errors]
    assert names[:4] == ["as given", "few elements changed", "elements rearranged", "x3"]
    assert names[4:7] == ["x0.01", "x-1", "mixed exponents"]
    assert {"x100", "constant", "sparse", "one-hot rows", "non-finite", "few elements changed again"} <= set(names)
    assert "as given (ROWS=7)" in names
    operators = {row["op"] for row in grader.notes.operators[digest_of(text)]}
    assert any("layer_norm" in name for name in operators) and any("gelu" in name for name in operators)
    assert not any("cat" in name for name in operators), "what the first call prepares is no work of every call"


@pytest.mark.parametrize(
    ("forward", "outcome", "evidence"),
    [
        ("return F.gelu(F.layer_norm(x, (512,))) + y", "wrong_result", "randomised parameters: "),
        ("r[:, -3:] = 0\nreturn r", "wrong_result", "dimension 1 (of 512): the last 3"),
        ("return 2 * r", "wrong_result", "everything is 2 times the truth"),
        ("r[5, 7] = float('nan')\nreturn r", "wrong_result", "first wrong element (5, 7): got nan"),
        ("return (F.gelu(self.norm(x.bfloat16().float())) + y)", "inaccurate", "as given: "),
        ("return r[:, :-1]", "wrong_result", "output 0 has shape [192, 511], the reference's has [192, 512]"),
        ("return r.double()", "wrong_result", "output 0 is float64, the reference's is float32"),
        ("return r, r", "wrong_result", "forward returned 2 tensors, the reference 1"),
        ("return 'done'", "wrong_result", "forward returned a str, not a tensor"),
        ("return r + 0.01 * torch.rand_like(r) * (self.calls > 1)", "nondeterministic", "same answer twice: "),
        ("o = torch.empty_like(r)\no[:-1] = r[:-1]\nreturn o", "wrong_result", "dimension 0 (of 192): the last 1"),
        ("y.add_(1)\nreturn r", "wrong_result", "forward changed its input 1 in place"),
        ("y.copy_(r)\nreturn y", "wrong_result", "forward changed its input 1 in place"),
        ("return self.kept.copy_(r)", "wrong_result", "output 0 shares memory with an earlier call's output 0"),
        ("raise ValueError('no such shape')", "crash", "ValueError: no such shape (line"),
        ("sys.exit(0)", "crash", "SystemExit: 0 (line"),
        ("os._exit(0)", "crash", "the process exited with code 0"),
        ("ctypes.string_at(0)", "crash", "the process was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 6)", "crash", "the process was killed by SIGABRT"),
        ("time.sleep(1e6)", "timeout", "forward did not finish in 1.5 s"),
        ("while True: pass", "timeout", "forward did not finish in 1.5 s"),
    ],
)
def test_bad_candidates_are_data(
    grader: Grader,
    baseline: Baseline,
    forward: str,
    outcome: str,
    evidence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if outcome == "timeout":
        monkeypatch.setattr(grader, "_limits", {"run_limit_s": HANG_S})
    verdict = verify(grader, baseline, candidate(forward, init="self.kept = torch.empty(192, 512)"))
    assert (verdict.outcome, evidence in verdict.evidence) == (outcome, True), verdict.evidence
    assert not verdict.gates[-1].passed and verdict.accuracy_class is None
    assert verdict.seconds < PATIENCE_S


@pytest.mark.parametrize(
    ("text", "outcome", "evidence"),
    [
        ("class ModelNew(:", "compile_error", "SyntaxError: invalid syntax (line 1)"),
        ("x = 1", "compile_error", "the file defines no class ModelNew(nn.Module)"),
        ("import no_such_module", "compile_error", "ModuleNotFoundError: No module named 'no_such_module' (line 1)"),
        ("import os; os._exit(0)", "crash", "the process exited with code 0"),
        (candidate("return r", init="raise RuntimeError('no GPU')"), "crash", "RuntimeError: no GPU"),
    ],
)
def test_files_that_do_not_load(grader: Grader, baseline: Baseline, text: str, outcome: str, evidence: str) -> None:
    verdict = verify(grader, baseline, text)
    assert (verdict.outcome, evidence in verdict.evidence) == (outcome, True), verdict.evidence


def test_eaten_memory_ends_the_candidate(grader: Grader, baseline: Baseline) -> None:
    verdict = verify(grader, baseline, candidate("self.k = [torch.ones(5 << 20) for _ in range(2000)]\nreturn r"))
    assert (verdict.outcome, "needs more than 1.0 GB of memory" in verdict.evidence) == ("crash", True)


def test_memory_that_nobody_wrote_shows(grader: Grader, baseline: Baseline) -> None:
    """Fresh memory is often zero, and so a kernel that reads it before writing is often right by luck."""
    right = "r = F.gelu(self.norm(x)) + y"
    text = candidate("return r").replace(right, f"{right.replace('F.gelu', '0 * torch.empty(192, 512) + F.gelu')}")
    verdict = verify(grader, baseline, text)
    assert verdict.outcome == "wrong_result" and "got nan" in verdict.evidence


def test_a_flood_does_no_harm_and_a_child_that_is_left_is_cheating(grader: Grader, baseline: Baseline) -> None:
    flood = "os.write(1, b'x' * 3_000_000)\nreturn r"
    assert verify(grader, baseline, candidate(flood)).outcome == "correct"
    seconds = f"1000.{os.getpid()}"  # of nobody else's on this machine
    left = candidate(f"subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)\n{flood}")
    verdict = verify(grader, baseline, left)
    assert (verdict.outcome, verdict.gates[-1].gate) == ("cheating", "threads and processes"), verdict.evidence
    assert "a child process was left running (sleep" in verdict.evidence
    until(lambda: f"sleep\0{seconds}\0" not in commands(), "the end of the child that was left")


def commands() -> set[str]:
    """The command lines of all processes, their words ended as the kernel ends them."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(entry.read_text(errors="replace"))
    return found


def test_renamed_parameters_are_matched_by_their_initial_values(grader: Grader, baseline: Baseline) -> None:
    renamed = (
        candidate("return F.gelu(F.layer_norm(x, (512,), self.g, self.b)) + y")
        .replace(
            "self.norm = nn.LayerNorm(n)", "self.g = nn.Parameter(torch.ones(n)); self.b = nn.Parameter(torch.zeros(n))"
        )
        .replace("r = F.gelu(self.norm(x)) + y", "")
    )
    assert verify(grader, baseline, renamed).outcome == "correct"
    without = renamed.replace("self.b = nn.Parameter(torch.zeros(n))", "self.b = None")
    verdict = verify(grader, baseline, without)
    assert verdict.outcome == "not_judged" and "norm.bias (shape [512]) has no counterpart" in verdict.evidence


def test_timing_is_paired_and_its_outputs_are_checked(grader: Grader, baseline: Baseline) -> None:
    slow = asking.time(
        grader, candidate("for _ in range(8): F.gelu(self.norm(x)) + y\nreturn r"), BUILT, "screen", baseline
    )
    assert slow.problem == "" and slow.pairs >= 6 and len(slow.samples) == slow.pairs
    assert slow.speedup_ci95[0] < slow.speedup < slow.speedup_ci95[1] and slow.speedup < 0.85
    assert 0.5 < slow.wall_ratio < 2.0 and slow.candidate_ms > slow.baseline_ms > 0
    cheat = candidate("return r if self.calls < 3 else torch.zeros_like(r)")
    caught = asking.time(grader, cheat, BUILT, "screen", baseline)
    assert "of timed call" in caught.problem and caught.pairs == 0
    crashed = asking.time(grader, candidate("ctypes.string_at(0)"), BUILT, "screen", baseline)
    assert crashed.problem.startswith("the process was killed by SIGSEGV")
    assert asking.time(grader, candidate("return r"), BUILT, "screen", baseline).problem == ""


def test_a_judge_hangs_up_on_both_sides_of_each_group(
    grader: Grader, baseline: Baseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that it shares with a side stays allocated until then: on a GPU the inputs, group after group."""
    request, open_links = Worker.request, list[int]()

    def count(worker: Worker, message: Message, *rest: Any, **named: Any) -> tuple[Message, list[int]]:
        if message["do"] == "time":
            handles = Path(f"/proc/{worker.pid}/fd").iterdir()
            open_links.append(sum(str(handle.readlink()).startswith("socket:") for handle in handles))
        return request(worker, message, *rest, **named)

    monkeypatch.setattr(Worker, "request", count)
    assert asking.time(grader, candidate("return r"), BUILT, "full", baseline).problem == ""
    assert len(open_links) >= 6 and len({*open_links}) == 1


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_gpu_is_held_alone_for_timed_calls_only(
    grader: Grader, baseline: Baseline, device: Device, tmp_path: Path, on_cpu: bool
) -> None:
    text = candidate("return r", top=f"import time\ntime.sleep({LOADING_S})\n")
    lock = DeviceLock(device, tmp_path)
    timing = grader.time(text, BUILT, "screen", baseline, holds=Holds(lock, on_cpu=on_cpu))
    use = lock.use.total
    assert timing.problem == "" and timing.seconds > 2 * LOADING_S  # each of two groups loads the file
    if on_cpu:
        assert use.alone_s > 2 * LOADING_S and use.shared_s == 0
    else:
        assert use.shared_s > 2 * LOADING_S < timing.seconds - use.alone_s


def test_a_cached_result_is_caught_while_timing(grader: Grader, baseline: Baseline) -> None:
    text = candidate(
        "key = (x.data_ptr(), y.data_ptr())\nif key not in CACHE: CACHE[key] = r.clone()\nreturn CACHE[key].clone()",
        top="CACHE = {}",
    )
    assert "of timed call" in asking.time(grader, text, BUILT, "full", baseline).problem


def test_a_reference_that_dies_is_replaced_and_not_the_candidates_fault(
    grader: Grader, baseline: Baseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, killed = grader._runners.fresh, list[int]()

    def fresh(text: str = "", environment: dict[str, str] | None = None) -> Worker:
        worker = made(text, environment)
        if not text and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, 9)
        return worker

    monkeypatch.setattr(grader._runners, "fresh", fresh)
    assert asking.time(grader, candidate("return r"), BUILT, "screen", baseline).problem == ""
    assert killed


def test_distributions_that_the_reference_refuses_are_not_asked(device: Device, zygote: Zygote, tmp_path: Path) -> None:
    source = TASK.replace("F.gelu(self.norm(x)) + y", "F.binary_cross_entropy(x.clamp(max=1), y)")
    source = source.replace("torch.randn(ROWS, 512), torch.randn", "torch.rand(ROWS, 512), torch.rand")
    (tmp_path / "loss.py").write_text(source)
    made = Grader(read_task(tmp_path / "loss.py"), device, tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    try:
        text = source.replace("class Model(", "class ModelNew(")
        verdict = made.verify(text, BUILT, "full", made.baseline())
        assert verdict.correct, verdict.evidence
        skipped = [gate.gate for gate in verdict.gates if "the reference refuses such inputs" in gate.evidence]
        assert {"x3", "x-1"} <= set(skipped) and "x0.01" not in skipped
    finally:
        made.close()


def test_what_benchmarks_draw_is_asked_for_when_it_was_drawn_ahead(
    grader: Grader, baseline: Baseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "LITTLE_BYTES", 1 << 10)
    grader._public.begin(1 << 20)
    assert not grader.stock(), "no process waits for a CPU"
    drawn, handles = grader._public.take()
    assert [seed for seed, _ in drawn] == [42, 0] and len(handles) == 2
    for (seed, description), handle in reversed(list(zip(drawn, handles, strict=True))):
        packing = unpack(Packing, description)
        x, _ = bundle.from_description(packing, bundle.shared(packing, handle))
        torch.manual_seed(seed)
        assert torch.equal(x, torch.randn(x.shape))
    text = candidate(f"return r + (x[0, 0].item() == {x[0, 0].item()!r})")
    gates = {gate.gate: gate for gate in grader.ablate(text, BUILT, baseline, "fair")[0]}
    assert not gates["public inputs"].passed and "manual_seed(42)" in gates["public inputs"].evidence


LAID_OUT = {  # what comes of inputs whose rows and columns are exchanged in memory
    "follows": ("return r", "right on inputs with other strides", []),
    "copies": ("x = x.contiguous()\nreturn F.gelu(self.norm(x)) + y", "right on inputs", []),
    "refuses": ("assert x.is_contiguous(), 'not contiguous'\nreturn r", "it refuses inputs", []),
    "reads past them": (
        "x, y = (item.as_strided((192, 512), (512, 1)) for item in (x, y))\nreturn F.gelu(self.norm(x)) + y",
        "and is silently wrong: pass it none",
        ["own-strides"],
    ),
    "dies of them": ("x.is_contiguous() or os._exit(1)\nreturn r", "it fails: the process", []),
}


@pytest.mark.parametrize("how", LAID_OUT)
def test_inputs_with_other_strides_are_asked_for_and_what_comes_of_it_is_named(
    grader: Grader, baseline: Baseline, how: str
) -> None:
    forward, evidence, labels = LAID_OUT[how]
    gates = asking.ablate(grader, candidate(forward), BUILT, baseline, "fair")
    (gate,) = (gate for gate in gates if gate.gate == "other strides")
    assert gate.passed is (how != "dies of them") and evidence in gate.evidence
    found = {LABELS[reason.kind] for reason in gate.reasons}
    assert sorted(found) == labels
    assert bool(policy_gates(found, "fair")) is bool(labels) and not policy_gates(found, "open")


def test_inputs_that_take_long_to_draw_are_asked_for_with_one_public_seed() -> None:
    assert public_seeds(4096) == (42, 0) and public_seeds(6 << 30) == (42,)


def test_inputs_at_other_addresses_are_those_that_the_truth_is_of() -> None:
    """An earlier question may have left others in their place: on a GPU every kernel was called wrong for that."""
    asked: list[str] = []

    class Link:
        def inputs(self, *given: object) -> None:
            asked.append("inputs")

        def call(self, *given: object, layout: str, **how: object) -> tuple[object, list[object]]:
            asked.append(f"call {layout}")
            return CallFacts(written=True), []

    inputs = SimpleNamespace(tensors=lambda: [])
    trial = SimpleNamespace(inputs=inputs, buffers=(), specs=[], expected=[], ieee=[], tf32=None)
    gate = audit_questions.elsewhere_gate(cast("Any", Link()), cast("Any", trial), {"operators": []})
    assert gate.passed and asked == ["inputs", "call elsewhere", "call elsewhere"]


def test_whoever_dies_when_clocks_are_right_again_has_not_passed() -> None:
    class Link:
        run_limit_s = 1.0

        def inputs(self, *given: object) -> None: ...

        def call(self, *given: object, **how: object) -> tuple[dict[str, object], list[object]]:
            return {}, []

        def pretend(self, factor: float = 0.0) -> None:
            if not factor:
                raise RunnerFailed("crash", "it ended with signal 11")

    inputs = SimpleNamespace(tensors=lambda: [])
    trial = SimpleNamespace(inputs=inputs, buffers=(), specs=[], expected=[], ieee=[], tf32=None)
    gate = audit_questions.clocks_gate(cast("Any", Link()), cast("Any", trial))
    assert not gate.passed and "once clocks are right again: it ended with signal 11" in gate.evidence
