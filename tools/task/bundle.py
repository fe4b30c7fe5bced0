"""Packs values of Python and torch into memory with a JSON description, and unpacks them.

A description lists tensors by shape, strides and dtype; only descriptions that the grader wrote are trusted. On the
host the memory is sealed and shared without copying. GPU memory cannot be sealed, so a packed value stays with the
process that packed it, and other processes get copies in blocks of their own. Runs in workers (imports torch).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import ITEM_BYTES, TensorSpec
from foundry.tools.process.channel import map_memory, memory, seal
from foundry.tools.process.gpu_memory import SharedGpuMemory
from foundry.tools.process.messages import Packing
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.task.form.calls import Keywords
from foundry.tools.task.loading import spec_of, torch_dtype

ALIGN_BYTES = 64
GPU_ALIGN_BYTES = 512  # alignment of PyTorch's own allocator
GPU_LARGE_BYTES = 1 << 20  # bytes; a larger tensor begins at a page of the device's memory
GPU_PAGE_BYTES = 2 << 20
IDLE_GPU_BYTES = 1 << 30  # bytes of GPU memory that a process may hold unused, if no plan says otherwise
_most_idle = [IDLE_GPU_BYTES]
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Parcel:
    """A packed value: its description and its tensors.

    The tensors lie in sealed host memory (`handle`) or, on a GPU, in memory that no other process can reach
    (`held`).
    """

    description: Packing
    handle: int = -1
    held: tuple[torch.Tensor, ...] = ()

    @property
    def specs(self) -> list[TensorSpec]:
        """Shapes, strides and dtypes of the parcel's tensors."""
        return self.description.specs

    @property
    def writes(self) -> list[int]:
        """Numbers of the tensors that the reference's forward writes to."""
        return self.description.writes

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(spec.nbytes for spec in self.specs)

    def tensors(self) -> list[torch.Tensor]:
        """Its tensors without copying; never write to them."""
        return list(self.held) if self.handle < 0 else shared(self.description, self.handle)

    def value(self) -> Any:
        """The value, its tensors copied."""
        if self.handle >= 0:
            return unpack(self.description, self.handle)
        return from_description(self.description, [tensor.clone() for tensor in self.held])

    def close(self) -> None:
        """Releases host memory; GPU memory is released with the last reference to the parcel."""
        if self.handle >= 0:
            os.close(self.handle)


def extent(spec: TensorSpec) -> int:
    """Number of elements between the first and the last one of a tensor in memory, both included."""
    if 0 in spec.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.strides, strict=True))


