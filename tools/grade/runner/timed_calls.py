"""A runner's part of the timing protocol: lays out and changes its inputs, makes the calls. Imports torch.

Both sides get the same orders, so that their outputs can be compared afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from foundry.tools.grade.runner.tensors import place_of
from foundry.tools.protocol.orders import NAN_BYTES
from foundry.tools.task import bundle
from foundry.tools.task.form.calls import parted
from foundry.tools.task.form.values import as_real, is_eight_bits

CHANGEABLE_NAMES = ("float16", "bfloat16", "float32", "float64")
CHANGEABLE = tuple(getattr(torch, name) for name in CHANGEABLE_NAMES)
LINE_BYTES = 64
MAX_PAD_LINES = 1024
QUEUED_CALLS = 32  # calls queued on a GPU between two looks at their outputs
HELD, MOST_HELD_MS = 1.5, 50.0  # multiple of the last queueing time for which the GPU is held, and the most ms
LONGEST_TURN = 0.25  # share of the whole time; after a longer turn no more calls are queued at once

Clock = Callable[[], int]


class Pads:
    """Blocks of random size between the inputs of a process.

    The distance of tensors decides about conflicts in the caches, and changes times by some percent. It would be the
    same in every process of one kind, and no repetition would reveal that error. So each process draws it anew.
    """

    def __init__(self) -> None:
        """Has drawn no blocks yet."""
        self._stream = random.SystemRandom()
        self._blocks: list[torch.Tensor] = []

    def add(self) -> None:
        """Allocates one more block."""
        lines = self._stream.randrange(1, MAX_PAD_LINES)
        self._blocks.append(torch.empty(LINE_BYTES * lines, dtype=torch.uint8))


def change(
    tensors: Sequence[torch.Tensor],
    originals: Sequence[torch.Tensor],
    factor: float,
    shift: int,
    writes: Collection[int] = (),
) -> None:
    """Gives every floating input other content: the original scaled by `factor`, its rows rotated by `shift`.

    Every element gets another value and, if there are several rows, another place. So a kernel that compares
    contents, in full or by samples, cannot mistake them for those of an earlier call. Zeros, signs and a range
    around zero stay as they are. Version counters do not move. The tensors with the numbers `writes`, which calls
    write to, get back their original content if it cannot be changed.
    """
    for number, (tensor, original) in enumerate(zip(tensors, originals, strict=True)):
        if tensor.is_complex():
            tensor, original = torch.view_as_real(tensor.data), torch.view_as_real(original)
        if tensor.dtype not in CHANGEABLE or not tensor.numel() or 0 in tensor.stride():
            if number in writes:
                tensor.data.copy_(original)
            continue
        target = tensor.data
        rows = target.shape[0] if target.dim() else 0
        places = shift % rows if rows > 1 else 0
        if not places:
            torch.mul(original, factor, out=target)
            continue
        torch.mul(original[:-places], factor, out=target[places:])
        torch.mul(original[-places:], factor, out=target[:places])


def elements(tensors: Sequence[torch.Tensor], places: Sequence[Sequence[int]]) -> list[list[float]]:
    """The elements of each tensor at the given row-major places; raises IndexError for a place outside of it."""
    found = []
    for tensor, wanted in zip(tensors, places, strict=True):
        index = torch.tensor(wanted, dtype=torch.int64, device=tensor.device)
        found.append(as_real(_taken(tensor, index)).double().reshape(-1).tolist())
    return found


def _taken(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The elements of a flat tensor at these indices, also for 8-bit floats, which torch.take does not support."""
    if is_eight_bits(tensor.dtype):  # torch.take does not support them
        return torch.take(tensor.view(torch.uint8), index).view(tensor.dtype)
    return torch.take(tensor, index)


def call_in_a_row(
    call: Callable[[], list[torch.Tensor]],
    seconds: float,
    clock: Clock,
    spared: Sequence[torch.Tensor] | None = None,
    hold: Callable[[float], object] | None = None,
) -> list[torch.Tensor]:
    """Calls for some seconds without a pause; returns the first outputs that differ from the first call's, or the last
    ones.

    Threads that race give a wrong answer now and then. With `spared`, which is left alone, the outputs of each call
    are overwritten before the next, so that a call that leaves the last answer in place is found. Not every answer
    is compared then, because that waits for the GPU. Calls in between are queued while the GPU is kept busy (`hold`,
    for so many ms), so that kernels follow each other within microseconds on a slow host too.
    """
    kept = [] if spared is None else [*spared, *find_kept(call)]
    stop, queued, queueing_ns = clock() + int(1e9 * seconds), 1, 0.0
    outputs = call()
    first = [tensor.clone() for tensor in outputs]
    while (turn := clock()) < stop:
        if hold is not None and queued > 1:
            hold(min(MOST_HELD_MS, 1e-6 * HELD * queueing_ns * queued))
        for _ in range(queued):
            if spared is not None:
                overwrite(outputs, kept)
                del outputs
            outputs = call()
        queueing_ns = (clock() - turn) / queued
        if not all(map(bundle.same_bits, outputs, first)):
            break
        if spared is not None and clock() - turn < LONGEST_TURN * 1e9 * seconds:
            queued = min(2 * queued, QUEUED_CALLS)
    return outputs


def find_kept(call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """Outputs of a call that share memory with another call's outputs, both alive: shared tables, which must not be
    overwritten."""
    one, other = call(), call()
    places = set(map(place_of, other))
    return [tensor for tensor in one if place_of(tensor) in places]


def overwrite(tensors: Sequence[torch.Tensor], spared: Sequence[torch.Tensor]) -> None:
    """Fills the memory of the tensors, except that of the spared ones, with bytes that are NaN."""
    kept = {tensor.untyped_storage().data_ptr() for tensor in spared}
    for flat in map(bytes_of, tensors):
        if flat.data_ptr() not in kept:
            flat.fill_(NAN_BYTES)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All memory allocated for a tensor, as bytes, for any strides."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def call_each(model: Callable[..., Any], inputs: Sequence[Sequence[Any]], keep: int, clock: Clock) -> tuple[Any, int]:
    """One call on each set of inputs, in a row; returns the kept call's result and ns for all of them."""
    if len(inputs) == 1:
        values, names = parted(inputs[0])
        start = clock()
        result = model(*values, **names)
        return result, clock() - start
    kept, each = None, [parted(arguments) for arguments in inputs]
    start = clock()
    for number, (values, names) in enumerate(each):
        result = model(*values, **names)
        if number == keep:
            kept = result
        del result  # its memory is free for the next call, as in any loop
    return kept, clock() - start
