"""Reads a model's modules, its tensors by their paths, and a digest of each. Imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from foundry.knowledge.opgraph import HeldTensor, ModulePart
from foundry.tools.task.construction.recorder import CannotReplay

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_LOADERS = ("_save_to_state_dict", "_load_from_state_dict", "state_dict", "load_state_dict", "get_extra_state")
_LOADING_HOOKS = (
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


def parts_of(model: nn.Module) -> list[ModulePart]:
    """Every module of the tree, parents first. Raises CannotReplay if one saves or loads its state in a way of its
    own."""
    seen: dict[int, str] = {}
    found: list[ModulePart] = []

    def walk(module: nn.Module | None, path: str) -> None:
        """Appends a module and its children to `found`; a module met before is noted as the same."""
        if module is None:
            found.append(ModulePart(path, ""))
            return
        if id(module) in seen:
            found.append(ModulePart(path, "Module", same_as=seen[id(module)]))
            return
        seen[id(module)] = path
        _check_loading(module, path)
        kind = next((item.__name__ for item in _CONTAINERS if type(module) is item), "Module")
        found.append(ModulePart(path, kind, module.training, module._version))
        for name, child in module._modules.items():
            walk(child, f"{path}.{name}" if path else name)

    walk(model, "")
    return found


def _check_loading(module: nn.Module, path: str) -> None:
    """Raises CannotReplay if a module saves or loads its state in a way of its own."""
    own = [name for name in _LOADERS if not getattr(type(module), name).__module__.startswith("torch.nn.")]
    hooks = [hook for name in _LOADING_HOOKS for hook in getattr(module, name, {}).values()]
    if own or any(not _is_of_torch(hook) for hook in hooks):
        where = path or "the model"
        raise CannotReplay(f"{where} ({type(module).__name__}) saves or loads its state in a way of its own")


def plain_attributes(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of each tensor that is neither a parameter nor a buffer of its module: `self.table = ...`."""
    for path, module in model.named_modules():
        for name, item in vars(module).items():
            if type(item) is torch.Tensor:
                yield f"{path}.{name}" if path else name, item


def _is_of_torch(hook: Any) -> bool:
    """True if a loading hook only reads names that torch's own layers had in earlier versions."""
    function = getattr(hook, "hook", hook)  # nn.Module wraps some
    return str(getattr(function, "__module__", "")).startswith("torch.nn.")


@dataclass(frozen=True)
class TensorPlace:
    """One named tensor of a model; None if the name is registered without a tensor."""

    held: HeldTensor
    tensor: torch.Tensor | None


def tensors_of(model: nn.Module, parts: Collection[ModulePart], attributes: Collection[str]) -> list[TensorPlace]:
    """Parameters, buffers, and the requested plain attributes, by their paths.

    A shared tensor names the first path of the same object. Raises CannotReplay for parameters of a class of their
    own.
    """
    seen: dict[int, str] = {}
    found: list[TensorPlace] = []
    for part in parts:
        if part.kind and part.same_as is None:
            module = model.get_submodule(part.path)
            found += [_shared(place, seen) for place in _places(module, part.path)]
    for path in attributes:
        *above, name = path.split(".")
        holder = model.get_submodule(".".join(above))
        found.append(TensorPlace(HeldTensor(path, "attribute", ""), holder.__dict__[name]))
    return found


def _places(module: nn.Module, path: str) -> Iterator[TensorPlace]:
    """Yields one module's own parameters and buffers with their paths; raises CannotReplay for a special kind of
    tensor."""
    prefix = f"{path}." if path else ""
    for name, parameter in module._parameters.items():
        if parameter is not None and type(parameter) is not nn.Parameter:
            raise CannotReplay(f"{prefix}{name} is a {type(parameter).__name__}, not a plain parameter")
        is_learned = parameter is not None and parameter.requires_grad
        yield TensorPlace(HeldTensor(prefix + name, "parameter", "", is_learned), parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None and type(buffer) not in (torch.Tensor, nn.Buffer, nn.Parameter):
            raise CannotReplay(f"{prefix}{name} is a {type(buffer).__name__}, not a plain tensor")
        passes = name in module._non_persistent_buffers_set
        yield TensorPlace(HeldTensor(prefix + name, "passing buffer" if passes else "buffer", ""), buffer)


def _shared(place: TensorPlace, seen: dict[int, str]) -> TensorPlace:
    """The place, marked as the same as the first place of its tensor."""
    if place.tensor is None:
        return place
    first = seen.setdefault(id(place.tensor), place.held.path)
    return place if first == place.held.path else replace(place, held=replace(place.held, same_as=first))


Facts = dict[str, tuple[object, ...]]


def facts_of(model: nn.Module, attributes: Collection[str], is_compared: Callable[[str], bool]) -> Facts:
    """The facts that must be equal in a model and in its replay, by path.

    For tensors their kind, dtype, layout and digest (the last only if `is_compared`), for modules their mode.
    """
    parts = parts_of(model)
    facts: Facts = {part.path or "the model": (part.training, part.same_as) for part in parts}
    for held, tensor in ((place.held, place.tensor) for place in tensors_of(model, parts, attributes)):
        told: tuple[object, ...] = (held.kind, held.requires_grad, held.same_as)
        if tensor is not None:
            told += (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device.type)
            told += (_digest(tensor),) if is_compared(held.path) else ()
        facts[held.path] = told
    return facts


def _digest(tensor: torch.Tensor) -> str:
    """The sha256 of a tensor's elements."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(memoryview(flat.view(torch.uint8).numpy())).hexdigest()
