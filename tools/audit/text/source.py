"""A candidate's file as the audit reads it: names resolved, its own statements, what forward reaches."""

from __future__ import annotations

import ast
import ctypes
import functools
import math
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from foundry.knowledge import syntax
from foundry.knowledge.library.file.texts import library_texts
from foundry.tools.audit.text.reach import living
from foundry.tools.audit.text.scopes import separate
from foundry.tools.task.operators import TAKEN

Function = ast.FunctionDef | ast.AsyncFunctionDef

HOLE = re.compile(r"@[A-Z_]+@")

RULES: dict[str, str] = {
    "readable": "the file parses and defines ModelNew",
    "dynamic_code": "no code is made or looked up at run time",
    "introspection": "nothing reads the caller, the interpreter or foreign memory",
    "global_state": "no library's state is changed",
    "hooks": "no hook, handler or patch stays behind",
    "threads": "nothing runs beside or after the call",
    "files": "no file, process, network or environment is touched",
    "imports": "only PyTorch, its bindings and the standard library's harmless parts",
    "result_cache": "no result is kept across calls",
    "input_shortcut": "the work does not depend on the values of the inputs",
    "phase_detection": "nothing counts calls or reads clocks",
    "precomputed": "no answers are embedded or regenerated",
    "lazy_result": "results are plain tensors",
    "fallback": "no exception falls back to other code",
    "reference": "the reference's forward is not called",
    "torch_compute": "PyTorch computes nothing in forward",
    "native_system": "the kernel source calls no operating system",
    "native_threads": "the kernel source leaves no thread or stream behind",
    "native_state": "the kernel source keeps no results",
    "native_vendor": "the kernel source calls no vendor or PyTorch operator",
    "native_hidden": "the kernel source hides no names and includes no files",
    "build_flags": "compiler flags only optimise",
    "maths": "floating-point rules are those the policy allows",
}


def imported_by(node: ast.expr) -> str:
    """The module that `__import__("module")` gives, "" for anything else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "__import__"):
        return ""
    name = node.args[0] if len(node.args) == 1 and not node.keywords else None
    is_plain = isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier()
    return str(name.value) if is_plain and isinstance(name, ast.Constant) else ""


def _parsed(text: str) -> ast.Module:
    """The file's tree. Raises SyntaxError."""
    tree = separate(syntax.parse(text))
    parts = list(ast.walk(tree))
    bound = Counter(bound_names(parts))
    imported = {part.asname or part.name.split(".")[0] for part in parts if isinstance(part, ast.alias)}
    if {"setattr", "__import__"} & (bound.keys() | imported):
        return tree
    made = Counter(_namespaces(parts)) if not set(_MAKERS) & bound.keys() else Counter()
    namespaces = {name for name, times in made.items() if times == bound[name] and name not in imported}
    plain: ast.Module = _Plain(namespaces).visit(tree)
    return ast.fix_missing_locations(plain)


def bound_names(parts: Iterable[ast.AST]) -> Iterator[str]:
    """Every name that the file binds other than by an import, as often as it does."""
    for part in parts:
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            yield part.id
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, Function | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name:
            yield part.name
        elif isinstance(part, ast.Global | ast.Nonlocal):
            yield from part.names


_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace", "SimpleNamespace")
_MAKERS = ("types", "argparse", "SimpleNamespace")  # names that must mean what they say


def _namespaces(parts: Sequence[ast.AST]) -> Iterator[str]:
    """Names that are bound to an empty namespace of the file's own, as often as they are."""
    for part in parts:
        if isinstance(part, ast.Assign) and len(part.targets) == 1 and isinstance(part.value, ast.Call):
            target, maker = part.targets[0], ast.unparse(part.value.func)
            if isinstance(target, ast.Name) and maker in _NAMESPACES:
                yield target.id


