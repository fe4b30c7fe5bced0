"""A brief in the words of the prompts: what fills their slots, each within its budget."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from foundry.agents.brief import Brief, Example
from foundry.agents.judgement import AuditEvidence
from foundry.agents.prompt import render
from foundry.agents.prompt_text.authored import authored_words
from foundry.agents.prompt_text.findings import attempt_line, brief_words, measured
from foundry.agents.prompt_text.load import load_words
from foundry.agents.prompt_text.sections import Prompt, Section, cut, first_lines, fit, tokens
from foundry.agents.prompt_text.source import (
    WHOLE_CHARS,
    code_words,
    is_shown_whole,
    launches_of,
    outline_of_file,
    show,
    show_to_judge,
)
from foundry.agents.prompt_text.standing import FIRST, RULES, standing_words
from foundry.agents.prompt_text.task_words import describe_task, reference
from foundry.agents.situation import Situation
from foundry.agents.tuning import is_tuned
from foundry.knowledge.candidate import REFERENCE, Gate, Recipe, Rival
from foundry.knowledge.cards import cards
from foundry.knowledge.experience.record import SEED, Credit, ExperienceRecord
from foundry.knowledge.merit import Estimate, estimate_of
from foundry.knowledge.step_words import key_words, spoken, with_words_for_keys
from foundry.knowledge.targets import BUILT_IN, TargetTraits
from foundry.knowledge.thought import Diagnosis, Move

MOST_MOVES = 12
EXAMPLE_CHARS = 2_000
MOST_HELPED = 6  # moves that are listed with their credit
MOST_VALUES = 12  # values of one tunable that are listed
# Characters that a section may take; benchmarks/prompts.py measures what all of them come to.
BUDGETS: Mapping[str, int] = {
    "asked": 1_600,
    "reference": 5_000,
    "operators": 2_400,
    "buffers": 2_000,
    "first": 17_000,
    "diagnosis": 5_000,
    "card": 1_600,
    "kernels": 2_400,
    "moves": 2_600,
    "attempts": 2_400,
    "experience": 5_000,
    "directives": 1_200,
    "hints": 800,
    "others": 5_000,
    "source": 17_000,
}
_BOTH_ENDS = frozenset({"reference", "first", "diagnosis", "source"})
LIKE = 0.35  # largest share of a shown file that its list of differences may have; else the file itself is shorter
FEW_CHARS = 400  # characters; shorter lists of differences are always shown


def step_prompt(brief: Brief, diagnosis: Diagnosis, moves: Sequence[Move]) -> Prompt:
    """The user message that asks an expert for its next step; `moves` are those it may choose by number."""
    if brief.first and not _is_like_first(brief):
        brief = replace(brief, first="")  # two whole files cost more than the cache of the beginning saves
    standing = standing_words(brief)
    words = {
        **standing,
        "where": _where(brief),
        "diagnosis": _diagnosis(diagnosis, brief),
        "card": _card(diagnosis, brief.device.traits),
        "kernels": (kernels := _kernels(brief, moves)),
        "moves": "\n".join(_further_moves(moves, kernels)),
        "attempts": _attempts(brief),
        "experience": _experience(brief),
        "directives": _directives(brief),
        "hints": _hints(brief),
        "others": "\n\n".join(_example(example, brief) for example in brief.examples),
        "source": _parent_beside_first(brief),
    }
    return _fitted("step", words, set(standing))


def _attempts(brief: Brief) -> str:
    """A line for each earlier step from this parent, and one if another island works on it now."""
    lines = [f"- {attempt_line(item.candidate, item.proposal, item.records)}" for item in brief.attempts]
    if brief.parent.candidate.id in brief.thinking:
        who = "; ".join(brief.others) or "another engineer"
        lines.append(f"- at the same time a step from this parent is sought by {who}: take a step of another kind")
    return "\n".join(lines)


def _fitted(name: str, words: Mapping[str, str], standing: set[str]) -> Prompt:
    """The prompt from a template: each slot's text cut to its budget. `standing` slots come before "Where we are"."""
    parts = [Section(slot, text, BUDGETS.get(slot, len(text)), slot in _BOTH_ENDS) for slot, text in words.items()]
    slots, left_out = fit(parts)
    text = render(name, slots)
    sizes = {slot: tokens(len(part)) for slot, part in slots.items() if part}
    begins = text.find("\n## Where we are\n")
    return Prompt(text, max(0, begins) if standing else 0, sizes, left_out)


