"""Prints an author's kernel as one step of a module: sizes and tunables as constants, its code unchanged, its launches.

`#line` gives the compiler's messages the lines of the author's text. Nothing here trusts the author: names are
identifiers, sizes are numbers, the code stands in the source literal only.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from foundry.knowledge.candidate import AuthoredKernel, AuthoredLaunch, Choice
from foundry.knowledge.compiler.authored.expressions import evaluate
from foundry.knowledge.compiler.authored.planning import SCRATCH_TYPES, sizes, strides_of
from foundry.knowledge.compiler.cuda.launches import KERNEL_PREFIX
from foundry.knowledge.compiler.ir.kernels import AuthoredStep, Buffer, Plan, PrintedKernel, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES

LONGEST_CODE = 200_000
MOST_LAUNCHES = 64
MOST_ARGS = 48
MOST_TUNABLES = 16
MOST_VALUES = 32
LONGEST_MEANING = 120
MOST_SCRATCH_BYTES = 16 << 30
NAMESPACE = f"{KERNEL_PREFIX}author"
FILE = "author"  # name of the author's text in compilers' messages
_ALIGN = 256
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.MULTILINE)
_Aspect = Literal["tile", "vector", "memory", "parallel"]
_ASPECTS: tuple[tuple[_Aspect, re.Pattern[str]], ...] = (
    ("vector", re.compile(r"vec|simd|width", re.IGNORECASE)),
    ("parallel", re.compile(r"thread|warp|block|unroll|split|grain|chunk", re.IGNORECASE)),
    ("memory", re.compile(r"stage|prefetch|stream|buffer", re.IGNORECASE)),
)


def print_authored(
    step: AuthoredStep, plan: Plan, device: Device, choices: Mapping[str, Choice], page_of: type[Page]
) -> PrintedKernel:
    """The step's text with these values of its tunables; one that is not declared takes its default. `page_of` is the
    target's page. Raises CannotLower for what cannot be built or launched at all."""
    check_form(step.kernel, plan.buffers)
    chosen = {item.name: _chosen(choices.get(item.name), item.values, item.default) for item in step.kernel.tunables}
    page = page_of(step.kernel, plan, device, chosen)
    broken = next((text for text in step.kernel.constraints if not evaluate(text, page.numbers)), None)
    if broken is not None:
        raise CannotLower(f"the constraint {broken!r} does not hold for {chosen}")
    printed = PrintedKernel(
        functions=page.functions(),
        call=page.call(),
        template=template_of(step.kernel),
        choices=dict(chosen),
        tunables=tunables_of(step.kernel),
        workspace_bytes=page.workspace_bytes,
        launches=sum(not launch.once for launch in step.kernel.launches),
        shared=page.includes,
    )
    return page.with_prepared(printed)


def template_of(kernel: AuthoredKernel) -> str:
    """The template name under which experience files the kernel's settings."""
    return f"authored_{kernel.digest[:8]}"


def tunables_of(kernel: AuthoredKernel) -> tuple[Tunable, ...]:
    """The author's tunables as the tuner sees them."""
    return tuple(
        Tunable(item.name, item.values, item.default, _aspect(item.name), _line(item.meaning) or "its author's number")
        for item in kernel.tunables
    )


def _line(text: str) -> str:
    """An author's text as part of one line."""
    return " ".join(text.split())[:LONGEST_MEANING]


def _aspect(name: str) -> _Aspect:
    """The aspect of tuning that a tunable's name suggests; "tile" for an unknown name."""
    return next((aspect for aspect, pattern in _ASPECTS if pattern.search(name)), "tile")


def _chosen(value: Choice | None, values: tuple[int, ...], default: int) -> int:
    """The chosen value if it is one of the legal integers, else the default."""
    return value if isinstance(value, int) and value in values else default


# ---------------------------------------------------------------- checks


def check_form(kernel: AuthoredKernel, buffers: Mapping[str, Buffer]) -> None:
    """Raises CannotLower for an author's code that is empty, too long, or holds control characters, triple quotes or
    fences. Also for names, tunables, scratch or launches that do not fit."""
    if not kernel.code.strip() or len(kernel.code) > LONGEST_CODE:
        raise CannotLower(f"the code has {len(kernel.code)} characters; 1 to {LONGEST_CODE} are accepted")
    if not all(char.isprintable() or char in "\n\t" for char in kernel.code):
        raise CannotLower("the code holds a control character")
    if '"""' in kernel.code or "```" in kernel.code:  # it stands in a string literal, and in a fence where it is shown
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
    """Raises CannotLower for the first name that is no C identifier."""
    bad = next((name for name in names if not _IDENTIFIER.match(name)), None)
    if bad is not None:
        raise CannotLower(f"{bad[:60]!r} is no identifier")


def _check_launch(launch: AuthoredLaunch, kernel: AuthoredKernel, buffers: Mapping[str, Buffer]) -> None:
    """Raises CannotLower if a launch does not fit the kernel's code, buffers or limits."""
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
class Page(ABC):
    """The parts of the printed step, with every number worked out. Each target has a page of its own."""

    index_type: ClassVar[str]  # native type that holds 64-bit sizes and strides

    kernel: AuthoredKernel
    plan: Plan
    device: Device
    chosen: Mapping[str, int]
    numbers: dict[str, int] = field(init=False)
    places: dict[str, int] = field(init=False)  # byte offsets of scratch memory
    workspace_bytes: int = field(init=False, default=0)
    prepared_bytes: int = field(init=False, default=0)
    prepared_sizes: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Works out sizes, and places of scratch tensors in the workspace or, if kept, in the prepared memory. Raises
        CannotLower."""
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

    @abstractmethod
    def call(self) -> str:
        """How the kernels are launched in every call."""

    @abstractmethod
    def with_prepared(self, printed: PrintedKernel) -> PrintedKernel:
        """The printed step with what is kept between calls."""

    def named(self, code: str) -> str:
        """The author's code with its kernels under the names that the target needs."""
        return code

    @property
    def includes(self) -> tuple[str, ...]:
        """Include lines, which must stand outside of the namespace."""
        return tuple(found[0].strip() for found in _INCLUDE.finditer(self.kernel.code))

    def functions(self) -> str:
        """The author's code in a namespace of its own, after its sizes and tunables as constants."""
        constants = {**self.numbers, **strides_of(self.plan.buffers)}
        lines = [
            f"static constexpr {'int' if name in self.chosen else self.index_type} {name} = {value};"
            for name, value in constants.items()
        ]
        code = self.named(_INCLUDE.sub("", self.kernel.code))
        text = code if code.endswith("\n") else f"{code}\n"
        head = "\n".join(lines)
        return (
            f'namespace {NAMESPACE} {{\n{head}\n#line 1 "{FILE}"\n{text}}}\n#line 1 "wrapper"\n'
            f"using namespace {NAMESPACE};\n"
        )
