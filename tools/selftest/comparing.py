"""Compares two candidates' outputs bit for bit on the inputs of the whole protocol. Runs in a worker; imports torch.

Used only for a faulty kernel that the grader accepted: any difference is a fault that the grader missed.
"""

from __future__ import annotations

import gc
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foundry.knowledge import codec
from foundry.knowledge.candidate import Stage
from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import Task
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.process.channel import Channel, Message
from foundry.tools.protocol.rules import AS_GIVEN, Parameters, distributions
from foundry.tools.task import bundle, loading


def serve(control: Channel) -> None:
    """Runs the worker: each message holds a task and two candidates; answers with inputs on which they differ, or
    ""."""
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    while True:
        message, _ = control.receive()
        torch.set_num_threads(int(message["threads"]))
        control.send({"difference": _difference(message)})


def _difference(message: Message) -> str:
    """Runs both candidates on fresh random inputs of every case; names the first inputs on which outputs, state or
    written inputs differ. "" if there are none."""
    task = codec.decode(Task, message["task"])
    correct = _model_class(message["correct"], "correct_candidate", Path(message["folder"]))
    faulty = _model_class(message["faulty"], "faulty_candidate", Path(message["folder"]))
    for case in cases_of(task, [random.getrandbits(31)], message["place"], only_first=False):
        try:
            found = _in_case(case, correct, faulty, message)
        finally:
            case.close()
        if found:
            return found
    return ""


def _model_class(text: str, name: str, folder: Path) -> Any:
    """The class ModelNew of a candidate's text, executed as a module `name` in `folder`."""
    path = folder / f"{name}.py"
    path.write_text(text)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    with torch.enable_grad():  # the default at an ordinary import
        exec(compile(text, str(path), "exec"), module.__dict__)
    return module.__dict__["ModelNew"]


def _in_case(case: Case, correct: Any, faulty: Any, message: Message) -> str:
    """Names the first inputs of a case on which the two models differ, or "". Both are built with the case's seed."""
    init = case.init
    arguments = init.value()
    init.close()
    models: list[nn.Module] = []
    for made in (correct, faulty):
        loading.seed_everything(case.seed)
        model: nn.Module = made(**arguments) if isinstance(arguments, dict) else made(*arguments)
        models.append(model.to(message["place"]).train(case.mode == "train"))
    for trial in trials(case, message["stage"]):
        try:
            if not _same(models, case, trial, message["place"]):
                return f"{trial.distribution.name} ({case.name})" if case.name else trial.distribution.name
        finally:
            trial.inputs.close()
        gc.collect()
    return ""


def trials(case: Case, stage: Stage) -> Iterator[Trial]:
    """Every question of a stage that the reference can answer, with fresh seeds."""
    for distribution in distributions(stage if not case.name else "screen", limited=case.limited):
        if not case.suits(distribution):
            continue
        if distribution.parameters != "seeded":
            case.randomise(random.getrandbits(31), distribution.parameters)
        try:
            trial = case.trial(distribution, random.getrandbits(31))
        except TaskError:  # the grader never uses inputs or parameters that the reference refuses
            if distribution == AS_GIVEN:
                raise
            continue
        yield trial


def _same(models: list[nn.Module], case: Case, trial: Trial, place: str) -> bool:
    """True if outputs and the models' buffers after the call have the same bits.

    Each model is called twice, because stale memory may hold the right values once.
    """
    for _ in range(2):
        left: list[list[torch.Tensor]] = []
        for model in models:
            _load(model, case, trial.distribution.parameters)
            inputs = _place(trial.inputs.value(), place)
            result = [leaf for leaf in loading.flatten(loading.call(model, inputs)) if isinstance(leaf, torch.Tensor)]
            state = [tensor for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor)]
            after = (*result, *state, *bundle.tensors_in(inputs))  # forward may write to its inputs
            left.append([tensor.detach().clone() for tensor in after])
        if not all(_equal(one, other) for one, other in zip(*left, strict=True)):
            return False
    return True


def _load(model: nn.Module, case: Case, kind: Parameters) -> None:
    """Copies the task's parameters if the candidate's state has the same names; else the candidate keeps its seeded
    ones."""
    packed = case.state(kind)
    given = packed.parcel.tensors()
    own = model.state_dict(keep_vars=True)
    for key, tensor in zip(packed.keys, given, strict=True):
        if key in own and own[key].shape == tensor.shape:
            own[key].copy_(tensor)


def _place(value: Any, place: str) -> Any:
    """Copies every tensor of a nested value to a device."""
    if isinstance(value, torch.Tensor):
        return value.to(place).clone()
    if isinstance(value, list | tuple):
        return type(value)(_place(item, place) for item in value)
    return value


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors have equal shape, dtype and bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
