"""A task's cases: its own shapes and dtypes, further ones, and the other of train() and eval(). Runs in the judge."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import Task
from foundry.tools.audit.text.source import shared_imports
from foundry.tools.grade.messages.runner import SharedImports
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.lean import ROOMY, CaseRoom
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.protocol.rules import AS_GIVEN, RANDOMISED
from foundry.tools.task import bundle, loading

# Bytes of parameters, inputs and outputs; a larger task is not asked in its other mode, which needs a second model.
MODE_BYTES = 256 << 20


def cases_of(
    task: Task, seeds: Sequence[int], device: str, *, only_first: bool, room: CaseRoom = ROOMY
) -> Iterator[Case]:
    """Yields a case for the file's own shapes, then those of its input maker, extra shapes and further dtypes.

    Each is built when it is asked for: it holds a model.
    """
    wanted = [({}, None)] if only_first else loading.case_keys(loading.load(task))
    for (overrides, dtype), seed in zip(wanted, itertools.cycle(seeds), strict=False):
        yield Case(task, dict(overrides), dtype, seed, device, room=room)


def imports_of(text: str, task: Task) -> SharedImports:
    """Imports that a candidate's file shares with the task, with the texts of the task's own modules."""
    shared = shared_imports(text, task.source)
    if not shared:
        return SharedImports()
    folder = Path(task.path).absolute().parent
    names = [name for name in task.options.files if name.endswith(".py")]
    texts = {name: (folder / name).read_text(errors="replace") for name in names}
    return SharedImports(statements=shared, folder=str(folder), texts=texts)


@dataclass(frozen=True)
class OtherMode:
    """The task in the other of train() and eval().

    `trial` is a question with its answer; None if random streams decide the answer, as in dropout.
    """

    case: Case
    trial: Trial | None

    @property
    def name(self) -> str:
        """ "train()" or "eval()"."""
        return f"{self.case.mode}()"

    def close(self) -> None:
        """Frees the memory that is shared with runners."""
        self.case.close()
        if self.trial is not None:
            self.trial.inputs.close()


def other_mode_of(case: Case, trial: Trial, place: str) -> OtherMode | None:
    """The task in its other mode, with a question. `place`: "cpu" or "cuda".

    None if PyTorch does the same in both modes or fails in the other one, or if memory may not suffice. Asked before
    there is a candidate: random streams belong to the whole process, and memory may be short.
    """
    held = [*trial.inputs.specs, *case.state_specs.values(), *trial.specs]
    if sum(spec.nbytes for spec in held) > MODE_BYTES:
        return None
    try:
        mode, answer = case.other_mode(trial.inputs)
        if answer in ("same", "fails"):
            return None
        task = replace(case.task, options=replace(case.task.options, mode=mode))
        other = Case(task, case.overrides, case.dtype, case.seed, place)
        return OtherMode(other, _asked(other) if answer == "other" else None)
    except (TaskError, torch.OutOfMemoryError):
        return None
    finally:
        bundle.give_back()


def _asked(other: Case) -> Trial:
    """The question in the other mode, with other parameters and running statistics. Raises TaskError.

    Initial statistics hardly differ from those of a normalised batch, so that both modes would agree.
    """
    other.trial(AS_GIVEN, secrets.randbits(31)).inputs.close()  # sets the scale by which the next trial is measured
    if not other.has_parameters():
        return other.trial(AS_GIVEN, secrets.randbits(31))
    other.randomise(secrets.randbits(31))
    return other.trial(RANDOMISED, secrets.randbits(31))
