"""`foundry tune`: sweeps the tunables of the compiled kernels of a task on this machine and writes the best kernel
file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundry.tools.command_line import choose_target, one_line_errors, print_json, say
from foundry.tools.words import to_paste

if TYPE_CHECKING:
    from foundry.knowledge.task import Task
    from foundry.tools.tune.tuner import TunedPlan


@one_line_errors
def tune(
    task: Annotated[Path, typer.Argument(help="The task file.")],
    target: Annotated[str, typer.Option(help="cpu, cuda, auto, or a target of an installed package.")] = "auto",
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="That the sweep takes.")] = 30.0,
    out: Annotated[Path | None, typer.Option(help="Write the kernel file with the best numbers.")] = None,
    scale: Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE.")] = None,
    model: Annotated[str, typer.Option("--class", metavar="NAME", help="The model's class, if it is not Model.")] = "",
    seed: Annotated[int, typer.Option(help="Random seed of the sweep.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Sweep the numbers of every kernel that the kernel compiler writes for a task.

    Its times choose and prove nothing: foundry verify judges the file.
    """
    from foundry.knowledge.codec import to_plain
    from foundry.tools.task.file import read_task

    place = choose_target(target)
    read = partial(read_task, task, scale=scale, model=model)
    tuned, text = asyncio.run(_tuned(read, place, seconds, seed, is_quiet=as_json))
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if as_json:
        print_json(to_plain(tuned))
    elif out is not None:
        judge = to_paste("foundry", "verify", task, out)
        say(f"written: {out}; {judge} says whether it is correct and faster")


async def _tuned(
    read: Callable[[], Task], target: Any, seconds: float, seed: int, *, is_quiet: bool
) -> tuple[TunedPlan, str]:
    """Tunes the compiler's first kernel of the task for some seconds; returns the result and the kernel file with its
    values.

    Raises FoundryError.
    """
    from foundry.knowledge.candidate import Recipe
    from foundry.knowledge.compiler.lower import lower
    from foundry.knowledge.errors import MissingTool, TaskError
    from foundry.tools.grade.host.workbench import open_workbench
    from foundry.tools.machine.ceilings import with_known_ceilings
    from foundry.tools.machine.device import describe
    from foundry.tools.machine.scratch import scratch_folder

    task = read()
    device = with_known_ceilings(describe(target))
    if not device.present:
        raise MissingTool(f"there is no {device.target} device here to tune for", "run it on one")
    with scratch_folder("tune") as scratch:
        bench = await open_workbench(task, device, scratch, seed=seed)
        try:
            intake = await bench.intake()
            if not intake.graphs:
                raise TaskError(f"the task could not be captured: {intake.capture_note}", "try another form of it")
            recipe = Recipe(device.target, ieee_only=task.options.policy == "strict")
            first = lower(intake.graphs, recipe, task_source=task.text, device=device)
            tell = (lambda _: None) if is_quiet else say
            tuned = await bench.tune(first.recipe, seconds, seed=seed, hints={}, say=tell)
            return tuned, lower(intake.graphs, tuned.recipe, task_source=task.text, device=device).source
        finally:
            await bench.aclose()
