"""Runs a task file inside a worker: builds its model and inputs, and says in the user's terms what is wrong.

Imports torch and executes the user's code: never imported by the main process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import random
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from foundry.knowledge.errors import RandomTask, TaskError
from foundry.knowledge.opgraph import Arrangement, DType, TensorSpec
from foundry.knowledge.task import Task
from foundry.knowledge.task_text import overridden_source

Made = TypeVar("Made")

_LOADED = itertools.count()
_DTYPES: dict[torch.dtype, DType] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}

# Two runs of a deterministic reduction on a GPU may differ by the order of atomic additions; more is another answer.
SAME_ANSWER = 1e-4
PIECE = 1 << 24  # elements compared at a time
CPU = torch.device("cpu")
LONG_DRAW_BYTES = 128 << 20  # of parameters: half of what a linear layer of 8192 by 8192 has, drawn by a host in 0.34 s


def dtype_name(dtype: torch.dtype) -> DType:
    """The vocabulary's name of a torch dtype; raises TaskError for one that no kernel here handles."""
    if dtype not in _DTYPES:
        raise TaskError(f"tensors of {dtype} are not supported")
    return _DTYPES[dtype]


def torch_dtype(name: DType) -> torch.dtype:
    return next(dtype for dtype, known in _DTYPES.items() if known == name)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape and strides (elements) and dtype of a dense tensor; raises TaskError for sparse ones."""
    if tensor.layout is not torch.strided:
        raise TaskError(f"{tensor.layout} tensors are not supported")
    shape = tuple(int(size) for size in tensor.shape)
    return TensorSpec(shape, tuple(int(step) for step in tensor.stride()), dtype_name(tensor.dtype))


def drawn_on(device: torch.device, make: Callable[[], Made]) -> Made:
    """What `make` constructs, with `device` in the place of the host where its code allows it: other numbers come from
    its random streams."""
    if device.type != "cpu":
        with contextlib.suppress(Exception), device:  # a generator, or data, that only the host has
            return make()
    return make()


def arrange(result: Any) -> tuple[Arrangement, list[Any]]:
    """How nested tuples, lists and dicts are arranged, and their leaves in order: what they hold, whatever a subclass
    would say when it is asked, for it could begin to compute then. A dict with other keys than strings is a leaf."""
    if issubclass(type(result), tuple):
        return _arranged("tuple", list(tuple.__iter__(result)))
    if issubclass(type(result), list):
        return _arranged("list", list(list.__iter__(result)))
    if issubclass(type(result), dict) and all(type(key) is str for key in dict.keys(result)):
        return _arranged("dict", list(dict.values(result)), tuple(dict.keys(result)))
    return Arrangement(), [result]


def _arranged(
    kind: Literal["tuple", "list", "dict"], held: list[Any], keys: tuple[str, ...] = ()
) -> tuple[Arrangement, list[Any]]:
    parts = [arrange(item) for item in held]
    return Arrangement(kind, tuple(part for part, _ in parts), keys), [leaf for _, own in parts for leaf in own]


def rebuilt(arrangement: Arrangement, leaves: Iterator[Any]) -> Any:
    """The next leaves, arranged."""
    if arrangement.kind == "leaf":
        return next(leaves)
    items = [rebuilt(item, leaves) for item in arrangement.items]
    if arrangement.kind == "dict":
        return dict(zip(arrangement.keys, items, strict=True))
    return items if arrangement.kind == "list" else tuple(items)


def flatten(result: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    return arrange(result)[1]


def dict_keys(result: Any) -> list[str]:
    """The keys that lead to each leaf which lies in a dict, in order: "['boxes']['scores']"."""

    def walk(arrangement: Arrangement, path: str) -> Iterator[str]:
        if arrangement.kind == "leaf" and path:
            yield path
        for step, item in zip(arrangement.steps, arrangement.items, strict=True):
            yield from walk(item, path + step * bool(arrangement.keys))

    return list(walk(arrange(result)[0], ""))


def placed(value: Any, device: torch.device | None) -> Any:
    """A nested value with its tensors on a device."""
    if device is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(placed(item, device) for item in value)
    if isinstance(value, dict):
        return {key: placed(item, device) for key, item in value.items()}
    return value


def seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def files_passed(error: BaseException) -> list[str]:
    """The file of each frame that an exception passed, the innermost last."""
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def lines_in(file: str, error: BaseException) -> list[int]:
    """The lines of a file that an exception passed, the innermost last. Code that PyTorch has made of the file's may
    have no lines and no columns, for which `traceback.extract_tb` fails (torch 2.6)."""
    passed = traceback.walk_tb(error.__traceback__)
    return [line for frame, line in passed if frame.f_code.co_filename == file and line]


@contextlib.contextmanager
def _users_words(task: Task, doing: str) -> Iterator[None]:
    """Turns whatever the user's code raises into one TaskError with the line of the user's own file."""
    try:
        yield
    except (TaskError, KeyboardInterrupt):
        raise
    except torch.OutOfMemoryError:  # of a GPU: others may have taken what there was, which says nothing of the task
        raise
    except BaseException as error:  # a task may raise anything, SystemExit included
        files, lines = files_passed(error), lines_in(task.path, error)
        where = f", line {lines[-1]}" if lines else ""
        first = (str(error).strip().splitlines() or [""])[0][:300]
        what = f"{type(error).__name__}: {first}" if first else type(error).__name__
        name = task.path.rsplit("/", 1)[-1]
        remedy = ""
        if isinstance(error, MemoryError) or "allocate" in first or "out of memory" in first:
            remedy = "the task needs more memory than this machine gives it: make its sizes smaller"
        elif files[-1] == task.path and (lacking := _lacking(error)):
            remedy = f"a task is one self-contained file: {lacking}"
        raise TaskError(f"{name}{where}: {doing}: {what}", remedy) from error


def _lacking(error: BaseException) -> str:
    """What to do where an import asks for what is not installed, or for a file beside the one that imports it; else
    ""."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package and importlib.util.find_spec(package) is None:
            return f"move {package} into it if it lies beside it, else install it"
    elif isinstance(error, ImportError) and "relative import" in str(error):
        return "move what it imports from beside it into it"
    return ""


