"""The CPU target: the system's g++ in a child that can be killed, builds kept by content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from foundry.knowledge.candidate import Build, Resources
from foundry.knowledge.compiler.file.assemble import build_key
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.device import Ceilings, Device, TargetName
from foundry.knowledge.errors import MissingTool
from foundry.tools.process.child import Limits, run_command
from foundry.tools.targets.base import (
    Started,
    build_cache,
    compiler_environment,
    compiler_limits,
    errors_of,
    first_error,
    read_literals,
)
from foundry.tools.targets.cpu.ceilings import BENCHMARK, measure_cpu
from foundry.tools.targets.cpu.describe import describe_cpu
from foundry.tools.targets.cpu.rules import cpu_cause
from foundry.tools.targets.evidence import Finding, KernelEvidence, Whole
from foundry.tools.targets.loops import Loop, find_loops, hot_loop, is_skipped

_ALLOWED_COMPILERS = frozenset({"g++", "c++", "clang++"})
_INSTALL = "install a C++ compiler, for example: apt-get install g++"


@dataclass(frozen=True)
class CpuTarget:
    """Builds CPU candidates. `compile_s` and `memory_bytes` limit one compilation. `device` gives the target's name:
    g++ builds for the processor that it runs on."""

    device: Device | None = None
    compile_s: float = 60.0
    memory_bytes: int = 4 << 30
    disassembles: bool = True  # what the machine code does is part of the resources; reading it takes a process

    @property
    def name(self) -> TargetName:
        """Name of the target: that of the given device, else "cpu"."""
        return self.device.target if self.device else "cpu"

    def describe(self) -> Device:
        """The given device, else this machine's CPU."""
        return self.device or describe_cpu()

    def is_here(self) -> bool:
        """False: it has no device of its own."""
        return False

    def unfit(self, printed: PrintedKernel) -> str:
        """An empty reason: every kernel fits a CPU."""
        return ""

    def cause(self, kernel: KernelEvidence, whole: Whole) -> Finding | None:
        """The cause that limits a kernel; None if no rule applies."""
        return cpu_cause(kernel, whole)

    def cause_outside(self, kernels: Sequence[KernelEvidence], whole: Whole) -> None:
        """None: no time outside of kernels is explained."""
        return None

    @property
    def install_reader(self) -> str:
        """Command that installs the disassembler."""
        return "apt-get install binutils"

    @property
    def benchmark(self) -> Path:
        """Source file of the benchmark that measures the ceilings."""
        return BENCHMARK

    def start_measuring(self) -> None:
        """Nothing has to be started before."""
        return None

    def measure(self, started: Started | None) -> Ceilings:
        """Measures this CPU's ceilings."""
        return measure_cpu(self.describe())

    def build(self, text: str) -> Build:
        """Compiles a candidate file's SOURCE unless the cache has it. Raises MissingTool without a compiler."""
        start = time.monotonic()
        try:
            literals = read_literals(text)
        except SyntaxError as error:
            return Build(ok=False, seconds=0.0, first_error=f"line {error.lineno}: {error.msg}")
        if literals is None:
            return Build(ok=True, seconds=0.0)
        if literals.about.get("target") != self.name:
            problem = f"a candidate for target {literals.about.get('target')!r} cannot build for {self.name}"
            return Build(ok=False, seconds=0.0, first_error=problem)
        compiler, flags = str(literals.about.get("compiler", "g++")), [str(f) for f in literals.about.get("flags", [])]
        if compiler not in _ALLOWED_COMPILERS:
            return Build(ok=False, seconds=0.0, first_error=f"compiler {compiler!r} is not one of g++, c++, clang++")
        key = build_key(literals.source, flags, compiler_version(compiler), machine())
        library = build_cache() / f"{key}.so"
        if library.exists():
            return Build(True, time.monotonic() - start, True, library.name, resources=self._resources(library))
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            return self._compile(literals.source, [compiler, *flags], library, start)
        except OSError as error:
            problem = f"the build cache cannot be written: {error}"
            return Build(ok=False, seconds=time.monotonic() - start, first_error=problem)

    def _resources(self, library: Path) -> Resources:
        """Resources that the library's machine code uses; empty ones without a disassembler."""
        return _resources(str(library)) if self.disassembles else Resources()

    def _compile(self, source: str, command: Sequence[str], library: Path, start: float) -> Build:
        """Runs g++ on the source in a confined child and moves the library to its place; a failure is a Build with its
        errors."""
        limits = compiler_limits(self.compile_s, self.memory_bytes)
        with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
            partial = Path(folder) / "kernel.so"
            argv = [*command, "-x", "c++", "-", "-o", str(partial)]
            finished = run_command(
                argv,
                limits,
                cwd=Path(folder),
                env=compiler_environment(folder),
                stdin=source.encode(),
                confined_to=Path(folder),
            )
            ok = finished.returncode == 0 and not finished.reason and partial.exists()
            if ok:
                partial.replace(library)
        seconds = time.monotonic() - start
        if not ok:
            said = first_error(finished.output) or f"{command[0]} exited with {finished.returncode}"
            problem = f"the compiler was stopped: {finished.reason}" if finished.reason else said
            named = [text.replace("<stdin>:", "kernel line ") for text in (problem, errors_of(finished.output))]
            return Build(False, seconds, first_error=named[0], errors=named[1])
        return Build(True, seconds, False, library.name, resources=self._resources(library))


