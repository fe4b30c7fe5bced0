"""Makes the models of a runner, the reference's or a candidate's, and matches their tensors. Imports torch."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from foundry.knowledge import codec
from foundry.knowledge.task import Task
from foundry.tools.grade.runner.failures import Refused
from foundry.tools.process.channel import Message
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.task import loading
from foundry.tools.task.form.values import same_numbers


def reference_maker(message: Message) -> Callable[[Message, Any], nn.Module]:
    task = codec.decode(Task, message["task"])

    def make(order: Message, arguments: Any) -> nn.Module:
        loaded = loading.load(task, overrides=order["overrides"], dtype=order["dtype"])
        return loaded.build_model(order["seed"], torch.device(order["drawn_on"]))

    return make


class TextModules(Loader):
    """Finds modules among texts, by the path of each file below the task's folder, which a candidate's process may not
    read. Stands in `sys.meta_path`, and loads what it finds."""

    def __init__(self, folder: str, texts: Mapping[str, str]) -> None:
        self._folder, self._texts = folder, texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """As importlib asks."""
        stem = name.replace(".", "/")
        for file, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if file in self._texts:
                spec = ModuleSpec(name, self, origin=f"{self._folder}/{file}", is_package=is_package)
                spec.has_location = True
                return spec
        if any(file.startswith(f"{stem}/") for file in self._texts):
            return ModuleSpec(name, None, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """As importlib asks: a module as any other."""
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """As importlib asks."""
        exec(self._code(str(module.__file__)), module.__dict__)

    def _code(self, origin: str) -> types.CodeType:
        text = self._texts[origin.removeprefix(f"{self._folder}/")]
        return compile(text, origin, "exec", dont_inherit=True)


def import_first(statements: Sequence[str], folder: str = "", texts: Mapping[str, str] | None = None) -> bool:
    """Runs import statements that a candidate shares with the task, whose own modules are in `texts`. Says whether they
    brought new modules; a statement that fails here fails in the file too."""
    known = len(sys.modules)
    if texts:
        sys.meta_path.insert(0, TextModules(folder, texts))
    for statement in statements:
        with contextlib.suppress(Exception), torch.enable_grad():
            exec(compile(statement, "<the task's imports>", "exec", dont_inherit=True), {"__name__": "imports"})
    return len(sys.modules) > known


def candidate_maker(text: str, path: str) -> Callable[[Message, Any], nn.Module]:
    """Executes the file under a module of its own and finds ModelNew."""
    Path(path).write_text(text)
    module = types.ModuleType(Path(path).stem)
    module.__file__ = path
    sys.modules[module.__name__] = module
    with torch.enable_grad():  # as at any import
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    found = getattr(module, "ModelNew", None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise Refused("compile_error", "the file defines no class ModelNew(nn.Module)")

    def make(order: Message, arguments: Any) -> nn.Module:
        def construct() -> nn.Module:
            loading.seed_everything(order["seed"])
            return cast(nn.Module, loading.call(found, arguments))

        return loading.drawn_on(torch.device(order["drawn_on"]), construct)

    return make


def say_mode(model: nn.Module, batch: Sequence[Any]) -> None:
    """Says model.train() or model.eval() again, as a user's loop does with its batch at hand: a candidate that looks
    for the batch there, and computes before it is called, is wrong once the batch has other content."""
    assert batch is not None
    model.train(model.training)


@dataclass(frozen=True)
class Variant:
    """Another way to run a model: compiled by torch, or with other arithmetic."""

    model: nn.Module
    tf32: Tf32

    def entered(self) -> nn.Module:
        """The model, with its arithmetic set for the whole process."""
        allow_tf32(self.tf32)
        return self.model


@dataclass(frozen=True)
class LaidOut:
    """A model whose results are put into other strides within each call, as a reader of them would have to."""

    model: Callable[..., Any]
    strides: list[tuple[int, ...]]  # of the results that are tensors, in order

    def entered(self) -> LaidOut:
        return self

    def __call__(self, *arguments: Any, **names: Any) -> Any:
        strides = iter(self.strides)

        def laid(item: Any) -> Any:
            if not isinstance(item, torch.Tensor) or item.stride() == (wanted := next(strides)):
                return item
            return torch.empty_strided(item.shape, wanted, dtype=item.dtype, device=item.device).copy_(item)

        arrangement, leaves = loading.arrange(self.model(*arguments, **names))
        return loading.rebuilt(arrangement, map(laid, leaves))


def variant_of(model: nn.Module, message: Message, arguments: Sequence[Any]) -> Variant | LaidOut | None:
    """By torch.compile in the order's `compile_mode`, which compiles in the first call, or eager where that is "", with
    its `tf32`. With `strides` instead: laid out so, and None where a call shows that there is nothing to do."""
    if "strides" in message:
        strides = [tuple(item) for item in message["strides"]]
        results = [item for item in loading.flatten(loading.call(model, arguments)) if isinstance(item, torch.Tensor)]
        is_usual = len(results) != len(strides) or all(map(_lies_as, results, strides))
        return None if is_usual else LaidOut(model, strides)
    mode, tf32 = message["compile_mode"], message["tf32"]
    return Variant(cast(nn.Module, torch.compile(model, mode=mode)) if mode else model, tf32)


def _lies_as(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether a result lies as PyTorch's does, or row by row."""
    steps = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.is_contiguous() or all(own == wanted for size, own, wanted in steps if size > 1)


