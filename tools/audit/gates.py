"""Combines the auditor's executable gates: definitions in the text, symbols of the build, findings of the audit's runs.

A failed gate vetoes and nothing overrules it. The text of a file vetoes only if it breaks a definition; all else in
it is a lead, which decides which runs are made. Allowed practices that a reader should know of become labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from foundry.knowledge.candidate import Audit, Build, Gate
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import REFERENCE_ELSEWHERE, AccuracyClass, OtherShapes, Policy
from foundry.tools.audit.acts.conduct import MAPPED_CODE, apply_policy
from foundry.tools.audit.acts.observed import OperatorRow
from foundry.tools.audit.acts.provenance import (
    FOREIGN,
    LARGEST_SHARE,
    computing_rows,
    foreign_names,
    kind_of,
    provenance_gates,
    torch_share,
)
from foundry.tools.audit.binary.dependence import DEPENDENCE
from foundry.tools.audit.binary.symbols import symbol_gates
from foundry.tools.audit.policies import open_labels, policy_gates, practices, spelled
from foundry.tools.audit.text.clocks import clocks_are_apart, is_asked_about, is_clock
from foundry.tools.audit.text.definitions import definition_gates
from foundry.tools.audit.text.leads import Lead, in_words, leads_of
from foundry.tools.audit.text.source import CandidateSource, Unreadable, read_source
from foundry.tools.protocol.orders import FEWER_ROWS, LEADS, NO_LEADS, OTHER_CLOCKS
from foundry.tools.protocol.reasons import make_gate
from foundry.tools.targets.base import built_file
from foundry.tools.task.operators import foreign_name

LABELS = {  # labels of measured behaviour
    ReasonKind.FLUSHES: "flushes-denormals",
    ReasonKind.LAYOUT: "own-strides",
    ReasonKind.MODE: "own-mode",
}
_BINDING = frozenset({"_begin_call", "_checked", "_flat"})  # functions of Foundry's own binding


def audit(
    text: str,
    build: Build,
    op_log: Sequence[OperatorRow] | None,
    graph: OpGraph | None,
    policy: Policy,
    *,
    task_source: str = "",
    declared: Iterable[str] = (),
    reference_work: float | None = None,
    watched: Sequence[Gate] | None = None,
    accuracy: AccuracyClass | None = None,
    other_shapes: OtherShapes = "raise",
) -> Audit:
    """Runs every gate over one candidate and collects the labels of its allowed practices.

    `op_log` is what record_ops saw of ModelNew.forward, None if it could not run (a device that is not here).
    `declared` are the lowering's own labels ("rewrite:...", "torch:..."), beside those in the file. `watched` are
    gates from runs of the candidate made before; without them, any suspicious line in the text fails it.
    `other_shapes` "reference" allows PyTorch to compute inputs of other shapes, under a label.
    """
    source = read_source(text, task_source)
    leads = leads_of(source) if isinstance(source, CandidateSource) else []
    gates = [*definition_gates(source, policy), *_symbols(build, policy), *_of_runs(build, watched or ())]
    if isinstance(source, CandidateSource):
        gates = _without_tuning(gates, source)
    if any(gate.gate == OTHER_CLOCKS and gate.passed for gate in watched or ()):
        gates = [_without_clocks(gate, is_asked_about, "right whatever the clocks say") for gate in gates]
    gates.append(_lead_gate(leads, watched or ()))
    labels = {spelled(label) for label in declared}
    if other_shapes == "reference":
        gates = [replace(gate, passed=True, reasons=()) if gate.gate == FEWER_ROWS else gate for gate in gates]
        labels.add(REFERENCE_ELSEWHERE)
    labels |= {LABELS[reason.kind] for gate in gates for reason in gate.reasons if reason.kind in LABELS}
    if op_log is not None:
        provenance = provenance_gates(op_log, graph, policy, reference_work=reference_work)
        gates = [_weighed(gate, op_log, graph, reference_work) for gate in gates] + provenance
        labels.update(f"torch:{row['op']}" for row in computing_rows(op_log))
        share = torch_share(op_log, graph, reference_work=reference_work)
        if policy != "open" and share is not None and share > LARGEST_SHARE:
            names = foreign_names(op_log, graph)
            gates = [_excused(gate, names) for gate in gates]
            labels.update(f"{FOREIGN}{name}" for name in names)
    if isinstance(source, CandidateSource):
        labels |= practices(source)
        labels |= open_labels(source, leads) if policy == "open" else set()
    gates += policy_gates(labels, policy, accuracy)
    return Audit(
        clean=all(gate.passed for gate in gates),
        policy=policy,
        gates=tuple(gates),
        labels=tuple(sorted(labels)),
    )


def needs_watching(text: str, *, task_source: str = "") -> bool:
    """True if even a screen needs the audit's own runs: the text gives a lead, or changes the compiler's printed
    binding."""
    source = read_source(text, task_source)
    if isinstance(source, Unreadable):
        return False
    return not source.trusted_names >= _BINDING or bool(leads_of(source))


def _symbols(build: Build, policy: Policy) -> list[Gate]:
    """Gates over the symbols of the built library, under the policy."""
    return [apply_policy(gate, policy) for gate in symbol_gates(built_file(build))] if build.artifact else []


def _of_runs(build: Build, watched: Sequence[Gate]) -> list[Gate]:
    """Gates of the audit's runs, without those over the built library, which was judged already."""
    name = build.artifact
    twice = {f"{gate} ({name})" for gate in ("symbols", "libraries", DEPENDENCE)} if name else set()
    return [gate for gate in watched if gate.gate not in twice]


