"""Examines a task once, in a worker: that it runs, that it is deterministic, and what it computes. Imports torch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from foundry.knowledge import codec
from foundry.knowledge.errors import FoundryError, TaskError, TooLarge
from foundry.knowledge.opgraph import Construction, OpGraph, TensorSpec
from foundry.knowledge.task import Task, foreign_imports
from foundry.tools.process.channel import Channel, close_all
from foundry.tools.process.messages import Done, Message, NotDone, Packing, questions_of
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.task import bundle, loading
from foundry.tools.task.capture import CannotCapture, capture
from foundry.tools.task.construction.recorder import CannotReplay
from foundry.tools.task.construction.replay import OTHER_SEED, construction_of
from foundry.tools.task.construction.tree import plain_attributes
from foundry.tools.task.form.calls import GROUP
from foundry.tools.task.form.watched import only_known_files
from foundry.tools.task.form.writes import returned_inputs
from foundry.tools.task.gpu_plan import CONTEXT_BYTES, Sizes
from foundry.tools.task.intake_messages import Captured, CheckedTask, RanOperators, TaskPlace, TaskQuestions
from foundry.tools.task.limits import FirstForward
from foundry.tools.task.loading import LoadedTask
from foundry.tools.task.ran import operators_ran

HOLLOW_BYTES = 32 << 20  # bytes; larger tensors are traced without memory
codec.prepare(Task)  # 30 ms of each process that reads a task; here the warm process does it once


QUESTIONS = questions_of(TaskQuestions)


def serve(control: Channel) -> None:
    """Runs an intake worker: answers `check`, `capture`, `ran` or `draw` about the task that comes with each
    question."""
    warnings.simplefilter("ignore")
    answers = TaskAnswers(control)
    while True:
        answer: Message
        try:
            answer = Done(answer=QUESTIONS.validate_json(control.receive_text()[0]).answered_by(answers))
        except FoundryError as error:
            answer = NotDone.because(error)
        except torch.OutOfMemoryError as error:
            words = f"one call of the model does not fit the GPU's memory: {str(error).splitlines()[0][:300]}"
            answer = NotDone.because(TooLarge(words, "make its sizes smaller"))
        control.send_text(answer.encoded(), answers.files)
        close_all(answers.files)
        answers.files.clear()


class TaskAnswers(TaskQuestions):
    """The answers; `files` are open files that go with the next one."""

    def __init__(self, control: Channel) -> None:
        self._control, self.files = control, list[int]()

    def check(self, where: TaskPlace) -> CheckedTask:
        """Shapes of inputs and outputs; raises TaskError for everything that makes a task unusable."""
        task, device = _placed(where)
        with only_known_files(task):
            return _check(task, device, control=self._control)

    def capture(self, where: TaskPlace) -> Captured:
        """The task's graphs."""
        task, device = _placed(where)
        with only_known_files(task):
            return _capture(task, device)

    def ran(self, where: TaskPlace) -> RanOperators:
        """The operators that PyTorch runs in one forward."""
        task, device = _placed(where)
        with only_known_files(task):
            return _ran(task, device)

    def draw(self, where: TaskPlace, seed: int) -> Packing:
        """Inputs of a seed, in shared memory."""
        parcel = bundle.pack(loading.load(_placed(where)[0]).inputs(seed))
        self.files.append(parcel.handle)
        return parcel.description


def _placed(where: TaskPlace) -> tuple[Task, torch.device]:
    """(the task, its device), after setting the limits of this process."""
    torch.set_num_threads(where.threads)
    device = torch.device(where.device)
    _stay_within(device, where.gpu_bytes)
    return codec.decode(Task, where.task), device


def _stay_within(device: torch.device, gpu_bytes: int) -> None:
    """Limits this process to `gpu_bytes` bytes of a GPU's memory (0: no limit).

    Reading a task holds its inputs three times, while other processes may be timing on the same GPU.
    """
    if gpu_bytes:
        torch_device_of(device).stay_within(max(0, gpu_bytes - CONTEXT_BYTES))


def _check(task: Task, device: torch.device, *, control: Channel) -> CheckedTask:
    """Shapes of inputs and outputs; raises TaskError for everything that makes a task unusable, in all its cases. How
    long a first forward takes is sent at once: the time limit follows it."""
    free_bytes = torch_device_of(device).free_bytes()
    described: list[tuple[list[TensorSpec], list[TensorSpec]]] = []
    sizes: list[Sizes] = []
    for loaded in _cases(task):
        with _naming_the_case(loaded):
            checked = loading.check_reference(
                loaded,
                device=device,
                tell_seconds=lambda seconds: control.send_text(FirstForward(seconds=seconds).encoded()),
            )
        inputs = [loading.spec_of(tensor) for tensor in bundle.tensors_in(loaded.inputs(0, device))]
        described.append((inputs, checked.outputs))
        copied = [*inputs, *checked.written]  # a process keeps what an input held before a call that writes to it
        (given, wide_given), (made, wide_made) = _bytes(copied), _bytes([*checked.outputs, *checked.written])
        model = {"parameters": checked.parameter_bytes, "work": checked.work_bytes, "piece": checked.piece_bytes}
        sizes.append(Sizes(given, made, wide_given, wide_made, **model))
        bundle.give_back()
    inputs, outputs = described[0]
    return CheckedTask(inputs, outputs, Sizes.largest(sizes), free_bytes)


