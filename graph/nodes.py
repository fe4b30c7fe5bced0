"""The root graph's nodes: intake, capture, baseline, recall, seed, decide, prove, compare, finish."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.asking import ask_for_budget, ask_for_export, ask_for_model
from foundry.graph.proofs.early import prove_early
from foundry.graph.proofs.pace import PLAN, plan_words
from foundry.graph.run.closing import EARLY
from foundry.graph.run.inbox import split_instructions
from foundry.graph.run.journal import Diverged
from foundry.graph.run.request import role_of
from foundry.graph.run.run_directory import FURTHER, Decision
from foundry.graph.run.services import Services
from foundry.graph.search.experts import claim_evaluation
from foundry.graph.search.final import finish_run, hold_contest, prove_finalists
from foundry.graph.search.first_texts import FEWEST_SEEDS, as_asked, first_texts
from foundry.graph.search.lessons import lessons, query
from foundry.graph.search.orders import added_islands, answer_untaken, check_instructions, no_orders
from foundry.graph.search.state import IslandReport, IslandState, RunState, Stop, Update, report_key, step_name
from foundry.graph.search.strategies.archive import ONE_CELL, Archive, candidate_number, cell_of, insert
from foundry.graph.search.strategies.prompt_rewriting import gather_evidence, rewrite, teach
from foundry.graph.search.think import evaluation_facts, find_ordered_stop
from foundry.knowledge.candidate import (
    REFERENCE,
    Audit,
    Build,
    Candidate,
    Coordinates,
    Evaluation,
    Recipe,
    Timing,
    Verdict,
)
from foundry.knowledge.errors import CannotLower, TellsNothing
from foundry.knowledge.experience.record import SEED
from foundry.knowledge.merit import CORRECT, WRONG, merit
from foundry.knowledge.roofline import floors
from foundry.knowledge.task_text import foreign_imports
from foundry.knowledge.thought import Role

SEEDS_AT_ONCE = 2
SHORTEST_MINUTES = 0.5  # of a search that has time for torch.compile beside it
LONG_MINUTES = 12.0  # a process for a model ends after 15

STRICT = (
    "strict refuses kernels that are compiled for the task's shapes, as all of the library's are: what is found "
    "here can be accepted only when it is a start file's or a chat model's"
)


async def intake(state: RunState, services: Services) -> Update:
    """Reads the task on the machine and refuses a bad one; raises TaskError."""
    if services.brain.name != "playbook" and not ask_for_model(services):
        services.refuse_model()
    found = await services.measure.intake()
    unread = split_instructions(services.task.options.instructions)[1]
    if unread and services.brain.name == "playbook":
        reason = f"the playbook reads only the steering language, not {unread[0]!r}"
        services.log.note_once("note", "instructions", reason=reason)
    services.log.note_once(
        "note",
        "task",
        task=services.task.name,
        device=services.device.key,
        brain=services.brain.name,
        inputs=[list(spec.shape) for spec in found.inputs],
        outputs=[list(spec.shape) for spec in found.outputs],
    )
    return {"round": 0}


async def capture(state: RunState, services: Services) -> Update:
    """Reports the operator graph: what is computed, and the time that the device's ceilings allow at best. Raises
    TaskError for instructions that no kernel of it can follow."""
    found = await services.measure.intake()
    if not found.graphs:
        services.log.note_once("note", "not captured", reason=found.capture_note)
        more = "; a chat model may write a kernel (--model NAME)" if services.brain.name == "playbook" else ""
        return {"lowerable": False, "ending": f"the task could not be captured: {found.capture_note}{more}"}
    graph = found.graphs[0]
    services.log.note_once(
        "note",
        "graph",
        operators=graph.op_counts(),
        flops=graph.flops,
        min_bytes=graph.min_bytes,
        floor_ms=floors(services.device, graph, services.task.options.policy).allowed_ms,
        signature=graph.signature,
        tracer=graph.tracer,
        shapes=len(found.graphs),
    )
    if graph.kept_class:
        needed = ", ".join(foreign_imports(services.task.text))
        reason = f"the kernel's file needs {needed} where it is used, because {graph.kept_class}"
        services.log.note_once("note", "more than torch", reason=reason)
    await check_instructions(services)
    return {"lowerable": True}


async def baseline(state: RunState, services: Services) -> Update:
    """Times the reference in eager mode and measures its own numerical error. Raises TellsNothing for a task that
    proves nothing, because no kernel for it can be accepted."""
    if not services.device.present:
        services.log.note_once(
            "note", "no device", reason=f"no {services.device.target} device is here: nothing can run"
        )
        return {}
    found, _ = await asyncio.gather(services.measure.baseline(), _build_ahead(services))
    if found.degenerate:
        raise TellsNothing(f"the task proves nothing: {found.degenerate}", "give it outputs that depend on its inputs")
    if found.label:
        services.log.note_once("note", "what tells", reason=found.label)
    services.log.note_once("note", PLAN, reason=await plan_words(services))
    return {}


async def _build_ahead(services: Services) -> None:
    """Compiles what may be the first candidate while the reference is timed, where that disturbs no clock: it is in the
    build cache then."""
    machine, graphs = services.measure.machine, await services.graphs()
    if machine is None or services.device.traits.uses_host_cores or not graphs:
        return
    with contextlib.suppress(CannotLower):  # the seeds say so
        recipes = services.library.seeds(graphs[0], services.device)[:FEWEST_SEEDS]
        texts = [(await services.lower_to_try(as_asked(recipe, services))).source for recipe in recipes]
        await asyncio.gather(*map(machine.build, texts))


async def recall(state: RunState, services: Services) -> Update:
    """Asks the experience store what worked on graphs like this one."""
    if services.store is not None and services.store.note:
        services.log.note_once("note", "experience store", reason=services.store.note)
    graphs = await services.graphs()
    if graphs:
        await services.recall("recall", query(graphs[0], services.device), k=24)
    return {}


async def seed(state: RunState, services: Services) -> Update:
    """Writes and evaluates the first candidates. The safest is evaluated first and alone, so that there is a proven one
    early; while none is correct, the library's further ones follow one by one."""
    asked, further, problem = await first_texts(services, state.get("lowerable", False))
    if problem:
        services.log.note_once("note", "cannot lower", reason=problem)
    if services.task.options.policy == "strict" and any(recipe for _, recipe, _ in asked):
        services.log.note_once("note", "policy", reason=STRICT)
    numbers = itertools.count()
    made = [found for text in asked if (found := _claim(services, next(numbers), *text))]
    if not made:
        if services.brain.name != "playbook" and services.device.present:  # give a model something to rewrite
            _time_rivals(services)
            services.run.add_evaluation(await _reference(services), "screen", "reference")
        ending = state.get("ending") or problem or "the kernel library has no first candidate for this task"
        return {"seeds": [], "lowerable": False, "ending": ending}
    seeds = _Seeds()
    await _evaluate_seed(services, made[0], seeds)
    await _expect_contest(services)
    if not services.device.traits.uses_host_cores:
        _time_rivals(services)
    gate = asyncio.Semaphore(SEEDS_AT_ONCE)

    async def one(decision: Decision) -> None:
        async with gate:
            if _has_time(services, decision, seeds):
                await _evaluate_seed(services, decision, seeds)

    await asyncio.gather(*(one(decision) for decision in made[1:]))
    for text in further:
        if not services.device.present or seeds.correct:
            break
        decision = _claim(services, next(numbers), *text)
        if decision is not None and _has_time(services, decision, seeds):
            await _evaluate_seed(services, decision, seeds)
    _time_rivals(services)
    ending = "" if services.device.present else f"no {services.device.target} device is here to run on"
    return {"seeds": by_number(seeds.evaluated), "refused": by_number(seeds.refused), "ending": ending}