@functools.cache
def compiler_version(compiler: str) -> str:
    """First line of `<compiler> --version`. Raises MissingTool."""
    try:
        finished = run_command([compiler, "--version"], Limits(wall_s=20.0, tasks=64))
    except FileNotFoundError:
        raise MissingTool(f"there is no {compiler} on this machine", _INSTALL) from None
    if finished.returncode != 0 or not finished.output.strip():
        raise MissingTool(f"{compiler} does not run", _INSTALL)
    return finished.output.splitlines()[0]


@functools.cache
def machine() -> str:
    """The architecture and a hash of the processor's feature flags, on which -march=native depends."""
    features = ""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as info:
        features = next((line for line in info if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


# Instruction classes of interest, first match wins (x86-64, AT&T syntax; others count as "other").
_CLASSES: tuple[tuple[str, str], ...] = (
    ("stream", r"v?movnt"),
    ("gather_scatter", r"v\w*(gather|scatter)"),
    ("scalar_float", r"v?(add|sub|mul|min|max|ucomi|comi|cmp\w*|rndscale|round)s[sd]$|vf\w*(madd|msub)\w*s[sd]$"),
    ("fma", r"vf\w*(madd|msub)\w*"),
    ("division", r"v?(div|sqrt)[ps][sd]|idiv|div[lq]?$"),
    ("vector_float", r"v(add|sub|mul|min|max|cmp|rndscale|round)\w*p[sd]"),
    ("convert", r"v?cvt\w*|vpmov[sz]x\w*|pmov[sz]x\w*"),
    ("shuffle", r"v?(perm|shuf|unpck|blend|broadcast|insert|extract|pblend|pshuf|valign)\w*"),
    (
        "integer",
        r"vp(add|sub|mull|mulh|madd|and|or|xor|tern|sll|srl|sra|cmp|min|max|abs)\w*|(sh[lr]|sar|and|or|xor)[bwlq]?$",
    ),
    ("vector_move", r"v?mov[ua]p[sd]|vmovdq\w*"),
    ("call", r"call"),
    ("branch", r"j\w+"),
)
_COMPUTING = ("fma", "vector_float", "scalar_float", "integer", "convert", "division", "gather_scatter", "call")
_REGISTERS = {64: "%zmm", 32: "%ymm", 16: "%xmm"}  # width in bytes -> name
_SCALAR_LOOP = 2  # instructions that make a scalar loop worth naming
_INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\s+(?:(?:bnd|notrack|lock|rep\w*)\s+)?([a-z][a-z0-9]+)\b(.*)$")
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_SYMBOL = re.compile(r"<([\w.]+)")  # a call's, or of an address that is loaded: OpenMP's regions
_ENTRY, _ONCE_ENTRY = "foundry_forward", "foundry_prepare"  # entry points that the library's module files call
_JUMP = re.compile(r"^\s+([0-9a-f]+)\s")
_MATHS = re.compile(r"<(?:a?(?:sin|cos|tan)h?|exp[2m1]*|log(?:2|10|1p)?|pow|erf|fmod|atan2)f?@plt>")


@functools.lru_cache(maxsize=256)
def _resources(library: str) -> Resources:
    """Widest vector register and instruction mix of a build, read by objdump; empty without objdump."""
    try:
        argv = ["objdump", "-d", "--no-show-raw-insn", library]
        text = run_command(argv, Limits(wall_s=20.0, tasks=16)).output
    except FileNotFoundError:
        return Resources()
    return disassembly_resources(text)


def read_library(library: Path) -> Resources:
    """Reads a library that anybody may have built; the disassembler is confined to a copy of it. Empty if that
    fails."""
    limits = Limits(wall_s=20.0, memory_bytes=2 << 30, tasks=16)
    with tempfile.TemporaryDirectory(prefix="read-") as folder:
        try:
            copy = shutil.copy(library, folder)
            done = run_command(["objdump", "-d", "--no-show-raw-insn", copy], limits, confined_to=Path(folder))
        except OSError:
            return Resources()
    return disassembly_resources(done.output)


@dataclass(frozen=True)
class _Instruction:
    address: int
    kind: str
    opcode: str
    operands: str

    @functools.cached_property
    def jumps_to(self) -> int | None:
        """The address to which a branch jumps; None for other instructions and computed jumps."""
        found = _JUMP.match(self.operands) if self.kind == "branch" else None
        return int(found[1], 16) if found else None

    @property
    def falls_through(self) -> bool:
        """True unless it is an unconditional jump or a return."""
        return self.opcode not in ("jmp", "jmpq", "ret", "retq")


def disassembly_resources(text: str) -> Resources:
    """Counts instruction classes; a register width counts when at least three instructions use it. Of loops only those
    count that run in every call: code that prepares parameters runs once for each set of them."""
    mix: Counter[str] = Counter()
    widths: Counter[int] = Counter()
    functions: dict[str, list[_Instruction]] = {}
    function: list[_Instruction] = []
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if not match:
            head = _FUNCTION.match(line)
            function = functions.setdefault(_source_name(head[1]), []) if head else function
            continue
        address, opcode, operands = match.groups()
        kind = next((name for name, pattern in _CLASSES if re.match(pattern, opcode)), "other")
        mix[kind] += 1
        widths[_width(operands)] += 1
        function.append(_Instruction(int(address, 16), kind, opcode, operands))
    widest = max((width for width, count in widths.items() if count >= 3), default=0)
    once = _reached_from(_ONCE_ENTRY, functions) - _reached_from(_ENTRY, functions)
    every = {name: code for name, code in functions.items() if name not in once}
    looped = {name: _looped(code) for name, code in every.items()}
    scalar = {name: _scalar_work(code) for name, code in looped.items()}
    return Resources(
        vector_bytes=widest,
        instruction_mix=dict(sorted(mix.items())),
        scalar_loops={name: count for name, count in scalar.items() if count},
        instructions={name: _facts(every[name], code) for name, code in looped.items() if code},
    )


def _reached_from(entry: str, functions: dict[str, list[_Instruction]]) -> set[str]:
    """The functions whose name begins with `entry`, and all that those name: what they call or hand to OpenMP."""
    reached: set[str] = set()
    waiting = [name for name in functions if name.startswith(entry)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            named = {_source_name(symbol) for code in functions[name] for symbol in _SYMBOL.findall(code.operands)}
            waiting += [other for other in named if other in functions]
    return reached


def _source_name(symbol: str) -> str:
    """The function of the source text behind a symbol: OpenMP's parallel regions are functions of their own."""
    mangled = re.match(r"_ZL?(\d+)", symbol)
    if not mangled:
        return symbol.split(".")[0]
    return symbol[mangled.end() :][: int(mangled[1])]


def _width(operands: str) -> int:
    """The width in bytes of the widest vector register that an instruction names; 0 if it names none."""
    return next((width for width, mark in _REGISTERS.items() if mark in operands), 0)


def _looped(code: list[_Instruction]) -> list[_Instruction]:
    """The instructions of all loops of a function."""
    loops = find_loops(code)
    return [i for i in code if any(loop.holds(i.address) for loop in loops)]


def _facts(code: list[_Instruction], looped: list[_Instruction]) -> dict[str, float]:
    """Counts of instructions in a function's loops by class, and the width of the widest vectors that compute.

    `hot_` counts all loops together. `inner_` counts the hot loop alone, and `inner_stack` its vector spills.
    """
    facts = {f"hot_{kind}": float(count) for kind, count in sorted(Counter(map(_kind, looped)).items())}
    loops = find_loops(code)
    facts["loops"] = float(len(loops))
    facts["scalar_loop"] = float(_scalar_work(looped))
    computing = [_width(i.operands) for i in looped if i.kind in ("fma", "vector_float")]
    facts["vector_bytes"] = float(max(computing, default=0))
    hot = hot_loop(code, loops, lambda i: isinstance(i, _Instruction) and i.kind in _COMPUTING)
    if hot is None:
        return facts
    inside = [i for i in code if hot.holds(i.address)]
    facts |= {f"inner_{kind}": float(count) for kind, count in sorted(Counter(map(_kind, inside)).items())}
    facts["inner_stack"] = float(sum(_width(i.operands) > 0 and "(%rsp" in i.operands for i in inside))
    facts["maths_every_turn"] = float(sum(_calls_every_turn(code, loops)))
    return facts


def _kind(instruction: _Instruction) -> str:
    """Class of an instruction; "maths_call" for a call of a mathematical function."""
    return "maths_call" if _MATHS.search(instruction.operands) else instruction.kind


def _calls_every_turn(code: list[_Instruction], loops: list[Loop]) -> Iterator[bool]:
    """For each call of the mathematical library in a loop, whether no turn passes it by: a branch for infinities that
    is never taken costs nothing."""
    for call in code:
        around = [loop for loop in loops if loop.holds(call.address)]
        if around and _kind(call) == "maths_call":
            yield not is_skipped(code, max(around, key=lambda loop: loop.depth), {call.address})


def _scalar_work(looped: list[_Instruction]) -> int:
    """Scalar floating-point instructions in a function's loops, 0 where vectors do the work.

    A vector loop has a scalar one for its rest, and rows have scalar work between them: only loops with hardly any
    vector instruction count.
    """
    scalar, packed = sum(map(_is_scalar, looped)), sum(map(_is_packed, looped))
    return scalar if scalar >= _SCALAR_LOOP and scalar > 8 * packed else 0


def _is_packed(instruction: _Instruction) -> bool:
    """True for an instruction on packed floats. Moves count only if they meet memory: scalar code copies whole
    registers too."""
    if instruction.kind == "vector_move":
        return "(" in instruction.operands
    return instruction.kind in ("fma", "vector_float", "stream", "gather_scatter")


def _is_scalar(instruction: _Instruction) -> bool:
    """True for an instruction on single floats, or a call of a scalar mathematical function."""
    if instruction.kind == "call":
        return _MATHS.search(instruction.operands) is not None
    single = instruction.kind == "division" and re.fullmatch(r"v?(div|sqrt)s[sd]", instruction.opcode)
    return bool(single) or instruction.kind == "scalar_float" or instruction.opcode in ("vmovss", "vmovsd")
