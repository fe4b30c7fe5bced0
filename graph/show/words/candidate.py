"""One candidate in words: from the proposal that made it to its place, and what differs from another one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from foundry.graph.run.run_directory import Decision, RunDirectory
from foundry.graph.search.orders import USER
from foundry.graph.show.ranking import STAGE_WORDS
from foundry.graph.show.view import RunView
from foundry.knowledge.candidate import Candidate, Evaluation, Stage
from foundry.knowledge.reasons import WORDS
from foundry.knowledge.ruling import rule
from foundry.knowledge.step_words import origin_words, recipe_changes, spoken, step_words, with_words_for_keys

CHECKED: dict[Stage, str] = {"screen": "checked briefly", "full": "checked in full", "final": "proven"}
NOT_YET = "It is not evaluated yet."


def story(view: RunView, name: str, *, details: bool = False) -> list[str]:
    """One candidate from proposal to verdict; with `details` every stage's measurements, the moves' credits and the
    family. Raises UsageError when the run does not know it."""
    decision, records = view.run.decision(name), view.records(name)
    lines = [_origin(view, view.candidate(name), decision)]
    if decision is not None and decision.proposal is not None:
        lines += _proposal_lines(view, decision, details=details)
    if not records:
        lines.append(NOT_YET)
    elif not details:
        lines += _verdict_lines(view.run.evaluation(name), [stage for stage, _ in records])
    for stage, found in records if details else ():
        lines += [f"{stage}:", *(f"  {line}" for line in (*_verdict_lines(found, [stage]), *_detail_lines(found)))]
    lines += view.ranking.why(name)
    if details:
        children = [child for child, elders in view.parents.items() if name in elders]
        lines += ["lineage: " + " <- ".join(view.lineage(name)), f"children: {', '.join(children) or 'none'}"]
    return [line for line in lines if line]


def _proposal_lines(view: RunView, decision: Decision, *, details: bool) -> list[str]:
    """Lines about a candidate's diagnosis, proposal and expected effect, and the directives that it follows."""
    proposal, diagnosis, lines, told = decision.proposal, decision.diagnosis, list[str](), ""
    assert proposal is not None
    if diagnosis is not None:
        what = str(diagnosis.failure or diagnosis.limiter)
        found = f"{spoken(what)}. {_sentence(diagnosis.evidence)} {diagnosis.action}".rstrip()
        lines.append(f"Diagnosis of {proposal.parent}: {found}")
        told = f"{spoken(what)}: {diagnosis.evidence}. "  # the playbook's reasons begin with the diagnosis
    recipe = decision.candidate.recipe
    change = step_words(proposal.moves, names_kernels=recipe is not None and len(recipe.choices) > 1)
    why = with_words_for_keys(proposal.rationale.removeprefix(told))
    lines.append(f"{_who(proposal.expert)} proposed {change or 'a kernel of its own'}: {why}")
    credits = _credits(view, decision.candidate.id) if details else {}
    for move in proposal.moves if details else ():
        lines.append(f"  move {move.key}: {move.was} -> {move.value}  {move.reason}")
        lines += [f"    credited with {credits[move.key]}"] if move.key in credits else []
    lines.append(f"Expected: {proposal.expected}")
    if proposal.cites:  # a user's words beside their number; other ids are those of lessons
        texts = {f"d{item.directive.id}": item.directive.text for item in view.said}
        cited = (f"{cite} ({texts[cite]})" if cite in texts else cite for cite in proposal.cites)
        lines.append(f"It follows {', '.join(cited)}.")
    return lines


def _origin(view: RunView, candidate: Candidate, decision: Decision | None) -> str:
    """The sentence about a candidate's parents, island and step."""
    if candidate.island < 0:
        firsts = (item.candidate.recipe for item in view.decisions.values() if item.candidate.island < 0)
        words = origin_words(candidate.proposal or candidate.origin, candidate.recipe, next(firsts, None))
        return f"{candidate.id} is {words}."
    step = f" at {decision.step}" if decision else ""
    return f"{candidate.id} was made from {', '.join(candidate.parents)} on island {candidate.island}{step}."


