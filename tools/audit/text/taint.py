"""What forward does with its inputs: a small taint analysis over the functions it reaches.

A value is an *input's* when it depends on the content or the address of an argument of forward; shapes, dtypes and
devices do not. Inputs' values may be passed on and returned. They may not be kept, compared, or used as a key.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from foundry.tools.audit.text.source import CandidateSource, Function, methods_of
from foundry.tools.words import words

METADATA = frozenset(
    words(
        "shape dtype device ndim layout is_cuda requires_grad itemsize nbytes size stride dim numel is_contiguous "
        "element_size get_device is_cpu is_meta is_quantized is_conj is_neg "
        "is_floating_point storage_offset type is_complex is_sparse names grad_fn strides flags"
    )
)
# PyTorch functions that only make or describe memory; their result does not carry an input's content.
ALLOCATIONS = frozenset(
    words(
        "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like new_empty new_zeros "
        "new_full new_empty_strided Size device dtype finfo iinfo is_tensor promote_types result_type no_grad "
        "inference_mode current_stream current_device synchronize get_device_properties Tensor float32 float16 "
        "bfloat16 float64 int32 int64 bool uint8 int8 int16 half float double long int device_count is_available "
        "get_num_threads _assert is_floating_point is_complex is_same_size is_storage numel broadcast_shapes version "
        "get_default_dtype get_num_interop_threads is_autocast_enabled current_blas_handle typename "
        "get_device_capability get_device_name set_device is_grad_enabled is_inference_mode_enabled "
        "is_current_stream_capturing "
        "contiguous_format channels_last preserve_format strided memory_format tensor as_tensor CUDAGraph graph"
    )
)
# Tensor methods that view, allocate or copy.
VIEWS = frozenset(
    words(
        "view reshape contiguous permute transpose t mT T expand expand_as squeeze unsqueeze flatten unflatten "
        "narrow select detach data_ptr data untyped_storage as_strided unbind split chunk view_as movedim "
        "swapaxes unfold clone to copy_ zero_ fill_ record_stream cpu cuda cuda_stream stream ptr nbytes "
        "is_pinned pin_memory requires_grad_ new_empty new_zeros new_full new_empty_strided resize_ set_ _version "
        "is_leaf from_numpy data_as ctypes values items keys get index append extend"
    )
)
NUMPY_MEMORY = frozenset(
    words(
        "empty empty_like zeros zeros_like ones frombuffer asarray ascontiguousarray dtype float32 float64 float16 "
        "int32 int64 uint8 uint32 uint64 intp ctypeslib as_array as_ctypes ndpointer load_library array"
    )
)
NUMPY_COMPARISONS = frozenset({"array_equal", "shares_memory", "may_share_memory"})  # is what was prepared still true?
OUT_OF_TORCH = frozenset({"numpy", "__array__", "tolist", "item", "__dlpack__"})
KEEPERS = frozenset(
    words(
        "append add update setdefault insert extend register_buffer register_parameter __setitem__ __setattr__ "
        "put appendleft push"
    )
)
HARMLESS_CALLS = frozenset({"isinstance", "len", "type", "hasattr", "callable"})


@dataclass
class Flow:
    """Facts of one function while its body is walked: flow-insensitive, so walked until nothing changes."""

    source: CandidateSource
    function: Function
    owner: ast.ClassDef | None = None  # the class it is a method of
    inputs: set[str] = field(default_factory=set)  # names that hold an input's value
    kept: set[str] = field(default_factory=set)  # names read from state that outlives the call
    globals: set[str] = field(default_factory=set)
    flows: dict[str, Flow] = field(default_factory=dict)  # all of the file, by the name they are called by
    returns_input: bool = False
    outside: set[str] = field(default_factory=set)  # names of inputs' values that have left PyTorch


def flows_of(source: CandidateSource) -> dict[str, Flow]:
    """The facts of every function that forward reaches, by the name it is called by."""
    reached = source.reached()
    flows: dict[str, Flow] = {}
    for name, (function, owner) in reached.items():
        flows[name] = Flow(source, function, owner, flows=flows)
    for name, flow in flows.items():
        if name.endswith(".forward"):
            flow.inputs.update(_parameters(flow.function, skip_self=True))
        elif source.trusts_model:  # Foundry's ModelNew calls its forwards with (inputs, parameters, state)
            first, *others = [*_parameters(flow.function, skip_self=True), ""]
            flow.inputs.add(first)
            flow.kept.update(others[1:])
    _add_constructors(source, flows)
    for flow in flows.values():
        _taint_indirect(flow, flows)
    for _ in range(len(flows) + 4):  # arguments carry taint into callees; bounded by the length of call chains
        before = _size(flows)
        for flow in flows.values():
            _propagate(flow)
            _pass_on(flow, flows)
        if _size(flows) == before:
            break
    return flows


def _add_constructors(source: CandidateSource, flows: dict[str, Flow]) -> None:
    """Own recorders of graphs that forward makes: what a constructor is given counts as inputs in their methods."""
    called = {
        ast.unparse(node.func) for flow in list(flows.values()) for node in ast.walk(flow.function) if _is_call(node)
    }
    for name in called & source.classes.keys():
        owner = source.classes[name]
        if not _records_graph(source, owner):
            continue
        for method, function in methods_of(owner).items():
            flow = flows.setdefault(f"{name}.{method}", Flow(source, function, owner, flows=flows))
            flow.inputs.update(_parameters(function, skip_self=True))


def _is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


def _size(flows: dict[str, Flow]) -> int:
    return sum(len(flow.inputs) + len(flow.kept) + flow.returns_input for flow in flows.values())


def _taint_indirect(flow: Flow, flows: dict[str, Flow]) -> None:
    """Functions that are handed on or nested may be called with anything: their parameters count as inputs."""
    called = {id(node.func) for node in ast.walk(flow.function) if isinstance(node, ast.Call)}
    called |= {id(node) for node in flow.function.decorator_list}  # they get the function
    for node in ast.walk(flow.function):
        if isinstance(node, ast.Lambda | ast.FunctionDef) and node is not flow.function:
            flow.inputs.update(argument.arg for argument in node.args.args)
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in called:
            handed = flows.get(ast.unparse(node))
            if handed is not None and handed is not flow:
                handed.inputs.update(_parameters(handed.function, skip_self=True))


def _parameters(function: Function, *, skip_self: bool) -> list[str]:
    arguments = function.args
    names = [item.arg for item in [*arguments.posonlyargs, *arguments.args]]
    names = names[1:] if skip_self and names[:1] in (["self"], ["cls"], ["ctx"]) else names
    names += [item.arg for item in arguments.kwonlyargs]
    names += [item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return names


def _propagate(flow: Flow) -> None:
    for node in ast.walk(flow.function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            flow.globals.update(node.names)
        for target, value in bindings(node):
            names = [item.id for item in ast.walk(target) if isinstance(item, ast.Name) and item.id != "self"]
            if isinstance(target, ast.Attribute | ast.Subscript):
                _fill(flow, target, [value])  # a store into something that lasts is for _check to judge
                continue
            if is_input(flow, value):
                flow.inputs.update(names)
            if is_kept(flow, value) and not (isinstance(node, ast.AugAssign) and _adds_up(flow, target, value)):
                flow.kept.update(names)
            if is_input(flow, value) and is_outside(flow, value):
                flow.outside.update(names)
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and is_input(flow, node.value):
            flow.returns_input = True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPERS:
            _fill(flow, node.func.value, node.args)


def _adds_up(flow: Flow, target: ast.expr, value: ast.expr) -> bool:
    """Whether `y += self.bias` makes a new value, as numbers and tensors do; a list takes up the very items."""
    rows = (ast.List, ast.Tuple, ast.ListComp)
    held = [
        own for node in ast.walk(flow.function) for name, own in bindings(node) if ast.dump(name) == ast.dump(target)
    ]
    return not any(isinstance(item, rows) or "list(" in ast.unparse(item) for item in (value, *held))


def _fill(flow: Flow, container: ast.expr, values: list[ast.expr]) -> None:
    """A local container that is given an input's value carries it on."""
    while isinstance(container, ast.Attribute | ast.Subscript):
        container = container.value
    if is_context(flow, container):
        return
    is_local = isinstance(container, ast.Name) and container.id not in ("self", "cls") and not is_kept(flow, container)
    if is_local and any(is_input(flow, value) for value in values):
        assert isinstance(container, ast.Name)
        flow.inputs.add(container.id)


