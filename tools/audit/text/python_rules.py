"""Rules over the candidate's own Python: the binding may construct, allocate, view, check and launch, nothing else."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from foundry.tools.audit.text.chance import is_random, passing_numbers
from foundry.tools.audit.text.forbidden import (
    ALLOWED_IMPORTS,
    RANDOM,
    SETTINGS,
    forbidden,
    is_seen_at_run_time,
    may_ask_for,
)
from foundry.tools.audit.text.registered import is_own_registration
from foundry.tools.audit.text.source import (
    READABLE_WHOLE,
    CandidateSource,
    Finding,
    Function,
    bound_names,
    defined_names,
    imported_by,
    methods_of,
)
from foundry.tools.audit.text.streams import is_joined
from foundry.tools.words import words

MODEL_HOOKS = frozenset(
    {"__call__", "_call_impl", "__getattribute__", "__getattr__", "__torch_function__", "__torch_dispatch__"}
    | {"__class__", "__init_subclass__", "__new__", "_wrapped_call_impl", "__reduce__"}
)
PRIVATE_ATTRIBUTES = frozenset(
    words(
        "__code__ __globals__ __closure__ __builtins__ __subclasses__ __bases__ __mro__ f_back f_locals f_globals "
        "tb_frame gi_frame __defaults__ __wrapped__ __loader__ __spec__ from_address in_dll __setattr__ "
        "__setitem__ __delattr__"
    )
)
LARGEST_TABLE = 4096
# Threads and processes that build while the file is loaded; what they leave behind is seen in the process.
_WORKERS = ("threading.Thread", "concurrent.futures", "asyncio")
_POINTERS = {"ctypes.memmove": 2, "ctypes.memset": 1}  # how many arguments are addresses


def python_findings(source: CandidateSource) -> Iterator[Finding]:
    """Every broken rule outside the task's own statements and Foundry's binding."""
    constructors = _constructor_nodes(source)
    passing = passing_numbers(source)
    for statement in source.own:
        for node in ast.walk(statement):
            if node in constructors and isinstance(node, ast.Attribute | ast.Name) and source.dotted(node) in RANDOM:
                continue
            if node in passing and isinstance(node, ast.Attribute | ast.Name) and is_random(source.dotted(node)):
                continue
            yield from _imports(source, node)
            yield from _uses(source, node)
            yield from _stores(source, node)
            yield from _classes(source, node)
            yield from _tables(node)
            if isinstance(node, Function) and not _registers(source, node):
                yield from _closures(node)
        for name in defined_names(statement):
            if name in source.trusted_names and not name.isupper():
                yield Finding("global_state", statement.lineno, f"redefines {name} of the task or of the binding")
    yield from _model(source)


def _constructor_nodes(source: CandidateSource) -> set[ast.AST]:
    constructors = [methods_of(owner).get("__init__") for owner in source.classes.values()]
    return {node for constructor in constructors if constructor for node in ast.walk(constructor)}


def _imports(source: CandidateSource, node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.ImportFrom) and node.level:
        yield Finding("imports", node.lineno, "imports from a package beside it")
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        if any(alias.name == "*" for alias in node.names) and node.module not in READABLE_WHOLE:
            yield Finding("dynamic_code", node.lineno, f"imports every name of {node.module}, so none can be checked")
    for name in names:
        rule = forbidden(name)
        # a module of the allow-list may be imported for the binding; what matters is where it is used
        if rule and name.split(".")[0] not in ALLOWED_IMPORTS:
            yield Finding(rule[0], _line(node), f"imports {name}, which {rule[1]}", subject=name)
        elif name.split(".")[0] not in ALLOWED_IMPORTS:
            what = f"imports {name}, which is not part of PyTorch or its bindings"
            yield Finding("imports", _line(node), what, subject=name)


def _uses(source: CandidateSource, node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        path = source.dotted(node)
        rule = forbidden(path)
        if rule and _means_it(source, node, path) and not _is_harmless(source, node, path):
            is_seen = is_seen_at_run_time(path) or (path.startswith(_WORKERS) and not _in_a_call(source, node))
            yield Finding(rule[0], node.lineno, f"uses {path}, which {rule[1]}", is_seen, subject=path)
    if isinstance(node, ast.Attribute) and node.attr == "__dict__" and ast.unparse(node.value) != "self":
        yield Finding("dynamic_code", node.lineno, f"reads {ast.unparse(node)}", by_watching=True)
    if isinstance(node, ast.Attribute) and node.attr in PRIVATE_ATTRIBUTES and not _writes_number(source, node):
        yield Finding("introspection", node.lineno, f"reads .{node.attr}")
    if isinstance(node, ast.Attribute) and re.fullmatch(r"_?register_\w*hook", node.attr):
        is_own = re.match(r"self\b", ast.unparse(node.value)) is not None and "state_dict" in node.attr
        yield Finding("hooks", node.lineno, f"calls {node.attr}", by_watching=is_own)
    if isinstance(node, ast.Call):
        yield from _calls(source, node)
    if isinstance(node, ast.Call | ast.Subscript | ast.Compare | ast.Attribute | ast.Name):
        yield from _environment(source, node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PRIVATE_ATTRIBUTES:
        yield Finding("introspection", node.lineno, f"names {node.value} in a string")


def _sets_a_mark(source: CandidateSource, node: ast.expr) -> bool:
    """`lambda module, keys: setattr(module, "stale", True)`: what `module.stale = True` is in a function."""
    call = source.above(node)
    above: ast.AST | None = call
    while above is not None and not isinstance(above, ast.Lambda):
        above = source.above(above)
    if not (isinstance(call, ast.Call) and call.func is node and len(call.args) == 3) or above is None:
        return False
    owner, name, value = call.args
    is_argument = isinstance(owner, ast.Name) and owner.id in {item.arg for item in above.args.args}
    word = name.value if isinstance(name, ast.Constant) else None
    is_plain = isinstance(word, str) and word.isidentifier() and word not in PRIVATE_ATTRIBUTES
    return is_argument and is_plain and (isinstance(value, ast.Constant) or word in ("argtypes", "restype"))


def _is_harmless(source: CandidateSource, node: ast.expr, path: str) -> bool:
    """`threading` inside `threading.Lock`: the longer name is judged. A copy between tensors' memory."""
    if is_own_registration(source, node, path):
        return True
    if path == "setattr":
        return _sets_a_mark(source, node)
    if path == "ctypes.CFUNCTYPE":
        return _is_prototype(source, node)
    if path in ("torch.cuda.Stream", "torch.cuda.stream"):
        return is_joined(source, node)
    above = source.above(node)
    if path in ("globals", "sys.modules"):
        return _is_own_module(source, node, path)
    if path == "__import__" and isinstance(above, ast.Call) and above.func is node:
        return imported_by(above) in ALLOWED_IMPORTS  # what is used of the module is judged where it is used
    if path in _POINTERS and isinstance(above, ast.Call) and above.func is node and not above.keywords:
        pointers = above.args[: _POINTERS[path]]
        return len(pointers) == _POINTERS[path] and all(ast.unparse(one).endswith(".data_ptr()") for one in pointers)
    return isinstance(above, ast.Attribute)