@dataclass(frozen=True)
class LoadedTask:
    """The user's module, executed once with its constants overridden."""

    task: Task
    module: types.ModuleType
    overrides: dict[str, int]
    dtype: torch.dtype | None = None

    def build_model(self, seed: int, device: torch.device = CPU) -> nn.Module:
        """Model(*get_init_inputs()) with random streams set to `seed`, as KernelBench does, in the task's mode, on a
        device. Where `place_to_draw` says so, it is also made there."""
        with _users_words(self.task, "building Model failed"):
            model = drawn_on(self.place_to_draw(device), lambda: self._construct(seed))
            if not isinstance(model, nn.Module):
                raise TaskError(f"Model is a {type(model).__name__}, not an nn.Module")
        if self.task.options.mode != "as_given":
            model.train(self.task.options.mode == "train")
        return model.to(device=device, dtype=self.dtype)

    def place_to_draw(self, device: torch.device) -> torch.device:
        """Where the parameters of a model for `device` are drawn: there if they are many, else on the host."""
        return device if device.type != "cpu" and self._parameter_bytes >= LONG_DRAW_BYTES else CPU

    def _construct(self, seed: int) -> Any:
        seed_everything(seed)
        get_init_inputs = getattr(self.module, "get_init_inputs", None)
        arguments: Any = get_init_inputs() if get_init_inputs is not None else []
        seed_everything(seed)
        build = self.module.Model
        return build(**arguments) if isinstance(arguments, dict) else build(*(arguments or []))

    @functools.cached_property
    def _parameter_bytes(self) -> int:
        """As far as a model without memory tells; 0 where none can be made."""
        with contextlib.suppress(Exception), torch.device("meta"):
            return sum(tensor.nbytes for tensor in self._construct(0).parameters())
        return 0

    def inputs(self, seed: int, device: torch.device | None = None) -> list[Any]:
        """get_inputs() with random streams set to `seed`; floats redrawn when the options give an input range.

        For a GPU they are drawn there where the file's code allows it, which other numbers come from, and otherwise
        moved there.
        """
        with _users_words(self.task, "get_inputs() failed"):
            values = placed(drawn_on(device or CPU, lambda: self._draw(seed)), device)
        if not isinstance(values, list | tuple):
            raise TaskError(
                f"get_inputs() returned a {type(values).__name__}", "return the list of forward's arguments"
            )
        arrangement, leaves = arrange(list(values))
        for index, value in enumerate(leaves):
            if isinstance(value, torch.Tensor) and value.numel() == 0:
                raise TaskError(f"input {index} of get_inputs() has no elements (shape {list(value.shape)})")
            if isinstance(value, dict):
                raise TaskError(f"input {index} of get_inputs() is a dict with other keys than strings")
        limits = self.task.options.input_range
        return list(rebuilt(arrangement, (self._adapt(value, limits) for value in leaves)))

    def _draw(self, seed: int) -> Any:
        seed_everything(seed)
        return self.module.get_inputs()

    def _adapt(self, value: Any, limits: tuple[float, float] | None) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        drawn = value if limits is None else torch.empty_like(value).uniform_(*limits)
        return drawn if self.dtype is None else drawn.to(self.dtype)

    def run(self, model: nn.Module, inputs: list[Any]) -> Any:
        """model(*inputs) without gradients; whatever it raises becomes a TaskError."""
        with _users_words(self.task, "Model.forward failed on the inputs of get_inputs()"), torch.no_grad():
            return model(*inputs)


