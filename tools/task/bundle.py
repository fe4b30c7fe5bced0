"""Values of Python and torch as sealed shared memory plus a JSON description, and back.

A description lists tensors by shape, strides and dtype; only those that the grader wrote are taken at their word.
Runs in workers (imports torch).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import ITEM_BYTES, TensorSpec
from foundry.tools.process.channel import Message, mapped, memory, seal
from foundry.tools.task.loading import spec_of, torch_dtype

ALIGN_BYTES = 64
_PLAIN = (bool, int, float, str, type(None))


def extent(spec: TensorSpec) -> int:
    """Elements from the first to the last one that a tensor touches."""
    if 0 in spec.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.strides, strict=True))


def offsets(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Where each tensor begins and how long the whole memory is, in bytes."""
    found: list[int] = []
    end = 0
    for spec in specs:
        found.append(end)
        end += -(-extent(spec) * ITEM_BYTES[spec.dtype] // ALIGN_BYTES) * ALIGN_BYTES
    return found, max(end, ALIGN_BYTES)


def pack(value: Any) -> tuple[Message, int]:
    """A value of nested lists, tuples, dicts, numbers and tensors as (description, open sealed memory).

    Raises TaskError for any other kind of object.
    """
    tensors: list[torch.Tensor] = []
    tree = _to_tree(value, tensors)
    specs = [spec_of(tensor) for tensor in tensors]
    handle = memory("bundle", offsets(specs)[1])
    _fill(tensors, specs, handle)
    seal(handle)
    return {"tree": tree, "specs": [plain_spec(spec) for spec in specs]}, handle


def unpack(description: Message, handle: int, before: Callable[[], None] = lambda: None) -> Any:
    """The value behind a description, its tensors copied into memory of this process; strides are kept.

    `before` is called before memory for a tensor is taken.
    """
    specs = [spec_from(item) for item in description["specs"]]
    tensors: list[torch.Tensor] = []
    for spec, flat in zip(specs, flat_views(specs, handle), strict=True):
        before()
        tensors.append(flat.clone().as_strided(spec.shape, spec.strides))
    return _from_tree(description["tree"], tensors)


def shared(description: Message, handle: int) -> list[torch.Tensor]:
    """The tensors behind a description without copying; never write to them."""
    specs = [spec_from(item) for item in description["specs"]]
    return [
        flat.as_strided(spec.shape, spec.strides) for spec, flat in zip(specs, flat_views(specs, handle), strict=True)
    ]


def flat_views(specs: Sequence[TensorSpec], handle: int, *, writable: bool = False) -> list[torch.Tensor]:
    """One-dimensional tensors over the shared memory, one for each spec."""
    places, size = offsets(specs)
    buffer = mapped(handle, size, writable=writable)
    views: list[torch.Tensor] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no read-only tensors and says so
        for spec, place in zip(specs, places, strict=True):
            count, dtype = extent(spec), torch_dtype(spec.dtype)
            empty = torch.empty(0, dtype=dtype)
            views.append(torch.frombuffer(buffer, dtype=dtype, count=count, offset=place) if count else empty)
    return views


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested value, in the order in which `pack` numbers them."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for item in items for tensor in tensors_in(item)]


def plain_spec(spec: TensorSpec) -> list[Any]:
    return [list(spec.shape), list(spec.strides), spec.dtype]


def spec_from(item: Any) -> TensorSpec:
    """The spec in a message; raises ValueError for anything malformed."""
    shape, strides, dtype = item
    if dtype not in ITEM_BYTES or not all(isinstance(size, int) for size in [*shape, *strides]):
        raise ValueError(f"not a tensor spec: {item!r}"[:200])
    return TensorSpec(tuple(shape), tuple(strides), dtype)


def _fill(tensors: list[torch.Tensor], specs: list[TensorSpec], handle: int) -> None:
    """Copies tensors into the memory; the writable mapping is gone when this returns, as sealing demands."""
    for tensor, flat in zip(tensors, flat_views(specs, handle, writable=True), strict=True):
        distinct = tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())
        source = tensor.detach()[distinct]  # an expanded dimension repeats the same elements
        flat.as_strided(source.shape, source.stride()).copy_(source)


def _to_tree(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_to_tree(item, tensors) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _to_tree(item, tensors)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise TaskError(f"a {type(value).__name__} cannot be an argument of the model", "use tensors and plain values")


def _from_tree(tree: Any, tensors: list[torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, body),) = tree.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "dtype":
        return getattr(torch, body)
    if kind == "dict":
        return {key: _from_tree(item, tensors) for key, item in body}
    items = [_from_tree(item, tensors) for item in body]
    return items if kind == "list" else tuple(items)
