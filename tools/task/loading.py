"""Runs a task file inside a worker: builds its model and inputs, and explains errors in the user's terms.

Imports torch and executes the user's code: never imported by the main process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from foundry.knowledge.errors import RandomTask, TaskError
from foundry.knowledge.opgraph import DType, TensorSpec
from foundry.knowledge.task import Task, overridden_source
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.task.form.calls import GROUP, ModulesBeside, as_arguments
from foundry.tools.task.form.calls import call as call
from foundry.tools.task.form.drawing import InputMaker
from foundry.tools.task.form.drawing import drawn_on as drawn_on
from foundry.tools.task.form.drawing import seed_everything as seed_everything
from foundry.tools.task.form.values import arrange as arrange
from foundry.tools.task.form.values import as_real as as_real
from foundry.tools.task.form.values import dict_keys as dict_keys
from foundry.tools.task.form.values import dtype_name as dtype_name
from foundry.tools.task.form.values import flatten as flatten
from foundry.tools.task.form.values import placed as placed
from foundry.tools.task.form.values import rebuilt as rebuilt
from foundry.tools.task.form.values import same_numbers
from foundry.tools.task.form.values import spec_of as spec_of
from foundry.tools.task.form.values import torch_dtype as torch_dtype
from foundry.tools.task.form.writes import find_write, write_problem
from foundry.tools.task.gpu_plan import PIECE_BYTES

Made = TypeVar("Made")

_LOADED = itertools.count()
# Two runs of a deterministic reduction on a GPU may differ by the order of atomic additions; more is another answer.
SAME_ANSWER = 1e-4
PIECE = 1 << 24  # elements compared at a time
CPU = torch.device("cpu")
CONVERTIBLE: tuple[DType, ...] = ("float32", "float16", "bfloat16")  # further dtypes that options may name
# Bytes of parameters that count as long to draw: half of an 8192 by 8192 linear layer takes a host 0.34 s.
LONG_DRAW_BYTES = 128 << 20


def files_passed(error: BaseException) -> list[str]:
    """The file of each frame that an exception passed, the innermost last."""
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def lines_in(file: str, error: BaseException) -> list[int]:
    """The lines of a file that an exception passed, the innermost last.

    Code that PyTorch has generated may have no lines or columns, for which `traceback.extract_tb` fails (torch 2.6).
    """
    passed = traceback.walk_tb(error.__traceback__)
    return [line for frame, line in passed if frame.f_code.co_filename == file and line]


@contextlib.contextmanager
def _users_words(task: Task, doing: str) -> Iterator[None]:
    """Turns any exception of the user's code into one TaskError with the line of the user's own file."""
    try:
        yield
    except (TaskError, KeyboardInterrupt):
        raise
    except torch.OutOfMemoryError:  # other processes may have taken the GPU's memory, which says nothing about the task
        raise
    except BaseException as error:  # a task may raise anything, SystemExit included
        files = files_passed(error)
        lines = lines_in(task.path, error)
        where = f", line {lines[-1]}" if lines else ""
        first = (str(error).strip().splitlines() or [""])[0][:300]
        what = f"{type(error).__name__}: {first}" if first else type(error).__name__
        name = task.path.rsplit("/", 1)[-1]
        remedy = ""
        if isinstance(error, MemoryError) or "allocate" in first or "out of memory" in first:
            remedy = "the task needs more memory than this machine gives it: make its sizes smaller"
        elif files[-1] == task.path and (lacking := _lacking(error)):
            remedy = lacking
        raise TaskError(f"{name}{where}: {doing}: {what}", remedy) from error


def _lacking(error: BaseException) -> str:
    """A remedy if an import asks for a package that is not installed, or is relative; else ""."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package and importlib.util.find_spec(package) is None:
            return f"install {package}, or put {package}.py beside the task if it is yours"
    elif isinstance(error, ImportError) and "relative import" in str(error):
        return "write it without the leading dot: modules beside the task are found by their names"
    return ""


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Runs the task's code in the task's folder, if possible, so that it opens files beside it by their names."""
    before = Path.cwd()
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass(frozen=True)
class LoadedTask:
    """The user's module, executed once with its constants overridden."""

    task: Task
    module: types.ModuleType
    overrides: dict[str, int]
    dtype: torch.dtype | None = None
    group: int = 0  # number of the file's own case

    def build_model(self, seed: int, device: torch.device = CPU) -> nn.Module:
        """Model(*get_init_inputs()) with random streams set to `seed`, as KernelBench does, in the task's mode, on a
        device. Raises TaskError if that is no nn.Module."""
        with _users_words(self.task, f"building {self._name} failed"), _in_folder(self._folder):
            model = drawn_on(self.place_to_draw(device), lambda: self._construct(seed))
            if not isinstance(model, nn.Module):
                raise TaskError(f"{self._name} is a {type(model).__name__}, not an nn.Module")
        if self.task.options.mode != "as_given":
            model.train(self.task.options.mode == "train")
        return model.to(device=device, dtype=self.dtype)

    def place_to_draw(self, device: torch.device) -> torch.device:
        """The device that draws the parameters of a model for `device`: itself if they are many, else the host."""
        is_long = self._parameter_bytes >= LONG_DRAW_BYTES
        return device if is_long and not torch_device_of(device).is_host else CPU

    def _construct(self, seed: int) -> Any:
        """Constructs the model under a seed."""
        arguments = self.init_arguments(seed)
        seed_everything(seed)
        return call(self.module.Model, arguments)

    def init_arguments(self, seed: int) -> list[Any]:
        """The constructor's arguments, Keywords at the end, from get_init_inputs() if there is one."""
        seed_everything(seed)
        get_init_inputs = getattr(self.module, "get_init_inputs", None)
        given = None if get_init_inputs is None else get_init_inputs()
        return [] if given is None else as_arguments(given, self.module.Model)

    @functools.cached_property
    def _parameter_bytes(self) -> int:
        """Bytes of the parameters, from a model on the meta device; 0 if none can be made."""
        with contextlib.suppress(Exception), torch.device("meta"):
            return sum(tensor.nbytes for tensor in self._construct(0).parameters())
        return 0

    def inputs(self, seed: int, device: torch.device | None = None) -> list[Any]:
        """get_inputs() with random streams set to `seed`; floats redrawn if the options give an input range.

        For a GPU they are drawn there if the file's code allows it (with other random numbers), and otherwise moved
        there.
        """
        maker = self._maker
        with _users_words(self.task, f"{maker.name}() failed"), _in_folder(self._folder):
            values = placed(drawn_on(device or CPU, lambda: maker.draw(seed, self.group)), device)
        arrangement, leaves = arrange(values)
        limits = self.task.options.input_range
        return list(rebuilt(arrangement, (self._adapt(value, limits) for value in leaves)))

    def groups(self) -> list[int]:
        """Numbers of the file's own cases to use, the first case first."""
        with _users_words(self.task, f"{self._maker.name}() failed"), _in_folder(self._folder):
            return self._maker.groups()

    @property
    def _name(self) -> str:
        """The name of the model's class."""
        return self.task.options.model or "Model"

    @property
    def _folder(self) -> Path:
        """The task's folder."""
        return Path(self.task.path).parent

    @functools.cached_property
    def _maker(self) -> InputMaker:
        """The maker of the task's inputs, which knows the signature of forward."""
        forward = getattr(self.module.Model, "forward", None)
        return InputMaker(self.module, functools.partial(forward, None) if callable(forward) else None)

    def _adapt(self, value: Any, limits: tuple[float, float] | None) -> Any:
        """A floating tensor redrawn within the input range and in the task's dtype; other values as they are."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        drawn = value if limits is None else torch.empty_like(value).uniform_(*limits)
        return drawn if self.dtype is None else drawn.to(self.dtype)

    def run(self, model: nn.Module, inputs: list[Any]) -> Any:
        """Runs model(*inputs) without gradients; any exception becomes a TaskError."""
        doing = f"{self._name}.forward failed on the inputs of {self._maker.name}()"
        with _users_words(self.task, doing), torch.no_grad():
            return call(model, inputs)


def load(task: Task, *, overrides: Mapping[str, int] | None = None, dtype: DType | None = None) -> LoadedTask:
    """Executes the task's file under a module name of its own; `overrides` add to the task's.

    `dtype` converts floating-point parameters and inputs (TaskOptions.dtypes); None leaves the file's own.

    The module is registered under a unique name because TorchScript and dataclasses look it up there, and two tasks
    must not meet. Raises TaskError with the user's line if the file itself fails.
    """
    given = {**task.overrides, **(overrides or {})}
    constants = {name: value for name, value in given.items() if name != GROUP}
    text = overridden_source(task.text, constants)
    folder = Path(task.path).parent
    ModulesBeside(folder, task.options.files).install()
    name = f"foundry_task_{task.digest[:12]}_{next(_LOADED)}"
    module = types.ModuleType(name)
    module.__file__ = task.path
    sys.modules[name] = module
    with _users_words(task, "the file failed to load"), _in_folder(folder):
        exec(compile(text, task.path, "exec", dont_inherit=True), module.__dict__)
    if not callable(getattr(module, "Model", None)):
        raise TaskError(f"{task.name} defines no {task.options.model or 'Model'} that can be called")
    if not any(callable(getattr(module, maker, None)) for maker in ("get_inputs", "get_input_groups")):
        raise TaskError(f"{task.name} defines no get_inputs that can be called")
    return LoadedTask(task, module, given, None if dtype is None else torch_dtype(dtype), given.get(GROUP, 0))


def case_keys(loaded: LoadedTask) -> list[tuple[dict[str, int], DType | None]]:
    """(overrides, further dtype) of each case of a loaded task: its own, its input maker's, extra shapes, further
    dtypes."""
    options = loaded.task.options
    own: list[dict[str, int]] = [{GROUP: number} if number else {} for number in loaded.groups()]
    dtypes = [dtype for name in options.dtypes for dtype in CONVERTIBLE if dtype == name]
    return [*((shape, None) for shape in (*own, *options.extra_shapes)), *(({}, dtype) for dtype in dtypes)]


# ---------------------------------------------------------------- checking the reference


@dataclass(frozen=True)
class Checked:
    """A reference that can be judged: its outputs, and what it needs besides them and its inputs. `work_bytes`
    are the temporaries of one call, known on a GPU only; `piece_bytes` what one use of a parameter takes."""

    outputs: list[TensorSpec]
    parameter_bytes: int
    work_bytes: int
    piece_bytes: int
    written: list[TensorSpec] = field(default_factory=list)  # specs of the inputs that forward writes to


def check_reference(
    loaded: LoadedTask,
    *,
    seed: int = 0,
    device: torch.device = CPU,
    tell_seconds: Callable[[float], None] = lambda _: None,
) -> Checked:
    """Runs the reference on a device and returns the specs of its outputs, nested tuples, lists and dicts flattened.

    `tell_seconds` gets the seconds of the first forward before the second one starts.

    Raises TaskError, one line each: no output tensors, empty outputs, NaN outputs, written inputs that share memory,
    a model with random output, a non-deterministic model.
    """
    inputs = loaded.inputs(seed, device)
    first_model = loaded.build_model(seed, device)
    state = {key: value.clone() for key, value in first_model.state_dict().items()}
    given = _copy(inputs)
    meter = _Meter(device)
    start = time.monotonic()
    result = _run_seeded(loaded, first_model, given, seed)
    torch_device_of(device).synchronise()
    tell_seconds(time.monotonic() - start)
    places = _written_places(loaded, first_model, inputs, given)
    first = _tensors(result, is_needed=not places)
    work_bytes = meter.read(first)
    specs, written = [spec_of(output) for output in first], _tensors_at(given, places)
    first += written
    _check_values(first)
    piece_bytes = _piece_bytes(first_model)
    del first_model

    def again(stream: int, *, in_eval: bool = False) -> list[torch.Tensor]:
        """The outputs of a newly built model with the same state, on copies of the inputs, with seed `stream`."""
        model = loaded.build_model(seed, device)
        with _users_words(loaded.task, "building Model a second time gave another state"):
            model.load_state_dict(state)
        copies = _copy(inputs)
        result = _run_seeded(loaded, model.eval() if in_eval else model, copies, stream)
        return [*_tensors(result, is_needed=False), *_tensors_at(copies, places)]

    if not _same(first, again(seed + 1)):
        if _same(first, again(seed)):
            raise RandomTask(
                "the model's output is random: it changes with the random seed at the same inputs and parameters",
                _less_random(loaded.task, lambda stream: again(stream, in_eval=True)),
            )
        raise RandomTask("the model is not deterministic: two runs at the same inputs, parameters and seed differ")
    parameter_bytes = sum(tensor.nbytes for tensor in state.values())
    return Checked(specs, parameter_bytes, work_bytes, piece_bytes, list(map(spec_of, written)))


def _piece_bytes(model: nn.Module) -> int:
    """The most that one use of a parameter takes besides the model: the parameter itself where it is brought, and its
    float64 form, of products and look-ups by the layers of PyTorch some rows of that."""
    in_rows = {id(layer.weight) for layer in model.modules() if type(layer) in (nn.Linear, nn.Embedding)}
    found = 0
    for tensor in (*model.parameters(), *model.buffers()):
        widened = 8 * tensor.numel() if tensor.is_floating_point() else 16 * tensor.numel() * tensor.is_complex()
        found = max(found, tensor.nbytes + (min(widened, PIECE_BYTES) if id(tensor) in in_rows else widened))
    return found


def _less_random(task: Task, run_in_eval: Callable[[int], list[torch.Tensor]]) -> str:
    """A remedy for a random model: eval mode, if a trial shows that it makes the model deterministic."""
    is_eval = task.options.mode == "eval"
    try:
        stays = is_eval or not _same(run_in_eval(0), run_in_eval(1))
    except TaskError:  # failing in eval mode says nothing about the task as it is
        stays = False
    if not stays:
        return 'remove the random operator, or set mode = "eval" beside the task if it is dropout'
    where = "" if is_eval else ' with mode = "eval" beside the task'
    return (
        "it stays random in eval mode, as F.dropout(..., training=True), its default, does: write "
        f"training=self.training there{where}, or remove the random operator"
    )


class _Meter:
    """Measures the peak of PyTorch's GPU memory from now on."""

    def __init__(self, device: torch.device) -> None:
        """Forgets PyTorch's peak so far and notes the memory in use."""
        self._side = torch_device_of(device)
        self._side.forget_peak()
        self._before = self._side.allocated_bytes()

    def read(self, outputs: list[torch.Tensor]) -> int:
        """Bytes beyond the outputs; 0 elsewhere."""
        return max(0, self._side.peak_bytes() - self._before - sum(item.nbytes for item in outputs))


