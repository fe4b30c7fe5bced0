"""The intermediate form between lowering and the printers: a few loop-nest shapes over scalar expressions.

Lowering (`lower.py`) turns an operator graph into a `Plan` of these; a target's printers (`cpu/`, `cuda/`) turn each
kernel into source text. Nothing here depends on a target. All offsets and strides are in elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from foundry.knowledge.candidate import AuthoredKernel
from foundry.knowledge.compiler.ir.exprs import SCALAR_OPS as SCALAR_OPS
from foundry.knowledge.compiler.ir.exprs import SPECIAL_OPS as SPECIAL_OPS
from foundry.knowledge.compiler.ir.exprs import Apply as Apply
from foundry.knowledge.compiler.ir.exprs import Const as Const
from foundry.knowledge.compiler.ir.exprs import Expr as Expr
from foundry.knowledge.compiler.ir.exprs import Gather as Gather
from foundry.knowledge.compiler.ir.exprs import Iota as Iota
from foundry.knowledge.compiler.ir.exprs import Load as Load
from foundry.knowledge.compiler.ir.exprs import Named as Named
from foundry.knowledge.compiler.ir.exprs import View as View
from foundry.knowledge.compiler.ir.exprs import walk as walk
from foundry.knowledge.compiler.ir.printed import KernelSummary as KernelSummary
from foundry.knowledge.compiler.ir.printed import PrintedKernel as PrintedKernel
from foundry.knowledge.compiler.ir.printed import Tunable as Tunable
from foundry.knowledge.opgraph import WRITTEN, Argument, Arrangement, DType, OpGraph

# ---------------------------------------------------------------- kernels


@dataclass(frozen=True)
class Store:
    """The statement buffer[view] = value at each point of the iteration space (or once a row, see RowKernel)."""

    buffer: str
    view: View
    value: Expr


@dataclass(frozen=True)
class MapKernel:
    """Elementwise kernel: for every point of `shape` the stores, in order. Stores never feed loads of the same
    kernel."""

    name: str
    shape: tuple[int, ...]
    stores: tuple[Store, ...]
    ops: tuple[str, ...] = ()  # names of the graph's operators it covers


ReduceOp = Literal["sum", "prod", "max", "min", "argmax", "argmin", "any", "all", "moments", "logsumexp"]


@dataclass(frozen=True)
class Reduction:
    """Defines Named(name) for the stages after it: `op` of `value` over the reduced dimensions.

    "moments" defines name.mean and name.m2 (sum of squared deviations): Welford or two passes, never E[x^2]-E[x]^2.
    "argmax"/"argmin" give the first index (row-major over `reduced`), NaN wins, as PyTorch. "logsumexp" is stable.
    Sums of float32 must be at least as accurate as pairwise summation; accumulate in `dtype`.
    """

    name: str
    op: ReduceOp
    value: Expr
    dtype: DType


@dataclass(frozen=True)
class Let:
    """Defines Named(name) once a row from Named values and loads that do not vary along the reduced dimensions."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Emit:
    """A store over the full space: outer x reduced."""

    store: Store


@dataclass(frozen=True)
class EmitRow:
    """A store once a row; its view has 0 strides on the reduced dimensions."""

    store: Store


@dataclass(frozen=True)
class RowKernel:
    """Row-wise kernel: for every point of `outer` the stages, in order, over `reduced`. Views' strides: outer, then
    reduced.

    Covers reductions, softmax, all normalisations, losses. Rows are independent. `outer` may be empty (one row).
    """

    name: str
    outer: tuple[int, ...]
    reduced: tuple[int, ...]
    stages: tuple[Reduction | Let | Emit | EmitRow, ...]
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tail:
    """Reduction epilogue: a row kernel applied to a contraction's result while it is in registers.

    `value`, an expression of the contraction's "acc" over the store space, gives the elements of the rows; in
    `stages` Named("acc") is this value. A row is a box of the store space, `extent` elements along each axis;
    elements behind the last whole box belong to none. Stages that vary along a row (Reduction, Emit) are over the
    store space, the others (Let, EmitRow) over the numbers of boxes along each axis (`tail_outer`).
    """

    value: Expr
    extent: tuple[int, ...]
    stages: tuple[Reduction | Let | Emit | EmitRow, ...]


