"""Finds the float32 products that PyTorch rounds to TF32 if it may. Runs in the judge (imports torch).

TF32 is allowed by one flag; cuBLAS and cuDNN decide for each shape whether they use it. Where they do not, a kernel in
TF32 is less accurate than PyTorch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import ProductRun, product_size
from foundry.tools.protocol.rules import norm_floor
from foundry.tools.task.flops import known_flops


@contextlib.contextmanager
def tf32_allowed(is_allowed: bool) -> Iterator[None]:
    """Allows or forbids TF32 in PyTorch's float32 products and convolutions on a GPU; forbids it again at the end."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def products_ran(run: Callable[[], object]) -> tuple[ProductRun, ...]:
    """The products and convolutions of float32 numbers in one run of the reference, each computed with TF32 and
    without. Empty where memory is short, or where the model does not run while it is watched."""
    watch = _Watch()
    try:
        with watch:
            run()
    except (TaskError, torch.OutOfMemoryError):
        return ()
    return tuple(watch.found)


class _Watch(TorchDispatchMode):
    """Calls each product twice and notes whether its results differ."""

    def __init__(self) -> None:
        """Has found no product yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[ProductRun] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator; a float32 product with TF32 allowed and once more as usual, and notes if the results
        differ."""
        named = kwargs or {}
        kind = func._schema.name.split("::")[-1]
        if product_size(kind, 0, 1) is None:
            return func(*args, **named)
        with tf32_allowed(True):
            result = func(*args, **named)
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            shapes = [item.shape for item in (*args, *named.values()) if isinstance(item, torch.Tensor)]
            size = product_size(kind, known_flops(kind, args, named, shapes, [result.shape]), result.numel())
            if size is not None and result.numel():
                self.found.append(ProductRun(*size, is_rounded=_differs(result, func(*args, **named))))
        return result


def _differs(allowed: torch.Tensor, plain: torch.Tensor) -> bool:
    """True if results differ by more than IEEE arithmetic in another order would."""
    off = float(torch.linalg.vector_norm(allowed - plain))
    return off > norm_floor("float32", plain.numel()) * float(torch.linalg.vector_norm(plain))
