"""Commands of the judge to a runner, and the runner's answers, which are hostile: data and no more. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from foundry.knowledge.opgraph import DType, TensorSpec
from foundry.tools.audit.acts.observed import Launch, Observations, OperatorRow
from foundry.tools.process.messages import Items, Line, Message, Packing
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.protocol.orders import Layout

Block = tuple[int, int] | None  # number of a block of GPU memory, and its bytes; None: the open file that comes along


class RunnerOptions(Message):
    """The main process's word to a runner: with a link of the judge that it serves then, else to make itself ready."""

    threads: int
    tf32: bool
    device: str


@dataclass(frozen=True)
class SharedImports:
    """Imports that a candidate's file shares with the task: statements, and texts of modules in the task's folder."""

    statements: list[str] = field(default_factory=list)
    folder: str = ""
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileToLoad:
    """The reference's encoded `task`, else a candidate's `text`; `ablate`: how its native code is disabled."""

    device: str
    task: str = ""
    text: str = ""
    name: str = "candidate"
    observe: bool = False
    disguise: bool = False
    ablate: Literal["", "silent", "undone"] = ""


@dataclass(frozen=True)
class ModelForm:
    """How a model is constructed: as KernelBench does, with the same seed."""

    seed: int
    mode: str
    overrides: dict[str, int]
    dtype: DType | None
    drawn_on: str


@dataclass(frozen=True)
class StateForm:
    """Names of a model's tensors, places of those that forward updates, and whether load_state_dict is called."""

    keys: list[str]
    mutable: list[int]
    loads: bool


@dataclass(frozen=True)
class Matched:
    """`unmatched`: why parameters have no counterpart. `changed`: names of tensors that differ from those sent."""

    unmatched: Line = ""
    changed: Items[str] = field(default_factory=list)


@dataclass(frozen=True)
class Written:
    """Tensors' layouts, and if they lie in the judge's memory. `is_own`: a backward of the candidate gave them."""

    written: bool
    specs: Items[TensorSpec] = field(default_factory=list)
    is_own: bool = False


@dataclass(frozen=True)
class CallFacts(Written):
    """`changed`: numbers of the inputs that forward changed. `keys`: those of dicts in the result, if looked at."""

    changed: Items[int] = field(default_factory=list)
    alias: Line = ""
    shared: Items[int] = field(default_factory=list)
    keys: list[str] | None = None
    operators: Items[OperatorRow] = field(default_factory=list)


@dataclass(frozen=True)
class RunTime:
    """Time in ns by the runner's clock, the GPU's part of it, and pages that were touched for the first time."""

    ns: int
    device_ns: int = 0
    faults: int = 0


@dataclass(frozen=True)
class MeanTime:
    """The mean time of `calls` calls in ms, and what the device did in one more."""

    ms: float
    calls: int
    launches: Items[Launch]


class RunnerCommands(Protocol):
    """The commands of the judge, as the runner's methods of these names explain them."""

    def load(self, what: FileToLoad, imports: SharedImports) -> bool: ...
    def build(self, case: int, form: ModelForm, init: Packing) -> None: ...
    def state(self, case: int, form: StateForm, steps: int, content: Packing, memory: Block) -> Matched: ...
    def match(self, case: int, keys: list[str], shapes: list[tuple[int, ...]]) -> bool: ...
    def part(
        self, case: int, pieces: list[tuple[str, int, int]], compares: bool, content: Packing, memory: Block
    ) -> Matched: ...
    def matched(self, case: int, form: StateForm) -> None: ...
    def inputs(self, slot: int, case: int, content: Packing, memory: Block) -> None: ...
    def restore(self, slot: int) -> None: ...
    def forget(self, slot: int, case: int) -> None: ...
    def token(self, given: str) -> str: ...
    def call(
        self,
        slot: int,
        poison: int,
        record: bool,
        buffers: bool,
        awake_s: float,
        layout: Layout,
        expect: list[TensorSpec],
        memory: Block,
    ) -> CallFacts: ...
    def collect(self, expect: list[TensorSpec], memory: Block) -> Written: ...
    def look(self, back: int, expect: list[TensorSpec], memory: Block) -> Written: ...
    def gradients(self, slot: int, learned: list[int], expect: list[TensorSpec], memory: Block) -> Written: ...
    def run(self, slots: list[int], keep: int, take: bool, variant: str) -> RunTime: ...
    def perturb(self, slots: list[int], factor: float, shift: int) -> None: ...
    def peek(self, places: list[list[int]]) -> Items[Items[float]]: ...
    def vary(self, name: str, case: int, compile_mode: str, tf32: Tf32) -> None: ...
    def lay_out(self, name: str, case: int, slot: int, strides: list[tuple[int, ...]]) -> bool: ...
    def memory(self, slot: int, forget: bool) -> int: ...
    def soak(self, slot: int, calls: int, seconds: float) -> tuple[int, Line]: ...
    def spoil(self, slot: int, blocks: bool) -> Items[int]: ...
    def inspect(self, thorough: bool) -> Items[tuple[Line, Line, str]]: ...
    def observe(self, slot: int, calls: int, late: int, timed: bool) -> Observations: ...
    def silenced(self) -> Items[Line]: ...
    def pretend(self, factor: float, alone: bool) -> Items[Line]: ...
    def operators(self, slot: int, on_fewer_rows: bool) -> Items[OperatorRow]: ...
    def copies(self, places: list[list[int]]) -> None: ...
    def profile(self, slot: int, seconds: float) -> MeanTime: ...
