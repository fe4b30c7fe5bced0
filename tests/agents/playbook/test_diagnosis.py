"""The resource that limits a candidate, from constructed measurements with a known answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from foundry.agents.playbook.diagnosis import diagnose
from foundry.agents.situation import Situation
from foundry.knowledge.candidate import Audit, Gate, KernelProfile, Outcome, Recipe
from foundry.knowledge.cards import cards, parse
from foundry.knowledge.compiler.cpu.map import print_map
from foundry.knowledge.compiler.cpu.module import FLAGS
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Apply, Buffer, Load, MapKernel, Plan, Store, View
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.limits import Limiter
from foundry.knowledge.opgraph import Arrangement
from foundry.knowledge.roofline import floors
from foundry.knowledge.thought import Aspect, Failure
from foundry.tools.grade.host.answers import no_timing
from foundry.tools.grade.host.roofline import profile
from foundry.tools.targets.cpu.build import CpuTarget


def found(toy: Any, parent: Any, recipe: Recipe | None = None, **changes: Any) -> Any:
    return diagnose(toy.brief(recipe, parent=parent, **changes))


@pytest.mark.parametrize(
    ("facts", "limiter", "evidence"),
    [
        ({"candidate_ms": 2.0}, "memory_bandwidth", "16.8 GB/s is 84 % of the measured 20 GB/s"),
        ({"candidate_ms": 12.0}, "memory_latency", "2.8 GB/s is 14 % of the measured 20 GB/s"),
        ({"candidate_ms": 0.019, "launches": 2}, "launch_overhead", "2 launches at 5 us each are 53 % of 0.019 ms"),
    ],
)
def test_limiter_and_its_numbers(toy: Any, facts: dict[str, Any], limiter: str, evidence: str) -> None:
    diagnosis = found(toy, toy.evaluation(toy.recipe(), **facts))
    assert (diagnosis.limiter, diagnosis.failure) == (limiter, None)
    assert evidence in diagnosis.evidence
    assert diagnosis.action and diagnosis.kernel == "k0"


PAIRS = """
static void k0(const float* __restrict x, float* __restrict y) {
#pragma omp parallel for
  for (long i = 0; i < 64; ++i)
    for (long j = 0; j < 1024; ++j)
      for (long k = 0; k < 2; ++k) y[(i * 1024 + j) * 2 + k] = math::tanh(x[i * 2048 + k * 1024 + j]);
}
extern "C" int foundry_forward(void** b) { k0((const float*)b[0], (float*)b[1]); return 0; }
"""


def candidate(kernel: str) -> str:
    source = f"{read_library_text('cpu/runtime.h')}\n{kernel}"
    flags = [*FLAGS, "-fno-tree-vectorize"] if kernel == PAIRS else list(FLAGS)
    return f'FOUNDRY = {{"target": "cpu", "flags": {flags!r}}}\nSOURCE = r"""{source}"""\n'


def shuffled() -> str:
    """The library's kernel for the same as PAIRS: (64, 2, 1024) turned into (64, 1024, 2), then tanh."""
    x = Load("x", View(0, (2048, 1, 1024)), "float32")
    kernel = MapKernel("k0", (64, 1024, 2), (Store("y", View(0, (2048, 2, 1)), Apply("tanh", (x,), "float32")),))
    buffers = {
        "x": Buffer("x", (64, 2, 1024), (2048, 1024, 1), "float32", "input"),
        "y": Buffer("y", (64, 1024, 2), (2048, 2, 1), "float32", "output"),
    }
    device = Device("cpu", "test", "x86-64", 2, 32 << 20, 64, 8 << 30)
    printed = print_map(kernel, Plan(buffers, (kernel,), (), Arrangement()), device, {})
    entry = "const float* b_x = (const float*)b[0]; float* b_y = (float*)b[1];"
    return f'{printed.functions}\nextern "C" int foundry_forward(void** b) {{ {entry} {printed.call} return 0; }}'