class _Plain(ast.NodeTransformer):
    """Statements as what they are, so that one rule holds for all ways to write one: `setattr(self, name, value)` is a
    store, into a namespace of its own too, `name = lambda` in a class a method, `name = __import__("module")` an
    import."""

    def __init__(self, namespaces: set[str]) -> None:
        self._namespaces = namespaces

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for index, part in enumerate(node.body):
            if isinstance(part, ast.Assign) and isinstance(part.value, ast.Lambda) and len(part.targets) == 1:
                name, made = part.targets[0], part.value
                if isinstance(name, ast.Name):
                    node.body[index] = ast.copy_location(_as_function(name.id, made), part)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if isinstance(target, ast.Name) and len(node.targets) == 1 and (module := imported_by(node.value)):
            return ast.copy_location(ast.Import([ast.alias(module, target.id)]), node)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "setattr" and len(call.args) == 3):
            return self.generic_visit(node)
        owner, name, value = call.args
        is_own = isinstance(owner, ast.Name) and owner.id in self._namespaces
        if not (is_own or ast.unparse(owner) == "self") or call.keywords:
            return self.generic_visit(node)
        target: ast.expr
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            target = ast.Attribute(owner, name.value, ast.Store())
        elif is_own:
            target = ast.Subscript(owner, name, ast.Store())
        else:
            held = ast.Attribute(owner, "__dict__", ast.Load())
            target = ast.Subscript(held, name, ast.Store())
        return ast.copy_location(ast.Assign([target], value), node)


@dataclass(frozen=True)
class Finding:
    """One broken rule at a line of the candidate's file."""

    rule: str
    line: int
    what: str
    by_watching: bool = False  # the mention alone proves nothing: what the process is seen to do decides
    subject: str = ""  # the name, path or flag that it is about, where something is decided on it


