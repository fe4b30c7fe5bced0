"""From an operator graph to a plan: every operator by its rule, then fusion, then tidy kernels."""

from __future__ import annotations

from dataclasses import replace

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.algebra.complex import VIEWS, without_complex
from foundry.knowledge.compiler.algebra.rewrites import LABEL, Rewritten, rewrite_graph
from foundry.knowledge.compiler.fusion.finish.aliases import with_aliases
from foundry.knowledge.compiler.fusion.finish.overwritten import with_overwritten
from foundry.knowledge.compiler.fusion.finish.prepare import note_constants, with_prepared
from foundry.knowledge.compiler.fusion.finish.tidy import tidy
from foundry.knowledge.compiler.fusion.greedy import Fusion, fuse
from foundry.knowledge.compiler.ir.access import buffers_of_step, loaded_names
from foundry.knowledge.compiler.ir.kernels import Buffer, Load, OutputView, Plan, TorchCall, View
from foundry.knowledge.compiler.ir.regions import find_regions
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT
from foundry.knowledge.compiler.rules import (
    attention,
    contract,
    conv,
    index,
    loss,
    norm,
    order,
    pointwise,
    pool,
    reduce,
    resample,
    shape,
    special,
)
from foundry.knowledge.compiler.rules.builder import RULES, Builder, Rule, Tensor, Unsupported, const
from foundry.knowledge.compiler.rules.reduce import is_read
from foundry.knowledge.compiler.rules.sequences import recurrent, scan
from foundry.knowledge.compiler.rules.writes import in_place, scatter, slices
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import Argument, Op, OpGraph, Ref, TensorSpec, Value, contiguous_strides
from foundry.knowledge.targets import find_target

# Importing a rules module registers its rules.
RULE_MODULES = (
    pointwise,
    special,
    shape,
    reduce,
    norm,
    loss,
    contract,
    conv,
    pool,
    scan,
    attention,
    index,
    scatter,
    slices,
    resample,
    order,
    recurrent,
)
KNOWN_TYPES = frozenset(CPU_DIALECT.storage)
JOINING = frozenset(
    {"cat", "concat", "concatenate", "stack"}
)  # operators whose rules leave out operands without elements
# Operators that write items into their first operand.
WRITING = frozenset(("index_add", "index_put", "_unsafe_index_put", "index_copy", "index_fill", "index_reduce")) | {
    *("scatter", "scatter_add", "scatter_reduce"),
}

# Operators along a dimension, which take a number without dimensions for a row of one element.
ALONG = WRITING | {
    *("gather", "index_select", "topk", "sort", "argsort", "msort", "kthvalue", "median", "cumsum", "cumprod"),
    *("logcumsumexp", "cummax", "cummin", "softmax", "_softmax", "log_softmax", "_log_softmax", "unfold"),
}


def plan(
    graph: OpGraph, recipe: Recipe, *, refused: frozenset[str] = frozenset(), apart: frozenset[str] = frozenset()
) -> Plan:
    """The steps of one forward. Operators without a template, and those named in `refused`, call PyTorch. The
    products and softmaxes of attention that are named in `apart` stay kernels of their own.

    Raises CannotLower when a value cannot be expressed at all.
    """
    found = _rewrite(graph, recipe)
    builder = lower_graph(found.graph, recipe, refused, apart)
    if any(op.instead for op in graph.ops) and (names := _decomposed(graph, recipe, builder, refused)):
        found = _rewrite(graph.expanded(names), recipe)
        builder = lower_graph(found.graph, recipe, refused, apart)
    outputs, kept, write_backs = _results(builder, found.graph)
    fusion = fuse(builder.buffers, builder.steps, kept, recipe, apart)
    return _assemble(builder, found, recipe, fusion, outputs=outputs, write_backs=write_backs)


def _decomposed(graph: OpGraph, recipe: Recipe, builder: Builder, refused: frozenset[str]) -> set[str]:
    """Names of the operators without a kernel here whose decompositions have kernels for all their parts."""
    parts = {op.name: {part.name for part in op.instead} for op in graph.ops if op.instead}
    able = {name for name in parts if name in _left_by(builder) and refused.isdisjoint(parts[name])}
    left = _left_by(lower_graph(graph.expanded(able), recipe, refused)) if able else frozenset()
    return {name for name in able if left.isdisjoint(parts[name])}


