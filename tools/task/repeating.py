"""Fills large random tensors with repetitions of their first elements, because a sanitizer slows each drawing
kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NEW = {"rand": "uniform_", "randn": "normal_", "rand_like": "uniform_", "randn_like": "normal_"}


class Repeating(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode: the host draws the first `most` elements of a random float tensor, and the others are copies of
    them.

    `repeats` is true once that has happened.
    """

    def __init__(self, most: int) -> None:
        """`most`: elements that are drawn at random; the rest repeats them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most
        self.repeats = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operator; one that fills a tensor at random fills only its first elements and repeats them."""
        name = function._schema.name.removeprefix("aten::")
        options = kwargs or {}
        if name in _NEW and "names" not in options and "generator" not in options:
            empty = torch.empty_like if name.endswith("_like") else torch.empty
            return self._drawn(empty(args[0], **options), _NEW[name], ())
        if name in _NEW.values() and not options.get("generator"):
            return self._drawn(args[0], name, args[1:])
        return function(*args, **options)

    def _drawn(self, tensor: torch.Tensor, how: str, limits: Sequence[Any]) -> torch.Tensor:
        """Fills the tensor by `how` (uniform_, normal_) and returns it.

        A contiguous one of more than `most` elements is drawn up to there and then repeated.
        """
        if tensor.numel() <= self._most or not tensor.is_contiguous():
            filled: torch.Tensor = getattr(tensor, how)(*limits)
            return filled
        self.repeats = True
        flat = tensor.view(-1)
        done = self._most
        flat[:done].copy_(getattr(torch.empty(done, dtype=tensor.dtype), how)(*limits))
        while done < flat.numel():  # each copy doubles the filled part
            some = min(done, flat.numel() - done)
            flat[done : done + some].copy_(flat[:some])
            done += some
        return tensor