def _run_seeded(loaded: LoadedTask, model: nn.Module, inputs: list[Any], seed: int) -> Any:
    """The model's outputs, with all random generators seeded before."""
    seed_everything(seed)
    return loaded.run(model, inputs)


def _copy(inputs: list[Any]) -> list[Any]:
    """The inputs with each tensor copied."""
    arrangement, leaves = arrange(inputs)
    copies = (value.clone() if isinstance(value, torch.Tensor) else value for value in leaves)
    return list(rebuilt(arrangement, copies))


def _tensors(result: Any, *, is_needed: bool) -> list[torch.Tensor]:
    """The output tensors; None and numbers between them are allowed, anything else raises TaskError.

    `is_needed`: forward must return at least one tensor, because it writes to no input.
    """
    leaves = flatten(result)
    for leaf in leaves:
        if not (leaf is None or isinstance(leaf, torch.Tensor | int | float)):
            raise TaskError(
                f"forward returned a {type(leaf).__name__}",
                "it must return a tensor, or a tuple, list or dict of tensors, the keys of a dict being strings",
            )
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors and is_needed:
        raise TaskError(
            "forward returned no tensor" + (" (it returned None)" if result is None else ""), "return the result"
        )
    return tensors


def _tensors_at(inputs: list[Any], places: list[int]) -> list[torch.Tensor]:
    """The input tensors at some positions among all leaves."""
    leaves = flatten(inputs)
    return [leaves[place] for place in places]