def _sentence(text: str) -> str:
    """The text with a full stop, unless it is empty or ends with a mark."""
    return f"{text}." if text and text[-1] not in ".!?" else text


def _who(expert: str) -> str:
    """ "The user", or "The ... expert"."""
    return "The user" if expert == USER else f"The {expert} expert"


def _verdict_lines(evaluation: Evaluation, stages: list[Stage]) -> list[str]:
    """Sentences about a candidate's verdict: why it failed, or its class, times, speedup and share of the floor."""
    lines = []
    if not evaluation.build.ok:
        return [f"It did not compile: {evaluation.build.first_error}"]
    verdict, timing, profile, ruling = evaluation.verdict, evaluation.timing, evaluation.profile, rule(evaluation)
    if verdict is not None and not verdict.correct:
        return [f"It was rejected, {spoken(ruling.outcome)}: {ruling.evidence}"]
    if ruling.outcome in WORDS and not (timing and timing.problem):
        return [f"The auditor vetoed it, because {WORDS[ruling.outcome]}: {ruling.evidence}"]
    if verdict is not None:
        checked = " and ".join(CHECKED[stage] for stage in stages)
        lines.append(f"It is correct (accuracy class {verdict.accuracy_class}, {checked}).")
    if timing is not None and timing.problem:
        lines.append(f"It could not be timed: {timing.problem}")
    elif timing is not None:
        low, high = timing.speedup_ci95
        lines.append(
            f"{timing.candidate_ms:.4g} ms against {timing.baseline_ms:.4g} ms eager: {timing.speedup:.2f}x "
            f"(95 % interval {low:.2f} to {high:.2f}; {STAGE_WORDS[timing.stage]}, {timing.pairs} pairs)."
        )
    if profile is not None:
        lines.append(
            f"It reaches {100 * profile.fraction_of_floor:.0f} % of the speed that memory and arithmetic allow."
        )
    return lines


def _credits(view: RunView, candidate: str) -> dict[str, str]:
    """Move -> the effect that it was credited with when its candidate was recorded, in words."""
    booked = (event for event in view.events("note") if event.name == "credit" and event.data["candidate"] == candidate)
    return next((dict(event.data["credits"]) for event in booked), {})


def _detail_lines(evaluation: Evaluation) -> Iterable[str]:
    """Lines about an evaluation other than its verdict: build, errors, audit, gates, profile."""
    verdict, audit, profile = evaluation.verdict, evaluation.audit, evaluation.profile
    yield f"built in {evaluation.build.seconds:.2f} s" + (" (from the cache)" if evaluation.build.cached else "")
    for error in verdict.errors if verdict else ():
        yield f"{error.distribution}: error {error.norm_error:.2e}, PyTorch's own {error.baseline_norm_error:.2e}"
    if audit:
        yield f"audit ({audit.policy}): {'clean' if audit.clean else 'vetoed'} {', '.join(audit.labels)}".rstrip()
    for gate in (*(verdict.gates if verdict else ()), *(audit.gates if audit else ())):
        if not gate.passed:
            yield f"{gate.gate}: {gate.evidence}"
    if profile:
        rates = f"{profile.achieved_bytes_per_s / 1e9:.1f} GB/s, {profile.achieved_flops_per_s / 1e9:.1f} GFLOP/s"
        yield f"profile ({profile.rung}): {rates}"
    if judgement := rule(evaluation).judgement:
        yield f"judgement: {judgement}"


def diff(run: RunDirectory, candidate: str) -> list[str]:
    """The changes from the first parent to the candidate: the recipe in words, then the files as a unified diff."""
    child = run.evaluation(candidate)
    if not child.candidate.parents:
        return [f"{candidate} is a seed: it has no parent"]
    return compare_kernels(run, child.candidate.parents[0], candidate)


def compare_kernels(run: RunDirectory, one: str, other: str) -> list[str]:
    """The differences between two candidates: the recipe in words, then the files as a unified diff."""
    before, after = run.evaluation(one).candidate, run.evaluation(other).candidate
    old, new = run.text(before.source).splitlines(), run.text(after.source).splitlines()
    return [*recipe_changes(before.recipe, after.recipe), *difflib.unified_diff(old, new, one, other, lineterm="")]
