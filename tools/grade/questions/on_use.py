"""A model whose parameters are brought to the device, and widened, one at a time when a function uses them.

So a run in float64 needs room for one parameter in float64, or for some rows of it, and not for all of them. Runs in
the judge (imports torch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from foundry.tools.grade.questions.widening import wide
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.task.gpu_plan import HOST_PIECE_BYTES, PIECE_BYTES

Function = Callable[..., Any]

# What a tensor on another device says right of itself.
_FACTS = frozenset(
    (
        *(torch.Tensor.shape.__get__, torch.Tensor.ndim.__get__, torch.Tensor.layout.__get__),  # type: ignore[attr-defined]
        *(torch.Tensor.requires_grad.__get__, torch.Tensor.is_leaf.__get__),  # type: ignore[attr-defined]
        *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride, torch.Tensor.is_contiguous),
        *(torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.__len__),
    )
)
_DTYPE, _DEVICE, _IS_CUDA = (getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "is_cuda"))


class BroughtOnUse(TorchFunctionMode):
    """Within it functions get `stored` tensors as copies on the device, in float64 if `is_wide`, which are gone after
    each. Writes to such a copy are lost: tensors that the model writes to are not among the stored ones."""

    def __init__(self, stored: Iterable[torch.Tensor], device: torch.device, *, is_wide: bool) -> None:
        """`stored` are the tensors to be brought to `device` when used; it copies none yet."""
        super().__init__()
        self._stored = {id(tensor) for tensor in stored}
        self._device, self._is_wide = device, is_wide
        self._most = HOST_PIECE_BYTES if torch_device_of(device).is_host else PIECE_BYTES

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs a function of PyTorch with stored tensors brought to the device; facts about them are answered without.

        Long linear layers and embeddings are worked off in pieces.
        """
        named = dict(kwargs or {})
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and id(first) in self._stored:
            if func in _FACTS:
                return func(*args, **named)
            if func == _DTYPE:
                return self._dtype_of(first)
            if func in (_DEVICE, _IS_CUDA):
                return self._device if func == _DEVICE else torch.empty(0, device=self._device).is_cuda
        if self._is_wide and func is functional.linear and self._is_long(args[1] if len(args) > 1 else None):
            return self._linear(*args, **named)
        if func is functional.embedding and self._is_looked_up(*args, **named):
            return self._rows(args[1], self._brought(first))
        return func(*self._brought(args), **self._brought(named))

    def _is_stored(self, value: Any) -> bool:
        """True for a tensor that is one of the stored ones itself."""
        return isinstance(value, torch.Tensor) and id(value) in self._stored

    def _is_long(self, weight: Any) -> bool:
        """True for a stored matrix that is more than one piece."""
        return self._is_stored(weight) and weight.dim() == 2 and 8 * weight.numel() > self._most

    def _is_looked_up(self, given: Any, weight: Any = None, *others: Any, max_norm: Any = None, **named: Any) -> bool:
        """True for a plain look-up in a stored table, which needs the rows that are asked for alone."""
        is_plain = max_norm is None and not (len(others) > 1 and others[1] is not None)
        return is_plain and self._is_stored(weight)

    def _dtype_of(self, tensor: torch.Tensor) -> torch.dtype:
        """The dtype in which the tensor is used: the wide one if the model is widened, else its own."""
        return wide(torch.empty(0, dtype=tensor.dtype)).dtype if self._is_wide else tensor.dtype

    def _one(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a stored tensor on the device, in float64 if the mode widens."""
        there = tensor.to(self._device)
        return wide(there) if self._is_wide else there

    def _brought(self, value: Any) -> Any:
        """The value with stored tensors replaced by copies on the device, also in lists, tuples and dicts."""
        if isinstance(value, torch.Tensor):
            return self._one(value.detach()) if id(value) in self._stored else value
        if type(value) in (list, tuple):
            return type(value)(map(self._brought, value))
        if type(value) is dict:
            return {name: self._brought(item) for name, item in value.items()}
        return value

    def _linear(self, given: Any, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """A product with so many rows of the weight at a time: each gives columns of the result."""
        given, bias = self._brought(given), self._brought(bias)
        rows = max(1, self._most // (8 * weight.shape[1]))
        parts = [
            functional.linear(
                given, self._one(weight.detach()[at : at + rows]), None if bias is None else bias[at : at + rows]
            )
            for at in range(0, len(weight), rows)
        ]
        return torch.cat(parts, -1)

    def _rows(self, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Looks the rows up in the stored table and brings only these to the device."""
        return self._one(functional.embedding(places.to(table.device), table.detach()))
