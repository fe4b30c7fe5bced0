"""Other orders of equal elements, which PyTorch's sort and topk leave open. Runs in the judge; imports torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError

_ORDERING = re.compile("sort|topk")
_ATEN = torch.ops.aten


class InOrder(TorchDispatchMode):
    """A dispatch mode in which sorts and selections give equal elements in memory order, or in the opposite order."""

    def __init__(self, *, turned: bool = False) -> None:
        """`turned`: equal elements come in the opposite of memory order."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._turned = turned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator; sort and topk with the fixed order of equal elements."""
        named = dict(kwargs or {})
        if func is _ATEN.sort.default:
            return self._sorted(*args, **named)
        if func is _ATEN.topk.default:
            return self._largest(*args, **named)
        return func(*args, **named)

    def _sorted(self, tensor: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
        """(values, places) of a stable sort; with equal elements in the opposite order if the mode is turned."""
        if not self._turned or not tensor.dim():
            return _ATEN.sort.stable(tensor, stable=True, dim=dim, descending=descending)
        values, places = _ATEN.sort.stable(tensor.flip(dim), stable=True, dim=dim, descending=descending)
        return values, tensor.shape[dim] - 1 - places

    def _largest(self, tensor: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """The first `k` (values, places) of the sort along `dim`: topk with this order of equal elements."""
        values, places = self._sorted(tensor, dim, largest)
        return (values, places) if not tensor.dim() else (values.narrow(dim, 0, k), places.narrow(dim, 0, k))


def may_order(source: str) -> bool:
    """True if a task's text mentions sorting, or the largest few."""
    return bool(_ORDERING.search(source))


def in_orders(run: Callable[[], Sequence[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Yields the outputs of `run` with equal elements in memory order, and in the opposite order.

    The order is left to each implementation. Yields nothing if `run` fails so, for example for lack of memory.
    """
    with contextlib.suppress(torch.OutOfMemoryError, TaskError):
        for turned in (False, True):
            with InOrder(turned=turned):
                outputs = list(run())
            yield outputs
