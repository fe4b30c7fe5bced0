"""Prints an author's kernel as one step of a module: sizes and tunables as constants, the code as it was written, and
its launches worked out. `#line` gives the compiler's messages the lines of the author's text.

Nothing here trusts the author: names are identifiers, sizes are numbers, the code stands in the source literal only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from foundry.knowledge.candidate import AuthoredKernel, AuthoredLaunch, Choice
from foundry.knowledge.compiler.authored.expressions import evaluate
from foundry.knowledge.compiler.authored.planning import SCRATCH_TYPES, sizes, strides_of
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT
from foundry.knowledge.compiler.cuda.launches import (
    KERNEL_PREFIX,
    Launch,
    encode,
    max_shared_bytes,
    prepared,
    workspace,
)
from foundry.knowledge.compiler.ir.kernels import AuthoredStep, Buffer, Plan, PrintedKernel, Tunable
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES

LONGEST_CODE = 200_000
MOST_LAUNCHES, MOST_ARGS, MOST_TUNABLES, MOST_VALUES = 64, 48, 16, 32
LONGEST_MEANING = 120
MOST_SCRATCH_BYTES = 16 << 30
NAMESPACE = f"{KERNEL_PREFIX}author"
FILE = "author"  # as compilers name the author's text
_ALIGN = 256
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.MULTILINE)
_Aspect = Literal["tile", "vector", "memory", "parallel"]
_ASPECTS: tuple[tuple[_Aspect, re.Pattern[str]], ...] = (
    ("vector", re.compile(r"vec|simd|width", re.IGNORECASE)),
    ("parallel", re.compile(r"thread|warp|block|unroll|split|grain|chunk", re.IGNORECASE)),
    ("memory", re.compile(r"stage|prefetch|stream|buffer", re.IGNORECASE)),
)


def print_authored(step: AuthoredStep, plan: Plan, device: Device, choices: Mapping[str, Choice]) -> PrintedKernel:
    """The step's text with these values of its tunables; one that is not declared takes its default. Raises CannotLower
    for what cannot be built or launched at all."""
    check_form(step.kernel, plan.buffers)
    chosen = {item.name: _chosen(choices.get(item.name), item.values, item.default) for item in step.kernel.tunables}
    page = _Page(step.kernel, plan, device, chosen)
    broken = next((text for text in step.kernel.constraints if not evaluate(text, page.numbers)), None)
    if broken is not None:
        raise CannotLower(f"the constraint {broken!r} does not hold for {chosen}")
    cuda = device.target == "cuda"
    return PrintedKernel(
        functions=page.functions(),
        call=page.launches() if cuda else page.calls(),
        template=template_of(step.kernel),
        choices=dict(chosen),
        tunables=tunables_of(step.kernel),
        d_mem=0,
        d_algo=0,
        d_sync=0,
        workspace_bytes=page.workspace_bytes,
        launches=sum(not launch.once for launch in step.kernel.launches),
        prepare={} if cuda else page.prepare(),
        prepared_sizes={} if cuda else page.prepared_sizes,
        prepared_bytes=page.prepared_bytes if cuda else 0,
        shared=page.includes,
    )


def template_of(kernel: AuthoredKernel) -> str:
    """What experience files the kernel's settings under."""
    return f"authored_{kernel.digest[:8]}"


def tunables_of(kernel: AuthoredKernel) -> tuple[Tunable, ...]:
    return tuple(
        Tunable(item.name, item.values, item.default, _aspect(item.name), _line(item.meaning) or "its author's number")
        for item in kernel.tunables
    )


def _line(text: str) -> str:
    """An author's words as part of a line of ours."""
    return " ".join(text.split())[:LONGEST_MEANING]


def _aspect(name: str) -> _Aspect:
    return next((aspect for aspect, pattern in _ASPECTS if pattern.search(name)), "tile")


def _chosen(value: Choice | None, values: tuple[int, ...], default: int) -> int:
    return value if isinstance(value, int) and value in values else default


# ---------------------------------------------------------------- what is refused


