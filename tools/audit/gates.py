"""The executable gates of the auditor, put together: static rules, symbols of the build, provenance at run time.

A failed gate vetoes and nothing overrules it. Allowed practices that a reader should know of become labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foundry.knowledge.candidate import Audit, Build, Gate
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.reasons import ReasonKind
from foundry.knowledge.task import AccuracyClass, Policy
from foundry.tools.audit.acts.conduct import allowed
from foundry.tools.audit.acts.provenance import LARGEST_SHARE, computing_rows, kind_of, provenance_gates, torch_share
from foundry.tools.audit.binary.symbols import symbol_gates
from foundry.tools.audit.policies import open_label, policy_gates, practices, spelled
from foundry.tools.audit.text.clocks import clocks_are_apart, is_clock
from foundry.tools.audit.text.dataflow import dataflow_findings
from foundry.tools.audit.text.native_rules import native_findings, native_texts, strip_comments
from foundry.tools.audit.text.python_rules import python_findings
from foundry.tools.audit.text.source import RULES, CandidateSource, Finding, read_source
from foundry.tools.protocol.reasons import judged


def static_gates(text: str, policy: Policy, *, task_source: str = "") -> list[Gate]:
    """One gate a rule of RULES, in that order, over the candidate's own Python and native text.

    Statements that equal the task's (`task_source`) or Foundry's own binding are not the candidate's and are left out.
    """
    return _gates(findings(text, policy, task_source), policy)


def audit(
    text: str,
    build: Build,
    op_log: Sequence[dict[str, Any]] | None,
    graph: OpGraph | None,
    policy: Policy,
    *,
    task_source: str = "",
    declared: Iterable[str] = (),
    reference_work: float | None = None,
    watched: Sequence[Gate] | None = None,
    accuracy: AccuracyClass | None = None,
) -> Audit:
    """Every gate over one candidate, and the labels of what it does that is allowed.

    `op_log` is what record_ops saw of ModelNew.forward, None when it could not run (a device that is not here): then
    no operator of PyTorch is tolerated. `declared` are the lowering's own labels ("rewrite:...", "torch:..."), beside
    those in the file. `watched` are the gates of the audit's own runs (audit/trial.py); what the text alone leaves
    open is settled by them, and counts against the candidate without them.
    """
    broken = findings(text, policy, task_source)
    if any(
        gate.gate == "mapped code" for gate in watched or ()
    ):  # it was watched to the end, and that speaks for itself
        broken = [finding for finding in broken if not finding.by_watching]
    gates = _gates(broken, policy)
    built = Path(build.artifact).name if build.artifact else ""
    if built:
        gates += [allowed(gate, policy) for gate in symbol_gates(Path(build.artifact))]
    twice = {f"symbols ({built})", f"libraries ({built})"} if built else set()
    gates += [gate for gate in watched or () if gate.gate not in twice]
    source = read_source(text, task_source)
    if isinstance(source, CandidateSource):
        gates = _without_tuning(gates, source)
    if op_log is not None:
        provenance = provenance_gates(op_log, graph, policy, reference_work=reference_work)
        gates = [_weighed(gate, op_log, graph, reference_work) for gate in gates] + provenance
    labels = {spelled(label) for label in declared}
    if isinstance(source, CandidateSource):
        labels |= practices(source)
    if policy == "open":
        labels |= {label for finding in broken if (label := open_label(finding))}
    labels.update(f"torch:{row['op']}" for row in computing_rows(op_log or ()))
    gates += policy_gates(labels, policy, accuracy)
    return Audit(
        clean=all(gate.passed for gate in gates),
        policy=policy,
        gates=tuple(gates),
        labels=tuple(sorted(labels)),
    )


def _without_tuning(gates: list[Gate], source: CandidateSource) -> list[Gate]:
    """Gates of symbols, without the clocks that only functions read which tune a kernel before the first call."""
    is_clocked = any(is_clock(reason) for gate in gates for reason in gate.reasons)
    if not is_clocked or not clocks_are_apart(source, [strip_comments(item) for _, item in native_texts(source)]):
        return gates
    return [_without_clocks(gate) for gate in gates]


def _without_clocks(gate: Gate) -> Gate:
    reasons = [reason for reason in gate.reasons if not is_clock(reason)]
    if gate.passed or len(reasons) == len(gate.reasons):
        return gate
    return judged(gate.gate, reasons, "a clock is read by what tunes it beforehand only")


def needs_watching(text: str, policy: Policy, *, task_source: str = "") -> bool:
    """Whether the audit's own runs are needed even for a screen: the text leaves something open, or its binding is not
    Foundry's own."""
    source = read_source(text, task_source)
    if isinstance(source, Finding):
        return False
    is_ours = source.trusted_names >= {"_holder", "_checked", "_flat"}
    return not is_ours or any(finding.by_watching for finding in findings(text, policy, task_source))


def findings(text: str, policy: Policy, task_source: str = "") -> list[Finding]:
    """What the rules find in the text."""
    source = read_source(text, task_source)
    if isinstance(source, Finding):
        return [source]
    found = [*python_findings(source), *dataflow_findings(source), *native_findings(source, policy)]
    return list(dict.fromkeys(found))


def _gates(findings: Sequence[Finding], policy: Policy) -> list[Gate]:
    gates = []
    for rule, promise in RULES.items():
        broken = sorted((item for item in findings if item.rule == rule), key=lambda item: item.line)
        words = "; ".join(f"line {item.line}: {item.what}" if item.line else item.what for item in broken[:4])
        more = f"; and {len(broken) - 4} more" if len(broken) > 4 else ""
        if broken and policy == "open" and all(open_label(item) for item in broken):
            gates.append(Gate(rule, True, f"allowed under open: {words}{more}"))
        else:
            gates.append(Gate(rule, not broken, words + more if broken else promise))
    return gates


def _weighed(gate: Gate, op_log: Sequence[dict[str, Any]], graph: OpGraph | None, reference_work: float | None) -> Gate:
    """Static mention of PyTorch operators is judged by their measured share of the work: what counts is who did it."""
    share = torch_share(op_log, graph, reference_work=reference_work)
    if gate.passed or share is None or share > LARGEST_SHARE:
        return gate
    if gate.reasons:  # operators that a binding calls; those the dispatcher did not see stay
        seen = {kind_of(row) for row in op_log}
        if any(reason.kind != ReasonKind.TORCH_OPERATOR or reason.subject not in seen for reason in gate.reasons):
            return gate
    elif gate.gate != "torch_compute":
        return gate
    return Gate(gate.gate, True, f"measured at {100 * share:.2g} % of the reference's work: {gate.evidence}")
