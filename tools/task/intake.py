"""Looks at a task once, in a worker: does it run, is it deterministic, what does it compute. Imports torch."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from foundry.knowledge import codec
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task
from foundry.tools.process.channel import Channel, Message
from foundry.tools.task import bundle, loading
from foundry.tools.task.capture import CannotCapture, capture
from foundry.tools.task.loading import LoadedTask


def serve(control: Channel) -> None:
    """Entry of an intake worker: `check`, then `capture`, on the task that comes with each message."""
    warnings.simplefilter("ignore")
    while True:
        message, _ = control.receive()
        torch.set_num_threads(int(message["threads"]))
        task = codec.decode(Task, message["task"])
        try:
            answer = _check(task) if message["do"] == "check" else _capture(task)
        except FoundryError as error:
            answer = {"error": [type(error).__name__, error.problem, error.remedy]}
        control.send(answer)


def _check(task: Task) -> Message:
    """Shapes of inputs and outputs; raises TaskError for everything that makes a task unusable, in all its cases."""
    first, *others = _cases(task)
    outputs = loading.check_reference(first)
    for other in others:
        loading.check_reference(other)
    inputs = [loading.spec_of(tensor) for tensor in bundle.tensors_in(first.inputs(0))]
    return {"inputs": codec.to_plain(inputs), "outputs": codec.to_plain(outputs)}


def _capture(task: Task) -> Message:
    """One graph a case, or why there is none."""
    graphs: list[Any] = []
    try:
        for loaded in _cases(task):
            graph: OpGraph = capture(loaded.build_model(0), loaded.inputs(0), overrides=loaded.overrides)
            graphs.append(codec.to_plain(graph))
    except CannotCapture as error:
        return {"graphs": [], "note": str(error)}
    return {"graphs": graphs, "note": ""}


def _cases(task: Task) -> list[LoadedTask]:
    """The file's own shapes, its extra shapes, its further dtypes."""
    found = [loading.load(task)]
    found += [loading.load(task, overrides=shape) for shape in task.options.extra_shapes]
    found += [loading.load(task, dtype=dtype) for dtype in task.options.dtypes]  # type: ignore[arg-type]
    return found