async def _expect_contest(services: Services) -> None:
    """The winner's rivals are compiled while it is searched; not in a long run, whose processes would grow old, nor
    where a model is told of them before."""
    machine, request = services.measure.machine, services.request
    is_short = services.brain.name == PLAYBOOK and request.total_minutes < LONG_MINUTES
    if machine is not None and request.rivals and is_short:
        await machine.expect_contest(request.rivals)


def _time_rivals(services: Services) -> None:
    """Has torch.compile timed beside the search, where a model is to be told of it: on a GPU while the first candidates
    are tested, on a CPU, whose cores its compiler takes, while the model thinks for the first time."""
    request = services.request
    wanted = services.brain.name != PLAYBOOK and "compile" in request.rivals and request.max_minutes >= SHORTEST_MINUTES
    if wanted and services.device.present:
        services.measure.begin_rivals()


@dataclass
class _Seeds:
    """Ids of first candidates: those that were evaluated, the right ones, those that an early proof refuses."""

    evaluated: list[str] = field(default_factory=list)
    correct: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def _has_time(services: Services, decision: Decision, seeds: _Seeds) -> bool:
    """False once the search's time is over: further first candidates are left out, while none is right only after
    twice that time."""

    def look() -> bool:
        patience = 1.0 if seeds.correct else 2.0
        return services.ledger.spent().minutes < patience * services.ledger.allowed().minutes

    try:
        return bool(services.journal.plain(f"{decision.step}/time", "outside", look))
    except Diverged:  # a recording from before this was asked
        return True


def by_number(names: Iterable[str]) -> list[str]:
    """Candidates in the order in which they were claimed."""
    return sorted(names, key=candidate_number)


