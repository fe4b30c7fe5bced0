"""Results of tools about a candidate's records, as lines for a chat model, bounded in number and length."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from foundry.knowledge.candidate import Evaluation, Gate, Resources, Timing
from foundry.knowledge.experience.record import ExperienceRecord
from foundry.knowledge.merit import estimate
from foundry.knowledge.ruling import objection, rule
from foundry.knowledge.step_words import key_words, spoken, step_words, with_words_for_keys
from foundry.knowledge.thought import Proposal

WORDS_CHARS = 200  # most characters of one evidence or reason
MOST_KERNELS = 8
MOST_TOLD = 12  # settings of one step that are named


def brief_words(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= WORDS_CHARS else f"{line[:WORDS_CHARS]}..."


def measured(records: Sequence[Evaluation]) -> str:
    """A candidate's speed by all its timings, as the search ranks it, or the reason why it was not timed.

    The text also has the last timing in ms and eager's in the same turns.
    """
    evaluation = records[-1]
    timing = evaluation.timing
    if timing is None:
        outcome = evaluation.verdict.outcome if evaluation.verdict else "compile_error"
        return f"not timed ({spoken(outcome)})"
    timings = [record.timing for record in records if record.timing is not None]
    found = estimate(timings)
    if math.isinf(found.deviation):
        low, speedup, high = timing.speedup_ci95[0], timing.speedup, timing.speedup_ci95[1]
    else:
        low, speedup, high = found.low, found.speedup, found.high
    text = f"{timing.candidate_ms:.4g} ms where eager took {timing.baseline_ms:.4g} ms, {speedup:.2f} times as fast as "
    text += f"eager (95 %: {low:.2f} to {high:.2f})"
    if len(timings) == 1:
        return f"{text} by one timing of {timing.pairs} pairs"
    return f"{text} by all {len(timings)} timings: {', '.join(_alone(item) for item in timings)}"


def _alone(timing: Timing) -> str:
    """One timing with the interval that it has by itself."""
    name, (low, high) = "proof" if timing.stage != "screen" else "screen", timing.speedup_ci95
    interval = f" ({low:.3g} to {high:.3g})" if high < math.inf else ""
    return f"{name} {timing.speedup:.3g}{interval}"


def beside_line(parent: str, turns: Timing) -> str:
    """A kernel's speedup over its parent; `turns` timed both in turns, with the parent as the baseline."""
    if turns.problem:
        return f"It could not be timed in turns with {parent}: {turns.problem}"
    low, high = turns.speedup_ci95
    clear = "" if low > 1 or high < 1 else ": not clearly another speed"
    return (
        f"In turns with {parent}, {turns.pairs} pairs: it took {turns.candidate_ms:.4g} ms and {parent} "
        f"{turns.baseline_ms:.4g} ms. So it is {turns.speedup:.2f} times as fast as {parent} (95 %: {low:.2f} to "
        f"{high:.2f}){clear}."
    )


def build_lines(evaluation: Evaluation) -> list[str]:
    """Lines about the build: the first error, or the compiler's report."""
    build = evaluation.build
    if not build.ok:
        return [f"It does not compile: {build.first_error}"]
    told = list(_resource_lines(build.resources))
    return ["It compiles.", *(told or ["Nothing is known of its code: it compiles itself, when `check` runs it."])]


def _resource_lines(resources: Resources) -> Iterator[str]:
    """Yields the compiler's report as lines: each kernel's registers and spills, vector width, loops on single
    numbers."""
    for name, facts in list(resources.kernels.items())[:MOST_KERNELS]:
        yield f"{_plain(name)}: {_facts(facts)}"
    if not resources.kernels and resources.registers:
        yield f"{resources.registers} registers, {resources.spill_bytes} bytes spilled"
    if resources.vector_bytes:
        yield f"the widest vector register in use has {resources.vector_bytes} bytes"
    for name, count in list(resources.scalar_loops.items())[:MOST_KERNELS]:
        yield f"a loop of {_plain(name)} works on one number at a time ({count} instructions)"


def _facts(facts: Mapping[str, float]) -> str:
    """ "name value" of each fact, separated by commas."""
    return ", ".join(f"{name} {value:g}" for name, value in facts.items())


def _plain(name: str) -> str:
    """A function's name as its author wrote it: the last part of a mangled one."""
    rest, found = re.sub(r"^_ZN?K?(?:St|S\d?_)*", "", name), name
    while rest != name and (part := re.match(r"L?(\d+)", rest)):
        end = part.end() + int(part[1])
        found, rest = rest[part.end() : end], rest[end:]
    return found


def _is_kernel(name: str) -> bool:
    """True if a function comes from the source and is no stub of the linker or the compiler."""
    return "@plt" not in name and name != "frame_dummy"


def code_lines(evaluation: Evaluation) -> list[str]:
    """Lines about the machine code: the build's lines, then counts of instructions by class of each kernel, largest
    first."""
    lines = build_lines(evaluation)
    resources = evaluation.build.resources
    kernels = [(name, facts) for name, facts in resources.instructions.items() if _is_kernel(name)]
    for name, facts in sorted(kernels, key=lambda item: -sum(item[1].values()))[:MOST_KERNELS]:
        lines += _code_of(_plain(name), facts)
    if resources.instruction_mix:
        lines.append(f"the whole library: {_counts(resources.instruction_mix)}")
    return lines