def _left_by(builder: Builder) -> frozenset[str]:
    """Names of the operators that a plan leaves to PyTorch."""
    return frozenset(name for step in builder.steps if isinstance(step, TorchCall) for name in step.ops)


def without_kernel(graph: OpGraph, target: str) -> frozenset[str]:
    """Names of the operators for which a target has no kernel, before any decomposition. Raises CannotLower."""
    return _left_by(lower_graph(graph, Recipe(target)))


def _rewrite(graph: OpGraph, recipe: Recipe) -> Rewritten:
    """The graph in real numbers, after the recipe's algebra.

    Policy strict, which asks for IEEE products, asks for the task's own operations as well.
    """
    graph = without_complex(graph, find_target(recipe.target).forms.longest_transform)
    return Rewritten(graph, (), ()) if recipe.ieee_only else rewrite_graph(graph, recipe.rewrites)


def lower_graph(
    graph: OpGraph, recipe: Recipe, refused: frozenset[str] = frozenset(), apart: frozenset[str] = frozenset()
) -> Builder:
    """Lowers every operator of the graph by its rule to kernels of its own, without fusion. Raises CannotLower."""
    rewrites, regions = frozenset(recipe.rewrites), find_regions(graph)
    writes = in_place.find_writes(graph)
    builder = Builder(graph, recipe.target, rewrites=rewrites, apart=apart, regions=regions, in_place=writes)
    for value in [*graph.inputs, *graph.state]:
        builder.leaf(value)
        if not value.spec.numel:
            _bind_empty(builder, value)
    for op in graph.ops:
        missing = [name for name in op.reads if name not in builder.tensors]
        if missing:
            raise CannotLower(f"{op.target} reads {missing[0]}, which has no value")
        _lower_op(builder, op, refused)
    return builder


def _bind_empty(builder: Builder, value: Value) -> None:
    """Binds a value without elements to the constant 0 of its shape: it has no memory, and only joining operators read
    it."""
    builder.tensors[value.name] = Tensor(value.spec.shape, const(0, value.spec.dtype))


def _lower_op(builder: Builder, op: Op, refused: frozenset[str]) -> None:
    """Lowers one operator by its rule, appending its kernels. PyTorch is called if there is no rule or the rule
    refuses.

    Empty results need no kernel.
    """
    if op.outputs and not any(value.spec.numel for value in op.outputs):
        for value in op.outputs:
            _bind_empty(builder, value)
        return
    rule = RULES.get(op.kind) if _are_known(builder, op) else None
    has_empty = any(not builder.tensors[name].numel for name in op.reads) and op.kind not in JOINING
    if has_empty and op.kind in WRITING:
        builder.bind(op, builder.tensor(op.args[0]))
        return
    if rule is None or has_empty or op.name in refused or not op.target.startswith("aten."):
        _call_torch(builder, op)
        return
    buffers, names, taken, steps = dict(builder.buffers), dict(builder.names), set(builder.taken), len(builder.steps)
    try:
        if op.kind in ALONG and all(value.spec.shape == () for value in op.outputs):
            _lower_as_row(builder, rule, op)
        else:
            rule(builder, op)
        _bind_rest(builder, op)
    except Unsupported:
        builder.buffers, builder.names, builder.taken = buffers, names, taken
        del builder.steps[steps:]
        _call_torch(builder, op)


def _lower_as_row(builder: Builder, rule: Rule, op: Op) -> None:
    """Lowers an operator along a dimension of numbers without any: as rows of one element, like PyTorch."""
    given = {name: builder.tensors[name] for name in op.reads}
    specs = [TensorSpec((1,), (1,), value.spec.dtype) for value in op.outputs]
    row = replace(op, outputs=[replace(value, spec=spec) for value, spec in zip(op.outputs, specs, strict=True)])
    try:
        for name, tensor in given.items():
            builder.tensors[name] = tensor if tensor.shape else builder.reshape(tensor, (1,), op)
        rule(builder, row)
    finally:
        builder.tensors.update(given)
    for value in op.outputs:
        if value.name in builder.tensors:
            builder.tensors[value.name] = builder.reshape(builder.tensors[value.name], (), op)


