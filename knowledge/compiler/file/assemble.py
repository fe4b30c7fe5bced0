"""The candidate file: one self-contained Python module with `class ModelNew(Model)`.

Every target's file has the same top (a comment line, the literals FOUNDRY and SOURCE that `ast.literal_eval` reads),
the task's own model, and a loader; the differences are in `<target>/module.py.txt` and `<target>/module.py`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import pprint
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from foundry.knowledge import syntax
from foundry.knowledge.compiler.file.skeleton import skeleton_text
from foundry.knowledge.compiler.file.texts import fill as fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import Arrangement, Construction
from foundry.knowledge.task import foreign_imports

_NOT_KEPT = frozenset({"get_inputs", "get_init_inputs"})


@dataclass(frozen=True)
class Entry:
    """One captured shape: its plan, and the printed kernel of each step (None for a TorchCall)."""

    plan: Plan
    kernels: tuple[PrintedKernel | None, ...]


@dataclass(frozen=True)
class Body:
    """A target's texts for its template."""

    about: dict[str, object]  # the FOUNDRY literal
    source: str  # the SOURCE literal
    compiler: str
    holes: Mapping[str, str]  # @NAME@ of the template -> text


@dataclass(frozen=True)
class Reference:
    """The part of the task that a file keeps, for the parameters of its model."""

    source: str
    overrides: Mapping[str, int] = field(default_factory=dict)  # module constants with other values (`SCALE = 1`)
    constructions: tuple[Construction, ...] = ()  # one for each captured case, if the class itself is not kept
    kept_class: str = ""  # the reason why a class that needs more than torch is kept all the same

    def model(self) -> tuple[str, str]:
        """(its __future__ imports, `class Model` and everything it needs)."""
        return (
            ("", skeleton_text(self.constructions)) if self.constructions else split_task(self.source, self.overrides)
        )

    def needs(self, compiler: str) -> str:
        """The packages and compilers that the file needs, in words."""
        if not self.kept_class:
            return f"torch and {compiler} only"
        return f"torch, {compiler} and {', '.join(foreign_imports(self.source))}, because {self.kept_class}"


def assemble(reference: Reference, entries: Sequence[Entry], body: Body, target: str) -> str:
    """Fills the target's template; the literals come first, so that tools find them without running anything. Raises
    CannotLower if the source cannot stand in a raw string."""
    if '"""' in body.source or body.source.endswith("\\"):
        raise CannotLower("the kernel's source cannot stand in a raw string")
    template = read_library_text(f"{target}/module.py.txt")
    future, model = reference.model()
    falls_back = any(entry.plan.graph is not None and entry.plan.graph.falls_back for entry in entries)
    holes = {
        "TARGET": target,
        "NEEDS": reference.needs(body.compiler),
        "FUTURE": future,
        "ABOUT": f"FOUNDRY = {pprint.pformat(body.about, width=110, sort_dicts=False)}",
        "SOURCE": f'SOURCE = r"""{body.source}"""',
        "MODEL": model,
        "REFUSALS": _keys_text(entries) + _mode_text(entries),
        "FALLBACK": f"\n\n\n{read_library_text('file/fallback.py.txt').strip()}" if falls_back else "",
        **body.holes,
    }
    return fill(template, holes)


def _keys_text(entries: Sequence[Entry]) -> str:
    """Lines of forward that refuse dicts with other keys than the captured ones."""
    graph = entries[0].plan.graph if entries else None
    lines = [] if graph is None or graph.takes is None else _key_refusals(graph.takes, "args")
    return "".join(f"    {line}\n" for line in lines)


def _key_refusals(arrangement: Arrangement, where: str) -> Iterator[str]:
    """Lines that refuse dicts with other keys, or in another order; `where` is the expression of the nested value."""
    if arrangement.kind == "dict":
        keys = list(arrangement.keys)
        yield f"_only(list({where}), {f'the keys of {where}'!r}, {keys!r})"
    if arrangement.kind == "keywords":
        yield f"_only(sorted(kwargs), 'the names of arguments', {sorted(arrangement.keys)!r})"
    for step, item in zip(arrangement.steps, arrangement.items, strict=True):
        inner = "kwargs" if item.kind == "keywords" else where + step
        yield from _key_refusals(item, inner)


def _mode_text(entries: Sequence[Entry]) -> str:
    """Lines of forward that refuse the mode that was not captured, if the model computes something else in it."""
    graph = entries[0].plan.graph if entries else None
    if graph is None or not graph.reads_mode:
        return ""
    own, other, is_other = (
        ("train", "eval", "not self.training") if graph.training else ("eval", "train", "self.training")
    )
    words = f"compiled for model.{own}(): use Model in {other}(), where it does something else"
    return f'''    if {is_other}:
        raise _NotCompiled("{words}")
'''


def split_task(source: str, overrides: Mapping[str, int]) -> tuple[str, str]:
    """(its __future__ imports, the rest without input makers, main guard and overridden constants' old values)."""
    tree = syntax.parse(source)
    lines = source.splitlines()
    future: list[str] = []
    kept: list[str] = []
    position = 0
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *[decorator.lineno for decorator in decorators]]) - 1
        last = node.end_lineno or node.lineno
        kept += lines[position:first]
        position = max(position, last)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future += lines[first:last]
        elif _overridden(node) in overrides:
            kept.append(f"{_overridden(node)} = {overrides[_overridden(node)]}")
        elif not _is_dropped(node):
            kept += lines[first:last]
    kept += lines[position:]
    return "\n".join(future), "\n".join(kept).strip("\n")


def _overridden(node: ast.stmt) -> str:
    """The name that a statement assigns, or ""."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""


def _is_dropped(node: ast.stmt) -> bool:
    """True for input makers and the main guard."""
    if isinstance(node, ast.FunctionDef):
        return node.name in _NOT_KEPT
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def build_key(source: str, flags: Sequence[str], compiler_version: str, machine: str) -> str:
    """The name of a build in the cache. The candidate's own loader computes the same from its literals."""
    return hashlib.sha256(json.dumps([source, list(flags), compiler_version, machine]).encode()).hexdigest()[:32]
