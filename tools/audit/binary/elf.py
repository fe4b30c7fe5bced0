"""Reads what the loader reads of a shared library, and nothing else. 64-bit little-endian ELF; free of torch.

The loader uses the program headers and the dynamic segment, by their addresses in memory. Section headers are for
tools: a file may lack or forge them. pyelftools parses the structures; its own dynamic segment is not used, because
it takes names from the section headers if there are any.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.constants import P_FLAGS, SH_FLAGS
from elftools.elf.elffile import ELFFile

_PAGE_BYTES = 4096  # the smallest page; a file for larger pages fits these too
_PROGRAM_HEADER_BYTES, _SECTION_HEADER_BYTES = 56, 64
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_ENTRY_BYTES = 16
_MOST_HEADERS = 0xFEFF  # more headers would be counted in another field
_MOST_ENTRIES = 4096  # limit of entries read
_LOCAL = 0  # STB_LOCAL
_HIDDEN = (1, 2)  # STV_INTERNAL and STV_HIDDEN: names that the loader never looks up elsewhere
_TABLES = ("DT_STRTAB", "DT_SYMTAB", "DT_RELA", "DT_RELASZ", "DT_JMPREL", "DT_PLTRELSZ")
_LIBRARIES = ("DT_NEEDED", "DT_AUXILIARY", "DT_FILTER")


@dataclass(frozen=True)
class Imports:
    """Names and libraries that a library needs from the loader."""

    symbols: tuple[str, ...]  # names that it does not define
    own: tuple[str, ...]  # names that it defines and still looks up: the first definition in the process wins
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class _Load:
    """A mapped part of the file and its address in memory."""

    address: int
    offset: int
    size_bytes: int
    is_code: bool


class _Library:
    """The mapped parts of an ELF file. Raises ValueError if no linker could have made it."""

    def __init__(self, path: Path) -> None:
        """Reads the file's segments and dynamic section. Raises ValueError for another kind of file, or a broken
        one."""
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it is no 64-bit little-endian ELF file")
        try:
            self._elf = ELFFile(io.BytesIO(self.data))
            self.machine = str(self._elf["e_machine"])
            self.loads, self.dynamic = self._segments()
        except (ELFError, OverflowError) as error:
            raise ValueError(f"it is cut off or broken: {error}".rstrip(": ")) from error

    def _segments(self) -> tuple[list[_Load], list[int]]:
        """The mapped parts, and the addresses of dynamic segments. Raises ValueError for unusual headers and for parts
        that overlap in memory."""
        elf = self._elf
        if elf["e_phnum"] > _MOST_HEADERS or (elf["e_phnum"] and elf["e_phentsize"] != _PROGRAM_HEADER_BYTES):
            raise ValueError("its program headers are not of the usual size and number")
        loads: list[_Load] = []
        dynamic: list[int] = []
        end = 0
        for number in range(elf["e_phnum"]):
            header = struct_parse(elf.structs.Elf_Phdr, elf.stream, elf["e_phoff"] + number * _PROGRAM_HEADER_BYTES)
            address, offset = int(header["p_vaddr"]), int(header["p_offset"])
            if header["p_type"] == "PT_DYNAMIC":
                dynamic.append(address)
            elif header["p_type"] == "PT_LOAD":
                if address // _PAGE_BYTES * _PAGE_BYTES < end or (address - offset) % _PAGE_BYTES:
                    raise ValueError("parts of it lie over each other in memory")
                end = -(-(address + int(header["p_memsz"])) // _PAGE_BYTES) * _PAGE_BYTES
                is_code = bool(header["p_flags"] & P_FLAGS.PF_X)
                loads.append(_Load(address, offset, int(header["p_filesz"]), is_code))
        return loads, dynamic

    def entries(self) -> Iterator[tuple[str | int, int]]:
        """Yields (tag, value) of each entry of the dynamic segment. Raises ValueError if there is not exactly one
        dynamic segment, or if it has no end."""
        if self._elf["e_type"] != "ET_DYN" or len(self.dynamic) != 1:
            raise ValueError(f"it has {len(self.dynamic) or 'no'} dynamic segment{'s' * (len(self.dynamic) > 1)}")
        for number in range(_MOST_ENTRIES):
            part = self.read(self.dynamic[0] + number * _ENTRY_BYTES, _ENTRY_BYTES)
            entry = struct_parse(self._elf.structs.Elf_Dyn, io.BytesIO(part), 0)
            if entry["d_tag"] == "DT_NULL":
                return
            yield entry["d_tag"], int(entry["d_val"])
        raise ValueError("its dynamic segment has no end")

    def read(self, address: int, size_bytes: int) -> bytes:
        """`size_bytes` bytes at a memory address; ValueError if they are not in the file."""
        for load in self.loads:
            start = address - load.address
            if start >= 0 and start + size_bytes <= load.size_bytes:
                found = self.data[load.offset + start : load.offset + start + size_bytes]
                if len(found) == size_bytes:
                    return found
        raise ValueError("one of its tables lies outside the file")

    def text(self, address: int) -> str:
        """The string at an address. Raises ValueError for an address outside the mapped file."""
        for load in self.loads:
            start = load.offset + address - load.address
            if load.address <= address < load.address + load.size_bytes:
                return self.data[start : self.data.index(b"\0", start)].decode("utf-8", errors="replace")
        raise ValueError("one of its names lies outside the file")

    def sections_of_code(self) -> int:
        """Number of sections marked as machine code, which is what disassemblers read."""
        elf = self._elf
        if not 0 < elf["e_shnum"] <= _MOST_HEADERS or elf["e_shentsize"] != _SECTION_HEADER_BYTES or not elf["e_shoff"]:
            return 0
        places = [elf["e_shoff"] + number * _SECTION_HEADER_BYTES for number in range(elf["e_shnum"])]
        headers = [struct_parse(elf.structs.Elf_Shdr, elf.stream, place) for place in places]
        return sum(bool(header["sh_flags"] & SH_FLAGS.SHF_EXECINSTR and header["sh_size"]) for header in headers)


def is_device_code(path: Path) -> bool:
    """True if a file is GPU code, which the host's loader refuses under any name."""
    try:
        with path.open("rb") as file:
            return bool(ELFFile(file)["e_machine"] == "EM_CUDA")
    except (OSError, ELFError, OverflowError):
        return False