def check_form(kernel: AuthoredKernel, buffers: Mapping[str, Buffer]) -> None:
    """Raises CannotLower for a kernel whose parts do not fit together."""
    if not kernel.code.strip() or len(kernel.code) > LONGEST_CODE:
        raise CannotLower(f"the code has {len(kernel.code)} characters; 1 to {LONGEST_CODE} are accepted")
    if not all(char.isprintable() or char in "\n\t" for char in kernel.code):
        raise CannotLower("the code holds a control character")
    if '"""' in kernel.code or "```" in kernel.code:  # it stands in a literal here, and in a fence where it is shown
        raise CannotLower('the code cannot hold """ or ```')
    if not 1 <= len(kernel.launches) <= MOST_LAUNCHES:
        raise CannotLower(f"{len(kernel.launches)} launches; 1 to {MOST_LAUNCHES} are accepted")
    names = [item.name for item in kernel.tunables] + [item.name for item in kernel.scratch]
    _check_names([*names, *(launch.function for launch in kernel.launches)])
    taken = {*buffers, *sizes(buffers)}
    for name in names:
        if name in taken:
            raise CannotLower(f"the name {name} is taken")
        taken.add(name)
    for item in kernel.tunables:
        if not 1 <= len(item.values) <= MOST_VALUES or item.default not in item.values:
            raise CannotLower(f"tunable {item.name}: 1 to {MOST_VALUES} values, and the default is one of them")
    if len(kernel.tunables) > MOST_TUNABLES:
        raise CannotLower(f"{len(kernel.tunables)} tunables; at most {MOST_TUNABLES} are accepted")
    for part in kernel.scratch:
        if part.dtype not in SCRATCH_TYPES:
            raise CannotLower(f"scratch {part.name}: {part.dtype} is none of {', '.join(SCRATCH_TYPES)}")
    for launch in kernel.launches:
        _check_launch(launch, kernel, buffers)


def _check_names(names: list[str]) -> None:
    bad = next((name for name in names if not _IDENTIFIER.match(name)), None)
    if bad is not None:
        raise CannotLower(f"{bad[:60]!r} is no identifier")


def _check_launch(launch: AuthoredLaunch, kernel: AuthoredKernel, buffers: Mapping[str, Buffer]) -> None:
    if len(launch.args) > MOST_ARGS:
        raise CannotLower(f"{launch.function}: {len(launch.args)} arguments; at most {MOST_ARGS} are accepted")
    if not re.search(rf"\b{launch.function}\s*\(", kernel.code):
        raise CannotLower(f"the code has no function {launch.function}")
    if launch.once:
        lasting = {item.name for item in kernel.scratch if item.kept}
        lasting |= {name for name, buffer in buffers.items() if buffer.role == "parameter"}
        passing = [arg for arg in launch.args if arg in {*buffers, *(p.name for p in kernel.scratch)} - lasting]
        if passing:
            raise CannotLower(f"{launch.function} runs once, so it cannot use {passing[0]}, which changes in each call")


# ---------------------------------------------------------------- the text


