"""What forward does with its inputs: a small taint analysis over the functions it reaches.

A value is an *input's* when it depends on the content or the address of an argument of forward; shapes, dtypes and
devices do not. Inputs' values may be passed on and returned. They may not be kept, compared, or used as a key.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from foundry.tools.audit.forbidden import forbidden
from foundry.tools.audit.source import CandidateSource, Finding, Function, methods_of
from foundry.tools.words import words

METADATA = frozenset(
    words(
        "shape dtype device ndim layout is_cuda requires_grad itemsize nbytes size stride dim numel is_contiguous "
        "element_size get_device is_cpu is_meta is_quantized is_conj is_neg "
        "is_floating_point storage_offset type is_complex is_sparse names grad_fn"
    )
)
# PyTorch functions that only make or describe memory; their result does not carry an input's content.
ALLOCATIONS = frozenset(
    words(
        "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like new_empty new_zeros "
        "new_full new_empty_strided Size device dtype finfo iinfo is_tensor promote_types result_type no_grad "
        "inference_mode current_stream current_device synchronize get_device_properties Tensor float32 float16 "
        "bfloat16 float64 int32 int64 bool uint8 int8 int16 half float double long int device_count is_available "
        "get_num_threads "
        "get_device_capability get_device_name set_device is_grad_enabled is_inference_mode_enabled "
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
        "is_leaf values items keys get index append extend"
    )
)
NUMPY_MEMORY = frozenset(
    words(
        "empty empty_like zeros zeros_like ones frombuffer asarray ascontiguousarray dtype float32 float64 float16 "
        "int32 int64 uint8 uint32 uint64 intp ctypeslib as_array as_ctypes ndpointer load_library array"
    )
)
KEEPERS = frozenset(
    words(
        "append add update setdefault insert extend register_buffer register_parameter __setitem__ __setattr__ "
        "put appendleft push"
    )
)
HARMLESS_CALLS = frozenset({"isinstance", "len", "type", "hasattr", "callable"})


@dataclass
class _Flow:
    """Facts of one function while its body is walked: flow-insensitive, so walked until nothing changes."""

    source: CandidateSource
    function: Function
    owner: ast.ClassDef | None = None  # the class it is a method of
    inputs: set[str] = field(default_factory=set)  # names that hold an input's value
    kept: set[str] = field(default_factory=set)  # names read from state that outlives the call
    globals: set[str] = field(default_factory=set)
    flows: dict[str, _Flow] = field(default_factory=dict)  # all of the file, by the name they are called by
    returns_input: bool = False


def dataflow_findings(source: CandidateSource) -> Iterator[Finding]:
    """Findings of result_cache, input_shortcut, phase_detection, reference and torch_compute."""
    reached = source.reached()
    flows: dict[str, _Flow] = {}
    for name, (function, owner) in reached.items():
        flows[name] = _Flow(source, function, owner, flows=flows)
    for name, flow in flows.items():
        if name.endswith(".forward"):
            flow.inputs.update(_parameters(flow.function, skip_self=True))
        elif source.trusts_model:  # Foundry's ModelNew calls its forwards with (inputs, parameters, state)
            first, *others = [*_parameters(flow.function, skip_self=True), ""]
            flow.inputs.add(first)
            flow.kept.update(others[1:])
    for flow in flows.values():
        _taint_indirect(flow, flows)
    for _ in range(len(flows) + 4):  # arguments carry taint into callees; bounded by the length of call chains
        before = _size(flows)
        for flow in flows.values():
            _propagate(flow)
            _pass_on(flow, flows)
        if _size(flows) == before:
            break
    for flow in flows.values():
        yield from _check(flow)


def _size(flows: dict[str, _Flow]) -> int:
    return sum(len(flow.inputs) + len(flow.kept) + flow.returns_input for flow in flows.values())


def _taint_indirect(flow: _Flow, flows: dict[str, _Flow]) -> None:
    """Functions that are handed on or nested may be called with anything: their parameters count as inputs."""
    called = {id(node.func) for node in ast.walk(flow.function) if isinstance(node, ast.Call)}
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


def _propagate(flow: _Flow) -> None:
    for node in ast.walk(flow.function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            flow.globals.update(node.names)
        for target, value in _bindings(node):
            names = [item.id for item in ast.walk(target) if isinstance(item, ast.Name) and item.id != "self"]
            if isinstance(target, ast.Attribute | ast.Subscript):
                _fill(flow, target, [value])  # a store into something that lasts is for _check to judge
                continue
            if is_input(flow, value):
                flow.inputs.update(names)
            if is_kept(flow, value):
                flow.kept.update(names)
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and is_input(flow, node.value):
            flow.returns_input = True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPERS:
            _fill(flow, node.func.value, node.args)


def _fill(flow: _Flow, container: ast.expr, values: list[ast.expr]) -> None:
    """A local container that is given an input's value carries it on."""
    while isinstance(container, ast.Attribute | ast.Subscript):
        container = container.value
    is_local = isinstance(container, ast.Name) and container.id not in ("self", "cls") and not is_kept(flow, container)
    if is_local and any(is_input(flow, value) for value in values):
        assert isinstance(container, ast.Name)
        flow.inputs.add(container.id)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value):
        assert node.value is not None
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _pass_on(flow: _Flow, flows: dict[str, _Flow]) -> None:
    for node in ast.walk(flow.function):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        callee = flows.get(name)
        if callee is None:
            continue
        names = _parameters(callee.function, skip_self=name.startswith("self."))
        for position, argument in enumerate(node.args):
            receiving = names[position:] if isinstance(argument, ast.Starred) else names[position : position + 1]
            _receive(flow, callee, argument, receiving)
        for keyword in node.keywords:
            _receive(flow, callee, keyword.value, [keyword.arg] if keyword.arg else names)