def _bind_rest(builder: Builder, op: Op) -> None:
    """Binds results without elements. Raises Unsupported if the rule gave no value to another result that is read."""
    for output, value in enumerate(op.outputs):
        if value.name not in builder.tensors and not value.spec.numel:
            _bind_empty(builder, value)
        elif value.name not in builder.tensors and is_read(builder, op, output):
            raise Unsupported(f"{op.target}: result {output}")


def _are_known(builder: Builder, op: Op) -> bool:
    """True if kernels can hold all that an operator reads and gives: no complex numbers, no floats of 8 bits."""
    read = (builder.tensors[name].dtype for name in op.reads)
    return KNOWN_TYPES.issuperset([*read, *(value.spec.dtype for value in op.outputs)])


def _call_torch(builder: Builder, op: Op) -> None:
    """Leaves the operator to PyTorch: its operands are written to memory first, its results are contiguous buffers."""

    def plain(item: Argument) -> object:
        """The argument for PyTorch's call: references to whole buffers, values stored before if they are not; lists
        member by member. Raises CannotLower for part of a tensor whose dtype no kernel can copy."""
        if isinstance(item, Ref):
            tensor = builder.tensor(item)
            if not tensor.numel:
                tensor = builder.buffer(f"{item.ref}_empty", tensor.shape, tensor.dtype)
            load = tensor.expr
            if not (isinstance(load, Load) and _is_whole(builder.buffers[load.buffer], load, tensor)):
                if tensor.dtype not in KNOWN_TYPES:
                    raise CannotLower(f"{op.target} reads part of a {tensor.dtype} tensor, which no kernel can copy")
                tensor = builder.store(f"{item.ref}_plain", tensor.shape, tensor.expr, tensor.dtype, op)
                builder.tensors[item.ref] = tensor
                load = tensor.expr
                assert isinstance(load, Load)
            return Ref(load.buffer)
        if isinstance(item, list):
            return [plain(member) for member in item]
        return item

    args = tuple(plain(item) for item in op.args)
    kwargs = {key: plain(item) for key, item in op.kwargs.items()}
    results = []
    for value in op.outputs:
        if value.spec.numel == 0:
            results.append("")  # a result that the operator leaves undefined
            continue
        tensor = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
        assert isinstance(tensor.expr, Load)
        builder.tensors[value.name] = tensor
        results.append(tensor.expr.buffer)
    builder.labels += [] if op.kind in VIEWS else [f"torch:{op.kind}"]
    name = f"t_{builder.identifier(op.name)}"
    builder.emit(TorchCall(name, op.target, args, kwargs, results=tuple(results), ops=(op.name,)))


def _is_whole(buffer: Buffer, load: Load, tensor: Tensor) -> bool:
    """True if a tensor is exactly a buffer, shape and strides included."""
    return buffer.shape == tensor.shape and load.view == View(0, buffer.strides)


# ---------------------------------------------------------------- results


def _results(builder: Builder, graph: OpGraph) -> tuple[list[OutputView], set[str], dict[str, str]]:
    """(what forward returns, buffers that must stay in memory for it, key of a write -> buffer with its new value).

    Raises CannotLower for results that are neither tensors nor plain numbers, and for new values that are views.
    """
    last = graph.ops[-1] if graph.ops else None
    outputs: list[OutputView] = []
    kept: set[str] = set()
    for position, item in enumerate(graph.outputs):
        if str(position) in graph.returned:
            outputs.append(OutputView("", given=graph.returned[str(position)]))
        elif isinstance(item, Ref):
            view = _return_tensor(builder, builder.tensor(item), last, item.ref)
            kept.add(view.buffer)
            outputs.append(view)
        elif item is None or isinstance(item, bool | int | float):
            outputs.append(OutputView("", literal=item))
        else:
            raise CannotLower(f"forward returns a {type(item).__name__}")
    write_backs: dict[str, str] = {}
    for key, name in graph.mutations.items():
        memory = builder.tensors[name].expr
        if isinstance(memory, Load) and builder.buffers[memory.buffer].is_in_place:
            write_backs[key] = memory.buffer
            kept.add(memory.buffer)
            continue
        view = _return_tensor(builder, builder.tensors[name], last, name)
        if view.strides != contiguous_strides(view.shape):
            raise CannotLower(f"the new value of {key} is a view")
        write_backs[key] = view.buffer
        kept.add(view.buffer)
    return outputs, kept, write_backs


