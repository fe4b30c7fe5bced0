"""Reads the machine code of CUDA kernels: instructions by class, loops, and address steps between threads.

The input is the disassembly of a cubin or of a library that holds cubins; no GPU is needed. Loops are backward branches
whose number of turns is unknown, so all instructions of loops count as hot.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from foundry.tools.targets.cuda.strides import LOADED, RUNTIME, Strides
from foundry.tools.targets.loops import find_loops, hot_loop

# Instruction classes of NVIDIA's machine code, first match wins; others count as "other".
_CLASSES: tuple[tuple[str, str], ...] = (
    ("tensor", r"\w*GMMA|[HIDQBO]MMA|UTC\w*MMA"),
    ("async_copy", r"LDGSTS|UTMALDG|UTMASTG|UBLKCP|LDGDEPBAR|DEPBAR"),
    ("load_128", r"LDG?\b.*\.128"),
    ("load_64", r"LDG?\b.*\.64"),
    ("load_8", r"LDG?\b.*\.[US](8|16)\b"),
    ("load_32", r"LDG?(\.|$)"),
    ("store_128", r"STG?\b.*\.128"),
    ("store_64", r"STG?\b.*\.64"),
    ("store_8", r"STG?\b.*\.[US](8|16)\b"),
    ("store_32", r"STG?(\.|$)"),
    ("shared_load", r"LDSM?(\.|$)"),
    ("shared_store", r"STSM?(\.|$)"),
    ("local_load", r"LDL"),
    ("local_store", r"STL"),
    ("barrier", r"BAR|SYNCS|UCGABAR"),
    ("fence", r"MEMBAR|ERRBAR|FENCE|CCTL"),
    ("shared_atomic", r"ATOMS"),
    ("atomic", r"ATOM|RED(\.|$)|REDG"),
    ("shuffle", r"SHFL|VOTE|MATCH|REDUX"),
    ("special", r"MUFU"),
    ("double", r"D(FMA|ADD|MUL|SETP|MNMX)"),
    ("float", r"[FH](FMA|ADD|MUL|MNMX|SETP|SEL|FMA2|ADD2|MUL2|CHK|SWZADD)|H(FMA2|ADD2|MUL2)"),
    ("convert", r"[FI]2[FI]P?|FRND|F2FP"),
    ("integer", r"U?(IMAD|IADD3?|LOP3|SHF|LEA|ISETP|IMNMX|VIADD\w*|VIMNMX|IABS|PRMT|SEL|POPC|FLO|BREV|SGXT|BMSK|LOP)"),
    ("constant", r"U?LDCU?"),
    ("reconverge", r"BSSY|BSYNC|BREAK|WARPSYNC|YIELD"),
    ("branch", r"BRA|BRX|JMP|JMX|CALL|RET|EXIT|NANOSLEEP"),
)
LOADS = {"load_128": 16, "load_64": 8, "load_32": 4, "load_8": 1}  # bytes a thread, by class
_BESIDE = ("constant", "branch", "reconverge", "other")  # instructions that compute nothing
STORES = {"store_128": 16, "store_64": 8, "store_32": 4, "store_8": 1}
_SECTION = re.compile(r"^\s*\.text\.([^:\s]+):|^\s*Function : (\S+)")
_LABEL = re.compile(r"^\s*(\.L_\w+):")
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
_JUMP = re.compile(r"`\((\.L_\w+)\)|0x([0-9a-f]+)\s*$")
_PER_CLASS = {name: re.compile(pattern) for name, pattern in _CLASSES}


@dataclass(frozen=True)
class Instruction:
    address: int
    opcode: str  # name and modifiers, e.g. LDG.E.128
    operands: str
    kind: str


@dataclass(frozen=True)
class KernelCode:
    """Counts of one kernel's instructions, by class, and facts of the addresses that could be followed."""

    mix: dict[str, int]  # all instructions
    hot: dict[str, int]  # instructions of its loops; all of them if it has none
    loops: int
    waste: float  # largest step in bytes between threads over the bytes each takes; -1: an argument decides it
    ways: int  # most shared accesses of one warp that meet in one bank
    chased: int  # loads whose address was loaded before
    inner: dict[str, int] = field(default_factory=dict)  # instructions of the hot loop alone

    def facts(self) -> dict[str, float]:
        """The counts as entries of a build's report: `hot_load_32`, `all_barrier`, ..."""
        facts = {f"all_{kind}": float(count) for kind, count in sorted(self.mix.items())}
        facts |= {f"hot_{kind}": float(count) for kind, count in sorted(self.hot.items())}
        facts |= {f"inner_{kind}": float(count) for kind, count in sorted(self.inner.items())}
        return facts | {"loops": self.loops, "waste": self.waste, "ways": self.ways, "chased": self.chased}


