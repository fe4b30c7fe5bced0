"""`foundry agent solve --dry-run`: what a run with models may cost and would ask first. No model is asked, no run
begins, nothing is compiled or timed; the task is run once, as it is to be read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foundry.agents.brief import Brief
from foundry.agents.chat.brain import system_words
from foundry.agents.chat.options import ChatOptions
from foundry.agents.chat.proposal import Menu
from foundry.agents.expert import experts
from foundry.agents.models.estimate import CostEstimate, estimate
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt_text.messages import step_prompt
from foundry.agents.prompt_text.sections import tokens
from foundry.agents.route import ranking
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.services import Library
from foundry.knowledge.candidate import REFERENCE, Baseline, Build, Candidate, Evaluation, Profile, Timing, Verdict
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower, UsageError
from foundry.knowledge.opgraph import OperatorRun, OpGraph, Signature
from foundry.knowledge.task import Task
from foundry.knowledge.thought import Diagnosis, ExpertName
from foundry.tools.audit.acts.provenance import refused_plan

PLACEHOLDER_MS = 1.0  # ms of eager in a brief without timings; the kernel's time is half of it


@dataclass(frozen=True)
class FirstPrompt:
    """The first prompt that an expert would get, the models that would get it, and its size in tokens."""

    expert: ExpertName
    models: tuple[str, ...]
    system: str
    user: str
    tokens: int


@dataclass(frozen=True)
class DryRun:
    """The estimated cost and the first prompts of a run with models.

    `notes` say what the estimates assume, and which caps would end the models earlier.
    """

    notes: tuple[str, ...]
    estimates: tuple[CostEstimate, ...]
    prompts: tuple[FirstPrompt, ...]

    @property
    def lines(self) -> list[str]:
        """The estimates and prompts as lines of text."""
        found = [*self.notes, *(item.words for item in self.estimates)]
        for prompt in self.prompts:
            who = f"{prompt.expert}, asked of {' or '.join(prompt.models)}, about {prompt.tokens:,} tokens"
            found += [f"----- {who}: system", prompt.system]
            found += ["----- user", prompt.user] if prompt.user else ["----- user: as above, with moves of its own"]
        return found


async def dry_run(request: SolveRequest, parts: Parts, playbook: PlaybookBrain | None = None) -> DryRun:
    """The most that models may cost in this run, with their first prompts, without asking any; the task is checked and
    captured.

    `playbook`: whose moves are listed. Raises TaskError, MissingTool, UsageError, also without a model.
    """
    if not request.models:
        raise UsageError("a dry run says what models may cost, and none is asked for", "add --model NAME")
    parts.begin()
    task, device = parts.task(request), parts.device(request)
    with tempfile.TemporaryDirectory(prefix="foundry-dry-run-") as folder:
        workbench = await parts.workbench(task, device, Path(folder), request)
        try:
            found = await workbench.intake()
        finally:
            await workbench.aclose()
    brief = first_brief(task, found.graphs, device, parts.library(), ran=tuple(found.ran), seed=request.seed)
    brief = replace(brief, seen=Signature(tuple(found.inputs), tuple(found.outputs)))
    playbook = playbook or PlaybookBrain()
    prompts = tuple(_first_prompts(request, brief, await playbook.diagnose(brief), playbook))
    seeds = request.plan.seeds if brief.lowered is not None else 0
    steps = max(1, request.max_evaluations - seeds)
    estimates = tuple(_estimates(request, prompts, steps))
    return DryRun(_notes(request, brief, steps, seeds), estimates, prompts)


def first_brief(
    task: Task,
    graphs: Sequence[OpGraph],
    device: Device,
    library: Library,
    *,
    ran: tuple[OperatorRun, ...] = (),
    seed: int = 0,
) -> Brief:
    """The brief of a run's first step: from the kernel compiler's first kernel, or from the reference where it has
    none.

    Its times are placeholders.
    """
    lowered = _first_kernel(task, graphs, device, library)
    parent = _parent(lowered, device)
    return Brief(
        task=task,
        graph=graphs[0] if graphs else None,
        device=device,
        baseline=Baseline(PLACEHOLDER_MS, 0.02, []),
        role="any",
        island=0,
        generation=1,
        step="i0g1",
        seed=seed,
        parent=parent,
        parent_text=lowered.source if lowered else task.text,
        lowered=lowered,
        diagnosis=None,
        elites=(parent,),
        further_graphs=tuple(graphs[1:]),
        first=lowered.source if lowered else "",
        ran=ran,
    )


def _first_kernel(task: Task, graphs: Sequence[OpGraph], device: Device, library: Library) -> Lowered | None:
    """The kernel compiler's first kernel; None if it has none, or the task's policy refuses it."""
    try:
        recipes = library.seeds(graphs[0], device) if graphs else ()
        found = library.lower(graphs, recipes[0], task_source=task.text, device=device) if recipes else None
    except CannotLower:
        return None
    return None if found and refused_plan(found.left, graphs[0], task.options.policy) else found


def _parent(lowered: Lowered | None, device: Device) -> Evaluation:
    """The first kernel as if it were correct and twice as fast as eager; or the reference."""
    build, verdict, ms = Build(True, 0.0), Verdict("correct", "screen"), PLACEHOLDER_MS
    if lowered is None:
        reference = Candidate(REFERENCE, -1, 0, device.target, origin="user", source="0" * 64, proposal="reference")
        even = Timing("screen", ms, ms, 1.0, (1.0, 1.0), pairs=0, noise=0.0, wall_ratio=1.0)
        return Evaluation(reference, build, verdict, timing=even)
    candidate = Candidate("c1", -1, 0, device.target, origin="library", source="0" * 64, recipe=lowered.recipe)
    timing = Timing("screen", 0.5 * ms, ms, 2.0, (1.9, 2.1), pairs=6, noise=0.02, wall_ratio=1.0)
    profile = Profile("roofline", 1e10, 1e10, fraction_of_floor=0.4, floor_ms=0.2 * ms, launches=1)
    return Evaluation(candidate, build, verdict, timing=timing, profile=profile)


def _first_prompts(
    request: SolveRequest, brief: Brief, diagnosis: Diagnosis, playbook: PlaybookBrain
) -> list[FirstPrompt]:
    """One an expert that would be asked about this diagnosis and has a model; the user message of the first in full."""
    found: list[FirstPrompt] = []
    for expert in ranking(brief, diagnosis):
        names = request.models.of(expert)
        if not names:
            continue
        options = request.models.spec(names[0]).options
        menu = Menu(brief, diagnosis, experts()[expert], playbook.library)
        prompt = step_prompt(brief, diagnosis, menu.moves)
        system = _system(expert, options, request)
        size = tokens(len(system) + len(prompt.text))
        found.append(FirstPrompt(expert, names, system, "" if found else prompt.text, size))
    return found


def _system(expert: ExpertName, options: ChatOptions, request: SolveRequest) -> str:
    """The system message of an expert, with the tools it may call."""
    absent = () if request.learn else ("search_experience",)
    tools = [name for name in experts()[expert].calls if name not in absent]
    return system_words(expert, tools, options, proposes=True)


def _estimates(request: SolveRequest, prompts: Sequence[FirstPrompt], steps: int) -> list[CostEstimate]:
    """The cost estimate of each model for `steps` steps."""
    models, found = request.models, []
    size = max((prompt.tokens for prompt in prompts), default=0)
    for spec in models.specs:
        who = tuple(name for name in experts() if spec.name in models.of(name))
        judged = request.finalist_count if spec.name in models.of("auditor")[:1] else 0
        proposes = any(name != "auditor" for name in who)
        found.append(estimate(spec, who, prompt_tokens=size, steps=steps if proposes else 0, judged=judged))
    return found


def _notes(request: SolveRequest, brief: Brief, steps: int, seeds: int) -> tuple[str, ...]:
    """Lines about what the dry run assumes: steps, caps and placeholders."""
    limits = request.limits
    caps = {"tokens": limits.tokens, "dollars": limits.dollars, "calls": limits.calls}
    said = ", ".join(f"{value:g} {name}" for name, value in caps.items() if value is not None)
    no_kernel = "the reference: the kernel compiler has no kernel for it"
    start = "the kernel compiler's first kernel" if brief.lowered else no_kernel
    rewrites = "prompts" in request.strategies
    several = " A line is for all steps by one model." if len(request.models.specs) > 1 else ""
    return (
        f"dry run of {brief.task.name} on {brief.device.target}: no model is asked, no run begins",
        f"{request.max_evaluations} evaluations, {seeds} of them first candidates: {steps} steps, the first from "
        f"{start}; the search ends after {request.max_minutes:g} minutes, so slow answers make fewer.",
        f"From steps that are answered at once to steps that make all their tool calls.{several}",
        f"caps: {said}; the models stop before one is passed" if said else "caps: none (--tokens, --dollars, --calls)",
        *(["one more request, when the search has ended, may rewrite a section of a prompt"] * rewrites),
        "the times in the prompt below are placeholders: nothing was timed",
    )