def _code_of(name: str, facts: Mapping[str, float]) -> Iterator[str]:
    """Lines about a function: its hot loop, if known, with its spills; then all its loops together."""
    hot = {kind: count for kind, count in _kinds_of(facts, "inner_") if kind != "stack"}
    if hot:
        stack = int(facts.get("inner_stack", 0.0) + hot.get("local_load", 0.0) + hot.get("local_store", 0.0))
        spills = f"; {stack} of them move values to or from the stack (spills)" if stack else "; none spills"
        yield f"{name}, its hot loop: {_counts(hot)}{spills}"
    together = dict(_kinds_of(facts, "hot_"))
    loops = int(facts.get("loops", 0.0))
    if together and together != hot:
        yield f"{name}, {f'all {loops} loops together' if loops else 'all of it, it has no loop'}: {_counts(together)}"


def _kinds_of(facts: Mapping[str, float], prefix: str) -> Iterator[tuple[str, float]]:
    """Yields (class, count) of the instruction counts with this prefix that are not 0."""
    for name, count in facts.items():
        if name.startswith(prefix) and count:
            yield name.removeprefix(prefix), count


def _counts(kinds: Mapping[str, float]) -> str:
    """The number of instructions, then each class with its count, the most frequent first."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return f"{sum(kinds.values()):g} instructions: " + ", ".join(f"{count:g} {kind}" for kind, count in ordered)


def check_lines(evaluation: Evaluation) -> list[str]:
    """Lines about correctness and audit: the outcome, the worst errors beside PyTorch's own, each failed gate."""
    if not evaluation.build.ok:
        return build_lines(evaluation)
    verdict, audit = evaluation.verdict, evaluation.audit
    if verdict is None:
        return ["It compiles. The task proves nothing, so that it was not run."]
    lines = [f"{verdict.outcome}{f', accuracy class {verdict.accuracy_class}' if verdict.accuracy_class else ''}"]
    lines[0] += f": {verdict.evidence}" if verdict.evidence else ""
    for error in sorted(verdict.errors, key=lambda item: -item.norm_error)[:4]:
        lines.append(
            f"{error.distribution}: the error's norm is {error.norm_error:.2e} of the float64 truth's, PyTorch's own "
            f"{error.baseline_norm_error:.2e}; the worst element is off by {error.worst_violation:.2g} of its tolerance"
        )
    lines += _failed(verdict.gates)
    if audit is not None:
        lines.append("the audit is clean" if audit.clean else "the audit vetoes it")
        lines += _failed(audit.gates)
    return lines


def _failed(gates: Sequence[Gate]) -> list[str]:
    """A line for each gate that failed, with its evidence in brief."""
    return [f"{gate.gate}: {brief_words(gate.evidence)}" for gate in gates if not gate.passed]


def time_lines(evaluation: Evaluation) -> list[str]:
    """Lines about the speed, or why it could not be timed; those about correctness if it came no further."""
    timing = evaluation.timing
    if timing is None:
        return check_lines(evaluation)
    if timing.problem:
        return [f"It could not be timed: {timing.problem}"]
    return [f"It is correct and takes {measured([evaluation])}. A quick timing, no proof."]


def profile_lines(evaluation: Evaluation) -> list[str]:
    """Lines about the profile after those about the speed: rates, launches, the limiter, each kernel's time and
    cause."""
    profile = evaluation.profile
    if profile is None:
        return time_lines(evaluation)
    source = "counted by the hardware" if profile.rung == "counters" else "of what must move and be computed at least"
    rates = ((profile.achieved_bytes_per_s, f"GB/s {source}"), (profile.achieved_flops_per_s, "GFLOP/s"))
    known = [f"{rate / 1e9:.4g} {unit}" for rate, unit in rates if rate]  # without a graph there is no traffic to count
    known.append(f"{profile.launches} launch{'es' * (profile.launches != 1)}; seen by {profile.rung}")
    lines = [*time_lines(evaluation), ", ".join(known)]
    if profile.limiter:
        lines.append(f"{profile.limiter}: {profile.cause}; {profile.evidence}. {profile.action}")
    for kernel in [kernel for kernel in profile.kernels if _is_kernel(kernel.name)][:MOST_KERNELS]:
        took = f"{kernel.ms:.4g} ms, {100 * kernel.share:.0f} %" if kernel.ms else ""
        if told := " ".join(filter(None, (took, kernel.cause, kernel.evidence))):
            lines.append(f"{_plain(kernel.name)}: {told}")
    if objected := objection(evaluation):
        lines.append(f"but {objected.evidence}")
    return lines


def attempt_line(name: str, proposal: Proposal, records: Sequence[Evaluation]) -> str:
    """One step in a line: candidate, parent, expert, moves, rationale, and its speed or its outcome with evidence."""
    if not records:
        came = "still under way"
    else:
        ruling = rule(records[-1])
        came = measured(records) if ruling.accepted else f"{spoken(ruling.outcome)}: {brief_words(ruling.evidence)}"
    is_kernel = proposal.recipe is not None and proposal.recipe.authored is not None
    change = step_words(proposal.moves, names_kernels=True, most=MOST_TOLD)
    change = change or f"a {'kernel' if is_kernel else 'file'} of its own"
    return f"{name} from {proposal.parent} by {proposal.expert} ({change}): {brief_words(proposal.rationale)} -> {came}"


def lesson_line(record: ExperienceRecord) -> str:
    """One lesson of an earlier run."""
    came = f"{record.lift:.2f}x of its parent" if record.lift is not None else spoken(record.outcome)
    credited = f"; {key_words(record.move)} was credited with {record.credit.words}" if record.credit else ""
    return f"x{record.id}: {brief_words(with_words_for_keys(record.text or record.move))}; {came}{credited}"
