"""Orders of the judge to a runner, and the runner's answers. A runner is hostile: its answers are data. Free of torch.

An order names its kind in `do`. An answer is the one declared for its order, or a `RunnerRefusal`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from foundry.knowledge.candidate import Outcome
from foundry.knowledge.opgraph import DType, TensorSpec
from foundry.tools.audit.acts.observed import Launch, Observations, OperatorRow
from foundry.tools.process.messages import A, Items, Line, Message, Packing, Question
from foundry.tools.protocol.foreign import Tf32
from foundry.tools.protocol.orders import Layout

BlockPlace = tuple[int, int]  # number of a block of GPU memory, and its bytes


class RunnerOptions(Message):
    """The main process's word to a runner: with a link of the judge that it serves then, else to make itself ready."""

    threads: int
    tf32: bool
    device: str


class RunnerAnswer(Message):
    """An answer without content. `number` is that of the order. Unknown fields are never looked at."""

    model_config = ConfigDict(extra="ignore")
    fault: ClassVar[Outcome] = "cheating"  # outcome of an answer with a wrong field
    says: Literal["done"] = "done"
    number: int = 0


class RunnerRefusal(Message):
    """The model or the candidate's file raised an exception, or gave something that is no result."""

    model_config = ConfigDict(extra="ignore")
    says: Literal["refused"] = "refused"
    number: int = 0
    outcome: str
    line: Line = ""


class LoadAnswer(RunnerAnswer):
    gpu_kernels_refused: bool


class MatchAnswer(RunnerAnswer):
    """`unmatched`: why parameters have no counterpart. `changed`: names of tensors that differ from those sent."""

    is_known: bool = True
    unmatched: Line = ""
    changed: Items[str] = Field(default_factory=list)


class TokenAnswer(RunnerAnswer):
    token: str


class WrittenAnswer(RunnerAnswer):
    """`written`: the tensors lie in the judge's memory. `is_own`: gradients come from a backward of the candidate."""

    fault: ClassVar[Outcome] = "wrong_result"
    written: bool
    specs: Items[TensorSpec] = Field(default_factory=list)
    is_own: bool = False


class CallAnswer(WrittenAnswer):
    """`changed`: numbers of the inputs that forward changed. `keys`: those of dicts in the result, if looked at."""

    changed: Items[int]
    alias: Line
    shared: Items[int]
    keys: Items[Line] | None
    operators: Items[OperatorRow]


class RunAnswer(RunnerAnswer):
    """`ns`: time by the runner's clock, `device_ns`: the GPU's part, `faults`: pages touched for the first time."""

    ns: int
    device_ns: int = 0
    faults: int = 0


class PeekAnswer(RunnerAnswer):
    fault: ClassVar[Outcome] = "wrong_result"
    elements: Items[Items[float]]


class MadeAnswer(RunnerAnswer):
    made: bool


class BytesAnswer(RunnerAnswer):
    bytes: int


class SoakAnswer(RunnerAnswer):
    calls: int
    alias: Line


class PlacesAnswer(RunnerAnswer):
    places: Items[int]


class InspectAnswer(RunnerAnswer):
    """(gate, what was changed in the process, event or "") of each change that the gate forbids."""

    differences: Items[tuple[Line, Line, str]]


class ObserveAnswer(RunnerAnswer):
    seen: Observations


class SilencedAnswer(RunnerAnswer):
    silenced: Items[Line]


class OperatorsAnswer(RunnerAnswer):
    operators: Items[OperatorRow]


class ProfileAnswer(RunnerAnswer):
    ms: float
    calls: int
    launches: Items[Launch]


class RunnerOrder(Question[A]):
    """A command to a runner, which repeats the `number` in its answer."""

    do: str
    number: int = 0


class SlotOrder(RunnerOrder[A]):
    slot: int


class ContentOrder(RunnerOrder[A]):
    """Brings tensors: in the open file that comes along, or in a block of GPU memory."""

    bundle: Packing
    memory: BlockPlace | None = None


class ExpectOrder(RunnerOrder[A]):
    """Asks for tensors of such layouts, to be written to the open file that comes along, or to a block."""

    expect: list[TensorSpec] = Field(default_factory=list)
    memory: BlockPlace | None = None


class SharedImports(Message):
    """Imports that a candidate's file shares with the task: statements, and texts of modules in the task's folder."""

    statements: list[str] = Field(default_factory=list)
    folder: str = ""
    texts: dict[str, str] = Field(default_factory=dict)


class LoadOrder(RunnerOrder[LoadAnswer]):
    """Loads the reference's `task`, else the candidate's `text`; `ablate` says how its native code is disabled."""

    do: Literal["load"] = "load"
    device: str
    task: str = ""
    text: str = ""
    name: str = "candidate"
    imports: SharedImports = SharedImports()
    observe: bool = False
    disguise: bool = False
    ablate: Literal["", "silent", "undone"] = ""


class BuildOrder(RunnerOrder[RunnerAnswer]):
    do: Literal["build"] = "build"
    case: int
    seed: int
    mode: str
    init: Packing
    overrides: dict[str, int]
    dtype: DType | None
    drawn_on: str