def _is_own_module(source: CandidateSource, node: ast.expr, path: str) -> bool:
    """`sys.modules[__name__]`, or `globals()` where one name in quotes is looked up, stored or asked for."""
    above = source.above(node)
    if path == "sys.modules":
        return isinstance(above, ast.Subscript) and ast.unparse(above.slice) == "__name__"
    if not (isinstance(above, ast.Call) and above.func is node):
        return False
    use = source.above(above)
    name: ast.expr | None = None
    if isinstance(use, ast.Subscript):
        name = use.slice
    elif isinstance(use, ast.Compare):
        name = use.left
    elif isinstance(use, ast.Attribute) and use.attr in ("get", "setdefault"):
        call = source.above(use)
        name = call.args[0] if isinstance(call, ast.Call) and call.args else None
    said, is_whole = _beginning(source, name)
    others = [alias for alias in source.aliases if (alias == said if is_whole else alias.startswith(said))]
    return bool(said) and not said.startswith("__") and not others


def _beginning(source: CandidateSource, text: ast.expr | None) -> tuple[str, bool]:
    """What a text begins with, as far as it stands in quotes, and whether that is all of it."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return text.value, True
    if isinstance(text, ast.JoinedStr) and text.values:
        return _beginning(source, text.values[0])[0], False
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        return _beginning(source, text.left)[0], False
    if isinstance(text, ast.Name):
        assigned = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assign)]
        values = [node.value for node in assigned if [ast.unparse(item) for item in node.targets] == [text.id]]
        is_bound_once = text.id not in {item.arg for item in ast.walk(source.tree) if isinstance(item, ast.arg)}
        return _beginning(source, values[0]) if len(values) == 1 and is_bound_once else ("", False)
    return "", False


def _in_a_call(source: CandidateSource, node: ast.AST) -> bool:
    """Whether forward can reach a node, as far as names tell."""
    above: ast.AST | None = node
    while above is not None and not isinstance(above, Function | ast.Lambda):
        above = source.above(above)
    if above is None:
        return False
    return isinstance(above, ast.Lambda) or above in [function for function, _ in source.reached().values()]


def _is_prototype(source: CandidateSource, node: ast.expr) -> bool:
    """`CFUNCTYPE(...)(("run", library))`, at once or through a name: the types of a function that a library exports,
    not one at some address and not a callback."""
    made = source.above(node)
    if not isinstance(made, ast.Call) or made.func is not node:
        return False
    above = source.above(made)
    uses: list[ast.AST | None] = [above]
    named = above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None
    named = above.target if isinstance(above, ast.AnnAssign) else named
    if isinstance(named, ast.Name):
        name = named.id
        if [value for value in source.assigned.get(name, ()) if value is not made]:
            return False
        loads = [part for part in ast.walk(source.tree) if isinstance(part, ast.Name) and part.id == name]
        uses = [source.above(part) for part in loads if isinstance(part.ctx, ast.Load)]
    return all(isinstance(use, ast.Call) and use.func is not node and _names_export(use) for use in uses)


def _writes_number(source: CandidateSource, node: ast.Attribute) -> bool:
    """`c_float.from_address(out.data_ptr()).value = ...`: one number into a tensor."""
    call = source.above(node)
    if node.attr != "from_address" or not isinstance(call, ast.Call) or call.func is not node or len(call.args) != 1:
        return False
    value = source.above(call)
    is_store = isinstance(value, ast.Attribute) and value.attr == "value" and isinstance(value.ctx, ast.Store)
    return is_store and ast.unparse(call.args[0]).endswith(".data_ptr()")


def _names_export(call: ast.Call) -> bool:
    """Whether a function type is called with ("name", library)."""
    what = call.args[0] if len(call.args) == 1 and not call.keywords else None
    return isinstance(what, ast.Tuple) and len(what.elts) == 2 and isinstance(what.elts[0], ast.Constant)


def _means_it(source: CandidateSource, node: ast.expr, path: str) -> bool:
    """A word of the table is what it seems: an imported module's or a builtin, not a variable that shares its name."""
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return isinstance(root, ast.Call)  # getattr(torch, "...")
    if root.id in source.aliases:
        return True
    if root.id in source.functions:
        return False
    if root.id in source.module_names:  # `exec = exec` is no variable of its own
        made_of = [part for value in source.assigned.get(root.id, ()) for part in ast.walk(value)]
        return any(isinstance(part, ast.Name) and part.id == root.id for part in made_of)
    return (hasattr(builtins, root.id) or path in ("get_inputs", "torch")) and root.id not in source.bound_in(node)