def _return_tensor(builder: Builder, tensor: Tensor, op: Op | None, name: str) -> OutputView:
    """A result as a view of a buffer that the candidate allocates; inputs, parameters and constants are copied. Raises
    CannotLower if nothing is computed or the dtype cannot be copied."""
    if not tensor.numel:
        tensor = builder.buffer(f"{name}_empty", tensor.shape, tensor.dtype)
    load = tensor.expr
    if not isinstance(load, Load) or not _returnable(builder, load, builder.graph.values[name].spec):
        if op is None:
            raise CannotLower("forward computes nothing")
        if tensor.dtype not in KNOWN_TYPES:
            raise CannotLower(f"forward returns {name} of type {tensor.dtype}, which no kernel can copy")
        copy = builder.store(f"{name}_out", tensor.shape, tensor.expr, tensor.dtype, op)
        load = copy.expr
        assert isinstance(load, Load)
    builder.buffers[load.buffer] = replace(builder.buffers[load.buffer], role="output")
    return OutputView(load.buffer, tensor.shape, load.view.strides, load.view.offset)


def _returnable(builder: Builder, load: Load, spec: TensorSpec) -> bool:
    """True if forward may return this view; otherwise it returns a copy.

    The candidate must have allocated the memory, and no tensor that the reference keeps apart may share it. The view
    must be contiguous if the reference's output is.
    """
    buffer = builder.buffers[load.buffer]
    if buffer.role not in ("temporary", "output") or buffer.is_in_place or min((0, *load.view.strides)) < 0:
        return False
    shared = {name for memory in builder.shared.values() for name in loaded_names(memory.expr)}
    if load.buffer in shared and spec.numel < buffer.numel:
        return False
    in_order = TensorSpec(spec.shape, load.view.strides, spec.dtype).is_contiguous
    return in_order or not spec.is_contiguous


def _assemble(
    builder: Builder,
    found: Rewritten,
    recipe: Recipe,
    fusion: Fusion,
    outputs: list[OutputView],
    write_backs: dict[str, str],
) -> Plan:
    """The plan: fused steps tidied, the buffers that they use, prepared weights and aliases, labels and rewrites."""
    steps = tuple(tidy(step) for step in fusion.steps)
    graph = found.graph
    used = {name for step in steps for name in buffers_of_step(step)} | {view.buffer for view in outputs if view.buffer}
    used |= set(write_backs.values())
    used |= {name for name, buffer in builder.buffers.items() if buffer.role == "input" and not buffer.numel}  # checked
    buffers: dict[str, Buffer] = {name: buffer for name, buffer in builder.buffers.items() if name in used}
    buffers, steps = with_overwritten(with_prepared(buffers, steps), steps, write_backs, outputs)
    buffers, steps = with_aliases(buffers, tuple(note_constants(step, buffers) for step in steps))
    applicable = dict.fromkeys([*builder.applicable, *fusion.rewrites])
    lowered = [name for name in applicable if name in recipe.rewrites]
    labels = [*(f"{LABEL}{name}" for name in found.applied), *(f"rewrite:{name}" for name in lowered), *builder.labels]
    labels += ["prepared_weights"] if any(buffer.role == "prepared" for buffer in buffers.values()) else []
    return Plan(
        buffers=buffers,
        steps=steps,
        outputs=tuple(outputs),
        arrangement=graph.arrangement,
        labels=tuple(dict.fromkeys(labels)),
        fused=fusion.fused,
        materialised=fusion.materialised,
        rewrites=tuple(dict.fromkeys([*found.possible, *applicable])),
        applied=(*found.applied, *lowered),
        write_backs=write_backs,
        fixed=graph.fixed,
        ieee_only=recipe.ieee_only,
        graph=graph,
    )