def _claim(services: Services, number: int, text: str, recipe: Recipe | None, why: str) -> Decision | None:
    """The decision to evaluate a first file, None when an earlier one is the same or the budget does not pay for it."""
    step = f"seed{number}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    claim = services.journal.plain(f"{step}/claim", "outside", lambda: claim_evaluation(digest, step, services))
    services.run.add_tried([*([recipe.digest] if recipe else []), digest])
    if not claim["fresh"]:
        return None
    candidate = Candidate(
        id=claim["candidate"],
        island=-1,
        generation=0,
        target=services.device.target,
        origin="user" if why == "user" or recipe is None else recipe.origin,
        source=services.run.keep(text),
        recipe=recipe,
        proposal=why,
    )
    decision = Decision(step, -1, candidate)
    services.run.add_decision(decision)
    return decision


async def _evaluate_seed(services: Services, decision: Decision, seeds: _Seeds) -> None:
    candidate = decision.candidate
    seeds.evaluated.append(candidate.id)
    with services.log.at(None, decision.step):
        lowered = await services.lower(candidate.recipe) if candidate.recipe else None
        text = services.run.text(candidate.source)
        if services.device.present:
            evaluation = await services.measure.examine(candidate, text, "screen", lowered=lowered)
        else:
            evaluation = await _only_built(services, candidate, text)
        services.run.add_evaluation(evaluation, "screen", decision.step)
        facts = evaluation_facts(evaluation)
        services.log.note_once("evaluation", candidate.id, **facts, expert=candidate.proposal)
        if services.device.present and merit([evaluation]) >= CORRECT:
            evaluation = await _prove_seed(services, evaluation, text, decision.step, seeds)
        graphs = await services.graphs()
        if graphs and services.device.present:
            await services.learn(
                lessons(
                    run=services.run.id,
                    step=decision.step,
                    task=services.task.name,
                    graph=graphs[0],
                    device=services.device,
                    diagnosis=None,
                    filed={SEED: 1},
                    parent=(),
                    child=[evaluation],
                    kernels=lowered.kernels if lowered else (),
                )
            )


async def _prove_seed(services: Services, evaluation: Evaluation, text: str, step: str, seeds: _Seeds) -> Evaluation:
    """The records of a right first candidate: its screen's, or those of an early proof that refuses it."""
    candidate = evaluation.candidate
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    refused = await prove_early(services, evaluation, text, lowered, step)
    if refused is None:
        seeds.correct.append(candidate.id)
        return evaluation
    seeds.refused.append(candidate.id)
    services.run.add_evaluation(refused, "full", step)
    with services.log.at(None, f"early/{candidate.id}"):
        services.log.note_once("evaluation", candidate.id, **evaluation_facts(refused), expert=EARLY)
    return refused


async def _only_built(services: Services, candidate: Candidate, text: str) -> Evaluation:
    """The evaluation of a candidate for a device that is not here: it is compiled, nothing is proven."""
    found = await services.measure.examine(candidate, text, "screen", upto="build")
    verdict = Verdict("unproven", "screen", evidence=f"no {candidate.target} device is here")
    return Evaluation(candidate, found.build, verdict) if found.build.ok else found


# islands and decisions


def first_reports(state: RunState, services: Services) -> IslandReport:
    """What every island starts from: all first candidates, each in its cell of the archive."""
    archive: Archive = {}
    population: dict[str, tuple[str, float]] = {}
    for name in state.get("seeds", []):
        evaluation = services.evaluation(name, "screen")
        value = WRONG if name in state.get("refused", []) else merit([evaluation])
        cell = cell_of(evaluation.coordinates)
        population[name] = (cell, value)
        if evaluation.coordinates is not None and value >= CORRECT:
            archive, _ = insert(archive, name, cell, value)
    if not population:
        archive, _ = insert(archive, REFERENCE, ONE_CELL, CORRECT)
        population = {REFERENCE: (ONE_CELL, CORRECT)}
    return IslandReport(
        generation=0,
        archive=archive,
        population=population,
        dry=[],
        transitions=[],
        directives=[],
        inbox_after=0,
        orders=no_orders(),
        folded=0,
    )


