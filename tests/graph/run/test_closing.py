"""The end of a run that accepted nothing: one paragraph, and the one command that most likely helps."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from foundry.agents.models.models import one_model
from foundry.graph.run.closing import Closing, EndedRun, ObstacleKind, close
from foundry.graph.run.events import Event
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.solve import solve
from foundry.knowledge.errors import CannotLower, LeavesToTorch
from foundry.knowledge.task import Policy

SOLVE = ["foundry", "agent", "solve", "task.py"]
MODEL = [*SOLVE, "--model", "NAME"]


def note(name: str, **data: Any) -> Event:
    return Event(1, "note", name, None, "", None, 0.0, 0.0, data)


def evaluation(name: str, outcome: str, evidence: str = "", expert: str = "library") -> Event:
    data = {"outcome": outcome, "evidence": evidence, "expert": expert}
    return Event(1, "evaluation", name, None, "", None, 0.0, 0.0, data)


@dataclass(frozen=True)
class Ending:
    """A run's events and the closing words that they should give."""

    events: list[Event]
    kind: ObstacleKind
    command: list[str]
    ending: str = "budget: 48 evaluations"
    policy: Policy = "fair"
    model: str = ""
    minutes: float | None = None
    scale: int | None = None


REFUSED_BY_POLICY = "other strides: it is silently wrong on inputs that are transposed in memory; policy open allows it"
GPU_FULL = "the GPU's memory is used up: tried to allocate 4.00 GiB"
ENDINGS = [
    Ending([note("not captured", reason="no tracer could follow")], "not captured", MODEL),
    Ending(
        [note("cannot lower", reason="no kernel for svd; a chat model may write one (--model NAME)")],
        "no kernel",
        MODEL,
    ),
    Ending(
        [note("cannot lower", reason="PyTorch would do 9 % of the work; --policy open lets PyTorch do its part")],
        "policy",
        [*SOLVE, "--policy", "open"],
    ),
    Ending([evaluation("c1", "cheating", REFUSED_BY_POLICY, "final")], "policy", [*SOLVE, "--policy", "open"]),
    Ending(
        [evaluation("c1", "cheating", "tf32: it multiplies in TF32; strict asks for IEEE float32")],
        "policy",
        [*SOLVE, "--policy", "fair"],
        policy="strict",
    ),
    Ending([evaluation("c1", "wrong_result", "row 0 differs")], "wrong", MODEL),
    Ending([evaluation("c1", "correct"), evaluation("c1", "crash", "died", "final")], "proof", MODEL),
    Ending(
        [note("early proof", gate="process events", evidence="imports x"), evaluation("c1", "correct")], "proof", MODEL
    ),
    Ending([evaluation("c1", "timeout", "forward did not finish in 4 s")], "slow kernels", MODEL),
    Ending([], "time", [*SOLVE, "--minutes", "2"], ending="budget: 0.1 minutes", minutes=0.1),
    Ending([evaluation("c1", "correct")], "time", [*SOLVE, "--minutes", "4"], minutes=1.0),
    Ending([evaluation("c1", "crash", GPU_FULL)], "memory", [*SOLVE, "--scale", "4"], scale=8),
    Ending(
        [evaluation("c1", "crash", GPU_FULL)], "memory", [*SOLVE, "after", "its", "sizes", "are", "made", "smaller"]
    ),
    Ending(
        [note("model unavailable", text="no answer for 60 s")],
        "model",
        ["foundry", "doctor", "--model", "m"],
        model="m",
    ),
    Ending(
        [note("island failed", node="diagnose", error="IndexError: list index out of range")],
        "error",
        ["foundry", "agent", "trace", "runs/a"],
    ),
    Ending(
        [evaluation("c1", "correct")],
        "user",
        ["foundry", "agent", "fork", "runs/a", "--minutes", "10"],
        ending="stopped by the user (d1)",
    ),
]


@pytest.mark.parametrize("case", ENDINGS, ids=lambda case: case.kind)
def test_each_obstacle_has_its_own_command(case: Ending) -> None:
    models = {"models": one_model(case.model)} if case.model else {}
    request = SolveRequest("task.py", limits=RunLimits(minutes=case.minutes), scale=case.scale, **models)  # type: ignore[arg-type]
    found = close(EndedRun("runs/a", request, case.policy, case.ending, case.events))
    assert found.kind == case.kind
    assert shlex.split(found.command.split(" (")[0]) == case.command
    assert "\n" not in found.words and found.command in found.words


def test_the_paragraph_says_what_was_tried_and_each_reason_once() -> None:
    proofs = [evaluation(f"c{number}", "cheating", "process events: imports x", "final") for number in (1, 2)]
    events = [evaluation("c1", "correct"), evaluation("c2", "correct"), evaluation("c3", "crash"), *proofs]
    words = close(EndedRun("runs/a", SolveRequest("task.py"), "fair", "budget", events)).words
    assert words.startswith("3 kernels were tried, 2 right in the search, 2 put to the proof. What stood in the way: ")
    assert words.count("imports x") == 1 and "(2 kernels)" in words


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CannotLower("no template for aten.svd"), "no kernel"),
        (LeavesToTorch("it has no kernel for pad, so that PyTorch would do 10 % of the work"), "policy"),
    ],
)
async def test_a_run_without_a_first_kernel_ends_with_it(
    make_request: Callable[..., SolveRequest], parts: Any, library: Any, error: CannotLower, kind: str
) -> None:
    class Empty(library):  # type: ignore[misc]
        def seeds(self, graph: Any, device: Any, unrounded: Any = None) -> Any:
            raise error

    summary = await solve(make_request(), parts=parts(library=Empty()))
    assert isinstance(summary.closing, Closing) and summary.closing.kind == kind
    assert str(error) in summary.closing.words
    assert any(summary.closing.words in line for line in ending_lines(summary, "relu_add.py"))


def test_kernels_that_never_ran_are_not_called_wrong() -> None:
    """An author read "1 kernel was tried, none right" of a kernel whose compiler was stopped."""
    slow = evaluation("c1", "compile_error", "the compiler was stopped: did not finish in 60 s")
    words = close(EndedRun("runs/a", SolveRequest("task.py"), "fair", "budget", [slow])).words
    assert words.startswith("1 kernel was written, and none compiled")


def test_a_scale_of_the_inputs_is_said_in_words() -> None:
    failed = evaluation("c1", "wrong_result", "x2**-44: output 1: first wrong element (64, 128)", "final")
    words = close(EndedRun("runs/a", SolveRequest("task.py"), "fair", "budget", [failed])).words
    assert "asked with all inputs times 2**-44: output 1: first wrong element" in words