def judge_prompt(evidence: AuditEvidence) -> str:
    """The user message that asks the auditor for an opinion: claim, policy and rules, gates, numbers, task, reference,
    source."""
    timing = evidence.evaluation.timing
    gates = [f"- {gate.gate}: {'pass' if gate.passed else 'FAIL'}; {gate.evidence}" for gate in _gates_of(evidence)]
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
            "reference": reference(evidence.task),
            "source": _judged_file(evidence),
        },
    )


def _judged_file(evidence: AuditEvidence) -> str:
    """The part of the candidate's file that its author wrote; for a file printed from a recipe its kernels' code."""
    if evidence.evaluation.candidate.recipe is not None:
        told = "Foundry printed this file: what is not shown of it is the same in every file for such a task."
        return f"{told}\n{code_words(evidence.text, WHOLE_CHARS)}"
    return f"```python\n{show_to_judge(evidence.text)}\n```"


def seen_by_auditor(evidence: AuditEvidence) -> list[str]:
    """The texts that an auditor may quote: the candidate's file, numbers, gates' evidence and tools' answers."""
    told = [answer.text for _, answer in evidence.talk.calls]
    return [evidence.text, evidence.ruling.judgement, *(gate.evidence for gate in _gates_of(evidence)), *told]


def _gates_of(evidence: AuditEvidence) -> list[Gate]:
    """Gates of the audit, if there was one, then those of the ruling."""
    audit = evidence.evaluation.audit
    return [*(audit.gates if audit else ()), *evidence.ruling.gates]


def _where(brief: Brief) -> str:
    """The search's state: the parent beside the best kernel, both with eager's time in the same turns."""
    parent = brief.parent
    lines = [f"Island {brief.island}, which searches with an emphasis on {brief.role}; step {brief.step}."]
    best = brief.elites[0] if brief.elites else None
    if parent.candidate.id == REFERENCE:
        ms = brief.baseline.eager_ms
        lines.append(f"The parent is {REFERENCE}, the reference itself as eager PyTorch runs it, in {ms:.4g} ms.")
    else:
        lines.append(f"The parent is {parent.candidate.id}: {measured(brief.known_of(parent))}.")
    if best is None:
        lines.append("No kernel is correct yet.")
    elif best.candidate.id == REFERENCE:
        lines.append("No kernel is faster than it yet.")
    elif best.candidate.id == parent.candidate.id:
        lines.append("It is the best kernel of this island.")
    else:
        alike = _overlap(estimate_of(brief.known_of(best)), estimate_of(brief.known_of(parent)))
        told = ", whose speed is not clearly another" if alike else ""
        lines.append(f"The best of this island is {best.candidate.id}{told}: {measured(brief.known_of(best))}.")
        if not alike:
            lines.append(
                "The parent was drawn to keep the search broad: a kernel of yours may begin from the best one."
            )
    if brief.compiled is not None:
        lines.append(_compiled(brief.compiled))
    shown = {parent.candidate.id: brief.known_of(parent), **brief.records}
    timings = [record.timing for records in shown.values() for record in records if record.timing is not None]
    lines += filter(None, (load_words(brief.baseline, timings), _arithmetic(brief), brief.budget))
    return "\n".join(lines)


def _arithmetic(brief: Brief) -> str:
    """The products for which TF32 would be less accurate than PyTorch; "" if there are none or TF32 is not allowed."""
    if not brief.device.traits.has_tf32 or brief.graph is None or brief.task.options.policy == "strict":
        return ""
    words = brief.baseline.unrounded_in(brief.graph).words(brief.graph)
    return f"{words}: compute these as accurately as float32, for its own error is your bound." if words else ""