@dataclass
class CandidateSource:
    """The parsed file. `own` are the top-level statements that are neither the task's nor Foundry's binding."""

    text: str
    tree: ast.Module
    own: list[ast.stmt]
    aliases: dict[str, str] = field(default_factory=dict)  # local name -> dotted path it stands for
    functions: dict[str, Function] = field(default_factory=dict)  # module-level functions
    assigned: dict[str, list[ast.expr]] = field(default_factory=dict)  # what module-level names are assigned
    trusted_names: set[str] = field(default_factory=set)  # functions of the task or of Foundry's binding
    module_names: set[str] = field(default_factory=set)  # names bound at module level by assignment
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)  # own classes
    model: ast.ClassDef | None = None
    registered: set[str] = field(default_factory=set)  # namespaces of operators that the file registers itself
    trusts_model: bool = False  # ModelNew is Foundry's own, word for word
    _bound: dict[int, set[str]] = field(default_factory=dict)
    _parents: dict[int, ast.AST] = field(default_factory=dict)

    @property
    def methods(self) -> dict[str, Function]:
        return self.methods_in(self.model)

    def methods_in(self, owner: ast.ClassDef | None) -> dict[str, Function]:
        """Methods of a class, those of the file's own classes that it inherits from included."""
        found: dict[str, Function] = {}
        for part in reversed(self.lineage(owner)):
            found.update(methods_of(part))
        return found

    def lineage(self, owner: ast.ClassDef | None) -> list[ast.ClassDef]:
        """A class and the file's own classes above it, nearest first."""
        found: list[ast.ClassDef] = []
        pending = [owner] if owner else []
        while pending:
            part = pending.pop(0)
            if part not in found:
                found.append(part)
                pending += [self.classes[name] for base in part.bases if (name := self.dotted(base)) in self.classes]
        return found

    def dotted(self, node: ast.expr) -> str:
        """`F.softmax` -> "torch.nn.functional.softmax"; "" when it is no chain of names. A literal getattr counts."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        if module := imported_by(node):
            return module
        if isinstance(node, ast.Call) and self.dotted(node.func) == "getattr" and len(node.args) >= 2:
            name = node.args[1]
            base = self.dotted(node.args[0])
            if base and isinstance(name, ast.Constant) and isinstance(name.value, str):
                return f"{base}.{name.value}"
        return ""

    def above(self, node: ast.AST) -> ast.AST | None:
        """The node that a node is a part of."""
        if not self._parents:
            for part in ast.walk(self.tree):
                self._parents.update((id(child), part) for child in ast.iter_child_nodes(part))
        return self._parents.get(id(node))

    def bound_in(self, node: ast.AST) -> set[str]:
        """Names that are bound somewhere in the functions around a node: parameters, assignments, loops."""
        if not self._bound:
            for function in ast.walk(self.tree):
                if isinstance(function, Function | ast.Lambda):
                    names = {item.arg for item in ast.walk(function.args) if isinstance(item, ast.arg)}
                    inner = list(ast.walk(function))
                    names |= {
                        item.id for item in inner if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
                    }
                    for item in inner:
                        self._bound.setdefault(id(item), set()).update(names)
        return self._bound.get(id(node), set())

    def reached(self) -> dict[str, tuple[Function, ast.ClassDef | None]]:
        """Own functions and methods that ModelNew.forward can reach by name, with the class of each method.

        Methods of the file's other classes count as reached: an own layer's forward is called through nn.Module.
        Triton kernels are left out: they are device code in Python's clothes. Trusted code is followed, not returned.
        """
        found: dict[str, tuple[Function, ast.ClassDef | None]] = {}
        pending, seen = ["self.forward"], set[str]()
        for owner in self.classes.values():
            if owner is not self.model:
                for name, method in methods_of(owner).items():
                    if name != "__init__":
                        found[f"{owner.name}.{name}"] = (method, owner)
                        pending += _mentions(method)
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            pending += [item for value in self.assigned.get(name, ()) for item in _mentions(value)]
            in_model = name.startswith("self.")
            function = self.methods.get(name.removeprefix("self.")) if in_model else self.functions.get(name)
            if function is None or _is_triton(self, function):
                continue
            if not (self.trusts_model if in_model else name in self.trusted_names):
                found[name] = (function, self.model if in_model else None)
            pending += _mentions(function)
        return found


def methods_of(owner: ast.ClassDef | None) -> dict[str, Function]:
    body = owner.body if owner else []
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _mentions(part: ast.AST) -> list[str]:
    """Names a part of the file uses; methods as "self.name"."""
    found: list[str] = []
    for node in ast.walk(part):
        if isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "ModelNew"):
            found.append(f"self.{node.attr}")
    return found


def _is_triton(source: CandidateSource, function: Function) -> bool:
    decorators = [item.func if isinstance(item, ast.Call) else item for item in function.decorator_list]
    return any(source.dotted(item).startswith("triton.") for item in decorators)


def read_source(text: str, task_source: str = "") -> CandidateSource | Finding:
    """The parsed candidate, or the finding that it cannot be read."""
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Finding("readable", getattr(error, "lineno", None) or 0, f"the file does not parse: {error}")
    trusted = _statements(task_source) | foundry_binding()
    source = CandidateSource(text, tree, [])
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    if definitions and not any(ast.dump(node) in trusted for node in definitions):
        tree.body = living(tree.body)
    for node in tree.body:
        if ast.dump(node) in trusted:
            source.trusted_names.update(defined_names(node))
        else:
            source.own.append(node)
    for part in ast.walk(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            source.aliases.update(_import_aliases(part))
    for node in tree.body:
        _register(source, node)
    if source.model is None:
        return Finding("readable", 0, "the file defines no class ModelNew")
    source.registered.update(own_namespaces(source))
    return source


REGISTERS = re.compile(r"\b(?:TORCH|STABLE_TORCH)_LIBRARY(?:_IMPL|_FRAGMENT|_EXPAND)?\s*\(\s*(\w+)")


def namespace_of(source: CandidateSource, name: ast.expr | None) -> str:
    """The namespace of "mine::scale", of a constant that holds it, or of an operator that the file defined itself."""
    if isinstance(name, ast.JoinedStr) and name.values:
        name = name.values[0]
    if isinstance(name, ast.Name):
        values = source.assigned.get(name.id, [])
        if len(values) == 1 and not isinstance(values[0], ast.Name):
            made = values[0].args[0] if isinstance(values[0], ast.Call) and values[0].args else values[0]
            return namespace_of(source, made)
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value.split("::")[0]
    return ""


def own_namespaces(source: CandidateSource) -> set[str]:
    """Namespaces that the file's Python and C++ registers operators in."""
    found: set[str] = set()
    for statement in source.own:
        for constant in string_constants(statement):
            found.update(REGISTERS.findall(str(constant.value)))
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and source.dotted(node.func).startswith("torch.library.") and node.args:
                found.add(namespace_of(source, node.args[0]))
    return {name for name in found if name and name not in TAKEN and not name.startswith("_")}