def _lead_gate(leads: Sequence[Lead], watched: Sequence[Gate]) -> Gate:
    """Gate over the leads: it passes if there are none or if the candidate was watched to the end."""
    if not leads:
        return Gate(LEADS, True, NO_LEADS)
    if any(gate.gate == MAPPED_CODE for gate in watched):
        return Gate(LEADS, True, f"followed by the audit's own runs: {in_words(leads)}")
    return Gate(LEADS, False, f"the audit's own runs, which would follow them, were not made: {in_words(leads)}")


def _without_tuning(gates: list[Gate], source: CandidateSource) -> list[Gate]:
    """Gates of symbols without clocks that only tune a kernel before the first call."""
    is_clocked = any(is_clock(reason) for gate in gates for reason in gate.reasons)
    if not is_clocked or not clocks_are_apart(source):
        return gates
    return [_without_clocks(gate, is_clock, "a clock is read by what tunes it beforehand only") for gate in gates]


def _without_clocks(gate: Gate, is_excused: Callable[[Reason], bool], why: str) -> Gate:
    """The gate without its excused reasons; `why` is its evidence if none remains."""
    reasons = [reason for reason in gate.reasons if not is_excused(reason)]
    if gate.passed or len(reasons) == len(gate.reasons):
        return gate
    return make_gate(gate.gate, reasons, why)


def _excused(gate: Gate, names: Collection[str]) -> Gate:
    """The gate; passed if only foreign operators speak against the candidate, all of them under these names."""
    are_foreign = all(
        reason.kind == ReasonKind.TORCH_OPERATOR and foreign_name(reason.subject) in names for reason in gate.reasons
    )
    if gate.passed or not gate.reasons or not are_foreign:
        return gate
    return Gate(gate.gate, True, f"only {', '.join(names)}, which is not written for one task: {gate.evidence}")


def _weighed(gate: Gate, op_log: Sequence[OperatorRow], graph: OpGraph | None, reference_work: float | None) -> Gate:
    """Passes a failed gate if all its reasons are PyTorch operators that do at most LARGEST_SHARE of the work, as
    measured.

    Any other gate stays as it is, and so does one with an operator that the dispatcher missed.
    """
    share = torch_share(op_log, graph, reference_work=reference_work)
    seen = {kind_of(row) for row in op_log}
    is_measured = bool(gate.reasons) and all(
        reason.kind == ReasonKind.TORCH_OPERATOR and reason.subject in seen for reason in gate.reasons
    )
    if gate.passed or not is_measured or share is None or share > LARGEST_SHARE:
        return gate
    return Gate(gate.gate, True, f"measured at {100 * share:.2g} % of the reference's work: {gate.evidence}")