def _compiled(rival: Rival) -> str:
    """The sentence about torch.compile's time for the reference."""
    if rival.problem:
        return f"torch.compile gives no answer for the reference: {rival.problem[:200]}"
    return f"torch.compile takes {rival.ms:.4g} ms, {rival.over_baseline:.2f} times as fast as eager in the same turns."


def _overlap(one: Estimate | None, other: Estimate | None) -> bool:
    """True if both estimates are known and their intervals meet."""
    return one is not None and other is not None and one.low <= other.high and other.low <= one.high


def _parent(brief: Brief) -> str:
    """The parent in the form in which an answer may change it: authored code, whole file, or outline; a sentence for
    the reference."""
    if Situation(brief).is_reference:
        return "It is the reference itself, which stands above: there is no kernel yet. Write one."
    recipe = brief.lowered.recipe if brief.lowered else None
    if recipe is not None and recipe.authored is not None:
        return f"Replacements are made in this code.\n{authored_words(recipe)}"
    if not is_shown_whole(brief.parent_text):
        return outline_of_file(brief.parent_text)
    return f"Replacements are made in it as it stands here.\n{code_words(brief.parent_text)}"


def _parent_beside_first(brief: Brief) -> str:
    """The parent, by its differences from the run's first kernel if they are few: that kernel stands above already."""
    recipe = brief.lowered.recipe if brief.lowered else None
    if not brief.first or (recipe is not None and recipe.authored is not None):
        return _parent(brief)
    if not is_shown_whole(brief.first):
        return _parent(brief)
    if not (differs := _differences(brief.first, brief.parent_text)) and not _is_like_first(brief):
        return _parent(brief)
    told = [f"It is {FIRST}'s code, which stands above" + (" but for these lines" if differs else "") + "."]
    told.append("Replacements are made in its own code.")
    if (launches := launches_of(brief.parent_text)) != launches_of(brief.first):
        told.append(launches)
    return " ".join(told) + (f"\n```diff\n{differs}\n```" if differs else "")


def _is_like_first(brief: Brief) -> bool:
    """True if the prompt shows the parent by its differences from the run's first kernel."""
    recipe = brief.lowered.recipe if brief.lowered else None
    if recipe is None or recipe.authored is not None or not is_shown_whole(brief.first):
        return False
    return _is_same_code(brief.first, brief.parent_text) or bool(_differences(brief.first, brief.parent_text))


def _differences(first: str, other: str) -> str:
    """The lines in which a file's code differs from the first's, bodies that are folded where it is shown included; ""
    where that is most of it."""
    before, after = (show(text, WHOLE_CHARS).splitlines() for text in (first, other))
    differs = "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=0))[2:])
    return differs if len(differs) <= max(FEW_CHARS, LIKE * len(show(other))) else ""


def _is_same_code(first: str, other: str) -> bool:
    """True if both files look the same as a model sees them in full."""
    return show(first, WHOLE_CHARS) == show(other, WHOLE_CHARS)


def _example(example: Example, brief: Brief) -> str:
    """Another kernel of this run, as its author wrote it or as the kernel compiler's kernels stand in its file, unless
    that
    stands above already."""
    candidate = example.evaluation.candidate
    head = f"{candidate.id}, {example.why}: {measured(brief.known_of(example.evaluation))}"
    if candidate.id == REFERENCE:
        return f"{head}. It is the reference above."
    if candidate.recipe is not None and candidate.recipe.authored is not None:
        return f"{head}\n{_authored_beside(candidate.recipe, brief)}"
    near = [(brief.first, f"{FIRST} above"), (brief.parent_text, "the parent below")]
    near = [(text, where) for text, where in near if text]
    if same := next((where for text, where in near if _is_same_code(text, example.text)), ""):
        return f"{head}. Its code is that of {same}."
    told = [(_differences(text, example.text), where) for text, where in near]
    if likest := min((item for item in told if item[0]), key=lambda item: len(item[0]), default=None):
        return f"{head}. It is {likest[1]} but for these lines:\n```diff\n{cut(likest[0], EXAMPLE_CHARS)}\n```"
    if "@foundry body" in show(example.text, EXAMPLE_CHARS):
        return f"{head}. Its code is too long to be shown here; the tool `show` gives it."
    return f"{head}\n{code_words(example.text, EXAMPLE_CHARS)}"