@dataclass(frozen=True)
class ScanKernel:
    """Running `op` of `value` along the last dimension of `shape`; stores may use Named("acc") and loads."""

    name: str
    shape: tuple[int, ...]
    op: Literal["sum", "prod", "max", "min", "logsumexp"]
    value: Expr
    stores: tuple[Store, ...]
    dtype: DType
    reverse: bool = False
    exclusive: bool = False
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class GemmKernel:
    """Matrix product: acc[batch..., m, n] = sum_k a[batch..., m, k] * b[batch..., k, n], then the stores over batch +
    (m, n).

    `a` and `b` are expressions over (batch..., row, column) = batch + (m, k) and batch + (k, n): usually one Load,
    else a prologue. `constant_b` (`constant_a`): the operand is only parameters, so its layout may be prepared when
    the weights load. `tail`: an epilogue of reductions. Stores may see m and n as several dimensions: `m_sizes` and
    `n_sizes`, () for a single one.
    """

    name: str
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Expr
    b: Expr
    stores: tuple[Store, ...]
    dtype: DType
    constant_a: bool = False
    constant_b: bool = False
    ops: tuple[str, ...] = ()
    tail: Tail | None = None
    m_sizes: tuple[int, ...] = ()
    n_sizes: tuple[int, ...] = ()

    @property
    def m_shape(self) -> tuple[int, ...]:
        """The dimensions of the store space that make up m."""
        return self.m_sizes or (self.m,)

    @property
    def n_shape(self) -> tuple[int, ...]:
        """The dimensions of the store space that make up n."""
        return self.n_sizes or (self.n,)

    @property
    def is_split(self) -> bool:
        """True if stores see m or n as several dimensions."""
        return bool(self.m_sizes or self.n_sizes)


@dataclass(frozen=True)
class GroupedKernel:
    """Grouped matrix product: acc[i, n] = sum_k a[i, k] * b[group of i, k, n] for items sorted by group.

    A SortKernel gives `order` and `starts`. `a` is over (items, k), `b` over (groups, k, n), stores over (items, n);
    an item in no group gets no stores. `constant_b`: as in a GemmKernel.
    """

    name: str
    items: int
    groups: int
    n: int
    k: int
    a: Expr
    b: Expr
    starts: str
    order: str
    stores: tuple[Store, ...]
    dtype: DType
    constant_b: bool = False
    ops: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """The space of the stores."""
        return self.items, self.n


@dataclass(frozen=True)
class ConvKernel:
    """Convolution over 1 to 3 spatial dimensions.

    x: (batch, in_channels, *input_size) through `x_strides`; weight contiguous (out, in/groups, *kernel), or (in,
    out/groups, *kernel) when transposed. Stores over (batch, out_channels, *output_size) with Named("acc"); the bias
    is part of the store's expression.
    """

    name: str
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    x: str
    x_offset: int
    x_strides: tuple[int, ...]  # batch, channel, spatial...
    weight: str
    stores: tuple[Store, ...]
    dtype: DType
    ops: tuple[str, ...] = ()
    tail: Tail | None = None