def _written_places(loaded: LoadedTask, model: nn.Module, before: list[Any], after: list[Any]) -> list[int]:
    """Positions of the inputs that forward wrote to. Raises TaskError, with the line and operator, if no kernel can be
    judged that does the same."""
    old, new = flatten(before), flatten(after)
    places = [place for place, item in enumerate(new) if isinstance(item, torch.Tensor) and item._version]
    for place, item in enumerate(new):
        if place in places:
            problem, remedy = write_problem(old, place), "give each its own memory in get_inputs (x = x.clone())"
        else:
            is_same = not isinstance(item, torch.Tensor) or bits_equal(old[place], item)
            problem, remedy = ("", "") if is_same else (_PAST_THE_COUNTER, "write to the tensor itself (x.copy_(y))")
        if problem:
            again = _copy(before)
            run = functools.partial(loaded.run, model, again)
            operator, line = find_write(run, flatten(again)[place], loaded.task.path)
            where = f"{Path(loaded.task.path).name}, line {line}: " if line else ""
            by = f" ({operator})" if operator else ""
            raise TaskError(f"{where}forward writes to its input {place} in place{by}, {problem}", remedy)
    return places


_PAST_THE_COUNTER = "past PyTorch's version counter"


def _check_values(outputs: list[torch.Tensor]) -> None:
    """Raises TaskError if all outputs are without elements, or if one holds NaN."""
    if not any(output.numel() for output in outputs):
        shapes = ", ".join(str(list(output.shape)) for output in outputs[:4])
        remedy = "give it inputs for which forward computes some, or leave this case out"
        raise TaskError(f"no output has elements (shapes: {shapes})", remedy)
    for index, output in enumerate(map(as_real, outputs)):
        if output.is_floating_point() and bool(torch.isnan(output).any()):
            share = float(torch.isnan(output).double().mean())
            remedy = "give it inputs for which it has none, or let forward replace them (torch.nan_to_num)"
            found = (
                f"output {index} holds NaN ({share:.1%} of it), which is not compared: no kernel can be proven there"
            )
            raise TaskError(found, remedy)