def load(task: Task, *, overrides: Mapping[str, int] | None = None, dtype: DType | None = None) -> LoadedTask:
    """Executes the task's file under a module name of its own; `overrides` add to the task's.

    `dtype` converts floating-point parameters and inputs (TaskOptions.dtypes); None leaves the file's own.

    The module is registered under a unique name because TorchScript and dataclasses look it up there, and two tasks
    must not meet. Raises TaskError with the user's line when the file itself fails.
    """
    constants = {**task.overrides, **(overrides or {})}
    text = overridden_source(task.source, constants)
    name = f"foundry_task_{task.digest[:12]}_{next(_LOADED)}"
    module = types.ModuleType(name)
    module.__file__ = task.path
    sys.modules[name] = module
    with _users_words(task, "the file failed to load"):
        exec(compile(text, task.path, "exec", dont_inherit=True), module.__dict__)
    for member in ("Model", "get_inputs"):
        if not callable(getattr(module, member, None)):
            raise TaskError(f"{task.name} defines no {member} that can be called")
    return LoadedTask(task, module, constants, None if dtype is None else torch_dtype(dtype))


# ---------------------------------------------------------------- checking the reference


@dataclass(frozen=True)
class Checked:
    """A reference that can be judged: its outputs, and what it needs besides them and its inputs. `work_bytes`
    are the temporaries of one call, known on a GPU only."""

    outputs: list[TensorSpec]
    parameter_bytes: int
    work_bytes: int


def check_reference(
    loaded: LoadedTask,
    *,
    seed: int = 0,
    device: torch.device = CPU,
    tell_seconds: Callable[[float], None] = lambda _: None,
) -> Checked:
    """Runs the reference on a device and returns what its outputs are, nested tuples, lists and dicts flattened.
    `tell_seconds` is given the seconds of the first forward, before there is another one.

    Raises TaskError, one line each: no output tensors, empty outputs, NaN outputs, inputs changed in place, a model
    with random output, a non-deterministic model.
    """
    inputs = loaded.inputs(seed, device)
    first_model = loaded.build_model(seed, device)
    state = {key: value.clone() for key, value in first_model.state_dict().items()}
    given = _copy(inputs)
    meter = _Meter(device)
    start = time.monotonic()
    first = _tensors(_run_seeded(loaded, first_model, given, seed))
    if device.type == "cuda":
        torch.cuda.synchronize()
    tell_seconds(time.monotonic() - start)
    work_bytes = meter.read(first)
    _check_inputs_unchanged(inputs, given)
    specs = [spec_of(output) for output in first]
    _check_values(first)
    del first_model

    def again(stream: int, *, in_eval: bool = False) -> list[torch.Tensor]:
        model = loaded.build_model(seed, device)
        with _users_words(loaded.task, "building Model a second time gave another state"):
            model.load_state_dict(state)
        return _tensors(_run_seeded(loaded, model.eval() if in_eval else model, _copy(inputs), stream))

    if not _same(first, again(seed + 1)):
        if _same(first, again(seed)):
            raise RandomTask(
                "the model's output is random: it changes with the random seed at the same inputs and parameters",
                _less_random(loaded.task, lambda stream: again(stream, in_eval=True)),
            )
        raise RandomTask("the model is not deterministic: two runs at the same inputs, parameters and seed differ")
    return Checked(specs, sum(tensor.nbytes for tensor in state.values()), work_bytes)


