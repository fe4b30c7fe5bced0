"""Opens the parts that a run works with: the task, the device, the workbench, the brain, the kernel compiler, the
store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foundry.agents.models.models import PLAYBOOK, Models
from foundry.graph.run.budget import Ledger
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.inbox import check_language, split_instructions
from foundry.graph.run.journal import Journal
from foundry.graph.run.measurements import Measurements
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import MIXED, RunDirectory
from foundry.graph.run.services import KernelLibrary, Library, Services
from foundry.graph.run.thinking import record_thought
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import Device
from foundry.knowledge.errors import NotComparable, UsageError
from foundry.knowledge.task import Task

if TYPE_CHECKING:
    from foundry.agents.brain import Brain, Call, Listener, Notice
    from foundry.agents.ledger import ModelLedger
    from foundry.knowledge.experience.store import ExperienceStore
    from foundry.tools.grade.host.workbench import Workbench
    from foundry.tools.process.zygote import Zygote

Asker = Callable[[str], Awaitable[bool | None]]  # a person's answer to a question of the run; None: not now


class Parts:
    """Makes a run's parts: this package's own. Tests and replay bring others."""

    def begin(self) -> None:
        """Starts what can start before the task is read; called first."""

    def task(self, request: SolveRequest) -> Task:
        """Reads the task file. Raises TaskError."""
        from foundry.tools.task.file import read_task

        return read_task(
            Path(request.task), scale=request.scale, model=request.model_class, other_shapes=request.other_shapes
        )

    def device(self, request: SolveRequest) -> Device:
        """Describes the request's device here. Raises MissingTool."""
        from foundry.tools.machine.device import describe

        return describe(request.target)

    async def ceilings(self, device: Device) -> Device:
        """The device with its best measured rates; measured once per machine, in seconds."""
        from foundry.tools.machine.ceilings import measure_alone

        return await measure_alone(device)

    def library(self) -> Library:
        """A new `KernelLibrary`: the kernel compiler of this package."""
        return KernelLibrary()

    async def workbench(self, task: Task, device: Device, scratch: Path, request: SolveRequest) -> Workbench:
        """Opens the workbench: several lanes if the request uses several GPUs. Raises MissingTool, UsageError."""
        from foundry.tools.grade.host.workbench import open_workbench
        from foundry.tools.remote.lanes import open_lanes

        places = places_of(request, device)
        if len(places) > 1:
            return await open_lanes(task, device.target, places, seed=request.seed)
        return await open_workbench(task, device, scratch, seed=request.seed)

    def check_model(self, request: SolveRequest) -> None:
        """Raises UsageError before anything is begun if a model or recording cannot be used.

        That is a model without access, or a cap in dollars on one of unknown price, which could not be kept.
        """
        from foundry.agents.chat.tape import Tape

        dollars = request.limits.dollars
        Tape(request.tape)
        for spec in request.models.specs:
            _ = spec.endpoint if request.tape.asks else None
            if dollars is not None and not spec.price.known:
                raise UsageError(
                    f"a cap of {dollars:g} dollars cannot be kept: the price of {spec.name} is not known",
                    "give it with --price IN,OUT (0,0 where it is free), or cap --tokens",
                )

    def brain(self, request: SolveRequest, thinking: ModelLedger, listener: Listener) -> Brain:
        """The playbook, or the chat models that the user asked for.

        `thinking` caps what they may cost; `listener` hears who they are and of every call.
        """
        from foundry.agents.playbook.brain import PlaybookBrain

        if not request.models:
            return PlaybookBrain()
        from foundry.agents.models.brain import open_models

        return open_models(request.models, ledger=thinking, seed=request.seed, tape=request.tape, listener=listener)

    def receipt(self, services: Services, winner: Evaluation) -> None:
        """Writes receipt.json into the run directory."""
        from foundry.graph.run.receipt import write_run_receipt

        write_run_receipt(services, winner)

    def store(self, request: SolveRequest) -> ExperienceStore | None:
        """Opens the experience store; None if the run should not learn. Raises UsageError."""
        if not request.learn:
            return None
        from foundry.knowledge.experience.store import ExperienceStore

        return ExperienceStore.open(request.store)


class WarmParts(Parts):
    """This package's own parts, and the warm process of all workers.

    It starts at the first moment, while the task is read and the device is asked, and serves one run after another.
    """

    def __init__(self, zygote: Zygote | None = None) -> None:
        """Keeps a `zygote` that has begun already, if given."""
        self._zygote = zygote

    def begin(self) -> None:
        """Starts the warm process unless it has begun already."""
        from foundry.tools.machine.device import usable_cores
        from foundry.tools.process.zygote import Zygote

        if self._zygote is None:
            self._zygote = Zygote.begin(threads=usable_cores())
            self._zygote.go_on()

    async def ceilings(self, device: Device) -> Device:
        """The device with its best rates; measures unknown ones once the warm process is idle."""
        from foundry.tools.machine.ceilings import with_known_ceilings

        known = with_known_ceilings(device)
        if known.ceilings is None and self._zygote is not None:
            await asyncio.to_thread(self._zygote.settle)  # what it imports takes cores from what is measured
        return await super().ceilings(known)

    async def workbench(self, task: Task, device: Device, scratch: Path, request: SolveRequest) -> Workbench:
        """Opens a workbench in this warm process; closes it first if the request uses several GPUs, whose lanes have
        their own."""
        from foundry.tools.grade.host.workbench import open_workbench

        if len(places_of(request, device)) > 1:  # each lane has a warm process of its own
            self.close()
            return await super().workbench(task, device, scratch, request)
        self.begin()
        return await open_workbench(task, device, scratch, seed=request.seed, zygote=self._zygote)

    def close(self) -> None:
        """Ends the warm process and every worker."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


def places_of(request: SolveRequest, device: Device) -> list[dict[str, str]]:
    """For each lane of a request with several GPUs, the environment variable that shows it its GPU; empty for one GPU
    or a CPU."""
    from foundry.tools.targets.cuda.describe import visible_gpus

    if request.gpus == 1 or not device.traits.visible_devices:
        return []
    return [{device.traits.visible_devices: gpu} for gpu in visible_gpus()[: request.gpus]]


@dataclass
class Opened:
    """The services of a run, and its scratch folder."""

    services: Services
    scratch: Path

    async def close(self) -> None:
        """Ends the workers, closes the store, removes the scratch folder and records the end of this session's work."""
        workbench = self.services.measure.machine
        await self.services.measure.stop()
        self.services.measure.note_lock()
        if workbench is not None:
            await workbench.aclose()
        if self.services.store is not None:
            self.services.store.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.services.log.mark_alive()


