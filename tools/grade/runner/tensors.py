"""Handles tensors in a runner: inputs, poisoned memory, aliases, outputs copied to the judge. Imports torch."""

from __future__ import annotations

import math
import mmap
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.runner.gpu_kernels import gpu_kernels
from foundry.tools.process.gpu_memory import SharedGpuMemory
from foundry.tools.process.messages import Packing
from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.protocol.orders import DRIFT, ELSEWHERE, STRIDED, Layout
from foundry.tools.task import bundle, loading

SPOILED_ELEMENTS = 8  # changed elements of each block: so few that a kernel which compares samples hardly meets one
SPOILING = 0x5D
POISON_BYTES = 48 << 20
MARKED_BYTES = 256 << 20  # bytes of two outputs' memory; in less memory each element's bytes are marked
KEPT_CALLS = 6  # calls whose outputs are kept
KEPT_BYTES = 256 << 20  # bytes of outputs of earlier checked calls that are kept alive


@dataclass
class Slot:
    """One set of inputs for forward.

    `originals` are the judge's in sealed memory, to compare private copies with. None if the inputs lie in GPU
    memory that the judge itself writes to and checks. `contents`: what the tensors that the reference's forward writes
    to (`writes`) hold before each call. `is_fresh`: they hold it now.
    """

    case: int
    description: Packing
    arguments: list[Any]
    tensors: list[torch.Tensor]
    originals: list[torch.Tensor] | None
    contents: list[torch.Tensor] = field(default_factory=list)
    is_fresh: bool = False

    @property
    def writes(self) -> list[int]:
        """Numbers of the tensors that the reference's forward writes to."""
        return self.description.writes

    @property
    def written(self) -> list[torch.Tensor]:
        """The tensors that the reference's forward writes to: results of a call like its outputs."""
        return [self.tensors[number] for number in self.writes]

    def keep_contents(self) -> None:
        """Copies what the written tensors hold now, for `renew`."""
        self.contents, self.is_fresh = [tensor.clone() for tensor in self.written], True

    def renew(self) -> None:
        """Gives the written tensors the content from before the last call, past their version counters."""
        if not self.is_fresh:
            for tensor, content in zip(self.written, self.contents, strict=True):
                tensor.data.copy_(content)
        self.is_fresh = False  # a call follows


