"""Makes a runner's models, the reference's or a candidate's, and matches their tensors. Imports torch."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from foundry.knowledge import codec
from foundry.knowledge.task import Task
from foundry.tools.grade.messages.runner import Matched, ModelForm, SharedImports, StateForm
from foundry.tools.grade.runner.failures import Refused
from foundry.tools.grade.runner.tensors import State, find_drifted_parameters
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.task import bundle, loading
from foundry.tools.task.form.values import same_numbers


def reference_maker(text: str) -> Callable[[ModelForm, Any], nn.Module]:
    """A function that builds the reference's model for a command's case; `text` is the encoded task."""
    task = codec.decode(Task, text)

    def make(form: ModelForm, arguments: Any) -> nn.Module:
        """Builds the reference's model for the order's shapes, dtype and seed."""
        loaded = loading.load(task, overrides=form.overrides, dtype=form.dtype)
        return loaded.build_model(form.seed, torch.device(form.drawn_on))

    return make


class TextModules(Loader):
    """A finder and loader for `sys.meta_path` of modules given as texts, by file path below the task's folder.

    A candidate's process may not read that folder.
    """

    def __init__(self, folder: str, texts: Mapping[str, str]) -> None:
        """Finds modules among `texts` (path -> text) as if they were files in `folder`."""
        self._folder, self._texts = folder, texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The import spec of a module or package among the task's texts; None for another module."""
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
        """The compiled code of a module's text, by its path in the task's folder."""
        text = self._texts[origin.removeprefix(f"{self._folder}/")]
        return compile(text, origin, "exec", dont_inherit=True)


def import_first(imports: SharedImports) -> bool:
    """Runs import statements that a candidate shares with the task.

    True if they brought new modules. A statement that fails here fails in the candidate's file too.
    """
    known = len(sys.modules)
    if imports.texts:
        sys.meta_path.insert(0, TextModules(imports.folder, imports.texts))
    for statement in imports.statements:
        with contextlib.suppress(Exception), torch.enable_grad():
            exec(compile(statement, "<the task's imports>", "exec", dont_inherit=True), {"__name__": "imports"})
    return len(sys.modules) > known


