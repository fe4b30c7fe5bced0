"""The end of a run: finalists proven in fresh processes with unused seeds, the winner timed beside
the baselines, and exported with its receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from foundry.agents.judgement import AuditEvidence
from foundry.agents.models.models import PLAYBOOK
from foundry.agents.talk import Talk, ToolRequest, Turn
from foundry.graph.proofs.causes import FailureCause, Kin, ProofOutcome, cause_of, kin_of
from foundry.graph.proofs.early import outlook_of
from foundry.graph.proofs.pace import rivals_in_time
from foundry.graph.run.closing import LEFT_UNPROVEN
from foundry.graph.run.services import Services
from foundry.graph.search.lessons import lessons
from foundry.graph.search.measure import evaluation_facts
from foundry.graph.search.toolbox import Kernel, answer_all, tools_of
from foundry.knowledge.candidate import Evaluation, Judgement, Resources
from foundry.knowledge.experience.record import SEED
from foundry.knowledge.merit import estimate_of, merit
from foundry.knowledge.ruling import rule

AUDITOR = "auditor"
RANKED = 64  # candidates among which an accurate one is looked for


@dataclass(frozen=True)
class Finalists:
    """Ids of the candidates that may be proven, best first: a decision of the search, so a replay compares it."""

    candidates: tuple[str, ...] = ()


async def finish_run(services: Services, winner: str, ending: str) -> None:
    """Exports the winner and leaves its lesson in the store. Without a device writes the first kernel that compiles."""
    services.measure.note_lock()
    services.run.set("ending", ending)
    if winner:
        evaluation = services.evaluation(winner, "final")
        await _export(services, evaluation)
        await _teach(services, evaluation)
        services.log.note_once("note", "winner", candidate=winner, **evaluation_facts(evaluation))
    elif not services.device.present:
        _export_unproven(services)


async def prove_finalists(services: Services) -> str:
    """Proves the best candidates. Returns the winner's id, "" if none was accepted or no device is here."""
    winner = await _prove(services) if services.device.present else None
    services.run.set("winner", winner.candidate.id if winner else "")
    return winner.candidate.id if winner else ""


async def hold_contest(services: Services, winner: str) -> None:
    """Times the winner (or the reference alone) in turns with the baselines that the user asked for.

    Does nothing without a device, without such a request, or if there is no time for it.
    """
    request = services.request
    if not services.device.present or not (request.rivals or request.foreign):
        return
    text = services.run.text(services.candidate(winner).source) if winner else ""
    rivals = await rivals_in_time(services, _proof_seconds(services, winner))
    if not (rivals or request.foreign):
        return
    found = await services.measure.contest(text, rivals, request.foreign)
    for line in found.notes:
        services.log.note_once("note", "contest", reason=line)


async def _prove(services: Services) -> Evaluation | None:
    """Gives the best candidates the final protocol until enough have passed, no other can win, or time is up.

    The winner has the highest merit by its final timings alone. Earlier timings do not count, because candidates became
    finalists by being lucky in them.
    """
    count = services.request.finalist_count

    async def choose() -> Finalists:
        """The best 2 * `count` candidates of the ranking, and the best without TF32 products if all of these have
        some."""
        return Finalists(_with_an_accurate_one(services.run.ranking(RANKED), 2 * count, services))

    finalists = await services.journal.record("finalists", "thought", Finalists, choose)
    outlook, kins = outlook_of(services), _kins(services, finalists.candidates)
    proven: list[Evaluation] = []
    done, left = 0, list(finalists.candidates)
    while left:
        name = outlook.order(left, kins)[0]
        left.remove(name)
        if len(proven) == count or (proven and not _can_win(services, name, proven)):
            break
        if (proven or done > 1) and not services.journal.plain(
            f"final/{name}/time", "outside", partial(_is_time, services, done)
        ):
            break
        if cause := outlook.shared_cause(kins[name]):
            _leave_unproven(services, name, cause)
            continue
        evaluation = await _prove_one(services, name)
        done += 1
        outlook.outcomes.append(ProofOutcome(name, kins[name], cause_of(evaluation)))
        if rule(evaluation).accepted:
            proven.append(evaluation)
    return max(proven, key=lambda evaluation: merit([evaluation]), default=None)


def _kins(services: Services, names: Sequence[str]) -> dict[str, Kin]:
    """Kinship of each of these candidates, by name."""
    return {name: kin_of(services.candidate(name)) for name in names}


def _with_an_accurate_one(ranked: Sequence[str], count: int, services: Services) -> tuple[str, ...]:
    """The best candidates; if all of them multiply in TF32, which a proof may refuse, also the best one that does
    not."""
    kins = _kins(services, ranked)
    accurate = [name for name in ranked if not kins[name].rounded]
    return tuple(dict.fromkeys([*ranked[:count], *accurate[: 0 if set(accurate) & set(ranked[:count]) else 1]]))


def _leave_unproven(services: Services, name: str, cause: FailureCause) -> None:
    """Says why a finalist is not proven: others with its structure have failed for this cause."""
    with services.log.at(None, f"final/{name}"):
        services.log.note_once("note", LEFT_UNPROVEN, candidate=name, reason=cause.words)


def _proof_seconds(services: Services, winner: str) -> float:
    """Seconds that the winner's proof took; 0 without a winner."""
    spans = [event for event in services.log.read("tool") if winner and event.step == f"final/{winner}"]
    return sum(event.seconds or 0.0 for event in spans)


