"""A brief in the words of the prompts: what fills their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foundry.agents.brief import Brief
from foundry.agents.chat.source import show
from foundry.agents.chat.task_words import describe_task, reference
from foundry.agents.judgement import AuditEvidence
from foundry.agents.prompt import render, template
from foundry.agents.situation import Situation
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.cards import cards
from foundry.knowledge.device import Device
from foundry.knowledge.thought import Diagnosis, Move

MOST_MOVES = 48
# What a step along a coordinate of the archive is in a kernel.
ADVICE: Mapping[tuple[str, str], str] = {
    ("d_mem", "up"): "move data better: wider vectors, tiles in cache or shared memory, register blocking, prefetch",
    ("d_mem", "down"): "a simpler memory path did better: fewer staging levels",
    ("d_algo", "up"): "change the algorithm: fuse passes, reformulate, apply an exact rewrite",
    ("d_algo", "down"): "the more direct algorithm did better: undo a reformulation",
    ("d_sync", "up"): "let threads cooperate more: split reductions over threads or blocks",
    ("d_sync", "down"): "less synchronisation did better: give each thread work of its own",
}
RULES = {
    "fair": "The dominant operations run in the candidate's own kernels; exact algebra; TF32 as eager may use it.",
    "open": "System speed: vendor GEMM and convolution calls and declared approximations are allowed and labelled.",
    "strict": "IEEE float32 only: no TF32, relaxed maths, graphs or shape locks; prepared weights track the weights.",
}


def contract(target: str) -> str:
    """What a candidate file for this target must be."""
    return render("contract", {"files": template(f"contract_{target}")})


def step_prompt(brief: Brief, diagnosis: Diagnosis, moves: Sequence[Move]) -> str:
    """The user message that asks an expert for its next step; `moves` are those it may choose by number."""
    return render(
        "step",
        {
            "task": brief.task.name,
            "target": brief.device.target,
            "instructions": f"The user says: {brief.task.options.instructions}\n"
            if brief.task.options.instructions
            else "",
            "asked": describe_task(brief.task, brief.graphs),
            "reference": show(reference(brief.task)),
            "device": _device(brief.device),
            "baseline": f"PyTorch eager {brief.baseline.eager_ms:.4g} ms",
            "island": str(brief.island),
            "role": brief.role,
            "step": brief.step,
            "parent": brief.parent.candidate.id,
            "measured": measured(brief.parent),
            "diagnosis": _diagnosis(diagnosis),
            "card": _card(diagnosis),
            "kernels": _kernels(brief),
            "moves": "\n".join(f"{number}: {_move(move)}" for number, move in enumerate(moves)) or "none",
            "experience": _experience(brief),
            "directives": _directives(brief),
            "hints": _hints(brief),
            "policy": brief.task.options.policy,
            "rules": RULES[brief.task.options.policy],
            "contract": contract(brief.device.target),
            "source": show(brief.parent_text),
        },
    )


def diagnose_prompt(brief: Brief, diagnosis: Diagnosis) -> str:
    """The user message that asks why a candidate failed."""
    return render(
        "diagnose",
        {
            "parent": brief.parent.candidate.id,
            "task": brief.task.name,
            "failure": diagnosis.failure or "",
            "evidence": diagnosis.evidence,
            "card": _card(diagnosis),
            "asked": describe_task(brief.task, brief.graphs),
            "reference": show(reference(brief.task)),
            "source": show(brief.parent_text),
        },
    )


def judge_prompt(evidence: AuditEvidence) -> str:
    """The user message that asks the auditor for an opinion."""
    timing, audit = evidence.evaluation.timing, evidence.evaluation.audit
    found = [*(audit.gates if audit else ()), *evidence.ruling.gates]
    gates = [f"- {gate.gate}: {'pass' if gate.passed else 'FAIL'}; {gate.evidence}" for gate in found]
    return render(
        "judge",
        {
            "candidate": evidence.evaluation.candidate.id,
            "task": evidence.task.name,
            "claim": f"a speedup of {timing.speedup:.2f}" if timing else "to be correct",
            "policy": evidence.task.options.policy,
            "rules": RULES[evidence.task.options.policy],
            "gates": "\n".join(gates) or "none ran",
            "numbers": evidence.ruling.judgement,
            "asked": describe_task(evidence.task, evidence.graphs),
            "reference": show(reference(evidence.task)),
            "source": show(evidence.text),
        },
    )


def _device(device: Device) -> str:
    lines = [
        f"{device.name} ({device.arch}), {device.cores} cores, {device.cache_bytes / 1e6:.4g} MB of last-level cache"
    ]
    if device.ceilings:
        top = device.ceilings
        lines.append(
            f"measured: copy {top.copy_bytes_per_s / 1e9:.4g} GB/s, in cache {top.cache_bytes_per_s / 1e9:.4g} GB/s, "
            f"float32 {top.ieee_flops_per_s / 1e9:.4g} GFLOP/s, TF32 {top.tf32_flops_per_s / 1e9:.4g} GFLOP/s, "
            f"16-bit floats {top.half_flops_per_s / 1e9:.4g} GFLOP/s, "
            f"one launch {1e3 * top.launch_ms:.3g} us"
        )
    return "\n".join(lines)


def measured(evaluation: Evaluation) -> str:
    """How fast a candidate was found to be, or why nobody knows."""
    timing, profile = evaluation.timing, evaluation.profile
    if timing is None:
        outcome = evaluation.verdict.outcome if evaluation.verdict else "compile_error"
        return f"not timed ({outcome})"
    low, high = timing.speedup_ci95
    text = f"{timing.candidate_ms:.4g} ms, {timing.speedup:.2f} times as fast as eager ({low:.2f} to {high:.2f})"
    return text + (f", {100 * profile.fraction_of_floor:.0f} % of the roofline" if profile else "")


def _diagnosis(diagnosis: Diagnosis) -> str:
    what = diagnosis.failure or diagnosis.limiter or "unknown"
    where = f" in {diagnosis.kernel}" if diagnosis.kernel else ""
    return f"{what}{where}: {diagnosis.evidence}\nRecommended action: {diagnosis.action}"


def _card(diagnosis: Diagnosis) -> str:
    name = diagnosis.failure or diagnosis.limiter
    return f"<playbook-card>\n{cards()[name].body}\n</playbook-card>" if name else ""


def _kernels(brief: Brief) -> str:
    situation = Situation(brief)
    if not situation.kernels:
        return "The parent was not written by the kernel library."
    lines = []
    for kernel in situation.kernels.values():
        share = situation.shares[kernel.name]
        lines.append(
            f"- {kernel.name} ({kernel.template}): {', '.join(kernel.ops)}; {kernel.flops / 1e6:.4g} MFLOP, "
            f"{kernel.traffic_bytes / 1e6:.4g} MB, about {100 * share:.0f} % of the time"
        )
        lines += [
            f"  - {item.name} = {kernel.choices.get(item.name, item.default)} of {', '.join(map(str, item.values))} "
            f"[{item.aspect}] {item.meaning}"
            for item in kernel.tunables
        ]
    return "\n".join(lines)


def _move(move: Move) -> str:
    if move.kind == "set":
        return f"set {move.name} of {move.kernel} from {move.was} to {move.value} [{move.aspect}] {move.reason}"
    return f"{move.kind} {move.name} [{move.aspect}] {move.reason}"


def _experience(brief: Brief) -> str:
    lines = [
        f"- x{hit.record.id} ({hit.why}): {hit.record.text or hit.record.move}"
        + (f"; {hit.record.lift:.2f}x" if hit.record.lift is not None else f"; {hit.record.outcome}")
        for hit in brief.hits[:8]
    ]
    lines += [
        f"- move {item.move}: {item.lift:.2f}x over {item.tries} tries, {item.wins} wins" for item in brief.lifts[:8]
    ]
    return "\n".join(lines) or "nothing yet"


def _directives(brief: Brief) -> str:
    here = [item for item in brief.directives if item.island in (None, brief.island)]
    return "\n".join(f"- d{item.id} to {item.to}: {item.text}" for item in here) or "none"


def _hints(brief: Brief) -> str:
    still = brief.stagnant_generations
    lines = [f"- stagnating: no improvement in {still} generations"] if still else []
    for hint in brief.hints:
        way = (hint.coordinate, hint.direction)
        lines.append(f"- {hint.coordinate} {hint.direction} ({hint.strength:+.2f}): {ADVICE[way]}")
    lines += [f"- {item.candidate.id}: {measured(item)}" for item in brief.elites[:4]]
    return "\n".join(lines) or "none"
