"""Finds copies of an answer's bytes anywhere in this process, and changes them.

A kernel that computes the same question anew is right again; a kernel that kept the answer returns the changed one,
in whatever memory it lies and however inputs are compared. Linux, on the CPU.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

ELEMENTS = 8  # adjacent elements that are searched for together
SPOILING = 0x5D  # mask that is xored to a byte of each element
MOST_BYTES = 4 << 30  # bytes of memory searched
_WRITABLE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw.p \S+ \S+ (\d+)\s*(.*)$")
_LIBC = ctypes.CDLL(None)
_LIBC.memmem.restype = ctypes.c_void_p
_LIBC.memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]


def spoil(output: torch.Tensor, places: Sequence[int]) -> int:
    """Changes all copies of the elements at each place; returns how many there were, the output itself included."""
    flat = output.detach().reshape(-1)
    found = 0
    for place in places:
        wanted = bytes(flat[place : place + ELEMENTS].contiguous().view(torch.uint8).numpy())
        own = ctypes.create_string_buffer(wanted, len(wanted))
        for address in list(_copies(own, len(wanted))):
            for offset in range(0, len(wanted), output.element_size()):
                byte = ctypes.c_ubyte.from_address(
                    address + offset + output.element_size() - 1
                )  # its sign and exponent
                byte.value ^= SPOILING
            found += 1
    return found


def _copies(wanted: ctypes.Array[ctypes.c_char], size_bytes: int) -> Iterator[int]:
    """Addresses of the bytes in private writable memory, except `wanted` itself and the stack."""
    left = MOST_BYTES
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        match = _WRITABLE.match(line)
        if match is None or match[4].startswith(("[stack", "[v")):
            continue
        start, end = int(match[1], 16), int(match[2], 16)
        left -= end - start
        if left < 0:
            return
        while start + size_bytes <= end:
            address = _LIBC.memmem(start, end - start, wanted, size_bytes)
            if address is None:
                break
            if address != ctypes.addressof(wanted):
                yield address
            start = address + size_bytes