@dataclass(frozen=True)
class PoolKernel:
    """Pooling over windows of the last len(kernel) dimensions.

    `value` is an expression over outer + input_size; stores are over outer + output_size with Named("acc") (and
    Named("index") for max with indices, flat over input_size).

    Average: divides by `divisor`, or by the window's count with or without padding (`count_include_pad`). Adaptive
    pooling has `kernel` = () and windows floor(i*in/out) .. ceil((i+1)*in/out).
    """

    name: str
    op: Literal["max", "avg"]
    outer: tuple[int, ...]
    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    value: Expr
    stores: tuple[Store, ...]
    dtype: DType
    count_include_pad: bool = True
    divisor: int | None = None
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionKernel:
    """Attention: softmax(scale * q k^T + mask) v per batch point, in one pass (online softmax, Milakov and Gimelshein
    2018).

    q: batch + (rows, head), k: batch + (columns, head), v: batch + (columns, value_head), as Loads with views over
    those; `mask` is an additive expression over batch + (rows, columns), or None; `causal` masks column > row.
    Stores over batch + (rows, value_head) with Named("acc"). A row whose scores are all -inf gives zeros as
    PyTorch's scaled_dot_product_attention does, or NaN as an explicit softmax does (`empty_rows`).
    """

    name: str
    batch: tuple[int, ...]
    rows: int
    columns: int
    head: int
    value_head: int
    q: Load
    k: Load
    v: Load
    scale: float
    causal: bool
    mask: Expr | None
    stores: tuple[Store, ...]
    dtype: DType
    ops: tuple[str, ...] = ()
    empty_rows: Literal["zero", "nan"] = "zero"


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True)
class RecurrentCell:
    """A recurrent layer in one direction.

    Its input is the layer below in the same kernel, through `below`, or `given` is the input's contribution to the
    gates. Biases are over (gate * hidden); states before the first step are zeros if None.
    """

    weight: Load  # weight of the hidden state, over (gate * hidden, hidden)
    bias: Load | None
    h: Load | None  # over (batch, hidden)
    c: Load | None
    given: Load | None = None  # over (steps, batch, gate * hidden)
    below: Load | None = None
    below_bias: Load | None = None


@dataclass(frozen=True)
class RecurrentKernel:
    """Stacked recurrent layers over `shape` = (directions, steps, batch, hidden); the second direction runs backwards.

    Stores over `shape` with Named("acc"), the last layer's hidden state. `last_h` and `last_c`: contiguous buffers
    (layer * direction, batch, hidden) for the states after the last step, from row `first` on.
    """

    name: str
    cell: Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
    shape: tuple[int, int, int, int]
    layers: tuple[tuple[RecurrentCell, ...], ...]
    stores: tuple[Store, ...]
    dtype: DType
    last_h: str = ""
    last_c: str = ""
    first: int = 0
    ops: tuple[str, ...] = ()


Ties = Literal["first", "as in topk", "as in unsorted topk"]


@dataclass(frozen=True)
class SelectKernel:
    """Selection (top-k, sort): of each row the elements number `first` to below `count` in order.

    The smallest come first, or the `largest`; NaN is larger than all. `ties` orders equal elements: "first" by their
    place; "as in topk" like PyTorch's topk on the target; "as in unsorted topk" likewise, with all elements in that
    order.

    `value` is over (*outer, length); stores over (*outer, count - first) with Named("acc") and Named("index"), an
    int64: the element and its place in the row.
    """

    name: str
    outer: tuple[int, ...]
    length: int
    first: int
    count: int
    largest: bool
    value: Expr
    stores: tuple[Store, ...]
    dtype: DType
    ops: tuple[str, ...] = ()
    ties: Ties = "first"


@dataclass(frozen=True)
class SortKernel:
    """Sorts `items` by segment: `key`, an integer expression over (items,), is the segment of each.

    Fills two int32 buffers: `order` with the items of segment 0, then those of segment 1 and so on (stable), and
    `starts` (segments + 1) with the position at which each segment begins. Items with a key outside 0 .. segments -
    1 are left out.
    """

    name: str
    items: int
    segments: int
    key: Expr
    starts: str
    order: str
    ops: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True)
