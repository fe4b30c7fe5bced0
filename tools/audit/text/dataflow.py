"""Rules over what forward does with its inputs: pass them on and return them; not keep, compare or use them as keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from foundry.tools.audit.text.chance import is_random
from foundry.tools.audit.text.forbidden import forbidden
from foundry.tools.audit.text.source import CandidateSource, Finding, Function, defined_names, methods_of
from foundry.tools.audit.text.taint import (
    ALLOCATIONS,
    KEEPERS,
    METADATA,
    NUMPY_COMPARISONS,
    NUMPY_MEMORY,
    VIEWS,
    Flow,
    bindings,
    flows_of,
    is_address,
    is_context,
    is_input,
    is_kept,
    is_looked_at,
    is_outside,
)
from foundry.tools.words import words


def dataflow_findings(source: CandidateSource) -> Iterator[Finding]:
    """Findings of result_cache, input_shortcut, phase_detection, reference, fallback and torch_compute."""
    for flow in flows_of(source).values():
        if not (flow.owner and any(source.dotted(base) in _MAKES_CLASSES for base in flow.owner.bases)):
            yield from _check(flow)


_MAKES_CLASSES = frozenset({"type", "abc.ABCMeta", "enum.EnumMeta"})


def _check(flow: Flow) -> Iterator[Finding]:
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
    for default in defaults if _is_given_inputs(flow) else ():
        if isinstance(default, ast.Dict | ast.List | ast.Set | ast.Call) and not _is_constant(flow.source, default):
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


def _outlives(flow: Flow, target: ast.expr) -> bool:
    base = target
    while isinstance(base, ast.Attribute | ast.Subscript):
        if ast.unparse(base) == "sys.modules[__name__]":
            return True
        base = base.value
    if not isinstance(base, ast.Name):
        return ast.unparse(base) == "globals()" or (
            isinstance(base, ast.Call) and ast.unparse(base.func).startswith("globals()")
        )
    if isinstance(target, ast.Name):
        return target.id in flow.globals
    if isinstance(target, ast.Attribute) and not isinstance(target.value, ast.Name | ast.Attribute | ast.Subscript):
        return False
    lasting = flow.source.module_names | flow.source.functions.keys() | flow.source.classes.keys() | flow.kept
    holders = {argument.arg for argument in flow.function.args.args[:1]} if flow.owner else set()
    if "staticmethod" in {ast.unparse(item) for item in flow.function.decorator_list} or is_context(flow, base):
        holders = set()
    return base.id in {"self", "cls", *holders} or base.id in lasting


def _check_store(flow: Flow, node: ast.Assign | ast.AugAssign | ast.AnnAssign, returned: set[str]) -> Iterator[Finding]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in [item for top in targets for item in (top.elts if isinstance(top, ast.Tuple) else [top])]:
        name = ast.unparse(target)
        if isinstance(target, ast.Attribute) and is_input(flow, target.value):
            yield Finding("result_cache", node.lineno, f"{name} leaves a mark on a tensor that comes back")
        augmented = isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.List)
        if augmented and (is_input(flow, target) or is_input(flow, node.value)) and "data_ptr" not in ast.unparse(node):
            yield Finding("torch_compute", node.lineno, f"computes {ast.unparse(node)[:80]}")
        if not _outlives(flow, target) or _is_statistic(flow, target):
            continue
        if isinstance(node, ast.AugAssign):
            if _is_read(flow.source, target):
                yield Finding("phase_detection", node.lineno, f"{name} counts calls")
        elif node.value is not None and is_address(node.value) and not is_looked_at(flow, target):
            continue  # arguments of the next launch, written anew in every call
        elif is_input(flow, node.value) or (isinstance(target, ast.Subscript) and is_input(flow, target.slice)):
            yield Finding("result_cache", node.lineno, f"{name} keeps something made of the inputs across calls")
        elif (
            isinstance(node.value, ast.Name)
            and node.value.id in returned
            and _is_given_inputs(flow)
            and not _is_handle(flow, node.value.id)
        ):
            yield Finding("result_cache", node.lineno, f"{name} keeps {node.value.id}, which forward also returns")


def _is_statistic(flow: Flow, target: ast.expr) -> bool:
    """A batch norm's running statistic: a registered buffer of that name, or the one of a layer of PyTorch's. The judge
    compares what a call leaves in it with what PyTorch's leaves there."""
    if not isinstance(target, ast.Attribute) or target.attr not in ("running_mean", "running_var"):
        return False
    holder = ast.unparse(target.value)
    if holder == "self":
        return any(
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "self.register_buffer"
            and len(node.args) == 2  # persistent, so the reference has one of the same name
            and not node.keywords
            and ast.unparse(node.args[0]) == repr(target.attr)
            for part in flow.source.lineage(flow.owner)
            for node in ast.walk(part)
        )
    values = list(_values_of(flow.source, flow.owner, holder.removeprefix("self.")))
    made = [flow.source.dotted(value.func) for value in values if isinstance(value, ast.Call)]
    return bool(values) and len(made) == len(values) and all(kind.startswith("torch.nn.BatchNorm") for kind in made)