def _authored_beside(recipe: Recipe, brief: Brief) -> str:
    """An author's kernel, by what differs from the parent's where that is little: the parent's stands below."""
    parent = brief.lowered.recipe if brief.lowered else None
    if parent is None or parent.authored is None or recipe.authored is None:
        return authored_words(recipe)
    own, other = authored_words(parent), authored_words(recipe)
    lines = difflib.unified_diff(own.splitlines(), other.splitlines(), lineterm="", n=0)
    differs = "\n".join(list(lines)[2:])
    if not differs:
        return "It is the parent, which stands below."
    if len(differs) > LIKE * len(other):
        return other
    return f"It is the parent below but for these lines (- the parent's, + its own):\n```diff\n{differs}\n```"


def _diagnosis(diagnosis: Diagnosis, brief: Brief) -> str:
    """The diagnosis in two lines: the failure or limit with its evidence, and the recommended action."""
    what = spoken(diagnosis.failure or diagnosis.limiter or "unknown")
    where = f" in {diagnosis.kernel}" if diagnosis.kernel else ""
    return f"{what}{where}: {_evidence(diagnosis, brief)}\nRecommended action: {diagnosis.action}"


def _evidence(diagnosis: Diagnosis, brief: Brief) -> str:
    """The diagnosis' evidence; for a file that does not compile also the compiler's errors."""
    said = brief.parent.build.errors
    if diagnosis.failure != "compile_error" or not said:
        return diagnosis.evidence
    return f"{'' if diagnosis.evidence in said else diagnosis.evidence}\n```\n{said}\n```"


def _card(diagnosis: Diagnosis, target: TargetTraits) -> str:
    """The playbook's card of a failure, without its signs (they are the evidence) and without other targets.

    "" for a limiter: its card repeats what an engineer knows.
    """
    if not diagnosis.failure:
        return ""
    others = tuple(f"- {name.upper()}:" for name in BUILT_IN if name != target.prompts)
    kept: list[str] = []
    drops = False
    for line in cards()[diagnosis.failure].body.splitlines():
        if line.startswith("## "):
            drops = line == "## Signs"
        else:
            drops = line.startswith(others) or (drops and not line.startswith("- "))
        kept += [] if drops else [line]
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in kept)


def _kernels(brief: Brief, moves: Sequence[Move]) -> str:
    """The parent's kernels and the legal values of their tunables; behind a value the number of the move that sets
    it."""
    situation = Situation(brief)
    if not situation.kernels:
        return ""  # the parent is a whole file
    numbers = {(move.kernel, move.name, move.value): number for number, move in enumerate(moves) if move.kind == "set"}
    lines = ["`(move N)` behind a value is the move that sets it; the playbook would try the lowest numbers first."]
    lines = lines if numbers else []
    if is_tuned(brief):
        lines.append("The tuner has swept these numbers in this run; what it found is a candidate of its own.")
    if "= _Prepared(" in brief.parent_text:
        lines.append("Functions of its code that are not listed here run once, when parameters are loaded or changed.")
    explained = set[tuple[str, str]]()
    for kernel in situation.kernels.values():
        share = situation.shares[kernel.name]
        lines.append(
            f"- {kernel.name} ({kernel.template}): {', '.join(kernel.ops)}; {kernel.flops / 1e6:.4g} MFLOP, "
            f"{kernel.traffic_bytes / 1e6:.4g} MB, about {100 * share:.0f} % of the time"
        )
        for item in (item for item in kernel.tunables if len(item.values) > 1):
            known = [(value, numbers.get((kernel.name, item.name, value))) for value in item.values[:MOST_VALUES]]
            values = ", ".join(f"{value}" if number is None else f"{value} (move {number})" for value, number in known)
            chosen = kernel.choices.get(item.name, item.default)
            meaning = "" if (kernel.template, item.name) in explained else f": {item.meaning}"
            explained.add((kernel.template, item.name))
            lines.append(f"  - {item.name} = {chosen} of {values}{meaning}")
    return first_lines(Section("kernels", "\n".join(lines), BUDGETS["kernels"]))