class GpuBlocks:
    """GPU memory of the judge, mapped into this process.

    A block comes with its open file once, and by its number alone from then on; it stays mapped as long as a tensor
    lies in it.
    """

    def __init__(self) -> None:
        """Knows no block yet."""
        self._known: weakref.WeakValueDictionary[int, SharedGpuMemory] = weakref.WeakValueDictionary()
        self._last: SharedGpuMemory | None = None  # the block for outputs

    def tensors(self, which: tuple[int, int], handles: Sequence[int], description: Packing) -> list[torch.Tensor]:
        """The tensors of a description.

        An empty block (a model without parameters) is never mapped: no tensor would keep it until its number comes
        again.
        """
        specs = description.specs
        return bundle.shaped(specs, bundle.gpu_views(specs, self._block(which, handles))) if specs else []

    def flats(self, which: tuple[int, int], handles: Sequence[int], specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """Flat views for outputs, in a block that is kept until the next one comes."""
        if handles:
            self._last = None
        self._last = self._block(which, handles)
        return bundle.gpu_views(specs, self._last)

    def _block(self, which: tuple[int, int], handles: Sequence[int]) -> SharedGpuMemory:
        """The block of a number, mapped at its first use."""
        number, nbytes = which
        if handles:
            block = self._known[number] = SharedGpuMemory.opened(handles[0], nbytes)
            return block
        return self._known[number]


@dataclass
class State:
    """The model's tensors by the reference's names, which ones forward writes to, and the judge's originals by their
    places: of a large model those of the tensors that forward writes to alone.

    `current` gives the model's present tensors: forward may put a new tensor in a buffer's place.
    """

    keys: list[str]
    tensors: list[torch.Tensor]
    originals: dict[int, torch.Tensor]
    mutable: list[int]
    current: Callable[[], list[torch.Tensor]]

    def reset(self) -> None:
        """Resets the buffers that forward updates to the judge's values."""
        for index, buffer in zip(self.mutable, self.updated(), strict=True):
            buffer.data.copy_(self.originals[index])

    def updated(self) -> list[torch.Tensor]:
        """The buffers that forward updates, as they are now; a buffer of changed shape or dtype, as it was before."""
        if self.mutable:
            now = self.current()
            for index in self.mutable:
                if same_kind(now[index], self.tensors[index]):
                    self.tensors[index] = now[index]
        return [self.tensors[index] for index in self.mutable]


def keep(kept: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> None:
    """Keeps a call's outputs alive beside earlier ones, so that reused buffers and later changes are found."""
    kept.append(tensors)
    while len(kept) > 2 and (len(kept) > KEPT_CALLS or sum(item.nbytes for call in kept for item in call) > KEPT_BYTES):
        kept.pop(0)


def find_drifted_parameters(state: State) -> list[tuple[str, str]]:
    """(gate, evidence) for each parameter that forward changed although the reference's forward does not."""
    return [
        (DRIFT, f"forward changed {state.keys[index]} in place")
        for index, original in state.originals.items()
        if index not in state.mutable and not bundle.same_bits(state.tensors[index].data.to(original.device), original)
    ]


def fewer_rows(arguments: list[Any]) -> tuple[list[Any], int]:
    """(inputs with half of the rows, number of rows left); ([], 0) if there are too few.

    Halved are the first tensor and every other tensor with as many rows.
    """
    tensors = bundle.tensors_in(arguments)
    rows = tensors[0].shape[0] if tensors and tensors[0].dim() > 1 else 0
    left = rows // 2

    def cut(item: Any) -> Any:
        """A copy of the first rows of a tensor with as many rows as the inputs; other values as they are."""
        is_cut = isinstance(item, torch.Tensor) and item.dim() > 0 and item.shape[0] == rows
        return item[:left].clone() if is_cut else item

    return (bundle.map_tensors(arguments, cut), left) if left else ([], 0)


def laid_out(slot: Slot, layout: Layout) -> Slot:
    """The same inputs in another layout, in memory of their own; unchanged for the layout ""."""
    if not layout:
        return slot
    bundle.give_back()  # memory of the layout before, whose blocks have other sizes
    change = {ELSEWHERE: _moved, STRIDED: _strided}[layout]

    def changed(item: Any) -> Any:
        """The tensor in the other layout; tensors without elements or with repetitions as they are."""
        is_plain = isinstance(item, torch.Tensor) and item.numel() and 0 not in item.stride()
        return change(item) if is_plain else item

    arguments = bundle.map_tensors(slot.arguments, changed)
    return replace(slot, arguments=arguments, tensors=bundle.tensors_in(arguments), is_fresh=False)


def _moved(item: torch.Tensor) -> torch.Tensor:
    """A copy that begins one element later than an aligned address."""
    size = sum((size - 1) * stride for size, stride in zip(item.shape, item.stride(), strict=True)) + 2
    block = torch.empty(size, dtype=item.dtype, device=item.device)
    return block.as_strided(item.shape, item.stride(), 1).copy_(item)


def _strided(item: torch.Tensor) -> torch.Tensor:
    """A copy with the last two dimensions exchanged in memory, or a vector with its elements two apart.

    Integers stay: in another order they may lead a kernel that relies on it (offsets of bags) out of its memory.
    """
    if not (item.is_floating_point() or item.is_complex() or item.dtype == torch.bool):
        return item
    if item.dim() > 1 and min(item.shape[-2:]) > 1:
        is_turned = item.stride(-1) > item.stride(-2)
        return item.contiguous() if is_turned else item.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.stack((item, item), -1)[..., 0]


def same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors have the same shape, dtype and device, so that one can replace the other."""
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Writes new elements at the same address, through `.data`, so that the tensor's version counter does not move."""
    extent = (bundle.extent(loading.spec_of(tensor)),)
    tensor.data.as_strided(extent, (1,)).copy_(values.as_strided(extent, (1,)))


def plain_output(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without attributes that Python code may have put on the tensor.

    Raises ValueError for tensors whose elements are computed on reading.
    """
    plain = torch.Tensor.detach(tensor)
    known = torch._C._dispatch_keys(torch.empty(0, device=plain.device))
    extra = torch._C._dispatch_keys(plain) - known
    if plain.layout is torch.strided and extra.raw_repr() != (known - known).raw_repr():
        raise ValueError(f"the output is no plain tensor: its elements depend on {extra}")
    return plain


def fill_free_memory(specs: list[TensorSpec], byte: int, device: torch.device) -> None:
    """Fills memory of the outputs' sizes with `byte` and frees it, so that a kernel that reads unwritten memory is
    wrong.

    Many blocks of each size, because other free memory may fit better, and temporaries may take the first ones.
    """
    held: list[torch.Tensor] = []
    for spec in specs:
        copies = max(2, min(256, POISON_BYTES // max(spec.nbytes, 1)))
        for _ in range(copies):
            held.append(torch.empty(max(spec.nbytes, 1), dtype=torch.uint8, device=device).fill_(byte))
    if not torch_device_of(device).is_host:
        gpu_kernels().fill_shared_memory(byte)


def spoil(
    answer: Sequence[torch.Tensor], call: Callable[[], list[torch.Tensor]], spared: list[Any], *, blocks: bool
) -> list[int]:
    """Leaves an answer in free memory, with a few of its elements changed; returns the addresses of one more call's
    outputs.

    The answer goes into many `blocks`, and into the memory of that call's outputs, unless it belongs to `spared`. A GPU
    gets no other blocks: its allocator is PyTorch's and its memory may be full.

    The next call need not get one of the blocks: freed ones merge with their neighbours (in 6 to 16 % of glibc's
    heaps with a history it got none). A kernel that checks some elements of its memory and keeps the rest returns
    changed ones.
    """
    contents = [_changed_copy(tensor) for tensor in answer]
    many = blocks and all(torch_device_of(item.device).is_host for item in contents)
    counts = [max(2, min(256, POISON_BYTES // max(item.nbytes, 1))) if many else 0 for item in contents]
    held = [item.clone() for item, count in zip(contents, counts, strict=True) for _ in range(count)]
    held.clear()
    outputs = call()
    for output, content in zip(outputs, contents, strict=False):
        if (output.shape, output.dtype) == (content.shape, content.dtype) and not share_memory([output], spared):
            output.copy_(content)
    return [output.data_ptr() for output in outputs]


def _changed_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with a few other elements, on a CPU in memory that its allocator never gives out: freeing it does not
    change where the next call's output lies."""
    size, on_cpu = max(tensor.nbytes, 1), torch_device_of(tensor.device).is_host
    flat = (
        torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        if on_cpu
        else tensor.new_empty(size, dtype=torch.uint8)
    )
    copy = flat[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    if tensor.numel():
        stream, size = random.SystemRandom(), tensor.element_size()
        places = torch.tensor([stream.randrange(tensor.numel()) for _ in range(SPOILED_ELEMENTS)]) * size
        flat[(places[:, None] + torch.arange(size)).reshape(-1).to(flat.device)] ^= (
            1 if tensor.dtype is torch.bool else SPOILING
        )
    return copy


def changed(slot: Slot) -> list[int]:
    """Indices of the input tensors that differ in any bit from the judge's, without those that the reference writes
    to; empty if the judge compares itself."""
    return [
        index
        for index, (tensor, original) in enumerate(zip(slot.tensors, slot.originals or slot.tensors, strict=True))
        if index not in slot.writes and not bundle.same_bits(tensor, original)
    ]


def alias(outputs: list[torch.Tensor], slot: Slot, state: list[torch.Tensor], kept: list[list[torch.Tensor]]) -> str:
    """Names the first input, parameter or earlier output with which an output shares memory; "" if none."""
    earlier = [("an earlier call's output", call) for call in kept]
    for index, output in enumerate(outputs):
        for name, others in (("input", slot.tensors), ("parameter", state), *earlier):
            for place, other in enumerate(others):
                if _overlap(output, other):
                    return f"output {index} shares memory with {name} {place}"
    return ""


def share_memory(ones: list[torch.Tensor], others: list[Any]) -> bool:
    """True if one of the tensors shares a storage with one of the others."""
    places = {place_of(other) for other in others if isinstance(other, torch.Tensor)}
    return any(place_of(one) in places for one in ones)


def place_of(tensor: torch.Tensor) -> int:
    """The address at which a tensor's storage begins.

    Asking the storage itself would leave a reference to it, by which a kernel that reuses unreferenced buffers could
    notice the check.
    """
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def shared_elements(outputs: list[torch.Tensor]) -> list[int]:
    """Number of elements without memory of their own, for each output.

    These are elements of a view that repeats itself (stride 0), or that lie in an earlier output. Two parts of one
    block share none.
    """
    pairs = [[_common_elements(output, other) for other in outputs[:index]] for index, output in enumerate(outputs)]
    return [max([_repeated_elements(output), *found]) for output, found in zip(outputs, pairs, strict=True)]


def _common_elements(tensor: torch.Tensor, other: torch.Tensor) -> int:
    """Number of a tensor's elements that begin in a byte of another tensor.

    Of large tensors all or none, by equal addresses: marking bytes would take as much memory again, which is not
    planned.
    """
    if not _overlap(tensor, other):
        return 0
    first = min(tensor.data_ptr(), other.data_ptr())
    end = max(item.data_ptr() + _extent(item) for item in (tensor, other))
    if end - first > MARKED_BYTES:
        return tensor.numel() if tensor.data_ptr() == other.data_ptr() else 0
    taken = torch.zeros(end - first, dtype=torch.bool, device=tensor.device)

    def bytes_of(item: torch.Tensor) -> torch.Tensor:
        """A view of the counters of memory's bytes with one entry for each byte of the tensor's elements."""
        size = item.element_size()
        steps = (*(size * step for step in item.stride()), 1)
        return taken.as_strided((*item.shape, size), steps, item.data_ptr() - first)

    bytes_of(other).fill_(True)
    return int(bytes_of(tensor)[..., 0].sum())


def _repeated_elements(tensor: torch.Tensor) -> int:
    """Number of a tensor's elements without memory of their own, because a stride is 0 or too short."""
    steps = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    own = [(stride, size) for stride, size in steps if stride]
    reach, is_apart = 0, True
    for stride, size in own:
        is_apart &= stride > reach
        reach += stride * (size - 1)
    if is_apart or not tensor.numel():
        return tensor.numel() - math.prod(size for _, size in own) if tensor.numel() else 0
    places = torch.zeros((), dtype=torch.int64)
    for stride, size in own:
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return tensor.numel() - int(torch.unique(places).numel())


def many_calls(
    call: Callable[[], list[torch.Tensor]], slot: Slot, most: int, is_over: Callable[[], bool]
) -> tuple[int, str]:
    """Makes up to `most` calls in a row; (number of calls, shared memory between outputs in words or "").

    As many outputs as fit into KEPT_BYTES are kept alive.
    """
    kept: list[list[torch.Tensor]] = []
    size, done, found = 0, 0, ""
    while not found and done < most and not is_over():
        outputs = call()
        found, done = alias(outputs, slot, [], kept), done + 1
        size += sum(item.nbytes for item in outputs)
        if size < KEPT_BYTES:
            kept.append(outputs)
    return done, found


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the memory ranges of two tensors meet."""
    if one.device != other.device or not one.numel() or not other.numel():
        return False
    low, high = one.data_ptr(), other.data_ptr()
    return low < high + _extent(other) and high < low + _extent(one)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * (1 + sum((size - 1) * stride for size, stride in steps))


def write(tensors: list[torch.Tensor], wanted: list[TensorSpec], flats: list[torch.Tensor]) -> bool:
    """Copies outputs into the judge's memory; False if their shapes or dtypes are not the expected ones."""
    have = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    if have != [(spec.shape, loading.torch_dtype(spec.dtype)) for spec in wanted]:
        return False
    for tensor, flat in zip(tensors, flats, strict=True):
        flat.view(tensor.shape).copy_(tensor)
    if flats and flats[0].is_cuda:
        torch.cuda.synchronize()
    return True