def _is_given_inputs(flow: Flow) -> bool:
    """Whether a function can make anything of an input: who packs weights or loads a library for a size gets none."""
    is_unknown = flow.owner is not flow.source.model and flow.function.name.startswith("__")  # called by many names
    return flow.function.name == "forward" or bool(flow.inputs) or is_unknown


def _is_handle(flow: Flow, name: str) -> bool:
    """Whether a name is that of a nested function that takes nothing of the inputs along, or holds a loaded kernel."""
    values = [own for node in ast.walk(flow.function) for target, own in bindings(node) if _names(target, name)]
    made = [value for value in values if not (is_kept(flow, value) or isinstance(value, ast.Constant))]
    kinds = [flow.source.dotted(value.func) if isinstance(value, ast.Call) else "" for value in made]
    if kinds and all(kind.startswith("ctypes.") for kind in kinds):
        return True
    inner = [node for node in ast.walk(flow.function) if isinstance(node, ast.FunctionDef) and node.name == name]
    for function in inner:
        own = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        names = {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
        if names & (flow.inputs - own):
            return False
    return bool(inner)


def _is_read(source: CandidateSource, target: ast.expr) -> bool:
    """Whether anything in the file reads what is counted; a count that nobody reads (`num_batches_tracked`) decides
    nothing."""
    if not isinstance(target, ast.Name | ast.Attribute):
        return True
    name = target.id if isinstance(target, ast.Name) else target.attr
    for node in (part for statement in source.own for part in ast.walk(statement)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            if name == (node.id if isinstance(node, ast.Name) else node.attr):
                return True
        elif isinstance(node, ast.Constant) and node.value == name:
            call = source.above(node)
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "self.register_buffer"):
                return True
    return False


def _check_handlers(flow: Flow, node: ast.Try | ast.TryStar) -> Iterator[Finding]:
    """Where the inputs are at work, an except clause must raise again: anything else is a silent fallback. Whether a
    tensor can be viewed may be tried."""
    calls = [part.func for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Call)]
    if calls and all(isinstance(call, ast.Attribute) and call.attr in VIEWS | METADATA for call in calls):
        return
    for handler in node.handlers:
        if not isinstance(handler.body[-1], ast.Raise) and _uses_inputs(flow, node):
            yield Finding("fallback", handler.lineno, "an exception in forward is caught and other code runs")


def _suppresses(node: ast.With | ast.AsyncWith) -> bool:
    return any("suppress" in ast.unparse(item.context_expr) for item in node.items)


def _uses_inputs(flow: Flow, node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id in flow.inputs for part in ast.walk(node))


def _check_keeper(flow: Flow, node: ast.Call, returned: set[str]) -> Iterator[Finding]:
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in KEEPERS and _outlives(flow, node.func)):
        return
    if _is_library(flow, node.func.value):
        return  # an entry of its kernels that happens to be called "add"
    for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
        kept_result = isinstance(argument, ast.Name) and argument.id in returned
        if is_input(flow, argument) or kept_result:
            yield Finding(
                "result_cache", node.lineno, f"{ast.unparse(node.func)} keeps something made of the inputs across calls"
            )
            return