def island_inputs(state: RunState, services: Services) -> list[IslandState]:
    """What each strand of each island of the coming round is sent."""
    round_, strands = state.get("round", 0), services.request.strands
    start = first_reports(state, services)
    inputs = []
    usual, added = services.request.island_count, state.get("added", [])
    off = services.request.left_out  # each step looks again (`select`)
    for number, strand in itertools.product(range(usual + len(added)), range(strands)):
        begun = IslandReport({**start, "generation": 1 + strand - strands})
        earlier = state.get("islands", {}).get(report_key(number, strand), begun)
        archive = earlier["archive"]
        inputs.append(
            IslandState(
                run=str(services.run.path),
                island=number,
                strand=strand,
                role=role_of(number, round_, off),
                own_role=_added_role(number - usual, added),
                round=round_,
                generation=earlier["generation"],
                step=step_name(number, earlier["generation"]),
                archive=archive,
                population=earlier["population"],
                dry=earlier["dry"] if round_ == 0 else [],
                transitions=earlier["transitions"],
                directives=earlier["directives"],
                inbox_after=earlier["inbox_after"],
                orders=earlier["orders"],
                folded=earlier["folded"],
                islands_now=usual + len(added),
                best=max((elite["merit"] for elite in archive.values()), default=0.0),
                idle=0,
                misses=0,
                repairs=0,
                broken="",
                stop=None,
            )
        )
    return inputs


def _added_role(number: int, added: Sequence[str]) -> Role | None:
    """The role of the island that users added as this one; None where they named none."""
    return cast("Role", added[number]) if 0 <= number < len(added) and added[number] else None


async def _reference(services: Services) -> Evaluation:
    """The task's own module as candidate c0, with speedup 1: the parent of a model's first kernel."""
    found = await services.measure.baseline()
    candidate = Candidate(
        REFERENCE, -1, 0, services.device.target, "user", services.run.keep(services.task.text), proposal="reference"
    )
    services.run.add_decision(Decision("reference", -1, candidate))
    return Evaluation(
        candidate,
        Build(ok=True, seconds=0.0),
        Verdict("correct", "screen"),
        Audit(True, services.task.options.policy, labels=("reference",)),
        Timing("screen", found.eager_ms, found.eager_ms, 1.0, (1.0, 1.0), 0, found.noise, 1.0),
        None,
        Coordinates(0, 0, 0),
    )


def wants_islands(state: RunState, services: Services) -> bool:
    """Whether there is anything to search: a device, and a first candidate or a model that can write one."""
    return services.device.present and (bool(state.get("seeds")) or services.brain.name != "playbook")


async def decide(state: RunState, services: Services) -> Update:
    """When the islands are back: another round with other roles, or the end of the search."""
    reports = state.get("islands", {})
    if any(report["stop"] and report["stop"]["kind"] == "regroup" for report in reports.values()):
        return _regroup(state, services)
    stops = {number: stop for number, report in sorted(reports.items()) if (stop := report["stop"])}
    reasons = {number: stop["text"] for number, stop in stops.items()}
    round_ = state.get("round", 0) + 1
    again = services.journal.plain(f"decide{round_}", "outside", lambda: _again(services, round_, list(stops.values())))
    again = again or ask_for_budget(services, round_, list(stops.values()))
    services.log.note_once("note", f"round {round_} ends", reasons=reasons, again=again)
    if again:
        return {"round": round_, "ending": ""}
    return {"round": round_, "ending": _ending(list(reasons.values()))}


def _regroup(state: RunState, services: Services) -> Update:
    """The same round goes on, with the islands that users have added, unless the search is to end by now."""
    key = f"regroup{len(state.get('added', []))}"
    stop: Stop | None = services.journal.plain(f"{key}/stop", "outside", lambda: find_ordered_stop(services))
    added = services.journal.plain(key, "outside", lambda: added_islands(services.directives()))
    services.log.note_once("note", "regroup", added=len(added), reason=stop["text"] if stop else "")
    return {"added": added, "ending": stop["text"] if stop else ""}


def _again(services: Services, round_: int, stops: list[Stop]) -> bool:
    stuck = all(stop["kind"] in ("error", "exhausted") for stop in stops)
    rounds = services.effort.rounds + int(services.run.get(FURTHER, "0"))
    return find_ordered_stop(services) is None and not stuck and round_ < rounds


def _ending(reasons: list[str]) -> str:
    """The islands' reasons in one line, the same one once."""
    return "; ".join(dict.fromkeys(reasons)) or "the islands returned"


async def prove(state: RunState, services: Services) -> Update:
    """Proves the finalists in fresh processes; beside that, a model may rewrite a section of a prompt."""
    evidence = await gather_evidence(services)
    winner, _ = await asyncio.gather(prove_finalists(services), rewrite(evidence, services))
    return {"winner": winner}


async def compare(state: RunState, services: Services) -> Update:
    """Times the winner in turns with other ways to run the reference, torch.compile among them."""
    await hold_contest(services, state.get("winner", ""))
    return {}


async def finish(state: RunState, services: Services) -> Update:
    """Exports the winner with its receipt."""
    winner, ending = state.get("winner", ""), state.get("ending", "")
    if winner and not ask_for_export(services, services.evaluation(winner, "final")):
        services.run.set("winner", "")
        winner, ending = "", f"{winner} was proven, and the user did not want it exported"
    answer_untaken(services)
    await finish_run(services, winner, ending)
    await teach(services)
    return {"winner": winner}