class SegmentKernel:
    """Segment reduction: acc[segment, inner...] = `op` of `value` over the items of each segment.

    A SortKernel gives the items' `order` and `starts`; with `key`, over (items,), items are taken as they come, without
    `starts` and `order`. Without `order` alone the items are sorted already.

    `value` is over (items, *inner); stores over `shape` = (segments, *inner) with Named("acc"), the operation's
    neutral element (of "last": anything) for a segment without items, and Named("count"), their number as int64.
    "last" is the value of the last item. `in_place`, with a key: the stores are made for each item, in order, with
    its value as Named("acc"), and elements that no item names stay unchanged.
    """

    name: str
    items: int
    shape: tuple[int, ...]
    op: Literal["sum", "prod", "max", "min", "last"]
    value: Expr
    starts: str
    order: str
    stores: tuple[Store, ...]
    dtype: DType
    ops: tuple[str, ...] = ()
    key: Expr | None = None
    in_place: bool = False


@dataclass(frozen=True)
class AuthoredStep:
    """A whole forward written by an author: its buffers, text and launches.

    Its computation is unknown, so it has neither expressions nor stores.
    """

    name: str
    kernel: AuthoredKernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flops: int  # FLOPs of the graph
    ops: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    stores: tuple[Store, ...] = ()


_LoopNest = MapKernel | RowKernel | ScanKernel | PoolKernel | SelectKernel
_Scattered = SortKernel | SegmentKernel
_Products = GemmKernel | GroupedKernel | ConvKernel
Kernel = _LoopNest | _Products | AttentionKernel | RecurrentKernel | _Scattered | AuthoredStep


@dataclass(frozen=True)
class TorchCall:
    """An operator without a template: the candidate calls PyTorch, and the audit says so."""

    name: str
    target: str
    args: tuple[object, ...]  # opgraph.Argument; Refs name buffers
    kwargs: dict[str, object]
    results: tuple[str, ...]
    ops: tuple[str, ...] = ()


# ---------------------------------------------------------------- plans


@dataclass(frozen=True)
class Buffer:
    """Memory that a plan uses.

    `source`: input index, state-dict key, or "" for temporaries, outputs and constants. A "prepared" buffer is
    computed from parameters only, after one of them has changed. Inputs and parameters have their real strides;
    temporaries and outputs are contiguous unless the reference's output is not. `data` is an inline constant.
    `memory`: the buffer of which this one is another name. A temporary with a `source` is the module's own tensor of
    that name, changed in place.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    role: Literal["input", "parameter", "constant", "prepared", "temporary", "output"]
    source: str = ""
    data: tuple[float, ...] | None = None
    memory: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def key(self) -> str:
        """The key in `Plan.write_backs` of the tensor that this is; "" for memory that the steps make."""
        if self.role in ("input", "parameter"):
            return WRITTEN + self.source if self.role == "input" else self.source
        return self.source if self.is_in_place else ""

    @property
    def is_in_place(self) -> bool:
        """True for an input, or memory of the module, that the steps change; `source` is its key in `write_backs`."""
        return self.role == "temporary" and self.source != "" and not self.memory


@dataclass(frozen=True)
class OutputView:
    """One item of forward's result: `buffer` seen through shape and strides, or a plain number/None."""

    buffer: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    literal: float | int | None = None
    given: str = ""  # position of the input that is returned itself


@dataclass(frozen=True)
class Plan:
    """A whole forward: steps in execution order over named buffers."""

    buffers: dict[str, Buffer]
    steps: tuple[Kernel | TorchCall, ...]
    outputs: tuple[OutputView, ...]
    arrangement: Arrangement
    labels: tuple[str, ...] = ()  # "algebra:<name>", "rewrite:<name>", "torch:<op>"
    fused: tuple[str, ...] = ()  # values that stay in registers and could be materialised ("split")
    materialised: tuple[str, ...] = ()  # values that Recipe.materialise forced to memory ("fuse")
    rewrites: tuple[str, ...] = ()  # exact rewrites that apply to this graph, applied or not
    applied: tuple[str, ...] = ()  # those that changed it
    write_backs: dict[str, str] = field(default_factory=dict)  # key in OpGraph.mutations -> buffer with its new value
    fixed: dict[str, Argument] = field(default_factory=dict)  # position -> value of an input that the kernels hold
    ieee_only: bool = False  # no product of float32 in TF32
    graph: OpGraph | None = None  # the graph that the steps compute: the task's, as rewritten
