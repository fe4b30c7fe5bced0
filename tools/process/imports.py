"""Checks that imports of the interpreter and the C library still lead to the code that the loader chose.

A library can redirect another one's calls by writing to its import table, and Python objects look untouched then.
ELF, x86-64; free of torch.
"""

from __future__ import annotations

import bisect
import ctypes
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

_WATCHED = ("python", "libpython", "libc.so", "libc-", "libm.so", "libm-")
_PT_DYNAMIC, _ET_EXEC = 2, 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_IMPORTS = (6, 7)  # R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT
_SYMBOL_BYTES, _NAME_BYTES = 24, 64


@dataclass(frozen=True)
class _Area:
    """One mapped range of this process's memory."""

    start: int
    end: int
    offset: int
    is_code: bool
    path: str


class _Memory:
    """This process's readable memory; reading an unmapped address raises ValueError."""

    def __init__(self) -> None:
        """Reads the process's map of memory; keeps the readable areas."""
        self.areas: list[_Area] = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(None, 5)
            if fields[1].startswith("r"):
                start, _, end = fields[0].partition("-")
                path = fields[5] if len(fields) == 6 else ""
                self.areas.append(_Area(int(start, 16), int(end, 16), int(fields[2], 16), "x" in fields[1], path))

        self._starts = [area.start for area in self.areas]

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at an address; raises ValueError unless all of them are mapped."""
        end = address + size
        while (area := self.at(address)) is not None and address < end:  # a table may reach into the next area
            address = min(end, area.end)
        if address < end:
            raise ValueError("not mapped")
        return ctypes.string_at(end - size, size)

    def at(self, address: int) -> _Area | None:
        """The mapped range that holds an address, or None."""
        index = bisect.bisect_right(self._starts, address) - 1
        return self.areas[index] if index >= 0 and address < self.areas[index].end else None


def find_redirected(known: frozenset[str]) -> list[str]:
    """Imports of the interpreter and the C library that lead into code of files other than the `known` ones, in
    words."""
    if platform.machine() != "x86_64":
        return []
    memory = _Memory()
    found: list[str] = []
    for area in memory.areas:
        if area.offset == 0 and area.path in known and Path(area.path).name.startswith(_WATCHED):
            try:
                found += _of_file(memory, area, known)
            except (ValueError, struct.error):  # a layout that this cannot read
                continue
    return found


def _of_file(memory: _Memory, area: _Area, known: frozenset[str]) -> list[str]:
    """Redirected imports of one mapped library, in words: entries of its tables that lead into code of no known
    library."""
    header = memory.read(area.start, 64)
    if header[:5] != b"\x7fELF\x02":
        return []
    base = 0 if struct.unpack_from("<H", header, 16)[0] == _ET_EXEC else area.start
    tags = _dynamic(memory, area.start, base, header)
    found: list[str] = []
    for table, size in ((tags.get(_DT_RELA), tags.get(_DT_RELASZ)), (tags.get(_DT_JMPREL), tags.get(_DT_PLTRELSZ))):
        if not table or not size:
            continue
        for offset, info, _ in struct.iter_unpack("<QQq", memory.read(table, size - size % 24)):
            if info & 0xFFFFFFFF not in _IMPORTS:
                continue
            (target,) = struct.unpack("<Q", memory.read(base + offset, 8))
            code = memory.at(target)
            if code is not None and code.is_code and code.path not in known and not code.path.startswith("["):
                name = _name(memory, tags, info >> 32)
                found.append(f"{name} of {Path(area.path).name} leads into {code.path or 'code made at run time'}")
    return found


def _dynamic(memory: _Memory, start: int, base: int, header: bytes) -> dict[int, int]:
    """Entries of the dynamic section by tag, with addresses as in memory."""
    places, count = struct.unpack_from("<Q", header, 32)[0], struct.unpack_from("<H", header, 56)[0]
    tags: dict[int, int] = {}
    for kind, _, _, address, _, _, size, _ in struct.iter_unpack("<IIQQQQQQ", memory.read(start + places, 56 * count)):
        if kind == _PT_DYNAMIC:
            for tag, value in struct.iter_unpack("<qQ", memory.read(base + address, size - size % 16)):
                is_address = tag in (_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL)
                tags.setdefault(tag, value + base if is_address and value < base else value)
    return tags


def _name(memory: _Memory, tags: dict[int, int], symbol: int) -> str:
    """The name of a symbol by its number."""
    (offset,) = struct.unpack("<I", memory.read(tags[_DT_SYMTAB] + _SYMBOL_BYTES * symbol, 4))
    return memory.read(tags[_DT_STRTAB] + offset, _NAME_BYTES).split(b"\0")[0].decode(errors="replace")
