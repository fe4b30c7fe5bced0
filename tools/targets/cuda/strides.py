"""How far apart the addresses of neighbouring threads are, followed through a kernel's machine code.

A register is a number times the thread's index in x, plus what all threads of a warp share. A multiple by a kernel's
argument is known to be one, and so is what was loaded from memory. Where a kernel computes more than that (a remainder,
a table of its own), nothing is known of it.
"""

from __future__ import annotations

import re

RUNTIME = -1  # a step that an argument of the kernel decides: not one element, or the compiler would have known
LOADED = -2  # the address itself came from memory
_REGISTER = re.compile(r"-?\|?(U?R\d+|U?RZ)\b")
_ADDRESS = re.compile(r"\[(?:(U?R\d+)(?:\.\w+)*)?")
_IMMEDIATE = re.compile(r"^-?0x[0-9a-f]+$|^-?\d+$")
_LANES = 0x1F


class Strides:
    """Steps of registers between neighbouring threads; call `follow` with every instruction in text order."""

    def __init__(self) -> None:
        """Knows only the zero registers: 0 bytes between neighbouring threads."""
        self._steps: dict[str, int | None] = {"RZ": 0, "URZ": 0}

    def of_access(self, operands: str) -> int | None:
        """The step of a load's or store's address in bytes; None where it is not known."""
        inside = [found[1] for found in _ADDRESS.finditer(operands) if found[1] and not found[1].startswith("U")]
        return self._steps.get(inside[-1]) if inside else None

    def follow(self, opcode: str, operands: str) -> None:
        """Updates the steps of the registers that an instruction writes; others stay."""
        parts = [part.strip() for part in operands.split(",")]
        name = parts[0].split(".")[0]
        if not re.fullmatch(r"U?R\d+", name):
            if len(parts) > 1 and re.fullmatch(r"U?P(\d+|T)", name):
                name, parts = parts[1].split(".")[0], parts[1:]
            if not re.fullmatch(r"U?R\d+", name):
                return
        sources = [part for part in parts[1:] if not re.fullmatch(r"!?U?P(\d+|T)", part)]
        step = self._result(opcode, sources)
        self._steps[name] = step
        for offset in range(1, _width(opcode)):
            self._steps[_beyond(name, offset)] = LOADED if step == LOADED else None

    def _result(self, opcode: str, sources: list[str]) -> int | None:
        """The step of an instruction's result between neighbouring threads, from those of its sources.

        None if unknown; RUNTIME if it depends on a value known only at run time, LOADED if on a loaded one.
        """
        base = opcode.split(".")[0]
        if base in ("LDG", "LD"):
            return LOADED
        if base in ("S2R", "S2UR", "CS2R"):
            return 1 if sources and sources[0] in ("SR_TID.X", "SR_LANEID") else 0
        if base.startswith(("LDC", "ULDC", "UMOV", "R2UR")) or base in ("ULEA", "UIMAD", "UIADD3", "USHF", "ULOP3"):
            return 0
        if base == "MOV":
            return self._step(sources[0])
        if base in ("IADD3", "IADD", "VIADD"):
            return self._sum(sources[:3]) if ".X" not in opcode else None
        if base == "IMAD":
            return self._imad(opcode, sources)
        if base == "LEA":
            return self._lea(opcode, sources)
        if base == "SHF" and ".L" in opcode and sources:
            shift = _number(sources[1]) if len(sources) > 1 else None
            step = self._step(sources[0])
            return _times(step, None if shift is None else 1 << shift)
        if base == "LOP3" and sources[3:4] == ["0xc0"] and (_number(sources[1]) or 0) & _LANES == _LANES:
            return self._step(sources[0])  # of the lane
        return LOADED if LOADED in map(self._step, sources) else None

    def _imad(self, opcode: str, sources: list[str]) -> int | None:
        """The step of a multiply-add."""
        if ".HI" in opcode or ".X" in opcode or len(sources) < 3:
            return None
        return _plus(self._product(sources[0], sources[1]), self._step(sources[2]))

    def _lea(self, opcode: str, sources: list[str]) -> int | None:
        """The step of a shift and add."""
        if ".HI" in opcode or len(sources) < 3:
            return None
        shift = _number(sources[2])
        return _plus(_times(self._step(sources[0]), None if shift is None else 1 << shift), self._step(sources[1]))

    def _product(self, first: str, second: str) -> int | None:
        """The step of a product of two registers or of one and a number."""
        for one, other in ((first, second), (second, first)):
            step, number = self._step(one), _number(other)
            if number is not None:
                return _times(step, number)
        steps = self._step(first), self._step(second)
        if None in steps or LOADED in steps:
            return LOADED if LOADED in steps else None
        return 0 if steps == (0, 0) else RUNTIME

    def _sum(self, sources: list[str]) -> int | None:
        """The step of a sum; operands may be negated."""
        total: int | None = 0
        for source in sources:
            total = _plus(total, self._step(source), -1 if source.startswith("-") else 1)
        return total

    def _step(self, source: str) -> int | None:
        """The step of an operand; 0 for an immediate or an argument, None for an unknown register."""
        found = _REGISTER.match(source)
        return self._steps.get(found[1]) if found else 0  # an immediate, or an argument: the same in all threads


def _plus(one: int | None, other: int | None, sign: int = 1) -> int | None:
    """The step of one + sign * other; LOADED, unknown and RUNTIME carry over in this order."""
    if LOADED in (one, other):
        return LOADED
    if one is None or other is None:
        return None
    return RUNTIME if RUNTIME in (one, other) else one + sign * other


def _times(step: int | None, factor: int | None) -> int | None:
    """A step times a known factor; 0, RUNTIME and LOADED stay, an unknown factor makes it unknown."""
    if step is None or step in (0, RUNTIME, LOADED):
        return step
    return None if factor is None else step * factor


def _number(text: str) -> int | None:
    """Value of an immediate operand; None for any other."""
    return int(text, 0) if _IMMEDIATE.match(text) else None


def _width(opcode: str) -> int:
    """Registers that an instruction writes."""
    return 4 if ".128" in opcode else 2 if ".64" in opcode or ".WIDE" in opcode else 1


def _beyond(name: str, offset: int) -> str:
    """The name with each number in it increased by the offset: R4 and 1 give R5."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) + offset), name)
