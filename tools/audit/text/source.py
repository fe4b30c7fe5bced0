"""Parses a candidate's file for the audit: resolved names, and the statements that are its own."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from foundry.knowledge import syntax
from foundry.knowledge.compiler.file.texts import library_texts

Function = ast.FunctionDef | ast.AsyncFunctionDef
_HOLE = re.compile(r"@[A-Z_]+@")


@dataclass(frozen=True)
class Unreadable:
    """The reason why a file cannot be judged at all, and its line."""

    why: str
    line: int


@dataclass
class CandidateSource:
    """The parsed file. `own` are the top-level statements that belong neither to the task nor to Foundry's binding."""

    text: str
    tree: ast.Module
    own: list[ast.stmt]
    aliases: dict[str, str] = field(default_factory=dict)  # local name -> dotted path it stands for
    functions: dict[str, Function] = field(default_factory=dict)  # module-level functions
    trusted_names: set[str] = field(default_factory=set)  # functions of the task or of Foundry's binding
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)  # own classes
    model: ast.ClassDef | None = None

    @property
    def methods(self) -> dict[str, Function]:
        """ModelNew's methods, including those inherited from the file's own classes."""
        found: dict[str, Function] = {}
        pending = [self.model] if self.model else []
        lineage = list[ast.ClassDef]()
        while pending:
            part = pending.pop(0)
            if part not in lineage:
                lineage.append(part)
                pending += [self.classes[name] for base in part.bases if (name := self.dotted(base)) in self.classes]
        for part in reversed(lineage):
            found.update(methods_of(part))
        return found

    def dotted(self, node: ast.expr) -> str:
        """The full dotted name: `F.softmax` -> "torch.nn.functional.softmax", also through a literal getattr; "" if
        it is none."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        if isinstance(node, ast.Call) and self.dotted(node.func) == "getattr" and len(node.args) >= 2:
            name = node.args[1]
            base = self.dotted(node.args[0])
            if base and isinstance(name, ast.Constant) and isinstance(name.value, str):
                return f"{base}.{name.value}"
        return ""


def methods_of(owner: ast.ClassDef | None) -> dict[str, Function]:
    """A class's own methods by name."""
    body = owner.body if owner else []
    return {node.name: node for node in body if isinstance(node, Function)}


def read_source(text: str, task_source: str = "") -> CandidateSource | Unreadable:
    """The parsed candidate, or the reason why it cannot be read. The task's and Foundry's statements are marked as
    trusted."""
    try:
        tree = syntax.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Unreadable(f"the file does not parse: {error}", getattr(error, "lineno", None) or 0)
    trusted = _statements(task_source) | foundry_binding()
    source = CandidateSource(text, tree, [])
    for node in tree.body:
        if ast.dump(node) in trusted:
            source.trusted_names.update(_defined(node))
        else:
            source.own.append(node)
            if isinstance(node, ast.ClassDef):
                source.classes[node.name] = node
        if isinstance(node, Function):
            source.functions[node.name] = node
        elif isinstance(node, ast.ClassDef) and node.name == "ModelNew":
            source.model = node
    for part in ast.walk(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            source.aliases.update(_import_aliases(part))
    if source.model is None:
        return Unreadable("the file defines no class ModelNew", 0)
    return source


def shared_imports(text: str, task_source: str) -> list[str]:
    """Load-time import statements of a candidate that import only names which the task's own file imports too.

    Imports in functions count only in constructors. A file that does not parse has none.
    """
    try:
        own, task = syntax.parse(text), syntax.parse(task_source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    known = {name for node in _imports(task, in_functions=True) for name in _imported(node)}
    return [ast.unparse(node) for node in _imports(own) if _imported(node) <= known]


def _imports(tree: ast.AST, *, in_functions: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements of a file; those in functions only in constructors, unless `in_functions`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif in_functions or not isinstance(node, Function) or node.name == "__init__":
            yield from _imports(node, in_functions=in_functions)


def _imported(node: ast.Import | ast.ImportFrom) -> set[tuple[str, int, str, str]]:
    """(module, level, name, local alias) of each name that a statement imports."""
    if isinstance(node, ast.Import):
        return {(alias.name, 0, "", alias.asname or "") for alias in node.names}
    return {(node.module or "", node.level, alias.name, alias.asname or "") for alias in node.names}


def _defined(node: ast.stmt) -> list[str]:
    """Names that a top-level statement binds."""
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _import_aliases(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Maps the local names of an import statement to the dotted paths they stand for."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
            for alias in node.names
        }
    return {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}


def _statements(text: str) -> set[str]:
    """The top-level statements of a text, each as its AST dump; empty if it does not parse."""
    try:
        return {ast.dump(node) for node in syntax.parse(text).body}
    except (SyntaxError, ValueError):
        return set()


@functools.cache
def foundry_binding() -> frozenset[str]:
    """AST dumps of the binding functions in the templates that candidates are printed with.

    A statement that equals its template builds, loads and launches as the compiler's does. One changed token makes
    it the candidate's own, and every rule applies to it.
    """
    found: set[str] = set()
    for name, text in library_texts().items():
        if name.endswith(".py.txt"):
            for block in _blocks(text):
                found |= _statements(block)
    return frozenset(found)


def _blocks(text: str) -> Iterator[str]:
    """Top-level statements of a template, without those that hold a placeholder (@NAME@) and differ from file to
    file."""
    block: list[str] = []
    for line in [*text.splitlines(), "end"]:
        continues = not line or line[0].isspace() or line.startswith((")", "]", "}"))
        if not continues and block and not block[-1].startswith("@"):
            if not _HOLE.search("\n".join(block)):
                yield "\n".join(block)
            block = []
        block.append(line)


def string_constants(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every string constant, bytes decoded; an f-string as one, with "0" for each inserted value."""
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
    """Values of FOUNDRY and SOURCE in a candidate file; missing or computed ones are left out."""
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