def offsets(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """(offset of each tensor, length of the whole memory), in bytes."""
    found: list[int] = []
    end = 0
    for spec in specs:
        found.append(end)
        end += -(-extent(spec) * ITEM_BYTES[spec.dtype] // ALIGN_BYTES) * ALIGN_BYTES
    return found, max(end, ALIGN_BYTES)


def pack(value: Any, device: torch.device | None = None, writes: Sequence[int] = ()) -> Parcel:
    """Packs nested lists, tuples, dicts, numbers and tensors; on a GPU tensors are kept, on the host copied to sealed
    memory. `writes`: numbers of the tensors that the reference's forward writes to.

    Raises TaskError for any other kind of object.
    """
    tensors: list[torch.Tensor] = []
    tree = _to_tree(value, tensors)
    specs = [spec_of(tensor) for tensor in tensors]
    description = Packing(tree=tree, specs=specs, writes=list(writes))
    if device is not None and not torch_device_of(device).is_host:
        return Parcel(description, held=tuple(tensor.detach() for tensor in tensors))
    handle = memory("bundle", offsets(specs)[1])
    _fill(tensors, specs, handle)
    seal(handle)
    return Parcel(description, handle)


def unpack(description: Packing, handle: int, before: Callable[[], None] = lambda: None) -> Any:
    """The value behind a description, its tensors copied into memory of this process; strides are kept.

    `before` is called before memory for a tensor is taken.
    """
    tensors: list[torch.Tensor] = []
    for spec, flat in zip(description.specs, flat_views(description.specs, handle), strict=True):
        before()
        tensors.append(flat.clone().as_strided(spec.shape, spec.strides))
    return from_description(description, tensors)


def from_description(description: Packing, tensors: list[torch.Tensor]) -> Any:
    """The value behind a description with these tensors in it."""
    return _from_tree(description.tree, tensors)


def shared(description: Packing, handle: int) -> list[torch.Tensor]:
    """The tensors behind a description without copying; never write to them."""
    return shaped(description.specs, flat_views(description.specs, handle))


def flat_views(specs: Sequence[TensorSpec], handle: int, *, writable: bool = False) -> list[torch.Tensor]:
    """One-dimensional tensors over the shared memory, one for each spec."""
    places, size = offsets(specs)
    buffer = map_memory(handle, size, writable=writable)
    views: list[torch.Tensor] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no read-only tensors and says so
        for spec, place in zip(specs, places, strict=True):
            count = extent(spec)
            dtype = torch_dtype(spec.dtype)
            empty = torch.empty(0, dtype=dtype)
            views.append(torch.frombuffer(buffer, dtype=dtype, count=count, offset=place) if count else empty)
    return views


def gpu_places(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """(offset of each tensor in a block of GPU memory, length of the block), in bytes."""
    found: list[int] = []
    end = 0
    for spec in specs:
        size = extent(spec) * ITEM_BYTES[spec.dtype]
        unit = GPU_PAGE_BYTES if size >= GPU_LARGE_BYTES else GPU_ALIGN_BYTES
        end = -(-end // unit) * unit
        found.append(end)
        end += size
    return found, max(end, GPU_ALIGN_BYTES)


def may_keep(idle_bytes: int) -> None:
    """Sets the number of bytes of GPU memory that this process may hold unused."""
    _most_idle[0] = idle_bytes


def give_back() -> None:
    """Releases PyTorch's unused GPU memory if it is more than this process may keep, because other processes need it.

    Releasing a few GB and allocating them again took a third of a verification's time, and more beside others (an
    RMS norm of 268 MB on an H200: 1.3 of 4.6 s, 3.9 of 10.1 s beside three).
    """
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _most_idle[0]:
        torch.cuda.empty_cache()


def use_expandable_segments() -> None:
    """Lets PyTorch's allocator map pages behind one range of addresses (expandable segments).

    For a process that holds tensors of many sizes: separate blocks stay allocated as a whole while a part of them is
    in use. Call it before the first tensor on the GPU; it does nothing without a GPU.
    """
    if torch.cuda.is_available():
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")


class _Span:
    """Part of a block for PyTorch (numba's CUDA array interface, version 3); it keeps the block mapped."""

    def __init__(self, block: SharedGpuMemory, start: int, nbytes: int) -> None:
        """Describes `nbytes` bytes of the block, from byte `start` on."""
        self._block = block
        address = (block.address + start, False)
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": address, "version": 3}


def gpu_views(specs: Sequence[TensorSpec], block: SharedGpuMemory) -> list[torch.Tensor]:
    """One-dimensional tensors over a block of GPU memory, one for each spec, each with a storage of its own."""
    views: list[torch.Tensor] = []
    for spec, place in zip(specs, gpu_places(specs)[0], strict=True):
        size = extent(spec) * ITEM_BYTES[spec.dtype]
        if size:
            views.append(torch.as_tensor(_Span(block, place, size), device="cuda").view(torch_dtype(spec.dtype)))
        else:
            views.append(torch.empty(0, dtype=torch_dtype(spec.dtype), device="cuda"))
    return views


def shaped(specs: Sequence[TensorSpec], flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Flat views with the shapes and strides of their specs."""
    return [flat.as_strided(spec.shape, spec.strides) for spec, flat in zip(specs, flats, strict=True)]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested value, in the order in which `pack` numbers them."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for item in items for tensor in tensors_in(item)]


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The nested value (lists, tuples, dicts) with each of its tensors replaced by what `change` makes of it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        made = Keywords if type(value) is Keywords else dict
        return made((key, map_tensors(item, change)) for key, item in value.items())
    return value


def copied(value: Any) -> Any:
    """The nested value with a copy of each of its tensors."""
    return map_tensors(value, torch.clone)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors of one dtype have the same shape and elements, bit by bit."""
    one, other = (torch.view_as_real(item) if item.is_complex() else item for item in (one, other))
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds[one.element_size()]
    return one.shape == other.shape and torch.equal(one.view(kind), other.view(kind))


def fill(flats: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copies tensors into flat views, each with its own strides."""
    for tensor, flat in zip(tensors, flats, strict=True):
        distinct = tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())
        source = tensor.detach()[distinct]  # an expanded dimension repeats the same elements
        flat.as_strided(source.shape, source.stride()).copy_(source)


def _fill(tensors: list[torch.Tensor], specs: list[TensorSpec], handle: int) -> None:
    """Copies tensors into host memory and drops the writable mapping, which would prevent sealing."""
    fill(flat_views(specs, handle, writable=True), tensors)


def _to_tree(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The JSON tree of a nested value; appends its tensors to a list. Raises TaskError for a value that no model's
    argument may be."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_to_tree(item, tensors) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        kind = "keywords" if type(value) is Keywords else "dict"
        return {kind: [[key, _to_tree(item, tensors)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise TaskError(f"a {type(value).__name__} cannot be an argument of the model", "use tensors and plain values")


def _from_tree(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The nested value behind a JSON tree."""
    if not isinstance(tree, dict):
        return tree
    ((kind, body),) = tree.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "dtype":
        return getattr(torch, body)
    if kind in ("dict", "keywords"):
        made = dict if kind == "dict" else Keywords
        return made((key, _from_tree(item, tensors)) for key, item in body)
    items = [_from_tree(item, tensors) for item in body]
    return items if kind == "list" else tuple(items)