_LOADS = re.compile(r"\b(?:CDLL|LoadLibrary|load_inline|load_library)\b|\bcpp_extension\.load\b")


def _is_library(flow: Flow, holder: ast.expr) -> bool:
    """Whether a name holds nothing but a loaded library: `lib = ctypes.CDLL(...)`, `self.lib = build()`."""
    source = flow.source
    values: list[ast.expr] = []
    if isinstance(holder, ast.Name):
        values = source.assigned.get(holder.id, [])
    elif isinstance(holder, ast.Attribute) and isinstance(holder.value, ast.Name):
        values = list(_values_of(source, flow.owner, holder.attr))
    return bool(values) and all(isinstance(value, ast.Call) and _loads(source, value) for value in values)


def _loads(source: CandidateSource, call: ast.Call) -> bool:
    """A call that loads a library, or of an own function whose every result comes from such a call."""
    name = ast.unparse(call.func)
    if _LOADS.search(source.dotted(call.func) or name):
        return True
    function = source.functions.get(name) or source.methods.get(name.removeprefix("self."))
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)] if function else []
    return bool(returned) and function is not None and _LOADS.search(ast.unparse(function)) is not None


def _is_container(flow: Flow, test: ast.expr) -> bool:
    """A list or tuple of inputs by its bare name: whether there are any says nothing of their values."""
    while isinstance(test, ast.UnaryOp):
        test = test.operand
    if not isinstance(test, ast.Name):
        return False
    variable = flow.function.args.vararg
    if variable is not None and variable.arg == test.id:
        return True
    values = [value for node in ast.walk(flow.function) for target, value in bindings(node) if _names(target, test.id)]
    return bool(values) and all(isinstance(value, ast.List | ast.Tuple | ast.ListComp) for value in values)