def create(request: SolveRequest, parts: Parts) -> RunDirectory:
    """A new run directory that knows its task and device. Raises TaskError, MissingTool, UsageError."""
    parts.check_model(request)
    task = parts.task(request)
    if not request.models:
        check_language(task.options.instructions)
    device = parts.device(request)
    run = RunDirectory.create(
        replace(request, islands=request.island_count)
    )  # fixed, even if another brain thinks later on
    run.set("task", encode(task))
    run.set("task_name", task.name)
    run.set("device", encode(device))
    run.set("device_key", device.key)
    run.set("target", device.target)
    run.set("present", "yes" if device.present else "no")
    run.set("brain", request.models.title)
    for directive in split_instructions(task.options.instructions)[0]:
        run.inbox.post(directive)
    return run


def _device_here(run: RunDirectory, begun_on: Device, here: Device) -> Device:
    """The device that a resumed run goes on with; stores it if it is another unit of the kind.

    Raises NotComparable if it is of another kind.
    """
    if here.key != begun_on.key:
        raise NotComparable(f"run {run.id} was begun on {begun_on.key}, this is {here.key}", "start a new run here")
    if here.unit == begun_on.unit:
        return begun_on
    run.set("device", encode(here))  # each of several GPUs of a kind has its own lock and ceilings
    return here


async def _start_machine(
    run: RunDirectory, parts: Parts, log: EventLog, task: Task, device: Device, scratch: Path
) -> tuple[Device, Workbench, ExperienceStore | None]:
    """Measures the device's ceilings if needed, and starts the workers and the experience store; returns all three."""
    with log.at(None, "open"):
        if device.present and device.ceilings is None:
            with log.span("tool", "ceilings", category="run"):
                device = await parts.ceilings(device)
            run.set("device", encode(device))
        with log.span("tool", "start workers", category="run"):
            opening = asyncio.ensure_future(parts.workbench(task, device, scratch, run.request))
            store = await asyncio.to_thread(parts.store, run.request)  # its imports take as long as the workers
            return device, await opening, store


def _task_of(run: RunDirectory) -> Task:
    """The run's task under the policy that was asked for; the receipt names the policy as it was read."""
    task, policy = decode(Task, run.get("task")), run.request.policy
    return task if policy is None else replace(task, options=replace(task.options, policy=policy))


def _open_journal(run: RunDirectory, recorded: RunDirectory | None) -> Journal:
    """The run's journal, which answers from `recorded` if that is given."""
    thoughts = bool(run.request.models) and not (recorded and run.request.tape.replay)  # else they are thought again
    thoughts = thoughts or run.get(MIXED) == "yes"
    return Journal(run.database, Journal(recorded.database) if recorded else None, thoughts=thoughts)


async def open_services(
    run: RunDirectory,
    parts: Parts,
    on_event: Callable[[Event], None],
    *,
    recorded: RunDirectory | None = None,
    began: float | None = None,
) -> Opened:
    """Everything the nodes need for a run; a replay answers from `recorded` and opens no machine and no store.

    `began`: the start of the work in seconds since the epoch. Raises NotComparable if the run was begun on another kind
    of device.
    """
    request = run.request
    task = _task_of(run)
    device = decode(Device, run.get("device"))
    if recorded is None:
        device = _device_here(run, device, parts.device(request))
    log = EventLog(run.database, on_event, began=began)
    journal = _open_journal(run, recorded)
    ledger = Ledger(request, run, log)
    ledger.thinking.left_s = ledger.left_s
    scratch = run.path.resolve() / "scratch"
    workbench = None
    store = None
    if recorded is None:
        scratch.mkdir(exist_ok=True)
        device, workbench, store = await _start_machine(run, parts, log, task, device=device, scratch=scratch)

    def hear(said: Call | Notice) -> None:
        """Records a model's call or notice in the run's log."""
        record_thought(said, log, run)

    def open_brain(wanted: SolveRequest) -> Brain:
        """The brain for this request, with the run's ledger of model calls."""
        return parts.brain(wanted, ledger.thinking, hear)

    refused = (
        request.models and run.get("brain") == PLAYBOOK
    )  # the user refused the model earlier; the request still names it
    services = Services(
        request=request,
        run=run,
        log=log,
        journal=journal,
        ledger=ledger,
        task=task,
        device=device,
        measure=Measurements(workbench, journal, log, task.options.policy),
        brain=open_brain(replace(request, models=Models()) if refused else request),
        open_brain=open_brain,
        library=parts.library(),
        store=store,
        write_receipt=parts.receipt,
        recorded=recorded,
    )
    return Opened(services, scratch)
