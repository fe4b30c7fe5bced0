"""The operator graph: a task's computation, free of PyTorch objects.

Captured once for each task and input shape, it travels as JSON between processes. Operators keep their ATen names
(`aten.softmax.int`); shapes and strides are in elements.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from typing_extensions import TypeAliasType

# The compiler has no kernels for the types that end with "fnuz", and sees complex numbers as pairs; tasks may hold any.
DType = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
Role = Literal["input", "parameter", "buffer", "constant", "op"]

ITEM_BYTES: dict[DType, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements of a tensor of `shape`."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class TensorSpec:
    """Shape and strides (elements) and dtype of one tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return self.numel * ITEM_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are in row-major order without gaps; strides of dimensions of size 1 do not count."""
        wanted = contiguous_strides(self.shape)
        return all(size <= 1 or have == want for size, have, want in zip(self.shape, self.strides, wanted, strict=True))


WRITTEN = "input "  # begins the key of an input in OpGraph.mutations; its position follows


def written_input(key: str) -> str:
    """The position of the input that a key of `OpGraph.mutations` names; "" if it names a tensor of the model."""
    return key.removeprefix(WRITTEN) if key.startswith(WRITTEN) else ""


def overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if two elements of such a tensor may share memory, as after `expand` (stride 0) and `unfold`."""
    reach = 0
    for stride, size in sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


@dataclass(frozen=True)
class Ref:
    """An argument that is another value of the graph, by name."""

    ref: str


# JSON-able: lists stand for ATen's int lists and tensor lists; dtypes and memory formats are their names.
# (An implicit recursive alias sends pydantic into endless recursion, hence TypeAliasType.)
Argument = TypeAliasType("Argument", "Ref | bool | int | float | str | list[Argument] | None")


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. `source` is the input's index ("0"), the state-dict key, or "" for an operator's result.

    `data` holds the row-major elements of a constant of at most 64 elements. A constant without data is a plain
    attribute of the model (`self.table = ...`): `source` is its path, and it is read like a parameter.
    """

    name: str
    spec: TensorSpec
    role: Role
    source: str = ""
    data: list[float] | None = None


@dataclass(frozen=True)
class Op:
    """One operator call. `outputs` are its result values, in ATen's order (usually one)."""

    target: str
    args: list[Argument]
    kwargs: dict[str, Argument]
    outputs: list[Value]
    flops: int = 0
    module: str = ""  # path of the nn.Module it came from, e.g. "layers.0"
    line: int = 0  # line of the task's file; 0 if unknown
    # PyTorch's own decomposition, if some target has no kernel for the operator: the result `name` is `name__` there
    instead: list[Op] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the first output."""
        return self.outputs[0].name

    @property
    def kind(self) -> str:
        """The operator's name: `aten.add.Tensor` -> `add`."""
        return self.target.split(".")[1]

    @cached_property
    def reads(self) -> list[str]:
        """Names of the values it reads, each once."""
        found: list[str] = []

        def walk(argument: Argument) -> None:
            """Appends the names of the values that an argument reads, in lists too."""
            if isinstance(argument, Ref):
                found.append(argument.ref)
            elif isinstance(argument, list):
                for item in argument:
                    walk(item)

        for argument in [*self.args, *self.kwargs.values()]:
            walk(argument)
        return list(dict.fromkeys(found))

    def reading(self, names: Mapping[str, str]) -> Op:
        """The same operator, which reads values under these new names."""
        if names.keys().isdisjoint(self.reads):
            return self
        kwargs = {key: renamed(item, names) for key, item in self.kwargs.items()}
        inside = [part.reading(names) for part in self.instead]
        return replace(self, args=[renamed(item, names) for item in self.args], kwargs=kwargs, instead=inside)


def renamed(argument: Argument, names: Mapping[str, str]) -> Argument:
    """An argument with new names of the values that it refers to; names that are not listed stay."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.ref, argument.ref))
    return [renamed(item, names) for item in argument] if isinstance(argument, list) else argument


# Operators that read only the indexed elements of their first operand, and those that read a part of it.
CHOOSING = frozenset({"embedding", "embedding_bag", "_embedding_bag", "index", "index_select", "gather", "take"})
_PARTS = frozenset({"slice", "select", "narrow", "diagonal", "as_strided"})
# Operators that return their first operand with a few elements changed.
_WRITING = frozenset({"index_copy", "index_put", "index_fill", "index_add", "scatter", "scatter_add"}) | {
    *("slice_scatter", "select_scatter", "fill", "copy")
}


def _reads_again(op: Op, name: str) -> bool:
    """True if an operator reads its first operand as another operand too."""
    return any(Ref(name) in (item if isinstance(item, list) else [item]) for item in op.args[1:])


@dataclass(frozen=True)
class OperatorRun:
    """PyTorch's calls of one operator in one forward. `ms`: its own time, 0 if it was not measured."""

    name: str  # "aten::mm"
    calls: int
    flops: int
    traffic_bytes: int
    ms: float = 0.0