def _calls(source: CandidateSource, node: ast.Call) -> Iterator[Finding]:
    path = source.dotted(node.func)
    if path == "getattr" and (len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)):
        owner = source.dotted(node.args[0]).split(".")[0] if node.args else ""
        is_own = owner != "torch" and owner not in source.aliases
        yield Finding("dynamic_code", node.lineno, "getattr with a computed name", by_watching=is_own)
    if path.split(".")[-1] in ("CDLL", "PyDLL", "LoadLibrary", "WinDLL") and path.startswith("ctypes"):
        literal = next((argument for argument in node.args if isinstance(argument, ast.Constant)), None)
        if literal is not None or path.endswith("PyDLL"):
            what = f"loads {literal.value!r}" if literal is not None else f"calls {path}"
            yield Finding(
                "imports", node.lineno, f"{what}, a library that the candidate did not build", by_watching=True
            )


def _environment(
    source: CandidateSource, node: ast.Call | ast.Subscript | ast.Compare | ast.Attribute | ast.Name
) -> Iterator[Finding]:
    """Variables of the environment by name: those that configure threads and compilers may be set, its own be read."""
    key: ast.expr | None = None
    reads = True
    if isinstance(node, ast.Attribute | ast.Name):
        if source.dotted(node) == "os.environ" and not _is_handed_on(source, node):
            yield Finding("files", node.lineno, "looks through the environment")
        return
    if isinstance(node, ast.Call):
        path = source.dotted(node.func)
        if path in ("os.getenv", "os.environ.get", "os.environ.setdefault", "os.environ.pop") and node.args:
            key = node.args[0]
            reads = not path.endswith(("setdefault", "pop"))
    elif isinstance(node, ast.Subscript):
        key = node.slice if source.dotted(node.value) == "os.environ" else None
        reads = isinstance(node.ctx, ast.Load)
    elif any(source.dotted(item) == "os.environ" for item in node.comparators):
        key = node.left
    if key is None:
        return
    names = _words_of(source, key)
    if names and all(SETTINGS.fullmatch(name) or (name and reads and may_ask_for(name)) for name in names):
        return
    yield Finding("files", _line(node), f"reads or sets the environment variable {ast.unparse(key)}")


