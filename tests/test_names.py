"""A public class has one meaning in the whole product, modules say what they are for, printers name their tunables.

All of it is read from the source; nothing is imported."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("knowledge", "tools", "agents", "graph")
LIBRARY = "knowledge/compiler"

# Two classes may share a name only where they are the same thing for two targets.
SHARED = {
    "Accumulator": "one reduction's text, in C++ and in CUDA",
    "Space": "an iteration space with merged dimensions, as the C++ and the CUDA printers need it",
}

# Where a tunable is declared: methods of the CPU's Tuning, functions and the class that make a Tunable.
DECLARING = frozenset({"number", "text", "choose", "make_tunable", "number_tunable", "Tunable"})


@cache
def parsed() -> dict[str, ast.Module]:
    files = [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py"))] + [ROOT / "cli.py"]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def public_classes() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in parsed().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path)
    return found


def test_a_public_class_has_a_name_of_its_own() -> None:
    classes = public_classes()
    assert len(classes) > 200
    doubled = {name: sorted(paths) for name, paths in classes.items() if len(paths) > 1}
    assert set(doubled) == set(SHARED), doubled


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path, tree in parsed().items() if not ast.get_docstring(tree)] == []


def printers() -> dict[str, str]:
    """Folder of the library -> docstrings of its printers that list their choices."""
    found: dict[str, str] = defaultdict(str)
    for path, tree in parsed().items():
        for node in tree.body if path.startswith(LIBRARY) else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("print_"):
                text = ast.get_docstring(node) or ""
                found[str(Path(path).parent)] += text if "`choices` may hold" in text else ""
    return found


def tunables(folder: str) -> set[str]:
    """Names of the tunables that a folder's modules declare."""
    found: set[str] = set()
    for path, tree in parsed().items():
        if str(Path(path).parent) != folder:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if name in DECLARING and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.add(first.value)
    return found


@pytest.mark.parametrize(
    "folder", ["cpu", "cpu/rows", "cpu/contractions", "cuda", "cuda/rows", "cuda/contractions", "cuda/convolutions"]
)
def test_a_printer_names_each_of_its_tunables(folder: str) -> None:
    declared, told = tunables(f"{LIBRARY}/{folder}"), printers()[f"{LIBRARY}/{folder}"]
    assert declared and {name for name in declared if f'"{name}"' not in told} == set()