@dataclass
class _Page:
    """The parts of the printed step, with every number worked out."""

    kernel: AuthoredKernel
    plan: Plan
    device: Device
    chosen: Mapping[str, int]
    numbers: dict[str, int] = field(init=False)
    places: dict[str, int] = field(init=False)  # byte offsets of scratch
    workspace_bytes: int = field(init=False, default=0)
    prepared_bytes: int = field(init=False, default=0)
    prepared_sizes: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = {**sizes(self.plan.buffers), **self.chosen}
        self.places, self.prepared_sizes = {}, {}
        for part in self.kernel.scratch:
            size = evaluate(part.count, self.numbers) * ITEM_BYTES[part.dtype]  # type: ignore[index]
            if not 0 < size <= MOST_SCRATCH_BYTES:
                raise CannotLower(f"scratch {part.name}: {size} bytes")
            room = -(-size // _ALIGN) * _ALIGN
            if part.kept:
                self.places[part.name] = self.prepared_bytes
                self.prepared_bytes += room
                self.prepared_sizes[part.name] = room // 4
            else:
                self.places[part.name] = self.workspace_bytes
                self.workspace_bytes += room

    @property
    def on_gpu(self) -> bool:
        return self.device.target == "cuda"

    @property
    def includes(self) -> tuple[str, ...]:
        """What has to stand outside of the namespace."""
        return tuple(found[0].strip() for found in _INCLUDE.finditer(self.kernel.code))

    def functions(self) -> str:
        wide = "long long" if self.on_gpu else "long"
        constants = {**self.numbers, **strides_of(self.plan.buffers)}
        lines = [
            f"static constexpr {'int' if name in self.chosen else wide} {name} = {value};"
            for name, value in constants.items()
        ]
        code = _INCLUDE.sub("", self.kernel.code)
        if self.on_gpu:
            for launch in {launch.function: launch for launch in self.kernel.launches}.values():
                code = re.sub(rf"\b{launch.function}\b", self._symbol(launch), code)
        text = code if code.endswith("\n") else f"{code}\n"
        head = "\n".join(lines)
        return (
            f'namespace {NAMESPACE} {{\n{head}\n#line 1 "{FILE}"\n{text}}}\n#line 1 "wrapper"\n'
            f"using namespace {NAMESPACE};\n"
        )

    def _symbol(self, launch: AuthoredLaunch) -> str:
        """A kernel's name in the cubin: those of the library begin in the same way."""
        return launch.function if launch.function.startswith(KERNEL_PREFIX) else KERNEL_PREFIX + launch.function

    # -- CUDA: a table of launches

    def launches(self) -> str:
        return encode(self._launch(launch) for launch in self.kernel.launches)

    def _launch(self, launch: AuthoredLaunch) -> Launch:
        grid, block = self._three(launch.grid, "grid", launch), self._three(launch.block, "block", launch)
        shared = evaluate(launch.shared_bytes, self.numbers)
        if block[0] * block[1] * block[2] > 1024 or grid[0] >= 2**31 or max(grid[1:]) > 65535:
            raise CannotLower(f"{launch.function}: grid {grid}, block {block} is beyond what a GPU starts")
        if not 0 <= shared <= max_shared_bytes(self.device.arch):
            most = max_shared_bytes(self.device.arch)
            raise CannotLower(f"{launch.function}: {shared} bytes of shared memory, a block may have {most}")
        args = tuple(self._gpu_argument(arg) for arg in launch.args)
        return Launch(self._symbol(launch), grid, block, args, shared, launch.once)

    def _three(self, texts: tuple[str, ...], what: str, launch: AuthoredLaunch) -> tuple[int, int, int]:
        if not 1 <= len(texts) <= 3:
            raise CannotLower(f"{launch.function}: {what} needs one to three expressions")
        x, y, z = [*(evaluate(text, self.numbers) for text in texts), 1, 1][:3]
        if min(x, y, z) < 1:
            raise CannotLower(f"{launch.function}: {what} is {(x, y, z)}")
        return x, y, z

    def _gpu_argument(self, arg: str) -> str | int:
        if arg in self.plan.buffers:
            return arg
        if arg in self.places:
            return prepared(self.places[arg]) if arg in self.prepared_sizes else workspace(self.places[arg])
        return evaluate(arg, self.numbers)

    # -- CPU: calls

    def calls(self) -> str:
        return "\n".join(self._call(launch) for launch in self.kernel.launches if not launch.once)

    def prepare(self) -> dict[str, str]:
        """The calls that fill what is kept, filed under the first of it."""
        calls = [self._call(launch) for launch in self.kernel.launches if launch.once]
        return {next(iter(self.prepared_sizes)): "\n".join(calls)} if calls and self.prepared_sizes else {}

    def _call(self, launch: AuthoredLaunch) -> str:
        return f"{NAMESPACE}::{launch.function}({', '.join(self._cpu_argument(arg) for arg in launch.args)});"

    def _cpu_argument(self, arg: str) -> str:
        if arg in self.plan.buffers:
            return f"b_{arg}"
        if arg in self.places:
            dtype = next(part.dtype for part in self.kernel.scratch if part.name == arg)
            kind = CPU_DIALECT.storage[dtype]  # type: ignore[index]
            return f"({kind}*)b_{arg}" if arg in self.prepared_sizes else f"({kind}*)(workspace + {self.places[arg]})"
        return str(evaluate(arg, self.numbers))


def element_type(buffer: Buffer, target: str) -> str:
    """The C++ type of a buffer's elements."""
    return (CUDA_DIALECT if target == "cuda" else CPU_DIALECT).storage[buffer.dtype]