def _can_win(services: Services, name: str, proven: Sequence[Evaluation]) -> bool:
    """True if a candidate's interval, by all its timings, reaches above the best lower end of a proven one's."""
    found = estimate_of(services.run.records(name))
    known = [estimate_of([evaluation]) for evaluation in proven]
    return found is not None and found.high > max(item.low for item in known if item is not None)


def _is_time(services: Services, done: int) -> bool:
    """True if another finalist would end in time, if it takes as long as those before it did on average."""
    spans = [event for event in services.log.read("tool") if event.step.startswith("final/")]
    each_s = sum(event.seconds or 0.0 for event in spans) / done
    return services.ledger.spent().minutes + each_s / 60 <= services.request.total_minutes


async def _prove_one(services: Services, name: str) -> Evaluation:
    """Proves one finalist with unused seeds, the auditor included; records and returns its evaluation."""
    candidate = services.candidate(name)
    text = services.run.text(candidate.source)
    step = f"final/{name}"

    lowered = await services.lower(candidate.recipe) if candidate.recipe else None

    async def judge(evaluation: Evaluation) -> Judgement:
        """Asks the auditor about this finalist with its proof."""
        return await _ask_auditor(services, Kernel(candidate, text, lowered, (evaluation,)))

    with services.log.at(None, step):
        evaluation = await services.measure.examine(candidate, text, "final", lowered=lowered, judge=judge)
        services.journal.plain(f"final/{name}/seeds", "measure", services.measure.seeds)
        services.run.add_evaluation(evaluation, "final", step)
        services.log.note_once("evaluation", name, **evaluation_facts(evaluation), expert="final")
    return evaluation


@dataclass(frozen=True)
class AuditorAnswer:
    """The auditor's answer: its judgement, or calls of tools that it wants answered first."""

    judgement: Judgement = field(default_factory=Judgement)
    request: ToolRequest | None = None


async def _ask_auditor(services: Services, kernel: Kernel) -> Judgement:
    """The auditor's judgement of a finalist that everything else accepts; a doubt in it rejects the finalist.

    With a model it may call tools first, as the experts of the islands do.
    """
    evaluation = kernel.records[-1]
    found = rule(evaluation)
    evidence = AuditEvidence(services.task, evaluation, found, kernel.text, tuple(await services.graphs()))
    if services.brain.name != PLAYBOOK:
        evidence = replace(evidence, tools=tools_of(AUDITOR, services))
    with services.log.span("expert", AUDITOR, purpose="judge", candidate=kernel.candidate.id) as span:
        answer = await _judge(services, evidence)
        while answer.request is not None:
            turns = evidence.talk.turns
            place = f"judge/{kernel.candidate.id}/call/{len(turns)}"
            answers = await answer_all(answer.request, place, AUDITOR, kernel, services)
            evidence = replace(evidence, talk=Talk((*turns, Turn(answer.request, answers))))
            answer = await _judge(services, evidence)
        span.data["judgement"] = answer.judgement.text or found.judgement
        span.data["doubt"] = answer.judgement.doubt
    return answer.judgement


async def _judge(services: Services, evidence: AuditEvidence) -> AuditorAnswer:
    """The auditor's answer, journalled as a thought."""

    async def think() -> AuditorAnswer:
        """Asks the brain for its judgement, or for the tool calls that it wants first."""
        found = await services.brain.judge(evidence)
        return AuditorAnswer(request=found) if isinstance(found, ToolRequest) else AuditorAnswer(found)

    key = f"judge/{evidence.evaluation.candidate.id}/{len(evidence.talk.turns)}"
    return await services.journal.record(key, "thought", AuditorAnswer, think)


async def _export(services: Services, winner: Evaluation) -> None:
    """Writes kernel.py and receipt.json to the run directory; a replay writes no receipt."""
    text = services.run.text(winner.candidate.source)
    services.run.write(services.run.path / "kernel.py", text.encode())
    if services.recorded is None:
        services.write_receipt(services, winner)


def _export_unproven(services: Services) -> None:
    """Without a device to run on, writes the first candidate that compiles to kernel.py, without a receipt."""
    for evaluation, _ in services.run.evaluations():
        if evaluation.build.ok:
            text = services.run.text(evaluation.candidate.source)
            services.run.write(services.run.path / "kernel.py", text.encode())
            reason = f"{evaluation.candidate.id} compiles: {_resource_words(evaluation.build.resources)}"
            services.log.note_once("note", "unproven kernel", candidate=evaluation.candidate.id, reason=reason)
            return


def _resource_words(resources: Resources) -> str:
    """The compiler's report of resources in words, for each kernel if it names them."""
    if resources.kernels:
        return "; ".join(
            f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in facts.items())
            for name, facts in resources.kernels.items()
        )
    occupancy = f", occupancy {resources.occupancy:.2f}" if resources.occupancy is not None else ""
    return f"{resources.registers} registers, {resources.spill_bytes} bytes spilled{occupancy}"


async def _teach(services: Services, winner: Evaluation) -> None:
    """Leaves the winner's recipe in the store, for later runs on graphs like this one; nothing without a graph."""
    graphs = await services.graphs()
    if not graphs:
        return
    recipe = winner.candidate.recipe
    decision = services.run.decision(winner.candidate.id)
    found = lessons(
        run=services.run.id,
        step="winner",
        task=services.task.name,
        graph=graphs[0],
        device=services.device,
        diagnosis=decision.diagnosis if decision else None,
        filed={SEED: 1},
        parent=(),
        child=[winner],
        kernels=(await services.lower(recipe)).kernels if recipe else (),
        is_run_best=True,
    )
    await services.learn([replace(item, receipt=str(services.run.path / "receipt.json")) for item in found])
