"""A task: a KernelBench-style file and the options beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["fair", "open", "strict"]
AccuracyClass = Literal["ieee", "tf32"]
Mode = Literal["as_given", "train", "eval"]


@dataclass(frozen=True)
class TaskOptions:
    """What `task.toml` may say; the defaults are a plain KernelBench task."""

    instructions: str = ""  # to the experts, in the user's words
    policy: Policy = "fair"
    tolerance: float | None = None  # elementwise; None takes the dtype's default
    accuracy: AccuracyClass | None = None  # the worst class the user accepts; None accepts what the policy does
    dtypes: tuple[str, ...] = ()  # input dtypes to solve for besides the file's own
    extra_shapes: tuple[dict[str, int], ...] = ()  # module constants to override, one dict a shape
    mode: Mode = "as_given"
    start: str = ""  # path of a kernel file to start from
    input_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Task:
    """`source` is the file's text, `digest` the sha256 of text and options; `overrides` the module constants set
    before `get_inputs` is called (`--scale N` sets SCALE)."""

    name: str
    path: str
    source: str
    digest: str
    options: TaskOptions = field(default_factory=TaskOptions)
    overrides: dict[str, int] = field(default_factory=dict)