def test_a_kernel_whose_loop_is_scalar_is_named(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    brief = toy.brief()

    def profiled(text: str, ms: float) -> Any:
        """A candidate as the ladder sees it without any look at its process."""
        parent = replace(toy.evaluation(toy.recipe(), candidate_ms=ms), build=CpuTarget().build(text))
        assert parent.build.ok
        asked = text, parent.build, parent.audit, parent.timing, brief.device, brief.graph, brief.lowered
        return replace(parent, profile=profile(*asked, floors=floors(brief.device, brief.graph, "fair", ())))

    slow = found(toy, profiled(candidate(PAIRS), 12.0))
    assert (slow.limiter, slow.kernel) == ("instruction_mix", "k0")
    assert (
        "k0: " in slow.evidence and "work on one number each" in slow.evidence and "along another axis" in slow.action
    )
    assert found(toy, profiled(candidate(shuffled()), 12.0)).limiter == "memory_latency"
    assert found(toy, profiled(candidate(PAIRS), 2.0)).limiter == "memory_bandwidth", "a ceiling that is reached"


def test_surplus_traffic_makes_fusing_the_action(toy: Any) -> None:
    diagnosis = found(toy, toy.evaluation(toy.recipe(), candidate_ms=4.0), Recipe("cpu", materialise=("relu",)))
    assert diagnosis.limiter == "memory_bandwidth"
    assert diagnosis.action.startswith("Fuse: 2 kernels move 33.55 MB more than the 33.55 MB")


def test_arithmetic_above_the_ridge_is_compute(toy: Any) -> None:
    brief = toy.brief(parent=toy.evaluation(toy.recipe(), candidate_ms=12.0))
    heavy = replace(brief.lowered, flops=1_000_000_000)
    assert diagnose(replace(brief, lowered=heavy)).limiter == "compute"


def test_a_product_that_uses_each_weight_once_is_not_sent_to_register_blocks(toy: Any) -> None:
    """At 12 % of the peak and 4 operations a byte it is latency, or the instructions that unpack the weights."""
    brief = toy.brief(parent=toy.evaluation(toy.recipe(), candidate_ms=12.0))
    once = replace(brief, lowered=replace(brief.lowered, flops=4 * brief.lowered.traffic_bytes))
    slow = Ceilings(1e12, 9e10, 9e10, 9e10, 1e12, 0.002, "")
    once = replace(once, device=replace(once.device, ceilings=slow))
    found = diagnose(once)
    assert Situation(once).arithmetic_ms > Situation(once).memory_ms and found.limiter != "compute"
    assert "register blocks" not in found.action


def test_what_a_profiler_named_comes_first(toy: Any) -> None:
    parent = toy.evaluation(toy.recipe(), candidate_ms=9.0)
    measured = replace(
        parent.profile,
        rung="times",
        limiter="synchronisation",
        evidence="k0 (90 % of the time): 7 % are barriers",
        action="Wait less.",
        kernels=(KernelProfile("foundry_k0", 8.0, 1, 0.9, "barriers"),),
    )
    diagnosis = found(toy, replace(parent, profile=measured))
    assert (diagnosis.limiter, diagnosis.kernel, diagnosis.action) == ("synchronisation", "k0", "Wait less.")
    assert diagnosis.evidence.startswith("times: k0 (90 % of the time): 7 % are barriers")


@pytest.mark.parametrize("failure", [name for name in get_args(Failure) if name not in ("cheating", "compile_error")])
def test_failed_verdicts_keep_their_evidence(toy: Any, failure: str) -> None:
    diagnosis = found(toy, toy.evaluation(toy.recipe(), outcome=failure, error="row 31 differs by 0.2"))
    assert (diagnosis.failure, diagnosis.limiter, diagnosis.evidence) == (failure, None, "row 31 differs by 0.2")


@pytest.mark.parametrize(
    ("gate", "failure"),
    [("computed anew", "cheating"), ("provenance", "not_allowed"), ("leads in the text", "not_judged")],
)
def test_a_failed_audit_is_diagnosed_by_what_it_proves(toy: Any, gate: str, failure: Failure) -> None:
    dirty = Audit(False, "fair", (Gate(gate, False, "same output for two inputs"), Gate("alias", True, "")))
    diagnosis = found(toy, replace(toy.evaluation(toy.recipe()), audit=dirty))
    assert diagnosis.failure == failure and diagnosis.evidence == f"{gate}: same output for two inputs"
    assert diagnosis.action == cards()[failure].action


@pytest.mark.parametrize("outcome", ["crash", "timeout", "cheating", "wrong_result"])
def test_a_candidate_that_cannot_be_timed_is_diagnosed_by_why(toy: Any, outcome: Outcome) -> None:
    """It passed every check and then died beside the clock: it was diagnosed as limited by memory."""
    untimed = replace(toy.evaluation(toy.recipe()), timing=no_timing("screen", "the process died", outcome=outcome))
    diagnosis = found(toy, untimed)
    assert (diagnosis.failure, diagnosis.limiter, diagnosis.evidence) == (outcome, None, "the process died")


def test_every_limiter_and_failure_has_a_card_that_a_person_can_use() -> None:
    assert set(cards()) == {*get_args(Limiter), *get_args(Failure)}
    for card in cards().values():
        assert set(card.aspects) <= set(get_args(Aspect)) and "## What helps" in card.body


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("compute", "no head", "no head"),
        ("weather", "---\naction: wait\n---\n", "not the name of a limiter"),
        ("compute", "---\naspects: tile=2\n---\n", "no action"),
        ("compute", "---\naction: tile\naspects: speed=2\n---\n", "'speed' is not an aspect"),
    ],
)
def test_a_bad_card_is_named(name: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(name, text)


def test_a_kernel_that_moves_far_more_than_it_must_is_told_so(toy: Any) -> None:
    """A product of four-bit weights that were laid out as float32 was told to put more loads in flight."""
    brief = toy.brief()
    kernels = tuple(replace(kernel, traffic_bytes=10 * kernel.traffic_bytes) for kernel in brief.lowered.kernels)
    diagnosis = diagnose(replace(brief, lowered=replace(brief.lowered, kernels=kernels)))
    assert "(10 times the 33.55 MB that must move)" in diagnosis.evidence
    assert diagnosis.action.startswith("Move fewer bytes: ")
