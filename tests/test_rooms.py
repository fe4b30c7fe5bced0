"""The rooms: imports go one way, no room is crowded, the untrusted process runs no code of the trusted one, and what is
named by a string is there. Imports are read from the source, those inside functions too."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from foundry.knowledge.targets import BUILT_IN

ROOT = Path(__file__).resolve().parents[1]
MOST_MODULES = 16  # in one room

# From the bottom up. A module imports from its own room and from rooms above its line in this list, never from below.
ROOMS = (
    "knowledge",
    "knowledge.cards",
    "knowledge.devices",
    "knowledge.experience",
    "knowledge.compiler.ir",
    "knowledge.compiler.rules",
    "knowledge.compiler.rules.sequences",
    "knowledge.compiler.rules.writes",
    "knowledge.compiler.algebra",
    "knowledge.compiler.fusion.finish",
    "knowledge.compiler.fusion",
    "knowledge.compiler.schedule",
    "knowledge.compiler.file",
    "knowledge.compiler.cpu",
    "knowledge.compiler.cpu.rows",
    "knowledge.compiler.cpu.contractions",
    "knowledge.compiler.cuda",
    "knowledge.compiler.cuda.rows",
    "knowledge.compiler.cuda.contractions",
    "knowledge.compiler.cuda.convolutions",
    "knowledge.compiler.authored",
    "knowledge.compiler.printers",
    "knowledge.compiler",
    "tools",
    "tools.process",
    "tools.machine",
    "tools.task.construction",
    "tools.task.form",
    "tools.task.values",
    "tools.task.decomposition",
    "tools.task",
    "tools.targets",
    "tools.targets.cpu",
    "tools.targets.cuda",
    "tools.protocol",
    "tools.audit.text",
    "tools.audit.binary",
    "tools.audit.acts",
    "tools.audit",
    "tools.profiling",
    "tools.grade.messages",
    "tools.grade.runner",
    "tools.grade.questions.freedom",
    "tools.grade.questions.integers",
    "tools.grade.questions",
    "tools.grade.judge",
    "tools.tune",
    "tools.grade",
    "tools.grade.host",
    "tools.remote",
    "tools.verify",
    "tools.selftest.faults",
    "tools.selftest",
    "agents",
    "agents.prompts",
    "agents.experts",
    "agents.playbook",
    "agents.prompt_text",
    "agents.chat",
    "agents.models",
    "graph.run",
    "graph.proofs",
    "graph.search",
    "graph.search.strategies.evolving",
    "graph.search.strategies",
    "graph.nodes.island",
    "graph.nodes",
    "graph.show",
    "graph.show.words",
    "graph.show.terminal",
    "graph.show.trace",
    "graph.show.page",
    "graph",
    "graph.history",
    "graph.doors",
    "graph.doors.mcp",
    "graph.doors.serve",
    "graph.doors.commands",
    "graph.doors.bench",
    "cli",
)
ORDER = {room: number for number, room in enumerate(ROOMS)}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name below `foundry`; a folder's __init__ has the folder's name."""
    found = {"cli": ROOT / "cli.py"}
    for top in ("knowledge", "tools", "agents", "graph"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    return module if module == "cli" or modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def imports_of(tree: ast.AST, *, types: bool) -> Iterator[str]:
    """The modules of the package that a module imports, wherever in its text."""
    for node in nodes_of(tree, types=types):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith("foundry."):
            base = node.module.removeprefix("foundry").removeprefix(".")
            for name in node.names:
                inner = f"{base}.{name.name}".removeprefix(".")
                yield inner if inner in modules() else base
        elif isinstance(node, ast.Import):
            yield from (name.name.removeprefix("foundry.") for name in node.names if name.name.startswith("foundry."))


def nodes_of(tree: ast.AST, *, types: bool) -> Iterator[ast.AST]:
    """All nodes; without `types` not those that only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if types or not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield node
            waiting += ast.iter_child_nodes(node)


class Told(NamedTuple):
    """What a module's text imports, what of it not for types alone, and the names in its strings."""

    imports: frozenset[str]
    without_types: frozenset[str]
    names: frozenset[str]


@cache
def told() -> dict[str, Told]:
    """Of every module, each of which is parsed once."""
    found = {}
    for name, path in modules().items():
        tree = ast.parse(path.read_text())
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        names = {text for text in texts if re.fullmatch(r"foundry(?!\.toml|\.targets$)(?:\.\w+)+(?::\w+)?", text)}
        every, real = (frozenset(imports_of(tree, types=types)) for types in (True, False))
        found[name] = Told(every, real, frozenset(names))
    return found


@cache
def edges(*, types: bool = True) -> frozenset[tuple[str, str]]:
    """(importing module, imported module) of the package; `types`: also what only a type checker imports."""
    found = {(name, to) for name, of in told().items() for to in (of.imports if types else of.without_types)}
    return frozenset((name, to) for name, to in found if to in modules())


def test_every_room_is_in_the_list_and_says_what_it_is_for() -> None:
    assert {room_of(name) for name in modules()} == set(ROOMS)
    for room in set(ROOMS) - {"cli"}:
        said = ast.get_docstring(ast.parse((ROOT / room.replace(".", "/") / "__init__.py").read_text()))
        assert said and said.split("\n\n")[0].endswith("."), f"{room}/__init__.py needs its sentence"


def test_imports_go_one_way() -> None:
    """With one order of the rooms and no import against it there is no cycle between rooms either."""
    wrong = sorted(f"{a} imports {b}" for a, b in edges() if ORDER[room_of(b)] > ORDER[room_of(a)])
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    imported: dict[str, set[str]] = {name: set() for name in modules()}
    for a, b in edges(types=False):
        imported[a] |= {b} - {a}
    assert set(TopologicalSorter(imported).static_order()) == set(modules())  # raises CycleError, which names a circle


def test_no_room_is_crowded() -> None:
    counts = Counter(room_of(name) for name, path in modules().items() if path.name != "__init__.py")
    crowded = {room: count for room, count in counts.items() if count > MOST_MODULES}
    assert not crowded


def test_the_untrusted_process_runs_no_code_of_the_judge() -> None:
    """What runners import, directly or through others, lies outside the judge's room and the host's."""
    seen, ahead = set(), [name for name in modules() if room_of(name) == "tools.grade.runner"]
    assert len(ahead) > 5
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += [to for of, to in edges(types=False) if of == name]
    trusted = ("tools.grade.questions", "tools.grade.judge", "tools.verify", "graph", "agents")
    assert not {name for name in seen if name.startswith(trusted)}
    assert not {name for name in seen if room_of(name) in ("tools.grade", "tools.grade.host")}


OF_ONE_TARGET = ("tools.targets.", "knowledge.compiler.cpu", "knowledge.compiler.cuda", "knowledge.compiler.printers.")


def asks_for_a_target_by_name(node: ast.AST) -> bool:
    """True for a comparison with a target's name, and for a table by such names."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators] if isinstance(node.ops[0], ast.Eq | ast.NotEq) else node.comparators
        parts = [part for side in sides for part in (side.elts if isinstance(side, ast.Tuple | ast.Set) else [side])]
    else:
        parts = [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
    return any(isinstance(part, ast.Constant) and part.value in BUILT_IN for part in parts)


def test_nothing_but_a_target_s_own_folder_asks_for_it_by_name() -> None:
    """What differs between targets stands in knowledge/targets.py, or behind Printer, Target and TorchDevice."""
    asking = [
        f"{name}:{node.lineno}"  # type: ignore[attr-defined]
        for name, path in modules().items()
        if not name.startswith(OF_ONE_TARGET)
        for node in ast.walk(ast.parse(path.read_text()))
        if asks_for_a_target_by_name(node)
    ]
    assert not asking


def test_everything_that_is_named_by_a_string_is_there() -> None:
    """Entry points of processes and modules that are preloaded: a move would break them without an import to tell."""
    named = {name for of in told().values() for name in of.names}
    assert len(named) > 8
    for name in named:
        module, _, function = name.partition(":")
        found = importlib.util.find_spec(module)
        assert found is not None, name
        if function:
            text = Path(found.origin or "").read_text()
            assert re.search(rf"^(def|class) {function}\b", text, re.MULTILINE), name


def test_the_rooms_of_the_architecture_are_these() -> None:
    shown = re.findall(r"^\| `([\w/]+)/?(?:\.py)?` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert {room.rstrip("/").replace("/", ".") for room in shown} >= set(ROOMS)