def read_imports(path: Path) -> Imports:
    """Symbols and libraries that a library imports. Raises OSError, and ValueError in words for an unusual or broken
    file."""
    library = _Library(path)
    tables: dict[str | int, int] = {}
    wanted: list[int] = []
    for tag, value in library.entries():
        if tag in _LIBRARIES:
            wanted.append(value)
        elif tag in _TABLES and tag in tables:
            raise ValueError(f"its dynamic segment has {tag} twice")
        tables.setdefault(tag, value)
    if "DT_STRTAB" not in tables or "DT_SYMTAB" not in tables:
        raise ValueError("its dynamic segment names no symbols")
    names, symbols = tables["DT_STRTAB"], tables["DT_SYMTAB"]
    asked: list[str] = []
    own: list[str] = []
    for index in sorted(_looked_up(library, tables)):
        name, info, other, section, _, _ = _SYMBOL.unpack(library.read(symbols + index * _SYMBOL.size, _SYMBOL.size))
        if name and info >> 4 != _LOCAL and other & 3 not in _HIDDEN:
            (own if section else asked).append(library.text(names + name))
    return Imports(
        tuple(dict.fromkeys(asked)), tuple(dict.fromkeys(own)), tuple(library.text(names + value) for value in wanted)
    )


def _looked_up(library: _Library, tables: dict[str | int, int]) -> set[int]:
    """Numbers of the symbols that relocations name: the loader looks these up, whatever the symbol table says."""
    found: set[int] = set()
    for place, size in (("DT_RELA", "DT_RELASZ"), ("DT_JMPREL", "DT_PLTRELSZ")):
        size_bytes = tables.get(size, 0)
        if place in tables and size_bytes:
            table = library.read(tables[place], size_bytes - size_bytes % _RELOCATION.size)
            found.update(info >> 32 for _, info, _ in _RELOCATION.iter_unpack(table))
    return found - {0}


@dataclass(frozen=True)
class Code:
    """Machine code that the loader maps: all bytes that may run, whatever sections call them."""

    machine: str  # "EM_X86_64"
    data: bytes
    sections: int  # number of code sections, by which a disassembler finds names


def read_code(path: Path) -> Code:
    """The mapped machine code of a library. Raises OSError, and ValueError in words."""
    library = _Library(path)
    parts = [library.data[load.offset :][: load.size_bytes] for load in library.loads if load.is_code]
    try:
        return Code(library.machine, b"".join(parts), library.sections_of_code())
    except (ELFError, OverflowError) as error:
        raise ValueError(f"its section headers cannot be read: {error}".rstrip(": ")) from error