def is_context(flow: Flow, node: ast.expr) -> bool:
    """The `ctx` of an autograd function: PyTorch makes a new one in every call."""
    first = flow.function.args.args[:1]
    is_first = isinstance(node, ast.Name) and bool(first) and first[0].arg == node.id
    bases = flow.owner.bases if flow.owner and flow.function.name != "__init__" else []
    return is_first and any(flow.source.dotted(base) == "torch.autograd.Function" for base in bases)


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of every name that a statement binds; `a, b = x, y` are two."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _one_by_one(target, node.value)
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value):
        assert node.value is not None
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _one_by_one(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The parts of two rows of the same length, or both as they are."""
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        has_rest = any(isinstance(part, ast.Starred) for part in (*target.elts, *value.elts))
        if len(target.elts) == len(value.elts) and not has_rest:
            for one, other in zip(target.elts, value.elts, strict=True):
                yield from _one_by_one(one, other)
            return
    yield target, value


def _pass_on(flow: Flow, flows: dict[str, Flow]) -> None:
    for node in ast.walk(flow.function):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        callee = flows.get(name)
        if callee is None:
            continue
        is_of_class = callee.owner is not None and [item.arg for item in callee.function.args.args[:1]] == ["cls"]
        names = _parameters(callee.function, skip_self=name.startswith("self.") or is_of_class)
        for position, argument in enumerate(node.args):
            receiving = names[position:] if isinstance(argument, ast.Starred) else names[position : position + 1]
            _receive(flow, callee, argument, receiving)
        for keyword in node.keywords:
            _receive(flow, callee, keyword.value, [keyword.arg] if keyword.arg else names)


def _receive(flow: Flow, callee: Flow, argument: ast.expr, names: list[str]) -> None:
    value = argument.value if isinstance(argument, ast.Starred) else argument
    if is_input(flow, value):
        callee.inputs.update(names)
    if is_kept(flow, value):
        callee.kept.update(names)


def is_input(flow: Flow, node: ast.expr | None) -> bool:
    """Whether the expression depends on the content or address of an input."""
    if node is None or isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Name):
        return node.id in flow.inputs
    if isinstance(node, ast.Attribute):
        return node.attr not in METADATA and is_input(flow, node.value)
    if isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.BitAnd) and _is_alignment(node):
        return False  # the alignment of an address chooses an instruction, not an answer
    if isinstance(node, ast.Call):
        return _call_is_input(flow, node)
    if isinstance(node, ast.Lambda):
        return is_input(flow, node.body)
    return any(
        is_input(flow, child) if isinstance(child, ast.expr) else _comprehension_is_input(flow, child)
        for child in ast.iter_child_nodes(node)
    )


def _comprehension_is_input(flow: Flow, node: ast.AST) -> bool:
    return isinstance(node, ast.comprehension) and is_input(flow, node.iter) and not isinstance(node.iter, ast.Name)


def _is_alignment(node: ast.BinOp) -> bool:
    """The last bits of an address, or of several at once."""
    is_small = isinstance(node.right, ast.Constant) and isinstance(node.right.value, int) and node.right.value <= 4096
    return is_small and (is_address(node.left) or isinstance(node.left, ast.Name))


def is_address(node: ast.expr) -> bool:
    """An expression of addresses of tensors alone."""
    if isinstance(node, ast.BinOp):
        return is_address(node.left) and is_address(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        return name == "data_ptr" or (
            name in ("int", "c_void_p", "c_uint64", "c_size_t", "c_int64", "c_ulonglong")
            and len(node.args) == 1
            and is_address(node.args[0])
        )
    return False


def is_looked_at(flow: Flow, target: ast.expr) -> bool:
    """Whether something that lasts is ever compared, tested or searched in the functions that forward reaches."""
    while isinstance(target, ast.Subscript):
        target = target.value
    name = ast.unparse(target)
    for other in flow.flows.values():
        for node in ast.walk(other.function):
            tests: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                tests = [node.left, *node.comparators]
            elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
                tests = [node.test]
            if any(name in ast.unparse(test) for test in tests):
                return True
    return False


def _call_is_input(flow: Flow, node: ast.Call) -> bool:
    path = flow.source.dotted(node.func)
    last = path.split(".")[-1]
    if path in HARMLESS_CALLS or (last in ALLOCATIONS and path.startswith("torch.")):
        return False
    name = ast.unparse(node.func)
    if f"{name}.__init__" in flow.flows and _records_graph(flow.source, flow.source.classes[name]):
        return False  # what it keeps of the inputs is found in its methods
    callee = flow.flows.get(name)
    if callee is not None and callee is not flow and not callee.returns_input:
        return False
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in METADATA or node.func.attr in ALLOCATIONS:
            return False
        if is_input(flow, node.func.value):
            return True
    return any(is_input(flow, item) for item in node.args) or any(is_input(flow, item.value) for item in node.keywords)


def _records_graph(source: CandidateSource, owner: ast.ClassDef) -> bool:
    """Whether an own class is there to record a CUDA graph, for which tensors like the inputs are made once."""
    calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call)]
    is_plain = not owner.bases and not owner.decorator_list
    return is_plain and any(source.dotted(call.func) == "torch.cuda.CUDAGraph" for call in calls)


def is_outside(flow: Flow, node: ast.expr) -> bool:
    """Whether an input's value is no tensor any more where it is used: PyTorch does not see what is done with it."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in flow.outside:
            return True
        if isinstance(part, ast.Attribute) and part.attr in OUT_OF_TORCH and is_input(flow, part.value):
            return True
    return False


def is_kept(flow: Flow, node: ast.expr | None) -> bool:
    """Whether the expression hands out state that outlives the call: self.x, a module's container, an item of one."""
    if isinstance(node, ast.Name):
        return node.id in flow.kept or (node.id in flow.source.module_names and node.id not in flow.source.aliases)
    if isinstance(node, ast.Attribute):
        return (isinstance(node.value, ast.Name) and node.value.id == "self") or is_kept(flow, node.value)
    if isinstance(node, ast.Subscript | ast.Starred | ast.Await):
        return is_kept(flow, node.value) or ast.unparse(node) == "sys.modules[__name__]"
    if isinstance(node, ast.Call) and ast.unparse(node) == "globals()":
        return True
    if isinstance(node, ast.NamedExpr):
        return is_kept(flow, node.value)
    if isinstance(node, ast.Tuple | ast.List):
        return any(is_kept(flow, item) for item in node.elts)
    if isinstance(node, ast.IfExp):
        return is_kept(flow, node.body) or is_kept(flow, node.orelse)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        hands_out = node.func.attr in ("get", "pop", "setdefault", "__getitem__") or node.func.attr in VIEWS - {"clone"}
        return hands_out and is_kept(flow, node.func.value)
    return False
