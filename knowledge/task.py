"""A task: a KernelBench-style file, the options beside it, and what is read and replaced in its text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from foundry.knowledge import syntax
from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import DType

Policy = Literal["fair", "open", "strict"]
AccuracyClass = Literal["ieee", "tf32"]
Mode = Literal["as_given", "train", "eval"]
# Parameters with which a kernel is judged: the reference's and others, copied in, or those of its own constructor.
ParametersUsed = Literal["loaded", "as-built"]
OtherShapes = Literal["raise", "reference"]
REFERENCE_ELSEWHERE = "reference-elsewhere"  # label of a kernel that runs the task's forward for other shapes
OWN_PARAMETERS = "own-parameters"  # label of a kernel that was judged with its own parameters

# Elementwise, relative to the truth and its spread, unless a task names its own.
TOLERANCE: dict[DType, float] = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-2}
TOLERANCE |= {"complex128": 1e-6, "complex64": 1e-3}
TOLERANCE |= {"float8_e4m3fn": 0.125, "float8_e4m3fnuz": 0.125, "float8_e5m2": 0.25, "float8_e5m2fnuz": 0.25}  # a step
TOLERANCE |= {"float8_e8m0fnu": 0.125}  # powers of two: less than a step


@dataclass(frozen=True)
class TaskOptions:
    """Options of `task.toml`; the defaults are a plain KernelBench task."""

    instructions: str = ""  # the user's words to the experts
    policy: Policy = "fair"
    tolerance: float | None = None  # elementwise; None takes the dtype's default
    # The least accurate class that the user accepts; None leaves it to the policy.
    accuracy: AccuracyClass | None = None
    dtypes: tuple[str, ...] = ()  # input dtypes to solve for besides the file's own
    extra_shapes: tuple[dict[str, int], ...] = ()  # module constants to override, one dict a shape
    mode: Mode = "as_given"
    start: str = ""  # path of a kernel file to start from
    input_range: tuple[float, float] | None = None
    model: str = ""  # name of the model's class; "" is Model
    files: dict[str, str] = field(default_factory=dict)  # files that the task uses: relative path -> sha256


@dataclass(frozen=True)
class Task:
    """A task file with its options.

    `source` is the file's text, `digest` the sha256 of text and options; `overrides` are the module constants set
    before `get_inputs` is called (`--scale N` sets SCALE). `parameters` and `other_shapes` are no part of the digest.
    `other_shapes` says what a kernel does for shapes, modes and gradients that it was not compiled for.
    """

    name: str
    path: str
    source: str
    digest: str
    options: TaskOptions = field(default_factory=TaskOptions)
    overrides: dict[str, int] = field(default_factory=dict)
    parameters: ParametersUsed = "loaded"
    other_shapes: OtherShapes = "raise"

    @property
    def text(self) -> str:
        """The source with Model as a second name of the model's class, as it is executed and put into kernel files."""
        return f"{self.source.rstrip()}\n\n\nModel = {self.options.model}\n" if self.options.model else self.source


def module_constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Expressions of top-level `NAME = expression` and `A, B = one, other`, by name; the last one wins, as in
    Python."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            found |= _named(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found |= _named(node.target, node.value)
    return found


def _named(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    """The expressions assigned to the names of one target."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List):
        return {}
    if len(target.elts) != len(value.elts) or any(
        isinstance(item, ast.Starred) for item in (*target.elts, *value.elts)
    ):
        return {}
    return {name: own for pair in zip(target.elts, value.elts, strict=True) for name, own in _named(*pair).items()}


def overridden_source(source: str, overrides: Mapping[str, int]) -> str:
    """`source` with module constants replaced by `overrides`; line numbers stay as they are.

    The text is changed, not the loaded module, so that constants computed from others follow. Raises TaskError for a
    name that is not a module constant.
    """
    if not overrides:
        return source
    constants = module_constants(syntax.parse(source))
    lines = source.encode("utf-8").splitlines(keepends=True)  # AST columns count bytes
    for name, value in sorted(overrides.items(), key=lambda item: _place_of(constants, item[0]), reverse=True):
        expression = constants[name]
        assert expression.end_lineno is not None and expression.end_col_offset is not None
        first, last = expression.lineno - 1, expression.end_lineno - 1
        tail = lines[last][expression.end_col_offset :]
        lines[first] = lines[first][: expression.col_offset] + str(int(value)).encode() + tail
        for index in range(first + 1, last + 1):
            lines[index] = b"\n"
    return b"".join(lines).decode("utf-8")


def _place_of(constants: dict[str, ast.expr], name: str) -> tuple[int, int]:
    """Line and column of a constant's expression; raises TaskError if there is none."""
    if name not in constants:
        raise TaskError(
            f"{name} is overridden but is not a module constant of the task",
            f"add `{name} = ...` at the top of the file and use it in get_inputs",
        )
    return constants[name].lineno, constants[name].col_offset


# Modules that are present wherever torch is.
_BESIDE_TORCH = frozenset({"torch", "numpy", "typing_extensions", *sys.stdlib_module_names})


def foreign_imports(source: str) -> tuple[str, ...]:
    """Packages and files that a text imports and torch does not bring, each once, in order; a relative import is
    ".name"."""
    found: list[str] = []
    for node in ast.walk(syntax.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(f"{'.' * node.level}{(node.module or '').partition('.')[0]}")
    return tuple(dict.fromkeys(name for name in found if name not in _BESIDE_TORCH))
