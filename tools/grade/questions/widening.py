"""The arithmetic of the reference's runs: float64, also where a model's code names narrower types.

Runs in the judge (imports torch).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from foundry.knowledge.errors import TaskError
from foundry.tools.protocol.rules import ILL_CONDITIONED
from foundry.tools.task import bundle, loading

Outputs = list[torch.Tensor]
RunModel = Callable[[nn.Module, Any], tuple[Outputs, Outputs]]  # (model, inputs) -> (outputs, updated buffers)
ExactModels = Callable[[], contextlib.AbstractContextManager[nn.Module]]  # opens the model in float64 for one run
MOST_OTHERS = 0.5  # share of an integer output that may differ between a run and a wider one of the same model
_NARROWING = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
_COMPLEX = (torch.complex32, torch.complex64)


@dataclass(frozen=True)
class Truth:
    """Outputs and updated buffers against which PyTorch's are measured. `note` says why they are PyTorch's own, or is
    "".

    `again` runs the model once more in the same arithmetic.
    """

    outputs: Outputs
    updated: Outputs
    note: str
    again: Callable[[Any], object]


def truth_of(
    run: RunModel,
    models: tuple[ExactModels, nn.Module],
    inputs: Any,
    own: tuple[Outputs, Outputs],
    *,
    may_lack_memory: bool,
) -> Truth:
    """The truth of a model; PyTorch's own answer if there is none.

    `models`: opens the float64 model, and the model in its own dtypes. `own` is the answer of the latter. Raises
    torch.OutOfMemoryError unless memory may be lacking: a candidate that takes memory must not choose the truth.
    """
    note = "its outputs have other shapes"
    try:
        truth = in_float64(run, models[0], inputs, own[0])
        if [item.shape for item in truth.outputs] == [item.shape for item in own[0]]:
            return truth
    except TaskError as error:
        note = str(error)
    except torch.OutOfMemoryError as error:
        if not may_lack_memory:
            raise
        note = str(error).splitlines()[0]
    return Truth(list(map(wide, own[0])), own[1], f"no float64 run: {note}", partial(run, models[1]))


def in_float64(run: RunModel, exact_model: ExactModels, inputs: Any, own: Sequence[torch.Tensor]) -> Truth:
    """The model's answer in float64. Raises the TaskError of the plain run.

    First each floating dtype that the model's code names becomes float64 too: `x.float()` of integers, or a cast to
    bfloat16 between two products, would round the truth like PyTorch's own run `own`. 8-bit types stay. If that run
    fails, or is far from PyTorch's answer while the plain float64 run is near, the plain one counts: a model may
    choose its path by the dtype of its tensors.
    """

    def plain(values: Any) -> tuple[Outputs, Outputs]:
        """The outputs of a run of the float64 model on widened inputs."""
        with exact_model() as exact:
            return run(exact, widened(values))

    def each_wide(values: Any) -> tuple[Outputs, Outputs]:
        """The outputs of a run in which PyTorch's functions use float64 for narrower types too."""
        # The model is opened before types are widened and closed after: its constructor and casts are the usual ones.
        with exact_model() as exact, _EachTypeIsWide():
            return run(exact, widened(values))

    try:
        found = Truth(*each_wide(inputs), "", each_wide)
    except TaskError:
        return Truth(*plain(inputs), "", plain)
    if not is_near(found.outputs, own):
        with contextlib.suppress(TaskError, torch.OutOfMemoryError):
            other = Truth(*plain(inputs), "", plain)
            return other if is_near(other.outputs, own) else found
    return found


def is_near(outputs: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> bool:
    """True if outputs of a float64 run have PyTorch's shapes and roughly its finite values."""
    return len(outputs) == len(own) and all(map(_is_near, outputs, own))


def _is_near(output: torch.Tensor, own: torch.Tensor) -> bool:
    """True if an output is close to the model's own: few other integers, or a relative L2 error of at most
    ILL_CONDITIONED."""
    if output.shape != own.shape or output.is_floating_point() != own.is_floating_point():
        return False
    if not own.numel() or own.is_complex():
        return True
    pairs = loading.in_pieces(output, own)
    if not own.is_floating_point():
        return sum(int((mine != its).sum()) for mine, its in pairs) <= MOST_OTHERS * own.numel()
    off = size = 0.0
    for mine, its in pairs:
        off = math.hypot(off, float(torch.linalg.vector_norm((mine - its).nan_to_num_(0.0, 0.0, 0.0))))
        size = math.hypot(size, float(torch.linalg.vector_norm(mine.nan_to_num(0.0, 0.0, 0.0))))
    return off <= ILL_CONDITIONED * size


def widened(value: Any) -> Any:
    """A copy of a nested value with floating tensors in float64 (8-bit types stay, they are exact) and complex ones in
    complex128."""
    return bundle.map_tensors(value, lambda tensor: wide(tensor.clone()))


class _EachTypeIsWide(TorchFunctionMode):
    """A mode in which PyTorch's functions use float64 for any floating dtype of 16 bits or more that they are given."""

    def __enter__(self) -> _EachTypeIsWide:
        """Makes float64 the default type, too."""
        self._usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Restores the default type."""
        torch.set_default_dtype(self._usual)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs a function of PyTorch with narrower types in its arguments replaced by float64.

        Raises TypeError for bits read as another type.
        """
        named = dict(kwargs or {})
        if func is torch.Tensor.view and any(isinstance(item, torch.dtype) for item in (*args, *named.values())):
            raise TypeError("bits that are read as another type have no wider form")
        function = torch.Tensor.double if func in _NARROWING else func
        return function(*map(_wide, args), **{name: _wide(value) for name, value in named.items()})


def _wide(argument: Any) -> Any:
    """A dtype argument widened to float64 or complex128; other arguments unchanged."""
    if not isinstance(argument, torch.dtype):
        return argument
    if argument.is_complex:
        return torch.complex128
    return torch.float64 if argument.is_floating_point and argument.itemsize > 1 else argument


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 if it is floating, in complex128 if complex. 8-bit types stay: their values are exact."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() and tensor.element_size() > 1 else tensor