def _words_of(source: CandidateSource, key: ast.expr) -> list[str]:
    """The words that a name may stand for: a constant's own, or those of the rows of constants that loops take it
    from. Nothing where something else binds it too."""
    if isinstance(key, ast.Constant):
        return [str(key.value)]
    if not isinstance(key, ast.Name) or key.id in source.aliases:
        return []
    found: list[ast.expr] = []
    times = 0
    for part in ast.walk(source.tree):
        if isinstance(part, ast.For | ast.comprehension) and isinstance(part.iter, ast.Tuple | ast.List):
            row, is_bound = part.iter.elts, ast.unparse(part.target) == key.id
        elif isinstance(part, ast.Assign) and len(part.targets) == 1:
            row, is_bound = [part.value], ast.unparse(part.targets[0]) == key.id
        else:
            continue
        if is_bound:
            times, found = times + 1, [*found, *row]
    if times != list(bound_names(ast.walk(source.tree))).count(key.id):
        return []
    return [str(item.value) if isinstance(item, ast.Constant) else "" for item in found]


def _is_handed_on(source: CandidateSource, node: ast.Attribute | ast.Name) -> bool:
    """The environment where one variable is looked up, or as a whole for a compiler."""
    above = source.above(node)
    if isinstance(above, ast.Attribute):
        return above.attr in ("get", "setdefault", "pop", "copy")
    if isinstance(above, ast.Call):
        return ast.unparse(above.func) == "dict"
    is_spread = isinstance(above, ast.Dict) and any(key is None for key in above.keys)
    return is_spread or isinstance(above, ast.Subscript | ast.Compare | ast.keyword)


