"""A task: a KernelBench-style file and the options beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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