def _receive(flow: _Flow, callee: _Flow, argument: ast.expr, names: list[str]) -> None:
    value = argument.value if isinstance(argument, ast.Starred) else argument
    if is_input(flow, value):
        callee.inputs.update(names)
    if is_kept(flow, value):
        callee.kept.update(names)


def is_input(flow: _Flow, node: ast.expr | None) -> bool:
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


def _comprehension_is_input(flow: _Flow, node: ast.AST) -> bool:
    return isinstance(node, ast.comprehension) and is_input(flow, node.iter) and not isinstance(node.iter, ast.Name)


def _is_alignment(node: ast.BinOp) -> bool:
    """The last bits of an address, or of several at once."""
    is_small = isinstance(node.right, ast.Constant) and isinstance(node.right.value, int) and node.right.value <= 4096
    return is_small and (_is_address(node.left) or isinstance(node.left, ast.Name))


def _is_address(node: ast.expr) -> bool:
    """An expression of addresses of tensors alone."""
    if isinstance(node, ast.BinOp):
        return _is_address(node.left) and _is_address(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        return name == "data_ptr" or (
            name in ("int", "c_void_p", "c_uint64", "c_size_t", "c_int64", "c_ulonglong")
            and len(node.args) == 1
            and _is_address(node.args[0])
        )
    return False


def _is_looked_at(flow: _Flow, target: ast.expr) -> bool:
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


def _call_is_input(flow: _Flow, node: ast.Call) -> bool:
    path = flow.source.dotted(node.func)
    last = path.split(".")[-1]
    if path in HARMLESS_CALLS or (last in ALLOCATIONS and path.startswith("torch.")):
        return False
    callee = flow.flows.get(ast.unparse(node.func))
    if callee is not None and callee is not flow and not callee.returns_input:
        return False
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in METADATA or node.func.attr in ALLOCATIONS:
            return False
        if is_input(flow, node.func.value):
            return True
    return any(is_input(flow, item) for item in node.args) or any(is_input(flow, item.value) for item in node.keywords)


def is_kept(flow: _Flow, node: ast.expr | None) -> bool:
    """Whether the expression hands out state that outlives the call: self.x, a module's container, an item of one."""
    if isinstance(node, ast.Name):
        return node.id in flow.kept or (node.id in flow.source.module_names and node.id not in flow.source.aliases)
    if isinstance(node, ast.Attribute):
        return (isinstance(node.value, ast.Name) and node.value.id == "self") or is_kept(flow, node.value)
    if isinstance(node, ast.Subscript | ast.Starred | ast.Await):
        return is_kept(flow, node.value)
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


# ---------------------------------------------------------------- what is not allowed


def _check(flow: _Flow) -> Iterator[Finding]:
    returned = _returned_names(flow.function)
    for node in ast.walk(flow.function):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from _check_store(flow, node, returned)
        elif isinstance(node, ast.Return):
            if flow.function.name == "forward" and is_kept(flow, node.value):
                yield Finding(
                    "result_cache", node.lineno, "forward returns something that it kept from an earlier call"
                )
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield from _check_branch(flow, node)
        elif isinstance(node, ast.Call):
            yield from _check_keeper(flow, node, returned)
            yield from _check_call(flow, node)
        elif isinstance(node, ast.BinOp | ast.UnaryOp) and not isinstance(getattr(node, "op", None), ast.Not):
            yield from _check_arithmetic(flow, node)
        elif isinstance(node, ast.Try | ast.TryStar):
            yield from _check_handlers(flow, node)
        elif isinstance(node, ast.With | ast.AsyncWith) and _suppresses(node) and _uses_inputs(flow, node):
            yield Finding("fallback", node.lineno, "exceptions in forward are suppressed")
    for decorator in flow.function.decorator_list:
        path = flow.source.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if path in ("functools.cache", "functools.lru_cache", "functools.cached_property") and flow.inputs:
            yield Finding(
                "result_cache", decorator.lineno, f"{path} keeps what {flow.function.name} made of the inputs"
            )
    defaults = [*flow.function.args.defaults, *flow.function.args.kw_defaults]
    for default in defaults:
        if isinstance(default, ast.Dict | ast.List | ast.Set | ast.Call):
            yield Finding("result_cache", default.lineno, "a mutable default argument outlives the call")


def _returned_names(function: Function) -> set[str]:
    """Names that forward hands to its caller, as themselves or viewed."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            items = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
            for item in items:
                while isinstance(item, ast.Call | ast.Attribute | ast.Subscript):
                    item = item.func if isinstance(item, ast.Call) else item.value
                if isinstance(item, ast.Name):
                    found.add(item.id)
    return found - {"self", "torch"}


def _outlives(flow: _Flow, target: ast.expr) -> bool:
    base = target
    while isinstance(base, ast.Attribute | ast.Subscript):
        base = base.value
    if not isinstance(base, ast.Name):
        return False
    if isinstance(target, ast.Name):
        return target.id in flow.globals
    if isinstance(target, ast.Attribute) and not isinstance(target.value, ast.Name | ast.Attribute | ast.Subscript):
        return False
    lasting = flow.source.module_names | flow.source.functions.keys() | flow.source.classes.keys() | flow.kept
    return base.id in ("self", "cls") or base.id in lasting


def _check_store(
    flow: _Flow, node: ast.Assign | ast.AugAssign | ast.AnnAssign, returned: set[str]
) -> Iterator[Finding]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in [item for top in targets for item in (top.elts if isinstance(top, ast.Tuple) else [top])]:
        name = ast.unparse(target)
        if isinstance(target, ast.Attribute) and is_input(flow, target.value):
            yield Finding("result_cache", node.lineno, f"{name} leaves a mark on a tensor that comes back")
        augmented = isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.List)
        if augmented and (is_input(flow, target) or is_input(flow, node.value)) and "data_ptr" not in ast.unparse(node):
            yield Finding("torch_compute", node.lineno, f"computes {ast.unparse(node)[:80]}")
        if not _outlives(flow, target):
            continue
        if isinstance(node, ast.AugAssign):
            yield Finding("phase_detection", node.lineno, f"{name} counts calls")
        elif node.value is not None and _is_address(node.value) and not _is_looked_at(flow, target):
            continue  # arguments of the next launch, written anew in every call
        elif is_input(flow, node.value) or (isinstance(target, ast.Subscript) and is_input(flow, target.slice)):
            yield Finding("result_cache", node.lineno, f"{name} keeps something made of the inputs across calls")
        elif isinstance(node.value, ast.Name) and node.value.id in returned:
            yield Finding("result_cache", node.lineno, f"{name} keeps {node.value.id}, which forward also returns")


def _check_handlers(flow: _Flow, node: ast.Try | ast.TryStar) -> Iterator[Finding]:
    """Where the inputs are at work, an except clause must raise again: anything else is a silent fallback."""
    for handler in node.handlers:
        if not isinstance(handler.body[-1], ast.Raise) and _uses_inputs(flow, node):
            yield Finding("fallback", handler.lineno, "an exception in forward is caught and other code runs")


def _suppresses(node: ast.With | ast.AsyncWith) -> bool:
    return any("suppress" in ast.unparse(item.context_expr) for item in node.items)


def _uses_inputs(flow: _Flow, node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id in flow.inputs for part in ast.walk(node))


def _check_keeper(flow: _Flow, node: ast.Call, returned: set[str]) -> Iterator[Finding]:
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in KEEPERS and _outlives(flow, node.func)):
        return
    for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
        kept_result = isinstance(argument, ast.Name) and argument.id in returned
        if is_input(flow, argument) or kept_result:
            yield Finding(
                "result_cache", node.lineno, f"{ast.unparse(node.func)} keeps something made of the inputs across calls"
            )
            return


def _is_container(flow: _Flow, test: ast.expr) -> bool:
    """A list or tuple of inputs by its bare name: whether there are any says nothing of their values."""
    while isinstance(test, ast.UnaryOp):
        test = test.operand
    if not isinstance(test, ast.Name):
        return False
    variable = flow.function.args.vararg
    if variable is not None and variable.arg == test.id:
        return True
    values = [value for node in ast.walk(flow.function) for target, value in _bindings(node) if _names(target, test.id)]
    return bool(values) and all(isinstance(value, ast.List | ast.Tuple | ast.ListComp) for value in values)


def _names(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _check_branch(flow: _Flow, node: ast.If | ast.While | ast.IfExp) -> Iterator[Finding]:
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    if not any(is_input(flow, test) for test in tests if not _is_container(flow, test)):
        return
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and not node.orelse:
        return  # refusing an input aloud, or a failed launch, is a check
    test = ast.unparse(node.test)[:80]
    yield Finding("input_shortcut", node.lineno, f"forward branches on the inputs' values or addresses: {test}")


def _check_call(flow: _Flow, node: ast.Call) -> Iterator[Finding]:
    path = flow.source.dotted(node.func)
    text = ast.unparse(node.func)
    if text.startswith("super()") or path in ("Model.forward", "Model.__call__"):
        yield Finding("reference", node.lineno, f"calls {text}, the reference itself")
    elif path.startswith("self.") or (isinstance(node.func, ast.Name) and _is_kept_layer(flow, node.func.id)):
        layer = _layer(flow, path)
        if layer and any(is_input(flow, item) for item in node.args):
            yield Finding("reference", node.lineno, f"calls {text} on the inputs, {layer}")
    elif path.startswith("torch."):
        parts = path.split(".")
        last = parts[3] if parts[1] == "ops" and len(parts) > 3 else parts[-1]  # torch.ops.aten.softmax.int
        if last not in ALLOCATIONS and last not in VIEWS and not path.startswith("torch.utils.cpp_extension"):
            yield Finding("torch_compute", node.lineno, f"calls {path}")
    elif path.startswith("numpy.") and path.split(".")[-1] not in NUMPY_MEMORY:
        yield Finding("imports", node.lineno, f"calls {path}: what NumPy computes, the candidate does not")
    elif (rule := forbidden(path)) and rule[0] == "files" and _hands_over(flow, node):
        yield Finding("files", node.lineno, f"hands something made of the inputs to {path}")
    elif path.startswith(("operator.", "math.")) and any(is_input(flow, item) for item in node.args):
        yield Finding("torch_compute", node.lineno, f"calls {path} on a value made of the inputs")
    elif isinstance(node.func, ast.Attribute) and is_input(flow, node.func.value):
        name = node.func.attr
        if name not in VIEWS and name not in METADATA and name not in ALLOCATIONS:
            yield Finding("torch_compute", node.lineno, f"calls .{name}() on a value made of the inputs")


def _hands_over(flow: _Flow, node: ast.Call) -> bool:
    return any(is_input(flow, item) for item in [*node.args, *(keyword.value for keyword in node.keywords)])


def _is_kept_layer(flow: _Flow, name: str) -> bool:
    """A callable from state that lasts, unless that is a table of the file's own functions."""
    if name not in flow.kept:
        return False
    values = [value for node in ast.walk(flow.function) for target, value in _bindings(node) if name in _stored(target)]
    sources = {part.id for value in values for part in ast.walk(value) if isinstance(part, ast.Name)}
    if "self" in sources or not sources & flow.source.assigned.keys():
        return True
    held = [value for source in sources for value in flow.source.assigned.get(source, ())]
    made = [flow.source.dotted(part.func) for value in held for part in ast.walk(value) if isinstance(part, ast.Call)]
    return any(path.startswith("torch.nn.") or path in {"Model", *flow.source.classes} for path in made)


def _stored(target: ast.expr) -> set[str]:
    return {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}


def _layer(flow: _Flow, path: str) -> str:
    """What `self.x...` is when calling it runs the reference's or PyTorch's layers; "" for the candidate's own code."""
    if not path.startswith("self."):
        return "a layer kept by the model"
    name, last = path.split(".")[1], path.split(".")[-1]
    if path.count(".") > 1 and last in VIEWS | METADATA | ALLOCATIONS:
        return ""  # a tensor's own method
    if name in methods_of(flow.owner) and path.count(".") == 1:
        return ""
    made = _made_in_constructor(flow.owner, name)
    if made is None:
        return "a layer or method of the reference"
    kind = flow.source.dotted(made.func) if isinstance(made, ast.Call) else ""
    return f"a {kind}" if kind.startswith("torch.nn.") and kind != "torch.nn.Parameter" else ""


def _made_in_constructor(owner: ast.ClassDef | None, name: str) -> ast.expr | None:
    """The expression that the class's own __init__ assigns to self.<name>."""
    constructor = methods_of(owner).get("__init__")
    for node in ast.walk(constructor) if constructor else ():
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == f"self.{name}" for target in node.targets):
            return node.value
    return None


def _check_arithmetic(flow: _Flow, node: ast.BinOp | ast.UnaryOp) -> Iterator[Finding]:
    operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
    for operand in operands:
        if is_input(flow, operand) and "data_ptr" not in ast.unparse(node) and not isinstance(operand, ast.List):
            yield Finding("torch_compute", node.lineno, f"computes {ast.unparse(node)[:80]} with PyTorch's operators")
            return