class StateOrder(ContentOrder[MatchAnswer]):
    do: Literal["state"] = "state"
    case: int
    keys: list[str]
    mutable: list[int]
    loads: bool
    steps: int


class MatchOrder(RunnerOrder[MatchAnswer]):
    do: Literal["match"] = "match"
    case: int
    keys: list[str]
    shapes: list[tuple[int, ...]]


class PartOrder(ContentOrder[MatchAnswer]):
    """Rows of tensors as (name, first row, end); `compares`: they are not copied."""

    do: Literal["part"] = "part"
    case: int
    pieces: list[tuple[str, int, int]]
    compares: bool


class MatchedOrder(RunnerOrder[RunnerAnswer]):
    do: Literal["matched"] = "matched"
    case: int
    keys: list[str]
    mutable: list[int]
    loads: bool


class InputsOrder(ContentOrder[RunnerAnswer]):
    do: Literal["inputs"] = "inputs"
    slot: int
    case: int


class RestoreOrder(SlotOrder[RunnerAnswer]):
    do: Literal["restore"] = "restore"


class ForgetOrder(SlotOrder[RunnerAnswer]):
    do: Literal["forget"] = "forget"
    case: int


class TokenOrder(RunnerOrder[TokenAnswer]):
    do: Literal["token"] = "token"
    given: str = ""


class CallOrder(ExpectOrder[CallAnswer]):
    do: Literal["call"] = "call"
    slot: int
    poison: int
    record: bool = False
    buffers: bool = False
    awake_s: float = 0.0
    layout: Layout = ""


class CollectOrder(ExpectOrder[WrittenAnswer]):
    do: Literal["collect"] = "collect"


class LookOrder(ExpectOrder[WrittenAnswer]):
    do: Literal["look"] = "look"
    back: int


class GradientsOrder(ExpectOrder[WrittenAnswer]):
    do: Literal["gradients"] = "gradients"
    slot: int
    learned: list[int]


class RunOrder(RunnerOrder[RunAnswer]):
    do: Literal["run"] = "run"
    slots: list[int]
    keep: int = 0
    take: bool = False
    variant: str = ""


class PerturbOrder(RunnerOrder[RunnerAnswer]):
    do: Literal["perturb"] = "perturb"
    slots: list[int]
    factor: float
    shift: int


class PeekOrder(RunnerOrder[PeekAnswer]):
    do: Literal["peek"] = "peek"
    places: list[list[int]]


class VaryOrder(RunnerOrder[MadeAnswer]):
    """Adds the variant `name`: results in `strides`, tried on a slot, else compiled or with other arithmetic."""

    do: Literal["vary"] = "vary"
    name: str
    case: int
    compile_mode: str = ""
    tf32: Tf32 = "none"
    slot: int = 0
    strides: list[tuple[int, ...]] | None = None


class MemoryOrder(SlotOrder[BytesAnswer]):
    do: Literal["memory"] = "memory"
    forget: bool


class SoakOrder(SlotOrder[SoakAnswer]):
    do: Literal["soak"] = "soak"
    calls: int
    seconds: float


class SpoilOrder(SlotOrder[PlacesAnswer]):
    do: Literal["spoil"] = "spoil"
    blocks: bool


class InspectOrder(RunnerOrder[InspectAnswer]):
    do: Literal["inspect"] = "inspect"
    thorough: bool


class ObserveOrder(SlotOrder[ObserveAnswer]):
    do: Literal["observe"] = "observe"
    calls: int
    late: int
    timed: bool


class SilencedOrder(RunnerOrder[SilencedAnswer]):
    do: Literal["silenced"] = "silenced"


class PretendOrder(RunnerOrder[SilencedAnswer]):
    do: Literal["pretend"] = "pretend"
    factor: float = 0.0
    alone: bool = False


class OperatorsOrder(SlotOrder[OperatorsAnswer]):
    """PyTorch's operators in one more call, or in one on half of the rows."""

    do: Literal["operators", "fewer"] = "operators"


class CopiesOrder(RunnerOrder[RunnerAnswer]):
    do: Literal["copies"] = "copies"
    places: list[list[int]]


class ProfileOrder(SlotOrder[ProfileAnswer]):
    do: Literal["profile"] = "profile"
    seconds: float


AnyOrder = (
    LoadOrder | BuildOrder | StateOrder | MatchOrder | PartOrder | MatchedOrder | InputsOrder | RestoreOrder
    | ForgetOrder | TokenOrder | CallOrder | CollectOrder | LookOrder | GradientsOrder | RunOrder | PerturbOrder
    | PeekOrder | VaryOrder | MemoryOrder | SoakOrder | SpoilOrder | InspectOrder | ObserveOrder | SilencedOrder
    | PretendOrder | OperatorsOrder | CopiesOrder | ProfileOrder
)  # fmt: skip
ORDERS: TypeAdapter[AnyOrder] = TypeAdapter(Annotated[AnyOrder, Field(discriminator="do")])


@cache
def answers_to(kind: type[RunnerOrder[A]]) -> TypeAdapter[Any]:
    """The reader of answers to one kind of order: an `A` or a RunnerRefusal."""
    kinds: Any = Annotated[kind.answer_type | RunnerRefusal, Field(discriminator="says")]
    return TypeAdapter(kinds)
