"""The arithmetic of the reference's runs: float64, also where a model's code names narrower types, and TF32.

Runs in the judge (imports torch).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from foundry.knowledge.errors import TaskError
from foundry.tools.task import bundle

Result = TypeVar("Result")
_NARROWING = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


def in_float64(run: Callable[[Any], Result], inputs: Any) -> Result:
    """`run` of the inputs in float64. Where that fails, each floating type that the model's code names is float64 too:
    `x.float() @ weight` mixes two types once the weight is wider. Raises the TaskError of the second run."""
    try:
        return run(widened(inputs))
    except TaskError:
        with _EachTypeIsWide():
            return run(widened(inputs))


@contextlib.contextmanager
def tf32_allowed(is_allowed: bool) -> Iterator[None]:
    """Whether PyTorch's products and convolutions of float32 on a GPU may use TF32 meanwhile; after it they may not."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def widened(value: Any) -> Any:
    """A copy of a nested value with its floating tensors in float64."""
    return bundle.map_tensors(value, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor.clone())


class _EachTypeIsWide(TorchFunctionMode):
    """Within it PyTorch's functions take float64 for any floating type that they are given."""

    def __enter__(self) -> _EachTypeIsWide:
        self._usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self._usual)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        function = torch.Tensor.double if func in _NARROWING else func
        return function(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(argument: Any) -> Any:
    is_floating = isinstance(argument, torch.dtype) and argument.is_floating_point
    return torch.float64 if is_floating else argument


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64 where it is floating."""
    return tensor.double() if tensor.is_floating_point() else tensor