def bits_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for equal elements, NaN equal to NaN, compared part by part."""
    return one.shape == other.shape and all(same_numbers(*pair) for pair in in_pieces(as_real(one), as_real(other)))


def in_pieces(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two tensors of one shape, part by part, because copies of whole tensors may not fit into memory."""
    first, second = one.reshape(-1), other.reshape(-1)
    for start in range(0, first.numel(), PIECE):
        yield first[start : start + PIECE], second[start : start + PIECE]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """True if two lists of outputs agree up to SAME_ANSWER of the largest finite magnitude, non-finite elements
    included."""
    if len(one) != len(other):
        return False
    return all(_same_tensor(a, b) for a, b in zip(one, other, strict=True))


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors agree up to a maximum error of SAME_ANSWER times the largest magnitude; integers must be
    equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = as_real(one), as_real(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    largest = worst = 0.0
    for a, b in in_pieces(one, other):
        finite = torch.isfinite(a)
        if not torch.equal(finite, torch.isfinite(b)) or not same_numbers(a[~finite], b[~finite]):
            return False
        left, right = a[finite].double(), b[finite].double()
        if left.numel():
            largest = max(largest, float(left.abs().max()))
            worst = max(worst, float((left - right).abs().max()))
    return worst <= SAME_ANSWER * largest