def _further_moves(moves: Sequence[Move], kernels: str) -> Iterator[str]:
    """The moves that do not stand behind a value of a tunable, by number."""
    for number, move in enumerate(moves):
        if f"(move {number})" not in kernels:
            yield f"{number}: {_move(move)}"


def _move(move: Move) -> str:
    """A move as one line; a setting without its reason, which stands with the tunable."""
    if move.kind == "set":  # its meaning stands with the tunable
        return f"set {move.name} of {move.kernel} from {move.was} to {move.value} [{move.aspect}]"
    return f"{move.kind} {move.name} [{move.aspect}] {move.reason}"


def _experience(brief: Brief) -> str:
    """Lessons of earlier runs, credits of moves, and the best kernel that an author wrote for such a graph."""
    lines = [
        f"- x{hit.record.id} ({hit.why}): {_lesson(hit.record)}"
        + (f"; {hit.record.lift:.2f}x of its parent" if hit.record.lift is not None else f"; {hit.record.outcome}")
        for hit in brief.hits[:8]
        if hit.record.move != SEED or hit.record.is_run_best  # where a run began says nothing of a next step
    ]
    lines += [f"- {key_words(item.move)}: credited with {item.words}" for item in _telling(brief.credits)]
    own = brief.lowered.recipe.authored if brief.lowered else None
    written = [
        (hit.record.child_speedup or 0.0, hit.record.id, hit.record.recipe)
        for hit in brief.hits
        if hit.record.recipe
        and hit.record.recipe.authored not in (None, own)
        and hit.record.target == brief.device.target
    ]
    shown = [example.evaluation.candidate.recipe for example in brief.examples]
    known = {recipe.authored.digest for recipe in shown if recipe is not None and recipe.authored is not None}
    for _, name, recipe in sorted(written, key=lambda item: -item[0])[:1]:
        if recipe.authored is not None and recipe.authored.digest not in known:
            lines.append(f"The kernel of x{name}:\n{_authored_beside(recipe, brief)}")
    return "\n".join(lines)


def _telling(credits: Sequence[Credit]) -> list[Credit]:
    """The credits of moves that clearly helped most and that clearly cost; moves only made together count once."""
    apart: dict[frozenset[str], Credit] = {}
    for one in credits:
        apart.setdefault(frozenset((one.move, *one.inseparable)), one)
    each = list(apart.values())
    return [one for one in each if one.low > 1][:MOST_HELPED] + [one for one in each if one.high < 1][-2:]


def _lesson(record: ExperienceRecord) -> str:
    """The step of an earlier run and its result, without task and device (they are in the reason of the recall)."""
    told = record.text.removeprefix(f"{record.task} on ").partition(": ")[2] or record.text or record.move
    return brief_words(with_words_for_keys(told))


def _directives(brief: Brief) -> str:
    """A line for each directive to all islands or to the brief's own."""
    here = [item for item in brief.directives if item.island in (None, brief.island)]
    return "\n".join(f"- d{item.id} to {item.to}: {item.text}" for item in here)


def _hints(brief: Brief) -> str:
    """Lines about stagnation and the brief's notes."""
    still = brief.stagnant_generations
    lines = [f"- stagnating: no improvement in {still} generations"] if still else []
    return "\n".join([*lines, *(f"- {note}" for note in brief.notes)])
