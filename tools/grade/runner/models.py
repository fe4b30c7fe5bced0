"""Makes a runner's models, the reference's or a candidate's, and matches their tensors. Imports torch."""

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
    """A function that builds the reference's model for a command's case."""
    task = codec.decode(Task, message["task"])

    def make(order: Message, arguments: Any) -> nn.Module:
        loaded = loading.load(task, overrides=order["overrides"], dtype=order["dtype"])
        return loaded.build_model(order["seed"], torch.device(order["drawn_on"]))

    return make


class TextModules(Loader):
    """A finder and loader for `sys.meta_path` of modules given as texts, by file path below the task's folder.

    A candidate's process may not read that folder.
    """

    def __init__(self, folder: str, texts: Mapping[str, str]) -> None:
        self._folder, self._texts = folder, texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's spec, as importlib asks for it."""
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
        """None: importlib makes an ordinary module."""
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs the module's text, as importlib asks."""
        exec(self._code(str(module.__file__)), module.__dict__)

    def _code(self, origin: str) -> types.CodeType:
        text = self._texts[origin.removeprefix(f"{self._folder}/")]
        return compile(text, origin, "exec", dont_inherit=True)


def import_first(statements: Sequence[str], folder: str = "", texts: Mapping[str, str] | None = None) -> bool:
    """Runs import statements that a candidate shares with the task, whose own modules are in `texts`.

    True if they brought new modules. A statement that fails here fails in the candidate's file too.
    """
    known = len(sys.modules)
    if texts:
        sys.meta_path.insert(0, TextModules(folder, texts))
    for statement in statements:
        with contextlib.suppress(Exception), torch.enable_grad():
            exec(compile(statement, "<the task's imports>", "exec", dont_inherit=True), {"__name__": "imports"})
    return len(sys.modules) > known


def candidate_maker(text: str, path: str) -> Callable[[Message, Any], nn.Module]:
    """Executes the candidate's file as a module of its own and returns a function that builds its ModelNew."""
    Path(path).write_text(text)
    module = types.ModuleType(Path(path).stem)
    module.__file__ = path
    sys.modules[module.__name__] = module
    with torch.enable_grad():  # the default at an ordinary import
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
    """Sets the model's mode again, as a user's loop does with its batch in scope.

    A candidate that finds the batch there, and computes before it is called, is wrong once the batch has other
    content.
    """
    assert batch is not None
    model.train(model.training)


@dataclass(frozen=True)
class Variant:
    """Another way to run a model: compiled by torch, or with other arithmetic."""

    model: nn.Module
    tf32: Tf32

    def entered(self) -> nn.Module:
        """The model, after setting its arithmetic for the whole process."""
        allow_tf32(self.tf32)
        return self.model


@dataclass(frozen=True)
class LaidOut:
    """A model whose results are copied to other strides within each call, as their reader would have to do."""

    model: Callable[..., Any]
    strides: list[tuple[int, ...]]  # strides of the results that are tensors, in order

    def entered(self) -> LaidOut:
        """This object: nothing needs to be set."""
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
    """The variant that a command asks for; None if a call shows that its strides are the usual ones.

    With "strides": a LaidOut. Else the model compiled by torch.compile in "compile_mode" (it compiles in the first
    call), or eager if that is "", with "tf32".
    """
    if "strides" in message:
        strides = [tuple(item) for item in message["strides"]]
        results = [item for item in loading.flatten(loading.call(model, arguments)) if isinstance(item, torch.Tensor)]
        is_usual = len(results) != len(strides) or all(map(_lies_as, results, strides))
        return None if is_usual else LaidOut(model, strides)
    mode, tf32 = message["compile_mode"], message["tf32"]
    return Variant(cast(nn.Module, torch.compile(model, mode=mode)) if mode else model, tf32)


def _lies_as(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """True if a result has PyTorch's strides, or is contiguous."""
    steps = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.is_contiguous() or all(own == wanted for size, own, wanted in steps if size > 1)


def allow_tf32(where: Tf32) -> None:
    """Sets the float32 products in which PyTorch may use TF32, for this process from now on."""
    torch.backends.cuda.matmul.allow_tf32 = where == "all"
    torch.backends.cudnn.allow_tf32 = where != "none"


def plain_state(model: nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by their state_dict() names, without calling state_dict().

    state_dict() may run code of the candidate that updates them; readers of `model.norm.running_mean` would not.
    """
    passing = model._non_persistent_buffers_set
    buffers = {key: tensor for key, tensor in model._buffers.items() if key not in passing}
    held = {**model._parameters, **buffers}
    found = {f"{prefix}{key}": tensor for key, tensor in held.items() if isinstance(tensor, torch.Tensor)}
    for name, module in model._modules.items():
        if module is not None:
            found |= plain_state(module, f"{prefix}{name}.")
    return found


def load_tensors(model: nn.Module, tensors: dict[str, torch.Tensor], steps: int = 1, *, loads: bool) -> None:
    """Gives a model other parameters and buffers, in place, in `steps` copies each.

    With `loads`, a model with loading hooks also gets them by load_state_dict. Unchanged tensors keep their version,
    so that a version says nothing about the other tensors.
    """
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
    """True if code outside PyTorch runs when a state is loaded; PyTorch's own norms count batches there."""
    kind = type(module)
    has_hooks = bool(module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks)
    loaders = (kind.load_state_dict, kind._load_from_state_dict)
    return has_hooks or not all(loader.__module__.startswith("torch.nn.") for loader in loaders)


def match_names(keys: list[str], given: list[torch.Tensor], own: dict[str, torch.Tensor]) -> dict[str, str] | str:
    """Maps each of the reference's tensors to the model's tensor in its place: by name, else by equal values.

    A text instead names a tensor without counterpart. Renamed parameters are found while the model still holds its
    seeded initial values: equal seeds and equal layers give equal tensors. Tensors of equal constants (ones, zeros)
    are matched in order.
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
    """The tensors that forward returned, in order, on `device`; numbers and None are skipped.

    Raises Refused for subclasses, other objects and other devices.
    """
    leaves = [leaf for leaf in loading.flatten(result) if leaf is not None and not isinstance(leaf, int | float)]
    for index, leaf in enumerate(leaves):
        if type(leaf) is not torch.Tensor and type(leaf) is not nn.Parameter:
            raise Refused("wrong_result", f"forward returned a {type(leaf).__name__}, not a tensor")
        if leaf.device.type != device.type:
            raise Refused("wrong_result", f"output {index} lies on {leaf.device}, the reference's on {device}")
    return leaves
