"""A reason that refuses all kernels of a run is known after the first of them, and is not found out once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundry.graph.history.replay import replay
from foundry.graph.proofs.causes import FailureCause, Kin, Outlook, ProofOutcome, cause_of, kin_of
from foundry.graph.run.closing import EARLY
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Audit, Build, Candidate, Evaluation, Gate, Recipe, Stage, Verdict
from foundry.knowledge.task import Policy

MakeRequest = Callable[..., SolveRequest]
IMPORTS = "imports relu_tools (while loading)"


@pytest.fixture
def refusing(machine: Any) -> Callable[[Callable[[str], bool]], Any]:
    """A machine whose proofs refuse some texts for what their process did, which no screen sees."""

    def make(is_refused: Callable[[str], bool]) -> Any:
        class Refusing(machine):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.asked: Counter[Stage] = Counter()

            async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
                self.asked[verdict.stage] += 1
                gate = Gate("process events", verdict.stage == "screen" or not is_refused(text), IMPORTS)
                return Audit(gate.passed, policy, (gate,))

        return Refusing()

    return make


async def test_what_refuses_all_kernels_is_said_after_the_first_and_ends_the_search(
    make_request: MakeRequest, parts: Any, refusing: Any
) -> None:
    bench, events = refusing(lambda text: True), list[Event]()
    summary = await solve(make_request(40), events.append, parts=parts(bench))
    early = [event for event in events if event.name == EARLY]
    assert early[0].data["candidate"] == "c1" and early[0].step == "seed0"
    told = [event.data for event in events if event.kind == "evaluation" and event.name == "c1"]
    assert [data["outcome"] == "correct" for data in told] == [True, False], "the views were not told"
    assert early[0].data["reason"] == f"c1 would fail its proof: process events: {IMPORTS}"
    assert bench.asked["full"] + bench.asked["final"] <= 3, "four finalists failed for one reason"
    assert summary.evaluations < 10, "the search went on after it was known that nothing could win"
    assert "every kernel would fail its proof for one reason: process events" in summary.ending
    assert summary.closing is not None and summary.closing.kind == "proof"
    assert IMPORTS in summary.closing.words


async def test_a_structure_that_fails_is_left_and_the_others_win(
    make_request: MakeRequest, parts: Any, refusing: Any
) -> None:
    """Rewritten kernels are the fastest here, and each of them would be refused."""
    bench = refusing(lambda text: '["online"]' in text)
    summary = await solve(make_request(40), parts=parts(bench))
    assert summary.verdict == "accepted"
    run = RunDirectory.inspect(Path(summary.run))
    notes = EventLog(run.database, reading=True).read_notes(EARLY)
    winner = run.evaluation(summary.candidate).candidate
    run.close()
    assert winner.recipe is not None and "online" not in winner.recipe.rewrites
    refused = [event for event in notes if event.data["gate"]]
    assert 1 <= len(refused) <= 2 and notes[0].data["gate"] == ""


async def test_a_run_with_early_proofs_replays(make_request: MakeRequest, parts: Any, refusing: Any) -> None:
    bench = refusing(lambda text: '["online"]' in text)
    summary = await solve(make_request(24), parts=parts(bench))
    assert (await replay(Path(summary.run), parts())).differences == ()


@pytest.mark.parametrize(("effort", "minutes"), [("bench", None), ("quick", 0.05)])
async def test_a_search_without_time_for_them_asks_for_no_early_proof(
    make_request: MakeRequest, parts: Any, refusing: Any, effort: str, minutes: float | None
) -> None:
    bench, events = refusing(lambda text: True), list[Event]()
    limits = RunLimits(evaluations=12, minutes=minutes)
    summary = await solve(make_request(effort=effort, limits=limits), events.append, parts=parts(bench))
    assert not [event for event in events if event.name == EARLY]
    assert summary.verdict == "nothing accepted"
    assert bench.asked["final"] <= 2, "finalists were proven one after another for one reason"
    assert sum(IMPORTS in note for note in summary.notes) <= 1, "one reason is said once"
    assert any(IMPORTS in line for line in ending_lines(summary, "relu_add.py"))


def outcome(
    name: str, structure: str, evidence: str = "", rounded: str = "", *, variants: bool = False
) -> ProofOutcome:
    kin = Kin(structure, frozenset(rounded.split()), variants)
    word = "inaccurate" if rounded else "wrong_result"
    return ProofOutcome(name, kin, FailureCause("other indices", evidence, word) if evidence else None)


def test_causes_are_alike_whatever_numbers_they_name() -> None:
    one = FailureCause("other indices", "element 12 is off by 3.4e-2, c3 at 0x7f00aa")
    assert one.key == FailureCause("other indices", "element 8123 is off by 1.0, c17 at 0x12").key
    assert one.key != FailureCause("sixteenths", one.evidence).key
    assert FailureCause("g", "g: said").words == "g: said" and FailureCause("g", "said").words == "g: said"


def test_a_cause_is_the_gate_that_refused() -> None:
    candidate = Candidate("c1", 0, 0, "cpu", "library", "ab")
    wrong = Verdict("wrong_result", "full", (Gate("x3", True, ""), Gate("sixteenths", False, "off")), evidence="off")
    assert cause_of(Evaluation(candidate, Build(True, 0.0), wrong)) == FailureCause("sixteenths", "off", "wrong_result")
    assert cause_of(Evaluation(candidate, Build(True, 0.0), Verdict("correct", "full"))) is None
    found = outcome("c1", "s", "off", "k_a k_b", variants=True)
    assert ProofOutcome.from_data(found.to_data()) == found
    assert found.to_data()["reason"].endswith("off. k_a and k_b multiply in TF32; accurate products are tried next")


def test_candidates_share_a_structure_where_only_numbers_differ() -> None:
    plain = Candidate("c1", 0, 0, "cpu", "library", "ab", recipe=Recipe("cpu"))
    tuned = replace(plain, source="cd", recipe=Recipe("cpu", choices={"k0": {"tile": 32}}))
    other = replace(plain, recipe=Recipe("cpu", rewrites=("online",)))
    assert kin_of(plain) == kin_of(tuned) != kin_of(other)
    assert kin_of(replace(plain, recipe=None)) == Kin("ab")


def test_the_precision_of_a_product_is_part_of_the_structure() -> None:
    def made(precision: str, tile: int) -> Candidate:
        recipe = Recipe("cuda", choices={"k0": {"precision": precision, "tile": tile}})
        return Candidate("c1", 0, 0, "cuda", "library", "ab", recipe=recipe)

    rounded, accurate, tuned = made("tf32", 32), made("tf32x3", 32), made("tf32", 64)
    assert kin_of(rounded) == kin_of(tuned) != kin_of(accurate)
    assert kin_of(rounded).rounded == {"k0"} and kin_of(rounded).has_variants
    assert not kin_of(accurate).rounded


def test_after_two_failures_for_one_cause_no_other_of_the_structure_is_proven() -> None:
    outlook = Outlook([outcome("c1", "a", "row 1")])
    assert outlook.shared_cause(Kin("a")) is None and outlook.shared_cause(Kin("b")) is None
    outlook.outcomes.append(outcome("c2", "a", "row 2"))
    assert outlook.shared_cause(Kin("a")) == FailureCause("other indices", "row 1", "wrong_result")
    assert outlook.shared_cause(Kin("b")) is None, "another structure may pass"
    assert outlook.common_cause() is not None, "there is no other structure"
    outlook.outcomes.append(outcome("c3", "b", "row 3"))
    assert outlook.shared_cause(Kin("c")) is not None, "three kernels of two structures had the same cause"
    outlook.outcomes.append(outcome("c4", "d"))
    assert outlook.shared_cause(Kin("d")) is None and outlook.common_cause() is None
    kins = {"c2": Kin("a"), "c5": Kin("d"), "c6": Kin("e")}
    assert outlook.order(["c2", "c5", "c6"], kins) == ["c5", "c6", "c2"]


def test_two_failures_of_one_structure_do_not_end_a_search_that_has_another() -> None:
    outlook = Outlook([outcome("c1", "a", "row 1", variants=True), outcome("c2", "a", "row 2", variants=True)])
    assert outlook.common_cause() is None
    outlook.outcomes.append(outcome("c3", "b", "row 3", variants=True))
    assert outlook.common_cause() is not None


def test_failures_in_tf32_say_nothing_about_accurate_products() -> None:
    three = [outcome(f"c{number}", structure, "norm 1e-4", "k0 k1") for number, structure in enumerate("abc", 1)]
    outlook = Outlook(three)
    accurate, partly, wholly = Kin("d"), Kin("e", frozenset({"k0"})), Kin("f", frozenset({"k0", "k1", "k2"}))
    assert outlook.common_cause() is None
    assert outlook.shared_cause(accurate) is None and outlook.shared_cause(partly) is None
    assert outlook.shared_cause(wholly) is not None, "it has in TF32 what was inaccurate"
    assert outlook.order(["w", "p", "a"], {"w": wholly, "p": partly, "a": accurate}) == ["p", "a", "w"]
    outlook.outcomes.append(outcome("c4", "d", "norm 1e-4"))
    assert outlook.common_cause() is not None, "accurate ones fail as well"


def test_different_causes_are_no_common_one() -> None:
    outlook = Outlook([outcome("c1", "a", "row"), outcome("c2", "b", "another")])
    assert outlook.common_cause() is None and outlook.shared_cause(Kin("a")) is None