@contextlib.contextmanager
def _naming_the_case(loaded: LoadedTask) -> Iterator[None]:
    """Adds to a TaskError which case of the input maker or which extra shape it is about."""
    own = {key: value for key, value in loaded.overrides.items() if key not in loaded.task.overrides}
    try:
        yield
    except TaskError as error:
        if not own:
            raise
        told = {GROUP: "{} {} (counted from 0)"}
        case = ", ".join(told.get(key, "{}={}").format(key, value) for key, value in own.items())
        raise type(error)(f"{case}: {error.problem}", error.remedy or "leave this case out") from error


def _bytes(specs: list[TensorSpec]) -> tuple[int, int]:
    """(bytes of tensors as they are, bytes with floats in float64)."""
    wide = [8 * bundle.extent(spec) if "float" in spec.dtype else spec.nbytes for spec in specs]
    return sum(spec.nbytes for spec in specs), sum(wide)


def _capture(task: Task, device: torch.device) -> Captured:
    """One graph for each case, or the reason why there is none."""
    try:
        return Captured([captured_case(loaded, device) for loaded in _cases(task)])
    except CannotCapture as error:
        return Captured([], str(error), _ran(task, device))


def _ran(task: Task, device: torch.device) -> RanOperators:
    """The operators that a task without a graph runs, and their work; empty if that cannot be seen either."""
    loaded = loading.load(task)
    model = loaded.build_model(0, device)
    inputs = loaded.inputs(0, device)
    try:
        found = operators_ran(lambda: loading.call(model, inputs))
    except Exception:  # the model raised nothing in earlier checks, so the task goes on without this
        return RanOperators()
    return RanOperators(list(found.rows), found.work)


def operator_graph(loaded: LoadedTask, device: torch.device) -> OpGraph:
    """A case's graph. Tracing looks at shapes and hardly ever at elements, so large tensors are replaced by empty
    ones first."""
    inputs = loaded.inputs(0, device)
    if not torch_device_of(device).is_host:
        model = loaded.build_model(0, loaded.place_to_draw(device))
        model = model._apply(_hollow)  # type: ignore[no-untyped-call]
        with contextlib.suppress(CannotCapture):
            graph = capture(model, [_hollow(value) for value in inputs], overrides=loaded.overrides)
            if graph.tracer == "export":  # the others run the model, whose Python may look at elements
                return graph
        inputs = [loading.placed(value, loading.CPU) for value in inputs]
    return capture(loaded.build_model(0), inputs, overrides=loaded.overrides)


def captured_case(loaded: LoadedTask, device: torch.device) -> OpGraph:
    """A case's graph, with the construction that replaces a class that imports more than torch."""
    graph = _with_returned_inputs(operator_graph(loaded, device), loaded, device)
    falls_back = loaded.task.other_shapes == "reference"
    graph = replace(_with_drawn_attributes(graph, loaded, device), falls_back=falls_back)
    if not foreign_imports(loaded.task.text):
        return graph
    if falls_back:
        return replace(graph, kept_class="the task's own forward runs for other shapes")
    attributes = [value.source for value in graph.state if value.role == "constant" and value.data is None]
    try:
        return replace(graph, construction=constructed(loaded, device, attributes))
    except CannotReplay as error:
        return replace(graph, kept_class=str(error))
    except Exception as error:  # raised by the task's code under an unexpected dispatcher
        reason = (str(error).splitlines() or [""])[0][:200]
        return replace(graph, kept_class=f"recording its constructor failed: {type(error).__name__}: {reason}")


def _with_returned_inputs(graph: OpGraph, loaded: LoadedTask, device: torch.device) -> OpGraph:
    """The graph with a note of the written inputs that forward returns: an execution tells them from equal results."""
    if not graph.written_values:
        return graph
    inputs = loaded.inputs(0, device)
    result = loaded.run(loaded.build_model(0, device), inputs)
    return replace(graph, returned=returned_inputs(loading.flatten(result), loading.flatten(inputs)))


def _with_drawn_attributes(graph: OpGraph, loaded: LoadedTask, device: torch.device) -> OpGraph:
    """The graph without the elements of small plain attributes that depend on the seed: a kernel reads them from the
    model."""
    inline = {value.source: value.data for value in graph.state if value.data is not None}
    if not inline:
        return graph
    model = loaded.build_model(OTHER_SEED, loaded.place_to_draw(device))
    held = {path: tensor for path, tensor in plain_attributes(model) if path in inline}
    drawn = {path for path, tensor in held.items() if tensor.detach().cpu().reshape(-1).tolist() != inline[path]}
    state = [
        replace(value, data=None, spec=loading.spec_of(held[value.source])) if value.source in drawn else value
        for value in graph.state
    ]
    return replace(graph, state=state)


def constructed(loaded: LoadedTask, device: torch.device, attributes: Collection[str] = ()) -> Construction:
    """The calls that make a case's tensors, and those of `attributes` by their paths. Raises CannotReplay."""
    place = loaded.place_to_draw(device)

    def under(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
        """Constructs a model with this seed; random numbers are drawn on the task's place."""

        def construct() -> nn.Module:
            """Seeds the random numbers and makes the model."""
            loading.seed_everything(seed)
            return make()

        return loading.drawn_on(place, construct)

    return construction_of(loaded.module, lambda seed: loaded.build_model(seed, place), under, attributes)


def _hollow(value: Any) -> Any:
    """A large floating tensor on the host, no page of which is ever written; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.nbytes > HOLLOW_BYTES:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return loading.placed(value, loading.CPU)


def _cases(task: Task) -> list[LoadedTask]:
    """The task with its own shapes, those of its input maker, its extra shapes, its further dtypes."""
    _, *others = loading.case_keys(own := loading.load(task))
    return [own, *(loading.load(task, overrides=shape, dtype=dtype) for shape, dtype in others)]
