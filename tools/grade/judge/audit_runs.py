"""The audit's own runs of a candidate: once watched, and once for each way of doing without its native code.

Each in a process of its own, on inputs that the candidate has not seen. Runs in the judge (imports torch).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Literal

from foundry.knowledge.candidate import Gate
from foundry.knowledge.task import Policy
from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.acts.kernels import kernel_gate, own_kernels, stream_gate
from foundry.tools.audit.acts.observed import Observations
from foundry.tools.audit.acts.provenance import time_gate
from foundry.tools.audit.text.source import CandidateSource, read_source
from foundry.tools.grade.judge.ablated_runs import LATE_CALLS, ablation_gates, run_without
from foundry.tools.grade.judge.audit_questions import (
    PATIENCE,
    SLOT,
    PublicInputs,
    alone_gate,
    another_instance_gate,
    answer_gate,
    clocks_gate,
    copies_gate,
    elsewhere_gate,
    fewer_gate,
    gradients_gate,
    mode_gate,
    prepare,
    public_gate,
    release_runner,
    strides_gate,
)
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink
from foundry.tools.grade.messages.runner import FileToLoad, RunnerCommands
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.task_cases import OtherMode, other_mode_of
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.process.messages import asking
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol import comparison
from foundry.tools.protocol.orders import (
    PROCESS_EVENTS,
)
from foundry.tools.task import bundle

DISGUISED = "without a grader in sight"
IN_A_ROW_S = 0.2  # seconds of calls in a row; GPU only, where no run changes the speed of clocks
IN_A_ROW_BYTES = 256 << 20  # most bytes of outputs: a copy takes memory, and larger calls are never a moment apart
PURPOSES = ("observe", "silent", "undone")  # the runners' purposes, in this order


def audit_runs(
    links: Mapping[str, RunnerLink],
    case: Case,
    trial: Trial,
    load: FileToLoad,
    *,
    policy: Policy,
    at_once: bool,
    public: PublicInputs,
) -> tuple[list[Gate], Observations]:
    """Returns (gates of the observed run and of the ablated ones, observations).

    `links` are fresh runners by purpose: "observe", "silent", "undone". With `at_once` the three run in parallel, which
    takes a second on a GPU, and other requests get no break meanwhile. Policy open has no ablated runs.
    """
    if at_once:
        case.state("seeded")  # packed once for all three
    other = other_mode_of(case, trial, load.device)
    ways: tuple[Literal["silent", "undone"], ...] = ("silent", "undone") if policy != "open" else ()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(ways) if at_once and ways else 1) as beside:
        if other is not None:
            stack.callback(other.close)
        work = [partial(run_without, links[way], case, trial, replace(load, ablate=way)) for way in ways]
        begun = [beside.submit(one) for one in work] if at_once else []
        public.breaks.is_quiet = lambda: all(one.done() for one in begun)
        seen, gates = _watch(links["observe"], case, trial, load, policy=policy, public=public, other=other)
        runs = [one.result() for one in begun] or [one() for one in work]
    if runs:
        gates += ablation_gates(*runs)
    return gates, seen


def _watch(
    watched: RunnerLink,
    case: Case,
    trial: Trial,
    load: FileToLoad,
    policy: Policy,
    public: PublicInputs,
    other: OtherMode | None,
) -> tuple[Observations, list[Gate]]:
    """Returns (observations, gates of the process's conduct and of its answers).

    Later questions are left out once an answer is wrong.
    """
    on_cpu = torch_device_of(load.device).is_host
    timed = on_cpu and policy != "open"  # a GPU's clock is not the host's
    seen, gates = _observed(watched, case, trial, load, timed=timed)
    if seen:
        gates += conduct_gates(seen, policy, on_cpu=on_cpu)
        answer = answer_gate(DISGUISED, watched, trial, "in a process that shows no grader, after many calls,")
        gates.append(answer)
        source = read_source(load.text)
        if timed:
            gates.append(time_gate(seen))
        if not on_cpu:
            gates.append(stream_gate(seen.get("unfinished")))
            if sum(spec.nbytes for spec in trial.specs) < IN_A_ROW_BYTES:
                where = "called again at once, where its last answer was,"
                gates.append(answer_gate("in a row", watched, trial, where, awake_s=IN_A_ROW_S))
        if not on_cpu and policy != "open" and isinstance(source, CandidateSource):
            gates.append(kernel_gate(seen.get("kernels", []), own_kernels(source)))
        if answer.passed:  # the other questions would only say it again
            with contextlib.nullcontext() if public.is_roomy else comparison.on_the_host(trial.expected):
                gates.append(public_gate(watched, case, trial, public))
            gates += [copies_gate(watched, case, trial), clocks_gate(watched, trial)] if on_cpu else []
        if answer.passed and on_cpu and policy != "open":
            gates.append(alone_gate(watched, trial))
        is_right = answer.passed
        if is_right and case.has_parameters():
            gates.append(another_instance_gate(watched, case, trial))
            is_right = gates[-1].passed
        if is_right:
            gates.append(gradients_gate(watched, case, trial))
            gates += [mode_gate(watched, trial, other)] if other is not None else []
        if is_right and policy != "open":
            # The last questions: each may end the process, and on a GPU vector loads at other addresses do.
            last = (elsewhere_gate, fewer_gate) if on_cpu else (fewer_gate, elsewhere_gate)
            bundle.give_back()  # the public inputs' memory: those to come are copied in the candidate's process
            gates += [way(watched, trial, seen) for way in (strides_gate, *last)]
    release_runner(watched, case)
    return seen, gates


def _observed(
    link: RunnerLink, case: Case, trial: Trial, load: FileToLoad, *, timed: bool
) -> tuple[Observations, list[Gate]]:
    """Calls the candidate in a process that shows no grader, observed: (observations, []), or ({}, [failed gate])."""
    try:
        prepare(link, case, trial, replace(load, observe=True, disguise=True, name="kernel"))
        stream = random.SystemRandom()
        calls, late = stream.randint(8, 16), stream.randint(*LATE_CALLS)
        limit_s = (PATIENCE + calls) * link.run_limit_s
        return link.ask(asking(RunnerCommands.observe, slot=SLOT, calls=calls, late=late, timed=timed), limit_s), []
    except RunnerFailed as failed:
        return {}, [Gate(failed.gate or PROCESS_EVENTS, False, f"while it was watched, it failed: {failed.evidence}")]