def _register(source: CandidateSource, node: ast.stmt) -> None:
    if isinstance(node, Function):
        source.functions[node.name] = node
    elif isinstance(node, ast.ClassDef):
        if node in source.own:
            source.classes[node.name] = node
        if node.name == "ModelNew":
            source.model, source.trusts_model = node, node not in source.own
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        names = defined_names(node)
        source.module_names.update(names)
        for name in names:
            source.assigned.setdefault(name, []).append(node.value)
            if isinstance(node.value, ast.Lambda):
                source.functions[name] = _as_function(name, node.value)
        path = source.dotted(node.value) if isinstance(node.value, ast.Name | ast.Attribute | ast.Call) else ""
        if path.split(".")[0] in ("torch", "os", "sys", "ctypes", "builtins", "subprocess"):
            source.aliases.update(dict.fromkeys(names, path))


def _as_function(name: str, value: ast.Lambda) -> ast.FunctionDef:
    """`name = lambda ...` as the function it is."""
    returned = ast.copy_location(ast.Return(value.body), value.body)
    made = ast.FunctionDef(name=name, args=value.args, body=[returned], decorator_list=[], returns=None)
    return ast.copy_location(made, value)


def defined_names(node: ast.stmt) -> list[str]:
    """Names a top-level statement binds."""
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = [item for target in targets for item in ast.walk(target)]
    return [item.id for item in parts if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)]


READABLE_WHOLE = {module.__name__: module for module in (ctypes, math, typing)}  # what `import *` takes is known


def _import_aliases(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.ImportFrom) and node.module in READABLE_WHOLE and node.names[0].name == "*":
        taken = [name for name in dir(READABLE_WHOLE[node.module]) if not name.startswith("_")]
        return {name: f"{node.module}.{name}" for name in taken}
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
            for alias in node.names
        }
    return {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}


def _statements(text: str) -> set[str]:
    try:
        return {ast.dump(node) for node in _parsed(text).body}
    except (SyntaxError, ValueError):
        return set()


@functools.cache
def foundry_binding() -> frozenset[str]:
    """Foundry's own binding functions, statement by statement, from the templates that candidates are printed with.

    A statement that equals its template builds, loads and launches as the library does; one changed token makes it
    the candidate's own, and every rule applies to it.
    """
    found: set[str] = set()
    for name, text in library_texts().items():
        if name.endswith(".py.txt"):
            for block in _blocks(text):
                found |= _statements(block)
    return frozenset(found)


def _blocks(text: str) -> Iterator[str]:
    """Top-level statements of a template; those with a named place to fill (@NAME@) differ from file to file."""
    block: list[str] = []
    for line in [*text.splitlines(), "end"]:
        continues = not line or line[0].isspace() or line.startswith((")", "]", "}"))
        if not continues and block and not block[-1].startswith("@"):
            if not HOLE.search("\n".join(block)):
                yield "\n".join(block)
            block = []
        block.append(line)


def string_constants(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every text, bytes as text; an f-string's as one, with a 0 for each value that is put in."""
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
            yield ast.copy_location(ast.Constant(text), node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node
        elif isinstance(node, ast.Constant) and isinstance(
            node.value, bytes
        ):  # a source as compilers' libraries take it
            yield ast.copy_location(ast.Constant(node.value.decode("utf-8", errors="replace")), node)


def foundry_literals(tree: ast.Module) -> dict[str, object]:
    """FOUNDRY and SOURCE of a Foundry candidate file; missing or computed ones are left out."""
    found: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("FOUNDRY", "SOURCE"):
                try:
                    found[name] = ast.literal_eval(node.value)
                except (ValueError, TypeError, SyntaxError, MemoryError):
                    continue
    return found
