"""An audit decides on every kind of reason as data, never on the sentence that people read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foundry.knowledge.candidate import Audit, Build, Gate
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import Policy
from foundry.tools.audit.acts.conduct import apply_policy
from foundry.tools.audit.acts.observed import OperatorRow
from foundry.tools.audit.gates import audit
from foundry.tools.protocol.reasons import make_gate

TEXT = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
TUNED = '''import torch

SOURCE = """
#include <chrono>
double measured() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void run(float* out) { out[0] = 1; }
"""


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.best = extension.measured()

    def forward(self, x):
        return extension.run(x)
'''
OPERATORS = ["relu", "sigmoid", "tanh", "silu", "abs", "neg"]
DONE: list[OperatorRow] = [{"op": f"aten.{name}.default", "calls": 1, "flops": 4, "bytes": 32} for name in OPERATORS]
SYSTEM = [Reason(ReasonKind.SYSTEM, name) for name in ("dlopen", "socket", "mprotect")]
CALLED = [Reason(ReasonKind.TORCH_OPERATOR, name) for name in OPERATORS]


def symbols(reasons: Sequence[Reason]) -> Gate:
    """As it comes from the judge's process."""
    return decode(Gate, encode(make_gate("symbols (kernel.so)", reasons, "harmless")))


def audited(reasons: Sequence[Reason], text: str = TEXT, policy: Policy = "fair") -> Gate:
    found: Audit = audit(text, Build(True, 0.1), DONE, None, policy, reference_work=1e9, watched=[symbols(reasons)])
    (gate,) = [gate for gate in found.gates if gate.gate.startswith("symbols")]
    return gate


def test_operators_of_next_to_no_work_are_excused_however_many_there_are() -> None:
    gate = audited(CALLED)
    assert gate.passed and "of the reference's work" in gate.evidence


@pytest.mark.parametrize("other", [*SYSTEM, Reason(ReasonKind.VENDOR, "sgemm_"), Reason(ReasonKind.UNKNOWN, "relu")])
def test_nothing_is_excused_behind_operators_that_are(other: Reason) -> None:
    assert not audited([*CALLED, other]).passed


def test_an_operator_that_the_dispatcher_did_not_see_is_not_excused() -> None:
    assert not audited([*CALLED, Reason(ReasonKind.TORCH_OPERATOR, "softmax")]).passed


def test_more_reasons_than_are_kept_leave_a_gate_failed() -> None:
    gate = audited(CALLED * 100)
    assert not gate.passed and gate.reasons[-1].kind == ReasonKind.MORE and "and 596 more" in gate.evidence


def test_a_clock_that_tunes_is_excused_and_what_stands_behind_it_is_not() -> None:
    clocks = [Reason(ReasonKind.SYSTEM, f"_ZNSt6chrono3_V2{number}steady_clock3nowEv") for number in range(9)]
    assert audited(clocks, TUNED).passed
    gate = audited([*clocks, SYSTEM[0]], TUNED)
    assert gate.reasons == (SYSTEM[0],) and gate.evidence == "calls dlopen, which asks the operating system"


def test_open_allows_others_operators_and_nothing_behind_or_named_like_them() -> None:
    others = [Reason(ReasonKind.VENDOR, f"cublas{number}") for number in range(5)]
    assert apply_policy(symbols(others), "open").passed and not apply_policy(symbols(others), "fair").passed
    assert not apply_policy(symbols([*others, SYSTEM[0]]), "open").passed
    assert not apply_policy(symbols([Reason(ReasonKind.UNKNOWN, "vendor_of_PyTorch")]), "open").passed
    assert not apply_policy(Gate("libraries", False, "no reason is given"), "open").passed


def test_people_and_receipts_are_given_words_only() -> None:
    shown = symbols([*CALLED, *SYSTEM]).shown
    assert set(shown) == {"gate", "passed", "evidence"} and str(shown["evidence"]).endswith("; and 5 more")


def test_the_words_name_first_what_nothing_excuses() -> None:
    assert symbols([*CALLED, SYSTEM[0]]).evidence.startswith("calls dlopen")