@dataclass
class _Accesses:
    """Facts of a kernel's addresses, gathered one memory access at a time; the fields are those of `KernelCode`."""

    waste: float = 0.0
    ways: int = 1
    chased: int = 0

    def add(self, line: Instruction, step: int) -> None:
        """Adds one memory access whose addresses differ by `step` bytes between neighbouring threads, or by an unknown
        amount."""
        if step == LOADED:
            self.chased += 1
        elif line.kind.startswith("shared"):
            self.ways = max(self.ways, _ways(step, width_of(line.opcode)))
        elif step == RUNTIME or self.waste == RUNTIME:
            self.waste = RUNTIME
        else:
            self.waste = max(self.waste, abs(step) / width_of(line.opcode))


def read_disassembly(text: str) -> dict[str, KernelCode]:
    """Every function in the output of `nvdisasm -c` or `cuobjdump -sass`."""
    return {name: _code(lines, labels) for name, lines, labels in _functions(text)}


def _functions(text: str) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    """Yields (name, instructions, address by label) of each function in a disassembly."""
    name, lines, labels, pending = "", list[Instruction](), dict[str, int](), list[str]()
    for line in text.splitlines():
        if head := _SECTION.match(line):
            if name and lines:
                yield name, lines, labels
            name, lines, labels, pending = head[1] or head[2], [], {}, []
        elif label := _LABEL.match(line):
            pending.append(label[1])
        elif found := _LINE.match(line):
            address = int(found[1], 16)
            labels |= dict.fromkeys(pending, address)
            pending = []
            lines.append(Instruction(address, found[2], found[3].strip(), kind_of(found[2])))
    if name and lines:
        yield name, lines, labels


def kind_of(opcode: str) -> str:
    """The class of an instruction."""
    return next((kind for kind, pattern in _PER_CLASS.items() if pattern.match(opcode)), "other")


def _code(lines: Sequence[Instruction], labels: dict[str, int]) -> KernelCode:
    """The facts of one kernel: instructions by class, in loops and in the hottest loop, and the steps of its
    accesses."""
    loops = [(target, line.address) for line in lines if (target := _back_to(line, labels)) is not None]
    looped = [line for line in lines if any(begin <= line.address <= end for begin, end in loops)]
    strides, seen = Strides(), _Accesses()
    for line in lines:
        _note_access(line, strides, seen)
        begin = _back_to(line, labels)
        for again in lines if begin is not None else ():  # its second turn finds what the first one computed
            if begin is not None and begin <= again.address <= line.address:
                _note_access(again, strides, seen)
    inner = _count(_hot_loop(lines, labels))
    return KernelCode(
        mix=_count(lines),
        hot=_count(looped or lines),
        loops=len(loops),
        waste=seen.waste,
        ways=seen.ways,
        chased=seen.chased,
        inner=inner,
    )


@dataclass(frozen=True)
class _Step:
    """An instruction in the form that `find_loops` reads; its forward jumps do not matter."""

    address: int
    jumps_to: int | None
    kind: str
    falls_through: bool = True


def _hot_loop(lines: Sequence[Instruction], labels: dict[str, int]) -> list[Instruction]:
    """The instructions of the loop that most likely takes the time; none where there is no loop."""
    steps = [_Step(line.address, _back_to(line, labels), line.kind) for line in lines]
    loop = hot_loop(steps, find_loops(steps), lambda step: isinstance(step, _Step) and step.kind not in _BESIDE)
    return [line for line in lines if loop is not None and loop.holds(line.address)]


def _note_access(line: Instruction, strides: Strides, seen: _Accesses) -> None:
    """Notes the step of a memory access, then follows the instruction's effect on registers."""
    if line.kind in LOADS or line.kind in STORES or line.kind in ("shared_load", "shared_store"):
        step = strides.of_access(line.operands)
        if step is not None:
            seen.add(line, step)
    strides.follow(line.opcode, line.operands)


def width_of(opcode: str) -> int:
    """Bytes that a memory access moves for each thread, from its opcode; 4 unless it says otherwise."""
    parts = opcode.split(".")
    return (
        16
        if "128" in parts
        else 8
        if "64" in parts
        else 2
        if {"U16", "S16"} & {*parts}
        else (1 if {"U8", "S8"} & {*parts} else 4)
    )


def _ways(step: int, width: int) -> int:
    """Shared memory has 32 banks of 4 bytes: how many times as long an access takes as one without a conflict."""
    if step <= 0 or step % 4:
        return 1
    return max(1, math.gcd(step // 4, 32) // max(1, width // 4))


def _count(lines: Sequence[Instruction]) -> dict[str, int]:
    """Number of instructions by class, without NOP."""
    working = [line.kind for line in lines if line.opcode != "NOP"]
    return dict(Counter(working))


def _back_to(line: Instruction, labels: dict[str, int]) -> int | None:
    """The earlier address that a backward jump goes to; None for other instructions, and for a jump to itself.

    The padding behind a kernel jumps to itself.
    """
    if not line.opcode.startswith("BRA"):
        return None
    found = _JUMP.search(line.operands)
    if not found:
        return None
    target = labels.get(found[1], line.address) if found[1] else int(found[2], 16)
    return target if target < line.address else None