def _stores(source: CandidateSource, node: ast.AST) -> Iterator[Finding]:
    """Attributes and items of imported modules and of foreign classes are not the candidate's to change."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    for target in targets:
        base: ast.expr = target
        while isinstance(base, ast.Subscript):
            base = base.value
        if not isinstance(base, ast.Attribute) and base is target:
            continue
        path = source.dotted(base)
        root = path.split(".")[0]
        if path == "os.environ" or path.endswith((".argtypes", ".restype", ".errcheck")):
            continue  # a variable's name is judged where it stands; a function's types are the binding's to say
        if root in {alias.split(".")[0] for alias in source.aliases.values()} or root in ("nn", "F", "builtins"):
            yield Finding("global_state", _line(node), f"assigns to {path}")
        elif root in ("Model", "ModelNew") and isinstance(base, ast.Attribute) and _replaces(source, node, path):
            yield Finding("global_state", _line(node), f"replaces {path} after the class is defined")


def _replaces(source: CandidateSource, node: ast.AST, path: str) -> bool:
    """Whether the store takes the place of something that runs: a method, a function of others. A class may be given
    its library, its settings."""
    root, name = path.split(".")[0], path.split(".")[1]
    value = getattr(node, "value", None)
    is_run = isinstance(value, ast.Lambda | ast.Name) or not isinstance(value, ast.expr)
    is_run = is_run and not (isinstance(value, ast.Name) and value.id in source.bound_in(node))
    is_run |= isinstance(value, ast.expr) and source.dotted(value).startswith("torch.")
    is_special = name[:2] == "__" == name[-2:] or name in _RUN or name in source.methods
    return root == "Model" or is_special or is_run


_RUN = frozenset(
    words("forward train eval to load_state_dict state_dict parameters named_parameters buffers named_buffers modules")
)


def _classes(source: CandidateSource, node: ast.AST) -> Iterator[Finding]:
    if not isinstance(node, ast.ClassDef):
        return
    bases = [source.dotted(base) for base in node.bases]
    for base in bases:
        if base in ("torch.Tensor", "torch.nn.Parameter", "torch.Storage"):
            yield Finding("lazy_result", node.lineno, f"class {node.name} pretends to be a {base}")
        if base.endswith(("DispatchMode", "TorchFunctionMode")):
            yield Finding("global_state", node.lineno, f"class {node.name} intercepts PyTorch's operators")
    is_layer = any(base.startswith("torch.nn.") and base != "torch.nn.Module" for base in bases)
    if is_layer and node is not source.model and "forward" not in source.methods_in(node):
        has_others = any(isinstance(part, ast.FunctionDef) and part.name != "__init__" for part in node.body)
        words = f"class {node.name} is a renamed PyTorch layer"
        yield Finding("reference", node.lineno, words, by_watching=has_others)  # whether PyTorch's runs is seen


def _model(source: CandidateSource) -> Iterator[Finding]:
    model = source.model
    if model is None or source.trusts_model:
        return
    definitions = [node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    for again in definitions[:-1]:
        yield Finding("readable", again.lineno, "ModelNew is defined twice")
    if model.decorator_list:
        yield Finding("lazy_result", model.lineno, "ModelNew is wrapped by a decorator")
    for base in model.bases:
        path = source.dotted(base)
        if path not in ("Model", "torch.nn.Module", "object") and path not in source.classes:
            yield Finding("reference", model.lineno, f"ModelNew inherits from {path or 'an expression'}")
    for name, method in source.methods.items():
        if name in MODEL_HOOKS:
            yield Finding("lazy_result", method.lineno, f"ModelNew defines {name}, which runs around forward")
    if "forward" not in source.methods:
        yield Finding("reference", model.lineno, "ModelNew has no forward of its own, so the reference's runs")


def _tables(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and len(node.elts) > LARGEST_TABLE:
        yield Finding("precomputed", node.lineno, f"embeds a table of {len(node.elts)} values")
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and len(node.value) > LARGEST_TABLE:
        yield Finding("precomputed", node.lineno, f"embeds {len(node.value)} bytes of data")


def _registers(source: CandidateSource, outer: Function) -> bool:
    """Whether a function only decorates, and what it makes returns the decorated function as it is: a registry."""
    uses = [part for part in ast.walk(source.tree) if isinstance(part, ast.Name) and part.id == outer.name]
    decorated = [part for part in ast.walk(source.tree) if isinstance(part, Function | ast.ClassDef)]
    decorators = {id(name) for part in decorated for item in part.decorator_list for name in ast.walk(item)}
    inner = [part for part in outer.body if isinstance(part, Function)]
    if len(inner) != 1 or not uses or any(id(use) not in decorators for use in uses):
        return False
    names = [argument.arg for argument in inner[0].args.args]
    returned = [part.value for part in ast.walk(inner[0]) if isinstance(part, ast.Return)]
    stored = [part.value for part in ast.walk(inner[0]) if isinstance(part, ast.Assign)]
    return len(names) == 1 and all(isinstance(v, ast.Name) and v.id == names[0] for v in [*returned, *stored])


def _closures(outer: Function) -> Iterator[Finding]:
    """A nested function that stores into names of the function around it keeps them from call to call."""
    for inner in ast.walk(outer):
        if inner is outer or not isinstance(inner, Function | ast.Lambda):
            continue
        own = {argument.arg for argument in ast.walk(inner.args) if isinstance(argument, ast.arg)}
        own |= {node.id for node in ast.walk(inner) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in ast.walk(inner):
            if isinstance(node, ast.Nonlocal):
                yield Finding("result_cache", node.lineno, f"keeps {', '.join(node.names)} in a closure")
            elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
                base: ast.expr = node
                while isinstance(base, ast.Subscript | ast.Attribute):
                    base = base.value
                is_type = isinstance(node, ast.Attribute) and node.attr in ("argtypes", "restype")
                if isinstance(base, ast.Name) and base.id not in own and not is_type:
                    yield Finding("result_cache", node.lineno, f"keeps {ast.unparse(node)} in a closure")


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))