def allow_tf32(where: Tf32) -> None:
    """In which float32 products PyTorch may use TF32, in this process from now on."""
    torch.backends.cuda.matmul.allow_tf32 = where == "all"
    torch.backends.cudnn.allow_tf32 = where != "none"


def plain_state(model: nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by the names that state_dict() gives them, read as they lie, as whoever reads
    `model.norm.running_mean` does: state_dict() may run code of the candidate's that brings them up to date."""
    passing = model._non_persistent_buffers_set
    buffers = {key: tensor for key, tensor in model._buffers.items() if key not in passing}
    held = {**model._parameters, **buffers}
    found = {f"{prefix}{key}": tensor for key, tensor in held.items() if isinstance(tensor, torch.Tensor)}
    for name, module in model._modules.items():
        if module is not None:
            found |= plain_state(module, f"{prefix}{name}.")
    return found


def load_tensors(model: nn.Module, tensors: dict[str, torch.Tensor], steps: int = 1, *, loads: bool) -> None:
    """Gives a model other parameters and buffers, in place, in so many steps; with `loads`, where it has hooks for
    that, by load_state_dict too. Those that stay as they are keep their version: it says nothing of the others then."""
    own = plain_state(model)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not same_numbers(own[name], tensor.to(own[name].device)):
                for _ in range(steps):
                    own[name].copy_(tensor)
        inner = cast(nn.Module, getattr(model, "_orig_mod", model))
        if loads and any(map(_notices_loading, inner.modules())):
            inner.load_state_dict(tensors, strict=False)


def _notices_loading(module: nn.Module) -> bool:
    """Whether code that is not PyTorch's runs when a state is loaded; its own norms count batches by theirs."""
    kind = type(module)
    has_hooks = bool(module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks)
    loaders = (kind.load_state_dict, kind._load_from_state_dict)
    return has_hooks or not all(loader.__module__.startswith("torch.nn.") for loader in loaders)


def match_names(keys: list[str], given: list[torch.Tensor], own: dict[str, torch.Tensor]) -> dict[str, str] | str:
    """Name of the reference's tensor -> name of the model's tensor that takes its place: by name, else by equal values.
    A text instead says which tensor has no counterpart.

    Renamed parameters are found while the model still holds its seeded initial values: equal seeds and equal layers
    give equal tensors. Tensors of equal constants (ones, zeros) are matched in order.
    """
    by_name = {key: key for key in keys}
    if all(key in own and own[key].shape == tensor.shape for key, tensor in zip(keys, given, strict=True)):
        return by_name
    names: dict[str, str] = {}
    free = dict(own)
    for key, tensor in zip(keys, given, strict=True):
        same = [
            name
            for name, mine in free.items()
            if mine.shape == tensor.shape and same_numbers(mine.to(tensor.device), tensor)
        ]
        if not same:
            return f"the reference's {key} (shape {list(tensor.shape)}) has no counterpart with the same initial values"
        names[key] = same[0]
        del free[same[0]]
    return names


def tensors_in_result(result: Any, device: torch.device) -> list[torch.Tensor]:
    """The tensors that forward returned, in order, on `device`. Raises Refused for subclasses, other objects and other
    devices; numbers and None are no outputs to compare."""
    leaves = [leaf for leaf in loading.flatten(result) if leaf is not None and not isinstance(leaf, int | float)]
    for index, leaf in enumerate(leaves):
        if type(leaf) is not torch.Tensor and type(leaf) is not nn.Parameter:
            raise Refused("wrong_result", f"forward returned a {type(leaf).__name__}, not a tensor")
        if leaf.device.type != device.type:
            raise Refused("wrong_result", f"output {index} lies on {leaf.device}, the reference's on {device}")
    return leaves