def _names(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _check_branch(flow: Flow, node: ast.If | ast.While | ast.IfExp) -> Iterator[Finding]:
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    if not any(is_input(flow, test) for test in tests if not _is_container(flow, test)):
        return
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and not node.orelse:
        return  # refusing an input aloud, or a failed launch, is a check
    if isinstance(node, ast.IfExp) and _is_raised(flow.source, node):
        return  # which words it is refused with
    test = ast.unparse(node.test)[:80]
    yield Finding("input_shortcut", node.lineno, f"forward branches on the inputs' values or addresses: {test}")


def _is_raised(source: CandidateSource, node: ast.expr) -> bool:
    """Whether an expression only makes what is raised."""
    above: ast.AST | None = node
    while isinstance(above, ast.expr | ast.keyword):
        above = source.above(above)
    return isinstance(above, ast.Raise)


_OF_OBJECTS = re.compile(r"super\(\)\.__(?:new|init|del|repr|setattr|init_subclass)__")


def _check_call(flow: Flow, node: ast.Call) -> Iterator[Finding]:
    path = flow.source.dotted(node.func)
    text = ast.unparse(node.func)
    is_reference = text.startswith("super()") and not (_OF_OBJECTS.fullmatch(text) or _is_inherited(flow, text))
    if is_reference or path in ("Model.forward", "Model.__call__"):
        yield Finding("reference", node.lineno, f"calls {text}, the reference itself")
    elif path.startswith("self.") or (isinstance(node.func, ast.Name) and _is_kept_layer(flow, node.func.id)):
        layer = _layer(flow, path)
        if layer and any(is_input(flow, item) for item in node.args):
            what = f"calls {text} on the inputs, {layer}"
            yield Finding("reference", node.lineno, what, by_watching=layer == UNKNOWN)
    elif path == "ctypes.set_errno" and not all(isinstance(item, ast.Constant) for item in node.args):
        yield Finding("phase_detection", node.lineno, "keeps a number in errno from call to call")
    elif path.startswith("torch."):
        parts = path.split(".")
        last = parts[3] if parts[1] == "ops" and len(parts) > 3 else parts[-1]  # torch.ops.aten.softmax.int
        is_own = parts[1] == "library" or (parts[1] == "ops" and len(parts) > 3 and parts[2] in flow.source.registered)
        is_build = path.startswith("torch.utils.cpp_extension")
        if is_random(path) and flow.function.name != "forward":
            return  # by rule precomputed
        if last not in ALLOCATIONS and last not in VIEWS and not is_own and not is_build:
            yield Finding("torch_compute", node.lineno, f"calls {path}")
    elif path.startswith("numpy.") and path.split(".")[-1] not in NUMPY_MEMORY:
        if path.split(".")[-1] in NUMPY_COMPARISONS and not _hands_over(flow, node):
            return
        what = f"calls {path}: what NumPy computes, the candidate does not"
        yield Finding("imports", node.lineno, what, subject=path)
    elif (rule := forbidden(path)) and rule[0] == "files" and _hands_over(flow, node):
        yield Finding("files", node.lineno, f"hands something made of the inputs to {path}")
    elif path.startswith(("operator.", "math.")) and any(is_input(flow, item) for item in node.args):
        yield Finding("torch_compute", node.lineno, f"calls {path} on a value made of the inputs")
    elif isinstance(node.func, ast.Attribute) and is_input(flow, node.func.value):
        name = node.func.attr
        if name not in VIEWS | METADATA | ALLOCATIONS | {"numpy"}:  # what leaves PyTorch is followed
            yield Finding("torch_compute", node.lineno, f"calls .{name}() on a value made of the inputs")


def _is_inherited(flow: Flow, text: str) -> bool:
    """Whether `super().name` is a method of the file's own classes, with nobody else's class among those above."""
    lineage = flow.source.lineage(flow.owner)
    bases = {flow.source.dotted(base) for part in lineage for base in part.bases}
    is_own = bases <= {"torch.nn.Module", "object", *flow.source.classes}
    return is_own and any(text == f"super().{name}" for part in lineage[1:] for name in methods_of(part))


def _hands_over(flow: Flow, node: ast.Call) -> bool:
    return any(is_input(flow, item) for item in [*node.args, *(keyword.value for keyword in node.keywords)])


def _is_kept_layer(flow: Flow, name: str) -> bool:
    """A callable from state that lasts, unless that is a table of the file's own functions."""
    if name not in flow.kept:
        return False
    values = [value for node in ast.walk(flow.function) for target, value in bindings(node) if name in _stored(target)]
    sources = {part.id for value in values for part in ast.walk(value) if isinstance(part, ast.Name)}
    if "self" in sources or not sources & flow.source.assigned.keys():
        return True
    held = [value for source in sources for value in flow.source.assigned.get(source, ())]
    made = [flow.source.dotted(part.func) for value in held for part in ast.walk(value) if isinstance(part, ast.Call)]
    layers = {name for name, part in flow.source.classes.items() if not _is_plain(flow.source, part)}
    return any(path.startswith("torch.nn.") or path in {"Model", *layers} for path in made)


def _is_plain(source: CandidateSource, owner: ast.ClassDef) -> bool:
    """An own class that inherits from own classes only: all that its methods do is read here."""
    bases = {source.dotted(base) for part in source.lineage(owner) for base in part.bases}
    return bases <= {"object", "abc.ABC", *source.classes}


def _kept_kind(flow: Flow, name: str) -> str:
    """What a callable is that comes out of the model's attributes: a table of functions is not told from one of layers
    here, unless the file puts layers into it or asks the module for its own."""
    values = [value for node in ast.walk(flow.function) for target, value in bindings(node) if name in _stored(target)]
    if not values:
        return UNKNOWN  # the caller's
    parts = [part for value in values for part in ast.walk(value) if isinstance(part, ast.Attribute)]
    attributes = {part.attr for part in parts if isinstance(part.value, ast.Name) and part.value.id == "self"}
    for attribute in attributes - set(flow.source.methods_in(flow.owner)):
        held = list(_values_of(flow.source, flow.owner, attribute))
        made = [
            flow.source.dotted(part.func) for value in held for part in ast.walk(value) if isinstance(part, ast.Call)
        ]
        if not held or any(path.startswith("torch.") and not path.startswith(_NO_LAYERS) for path in made):
            return "a layer kept by the model"
    return UNKNOWN if attributes else "a layer kept by the model"


def _is_constant(source: CandidateSource, default: ast.expr) -> bool:
    """A default argument that nothing can be kept in: an immutable value, or an instance of a frozen class."""
    if not isinstance(default, ast.Call):
        return False
    if source.dotted(default.func) in _IMMUTABLE:
        return True
    made = source.classes.get(ast.unparse(default.func))
    decorators = made.decorator_list if made is not None else []
    return any(
        isinstance(item, ast.Call)
        and source.dotted(item.func) == "dataclasses.dataclass"
        and any(word.arg == "frozen" and ast.unparse(word.value) == "True" for word in item.keywords)
        for item in decorators
    )


_IMMUTABLE = frozenset(
    words(
        "tuple frozenset int float str bool bytes range torch.device pathlib.Path tempfile.mktemp tempfile.mkdtemp "
        "tempfile.gettempdir os.path.join os.getcwd os.cpu_count os.getenv math.sqrt math.log max min abs round"
    )
)


def _stored(target: ast.expr) -> set[str]:
    return {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}


UNKNOWN = "whose making is not in sight"


def _layer(flow: Flow, path: str) -> str:
    """What `self.x...` is when calling it runs the reference's or PyTorch's layers; "" for the candidate's own code."""
    if not path.startswith("self."):
        return _kept_kind(flow, path)
    name, last = path.split(".")[1], path.split(".")[-1]
    if path.count(".") > 1 and last in VIEWS | METADATA | ALLOCATIONS:
        return ""  # a tensor's own method
    if name in flow.source.methods_in(flow.owner) and path.count(".") == 1:
        return ""
    values = list(_values_of(flow.source, flow.owner, name))
    if not values:
        bases = [flow.source.dotted(base) for part in flow.source.lineage(flow.owner) for base in part.bases]
        is_plain = all(base in {"torch.nn.Module", "object", *flow.source.classes} for base in bases)
        return UNKNOWN if is_plain else "a layer or method of the reference"
    for value in values:
        kind = flow.source.dotted(value.func if isinstance(value, ast.Call) else value)
        if kind.startswith("torch.") and not kind.startswith(_NO_LAYERS):
            return f"a {kind}"
        if kind in ("Model", "super"):
            return "a layer or method of the reference"
    return ""


_NO_LAYERS = ("torch.nn.Parameter", "torch.utils.cpp_extension", "torch.ops", "torch.empty", "torch.cuda")


def _values_of(source: CandidateSource, owner: ast.ClassDef | None, name: str) -> Iterator[ast.expr]:
    """Whatever the file assigns to self.<name>, in the class's body, in its methods or to the class."""
    lineage = source.lineage(owner)
    places = {f"{holder}.{name}" for holder in ("self", "cls", "type(self)", "self.__class__")}
    places |= {f"{part.name}.{name}" for part in lineage}
    for part in lineage:
        for node in part.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and name in defined_names(node):
                yield node.value
    for statement in [*lineage, *(item for item in source.own if not isinstance(item, ast.ClassDef))]:
        for item in ast.walk(statement):
            for target, value in bindings(item):
                if ast.unparse(target) in places:
                    yield value


def _check_arithmetic(flow: Flow, node: ast.BinOp | ast.UnaryOp) -> Iterator[Finding]:
    operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
    for operand in operands:
        if is_input(flow, operand) and is_outside(flow, operand):
            what = f"computes {ast.unparse(node)[:80]} outside PyTorch and outside its kernels"
            yield Finding("imports", node.lineno, what)
            return
        if is_input(flow, operand) and "data_ptr" not in ast.unparse(node) and not isinstance(operand, ast.List):
            yield Finding("torch_compute", node.lineno, f"computes {ast.unparse(node)[:80]} with PyTorch's operators")
            return