def _less_random(task: Task, run_in_eval: Callable[[int], list[torch.Tensor]]) -> str:
    """What to do about a random model: eval mode helps where it makes the model deterministic, which is tried."""
    is_eval = task.options.mode == "eval"
    try:
        stays = is_eval or not _same(run_in_eval(0), run_in_eval(1))
    except TaskError:  # what fails in eval mode is no news of the task as it is
        stays = False
    if not stays:
        return 'remove the random operator, or set mode = "eval" beside the task if it is dropout'
    where = "" if is_eval else ' with mode = "eval" beside the task'
    return (
        "it stays random in eval mode, as F.dropout(..., training=True), its default, does: write "
        f"training=self.training there{where}, or remove the random operator"
    )


class _Meter:
    """The most GPU memory that PyTorch takes from now on."""

    def __init__(self, device: torch.device) -> None:
        self._counts = device.type == "cuda"
        if self._counts:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()

    def read(self, outputs: list[torch.Tensor]) -> int:
        """Bytes beyond the outputs; 0 elsewhere."""
        if not self._counts:
            return 0
        return max(0, torch.cuda.max_memory_allocated() - self._before - sum(item.nbytes for item in outputs))


def _run_seeded(loaded: LoadedTask, model: nn.Module, inputs: list[Any], seed: int) -> Any:
    seed_everything(seed)
    return loaded.run(model, inputs)


def _copy(inputs: list[Any]) -> list[Any]:
    arrangement, leaves = arrange(inputs)
    copies = (value.clone() if isinstance(value, torch.Tensor) else value for value in leaves)
    return list(rebuilt(arrangement, copies))


def _tensors(result: Any) -> list[torch.Tensor]:
    """Output tensors; None and numbers between them are allowed, anything else is not."""
    leaves = flatten(result)
    for leaf in leaves:
        if not (leaf is None or isinstance(leaf, torch.Tensor | int | float)):
            raise TaskError(
                f"forward returned a {type(leaf).__name__}",
                "it must return a tensor, or a tuple, list or dict of tensors, the keys of a dict being strings",
            )
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise TaskError(
            "forward returned no tensor" + (" (it returned None)" if result is None else ""), "return the result"
        )
    return tensors


def _check_inputs_unchanged(before: list[Any], after: list[Any]) -> None:
    for index, (old, new) in enumerate(zip(flatten(before), flatten(after), strict=False)):
        if isinstance(old, torch.Tensor) and not _bits_equal(old, new):
            raise TaskError(f"forward changes its input {index} in place", "let it return a new tensor instead")


def _check_values(outputs: list[torch.Tensor]) -> None:
    for index, output in enumerate(outputs):
        if output.numel() == 0:
            raise TaskError(f"output {index} is empty (shape {list(output.shape)})")
        if output.is_floating_point() and bool(torch.isnan(output).any()):
            share = float(torch.isnan(output).double().mean())
            raise TaskError(f"output {index} holds NaN ({share:.1%} of it), so no kernel can be proven against it")


def _bits_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in _pieces(one, other)
    )


def _pieces(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two tensors of one shape, part by part: copies of whole ones may need more memory than there is."""
    first, second = one.reshape(-1), other.reshape(-1)
    for start in range(0, first.numel(), PIECE):
        yield first[start : start + PIECE], second[start : start + PIECE]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Equal up to SAME_ANSWER of the largest finite magnitude, with the same non-finite elements."""
    if len(one) != len(other):
        return False
    return all(_same_tensor(a, b) for a, b in zip(one, other, strict=True))


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    largest = worst = 0.0
    for a, b in _pieces(one, other):
        finite = torch.isfinite(a)
        if not torch.equal(finite, torch.isfinite(b)) or not torch.equal(a[~finite], b[~finite]):
            return False
        left, right = a[finite].double(), b[finite].double()
        if left.numel():
            largest = max(largest, float(left.abs().max()))
            worst = max(worst, float((left - right).abs().max()))
    return worst <= SAME_ANSWER * largest