# Operators that are one product or convolution, and those of them that add another operand to each sum.
_PRODUCTS = frozenset({"mm", "bmm", "matmul", "mv", "dot", "linear", "einsum", "convolution"})
_PRODUCT_SUMS = frozenset({"addmm", "_addmm_activation", "baddbmm", "addbmm", "addmv"})


def product_size(kind: str, flops: int, elements: int) -> tuple[int, int] | None:
    """(elements of the result, multiply-adds for each) of a product or convolution; None for any other operator. What
    is added to each sum does not count."""
    if kind not in _PRODUCTS | _PRODUCT_SUMS and not kind.startswith("conv"):
        return None
    return elements, flops // (2 * max(1, elements)) - (kind in _PRODUCT_SUMS)


@dataclass(frozen=True)
class ProductRun:
    """One product or convolution of float32 numbers as PyTorch ran it on a GPU, by its size.

    `depth`: multiply-adds for each of the result's `elements`. `is_rounded`: it uses TF32 where it may.
    """

    elements: int
    depth: int
    is_rounded: bool


@dataclass(frozen=True)
class Signature:
    """Specs of the tensors that one call of a model takes and returns, nested ones in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Arrangement:
    """The nesting of values that forward takes or returns: a single value, or a tuple, list, dict or record of more.

    `keywords` are arguments by name, the last item of forward's arguments. A record is a dataclass or named tuple.
    """

    kind: Literal["leaf", "tuple", "list", "dict", "keywords", "record"] = "leaf"
    items: tuple[Arrangement, ...] = ()
    keys: tuple[str, ...] = ()  # a dict's keys or a record's fields in order, one per item
    name: str = ""  # a record's class

    @classmethod
    def flat(cls, count: int, kind: Literal["tuple", "list"] = "tuple") -> Arrangement:
        """`count` values in one tuple or list."""
        return cls(kind, (cls(),) * count)

    @property
    def steps(self) -> list[str]:
        """The Python text that leads to each item: "[0]", "['boxes']" or ".boxes"."""
        if self.kind == "record":
            return [f".{key}" for key in self.keys]
        return [f"[{step!r}]" for step in self.keys or range(len(self.items))]

    @property
    def has_records(self) -> bool:
        """True if a record is among the nested values."""
        return self.kind == "record" or any(item.has_records for item in self.items)

    @property
    def is_flat(self) -> bool:
        """True if no item is nested itself."""
        return all(item.kind == "leaf" for item in self.items)

    @property
    def leaves(self) -> int:
        """Number of values in it."""
        return 1 if self.kind == "leaf" else sum(item.leaves for item in self.items)


@dataclass(frozen=True)
class MakingCall:
    """One call of a constructor to torch: "aten.uniform_.default" with its arguments.

    `results` names its results, "" for one that is never read. The target LITERAL is a tensor that no call made: its
    arguments are its dtype, its shape, its bytes in hexadecimal digits. A device HERE is torch's default device when
    the model is constructed.
    """

    target: str
    args: list[Argument]
    kwargs: dict[str, Argument]
    results: list[str]


LITERAL = "literal"
HERE = "here"


@dataclass(frozen=True)
class ModulePart:
    """One module of a model.

    `path` is "" for the model itself, and `kind` the class of torch.nn ("" for None). `version` is its state dict's
    version. `same_as` is the path of another module that is the same object.
    """

    path: str
    kind: str
    training: bool = True
    version: int | None = 1
    same_as: str | None = None


@dataclass(frozen=True)
class HeldTensor:
    """One tensor of a model by its path.

    `value` is the name that a MakingCall gave it ("" for None), `same_as` the path of the parameter or buffer that
    is the same object.
    """

    path: str
    kind: Literal["parameter", "buffer", "passing buffer", "attribute"]
    value: str
    requires_grad: bool = False
    same_as: str | None = None


@dataclass(frozen=True)
class Construction:
    """The calls of a model's constructor to torch, in order, and the tensors and modules that it then holds.

    A file makes the same tensors by them without the model's class.
    """

    arguments: str  # the constructor's arguments, as `knowledge.compiler.file.arguments.describe` writes them
    left: str  # the same of the arguments as the constructor left them: it may have changed a settings object
    takes: str  # parameters of the constructor as Python source: "width, depth=2"
    forward: str  # parameters of forward, likewise
    calls: list[MakingCall]
    parts: list[ModulePart]
    held: list[HeldTensor]


@dataclass(frozen=True)
class OpGraph:
    """Inputs, state and constants, operators in execution order, and the values that forward returns."""

    inputs: list[Value]
    state: list[Value]  # parameters, buffers, constants
    ops: list[Op]
    outputs: list[Argument]  # Refs, in order; None and numbers are returned as they are
    tracer: str  # "export" | "values" | "make_fx" | "symbolic"
    training: bool = True
    reads_mode: bool = False  # it computes something else in the other of train() and eval()
    arrangement: Arrangement = Arrangement()  # nesting of the outputs, which fill it in order
    takes: Arrangement | None = None  # nesting of the values of get_inputs(); None if it was not captured
    # State-dict key, or WRITTEN and the position of an input -> value written back to that tensor.
    mutations: dict[str, str] = field(default_factory=dict)
    # Position of an output -> position of the input that forward returns there, the tensor itself.
    returned: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, int] = field(default_factory=dict)  # module constants of the task that gave this shape
    fixed: dict[str, Argument] = field(default_factory=dict)  # inputs that are no tensors: position -> traced value
    construction: Construction | None = None  # replaces the task's class in a file that needs torch only
    kept_class: str = ""  # the reason why the file holds the task's class all the same
    falls_back: bool = False  # the file calls the task's forward for what its kernels were not compiled for
    assumptions: list[str] = field(default_factory=list)  # what capture took for granted about values; proof decides

    @cached_property
    def values(self) -> dict[str, Value]:
        """All values of the graph by name."""
        found = {value.name: value for value in [*self.inputs, *self.state]}
        found.update({value.name: value for op in self.ops for value in op.outputs})
        return found

    def moved_bytes(self, op: Op) -> int:
        """Bytes that eager PyTorch moves for an operator: all operands and results, each once."""
        return sum(self.values[name].spec.nbytes for name in op.reads) + sum(v.spec.nbytes for v in op.outputs)

    @cached_property
    def producers(self) -> dict[str, Op]:
        """Value name -> the operator that computes it."""
        return {value.name: op for op in self.ops for value in op.outputs}

    @cached_property
    def users(self) -> dict[str, list[Op]]:
        """Value name -> the operators that read it."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.reads:
                found.setdefault(name, []).append(op)
        return found

    @cached_property
    def derived(self) -> set[str]:
        """Names of parameters, buffers and constants, and of values computed from them alone."""
        found = {value.name for value in self.state}
        for op in self.ops:
            if op.reads and all(name in found for name in op.reads):
                found.update(value.name for value in op.outputs)
        return found

    @property
    def overlapping_inputs(self) -> list[Value]:
        """Inputs that were captured with several elements sharing memory."""
        return [value for value in self.inputs if overlaps(value.spec.shape, value.spec.strides)]

    def with_dense_inputs(self) -> OpGraph:
        """The same graph with contiguous strides for inputs whose elements share memory."""
        changed = {
            value.name: replace(value, spec=replace(value.spec, strides=contiguous_strides(value.spec.shape)))
            for value in self.overlapping_inputs
        }
        return replace(self, inputs=[changed.get(value.name, value) for value in self.inputs])

    def expanded(self, names: Collection[str]) -> OpGraph:
        """The same graph with the decompositions of these operators in their places."""
        places = [(op.instead if op.name in names else []) or [op] for op in self.ops]
        made = {value.name for place in places for part in place for value in part.outputs}
        new = {name: f"{name}__" for name in self.producers if name not in made}
        return replace(
            self,
            ops=[part.reading(new) for place in places for part in place],
            outputs=[renamed(item, new) for item in self.outputs],
            mutations={key: new.get(name, name) for key, name in self.mutations.items()},
        )

    @property
    def output_names(self) -> list[str]:
        """Names of the values that are outputs; constants among the outputs are left out."""
        return [item.ref for item in self.outputs if isinstance(item, Ref)]

    @property
    def written_values(self) -> list[str]:
        """The new values of the inputs that forward writes to."""
        return list(dict.fromkeys(name for key, name in self.mutations.items() if written_input(key)))

    @property
    def flops(self) -> int:
        """Floating-point operations of all operators."""
        return sum(op.flops for op in self.ops)

    @property
    def min_bytes(self) -> int:
        """Compulsory traffic in bytes: each input and used state tensor read once, each output written once.

        State that is read only to compute other values counts as these values if they are fewer bytes, because they
        can be kept. A tensor that is read in parts counts as the largest part, and one that indices choose from as
        nothing, because all indices may be the same.
        """
        calls = [op for op in self.ops if not op.reads or not all(name in self.derived for name in op.reads)]
        used = {name for op in calls for name in op.reads} | {*self.output_names, *self.written_values}
        bytes_of = self._least_bytes
        inputs, state = {value.name for value in self.inputs}, {value.name for value in self.state}
        behind = {name for op in self.ops for name in op.reads if name in state and name not in used}
        made = sum(bytes_of[name] for name in used & (self.derived - state))
        read = sum(bytes_of[name] for name in used & (inputs | state))
        written = sum(self.values[name].spec.nbytes for name in dict.fromkeys(self.output_names))
        new = (name for name in self.written_values if name not in self.output_names and name in self.producers)
        written += sum(self.values[name].spec.nbytes for name in new if self.producers[name].kind not in _WRITING)
        return read + min(made, sum(bytes_of[name] for name in behind)) + written

    @property
    def packed_bytes(self) -> int:
        """The same for a kernel that keeps parameters in a form of its own: at least 16 bits of each float32.

        16 bits hold TF32's eleven significant digits beside a scale that many elements share.
        """
        read = {name for op in self.ops for name in op.reads}
        wide = (value.name for value in self.state if value.name in read and value.spec.dtype == "float32")
        return self.min_bytes - min(self.min_bytes, sum(self._least_bytes[name] for name in wide)) // 2

    @cached_property
    def _least_bytes(self) -> dict[str, int]:
        """Bytes of each tensor that a forward must move. Users are computed before the tensors that they use."""
        found: dict[str, int] = {}
        for name in reversed(self.values):
            found[name] = self._least_read(name, found)
        return found

    def _least_read(self, name: str, known: Mapping[str, int]) -> int:
        """Bytes of a tensor that must be read, given those of all later values."""
        whole = self.values[name].spec.nbytes
        least = 0
        if name in self.output_names:
            return whole
        users = self.users.get(name, [])
        calls = [op for op in users if not all(read in self.derived for read in op.reads)]
        for op in calls or users:  # values made of parameters alone need not be computed in every call
            is_source = op.reads[0] == name and isinstance(op.args[0], Ref) and op.args[0].ref == name
            if is_source and op.kind in CHOOSING and not _reads_again(op, name):
                continue
            made = op.outputs[0]
            if is_source and op.kind in _WRITING and not _reads_again(op, name):
                least = max(least, min(whole, known[made.name]))  # it may share its memory, with other elements
            else:
                is_part = is_source and op.kind in _PARTS
                least = max(least, min(whole, made.spec.nbytes, known[made.name]) if is_part else whole)
        return least

    def op_counts(self) -> dict[str, int]:
        """Number of operators of each kind."""
        counts: dict[str, int] = {}
        for op in self.ops:
            counts[op.kind] = counts.get(op.kind, 0) + 1
        return counts

    @cached_property
    def signature(self) -> str:
        """A hash of the structure without sizes: the same architecture at another size has the same signature."""
        order = {name: index for index, name in enumerate(self.values)}
        rows = [[op.target, [order.get(name, -1) for name in op.reads]] for op in self.ops]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def unrounded_products(graph: OpGraph, runs: Sequence[ProductRun]) -> tuple[str, ...]:
    """The graph's products of float32 that PyTorch does not round to TF32, by name. Of several runs of the same size,
    and for a product whose size was not seen, a single one that is not rounded decides."""
    found: list[str] = []
    for op in graph.ops:
        spec = op.outputs[0].spec
        size = product_size(op.kind, op.flops, math.prod(spec.shape))
        if size is None or spec.dtype != "float32":
            continue
        same = [run for run in runs if (run.elements, run.depth) == size]
        if not all(run.is_rounded for run in same or runs):
            found.append(op.name)
    return tuple(found)