def candidate_maker(text: str, path: str) -> Callable[[Any, int, str], nn.Module]:
    """Executes the candidate's file as a module of its own.

    Returns a function that builds its ModelNew from arguments, a seed and the device on which parameters are drawn.
    Raises Refused if the file defines no class ModelNew(nn.Module).
    """
    Path(path).write_text(text)
    module = types.ModuleType(Path(path).stem)
    module.__file__ = path
    sys.modules[module.__name__] = module
    with torch.enable_grad():  # the default at an ordinary import
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    found = getattr(module, "ModelNew", None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise Refused("compile_error", "the file defines no class ModelNew(nn.Module)")

    def make(arguments: Any, seed: int, drawn_on: str) -> nn.Module:
        """Constructs ModelNew with the order's seed, its random numbers drawn on the order's device."""

        def construct() -> nn.Module:
            """Seeds the random numbers and constructs ModelNew with the given arguments."""
            loading.seed_everything(seed)
            return cast(nn.Module, loading.call(found, arguments))

        return loading.drawn_on(torch.device(drawn_on), construct)

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
        """Calls the model and copies each result tensor whose strides differ from the wanted ones."""
        strides = iter(self.strides)

        def laid(item: Any) -> Any:
            """A result in its wanted strides: itself, or a copy."""
            if not isinstance(item, torch.Tensor) or item.stride() == (wanted := next(strides)):
                return item
            return torch.empty_strided(item.shape, wanted, dtype=item.dtype, device=item.device).copy_(item)

        arrangement, leaves = loading.arrange(self.model(*arguments, **names))
        return loading.rebuilt(arrangement, map(laid, leaves))


def variant_of(model: nn.Module, mode: str, tf32: Tf32) -> Variant:
    """The model compiled by torch.compile in a mode (it compiles in the first call), or eager if that is ""."""
    return Variant(cast(nn.Module, torch.compile(model, mode=mode)) if mode else model, tf32)


def variant_in_strides(model: nn.Module, strides: list[tuple[int, ...]], arguments: Sequence[Any]) -> LaidOut | None:
    """The model with results in other strides; None if a call shows that they are the usual ones."""
    results = [item for item in loading.flatten(loading.call(model, arguments)) if isinstance(item, torch.Tensor)]
    is_usual = len(results) != len(strides) or all(map(_lies_as, results, strides))
    return None if is_usual else LaidOut(model, strides)


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
    """Gives a model other parameters and buffers, in place, in so many steps; with `loads`, where it has hooks for
    that, by load_state_dict too."""
    own = plain_state(model)
    for name, tensor in tensors.items():
        load_rows(own[name], tensor, steps)
    if loads:
        call_load_hooks(model, tensors)


def load_rows(own: torch.Tensor, values: torch.Tensor, steps: int = 1) -> None:
    """Writes other values to a parameter, or to some of its rows. One that stays as it is keeps its version: it says
    nothing of the others then."""
    with torch.no_grad():
        if not loading.bits_equal(own, values.to(own.device)):
            for _ in range(steps):
                own.copy_(values)


Guard = Callable[[Callable[[], object]], object]  # runs foreign code


class Parameters:
    """The states that the models of a process received, and the names that match them to the reference's tensors."""

    def __init__(self) -> None:
        """Holds no state yet."""
        self._names: dict[int, dict[str, str]] = {}
        self.states: dict[int, State] = {}
        self._drift: list[tuple[str, str]] = []  # found in models that are gone

    def take(
        self, model: nn.Module, case: int, form: StateForm, given: list[torch.Tensor], guard: Guard, *, steps: int
    ) -> Matched:
        """Copies a whole state into a model and keeps it for comparison; returns {"unmatched": reason} if the names do
        not fit."""
        names = self._names.get(case) or match_names(form.keys, given, plain_state(model))
        if isinstance(names, str):
            return Matched(names)
        self._names[case] = names
        loaded = {names[key]: tensor for key, tensor in zip(form.keys, given, strict=True)}
        guard(lambda: load_tensors(model, loaded, steps, loads=form.loads))
        self._hold(model, case, form, dict(enumerate(given)))
        return Matched()

    def match(self, model: nn.Module, case: int, keys: list[str], shapes: list[tuple[int, ...]]) -> bool:
        """Begins a state that comes in parts. True if it is known of each key which tensor takes its place."""
        if case not in self._names and are_there(keys, shapes, plain_state(model)):
            self._names[case] = {key: key for key in keys}
        return len(self._names.setdefault(case, {})) == len(keys)

    def take_part(
        self,
        model: nn.Module,
        case: int,
        given: list[tuple[tuple[str, int, int], torch.Tensor]],
        guard: Guard,
        *,
        compares: bool,
    ) -> Matched:
        """Rows of some tensors, each with its (name, first row, end); or only which tensors differ."""
        own, names, changed = plain_state(model), self._names[case], list[str]()
        for (key, first, end), values in given:
            if key not in names and (problem := match_value(key, values, own, names)):
                return Matched(problem)
            place = own[names[key]].detach()
            rows = place[first:end] if place.dim() else place
            if not compares:
                guard(partial(load_rows, rows, values))
            elif not bundle.same_bits(rows, values.to(rows.device)):
                changed.append(key)
        return Matched(changed=changed)

    def end_parts(self, model: nn.Module, case: int, form: StateForm, guard: Guard) -> None:
        """Runs the model's load hooks after the last part of a state, and keeps the state for comparison."""
        if form.loads:
            own = plain_state(model)
            tensors = {name: own[name].detach() for name in self._names[case].values()}
            guard(partial(call_load_hooks, model, tensors))
        self._hold(model, case, form, {})
        state = self.states[case]
        state.originals = {index: state.tensors[index].detach().clone() for index in state.mutable}

    def drop(self, case: int) -> None:
        """Frees what belongs to a model; what is to be said of its parameters is noted first."""
        self._names.pop(case, None)
        if (state := self.states.pop(case, None)) is not None:
            self._drift += find_drifted_parameters(state)

    def find_drift(self) -> list[tuple[str, str]]:
        """(gate, evidence) for each parameter that forward changed although the reference's forward does not."""
        return [*self._drift, *itertools.chain(*map(find_drifted_parameters, self.states.values()))]

    def _hold(self, model: nn.Module, case: int, form: StateForm, originals: dict[int, torch.Tensor]) -> None:
        """Keeps the state that a model received for a case, with the tensors' originals, to find changes later."""
        keys = form.keys
        own, names = plain_state(model), self._names[case]

        def current() -> list[torch.Tensor]:
            """The model's tensors as they are now, in the order of the keys."""
            now = plain_state(model)
            return [now.get(names[key], own[names[key]]) for key in keys]

        self.states[case] = State(keys, current(), originals, form.mutable, current)


def call_load_hooks(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Loads a state once more by load_state_dict, where code that is not PyTorch's runs then."""
    inner = cast(nn.Module, getattr(model, "_orig_mod", model))
    if any(map(_notices_loading, inner.modules())):
        with torch.no_grad():
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
    if are_there(keys, [tensor.shape for tensor in given], own):
        return {key: key for key in keys}
    names: dict[str, str] = {}
    for key, tensor in zip(keys, given, strict=True):
        if problem := match_value(key, tensor, own, names):
            return problem
    return names


def are_there(keys: Sequence[str], shapes: Iterable[Sequence[int]], own: Mapping[str, torch.Tensor]) -> bool:
    """True if the model has tensors of all these names and shapes."""
    return all(key in own and tuple(own[key].shape) == tuple(shape) for key, shape in zip(keys, shapes, strict=True))


def match_value(key: str, tensor: torch.Tensor, own: Mapping[str, torch.Tensor], names: dict[str, str]) -> str:
    """Adds to `names` the model's tensor with the same values that none of them has yet; returns what is wrong if there
    is none, or ""."""
    taken = set(names.values())
    for name, mine in own.items():
        if name not in taken and mine.shape == tensor.shape and same_numbers(mine.to(tensor.device), tensor):
            names[key] = name
            return ""
    return f"the reference's {key} (shape {list(tensor.shape)}) has no counterpart with the same initial values"


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
