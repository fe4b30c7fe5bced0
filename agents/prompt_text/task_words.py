"""Describes the task of a run in words: sizes, shapes, dtypes, mode, tolerance, with the overrides of this run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from foundry.knowledge.opgraph import DType, OpGraph, Signature, TensorSpec, written_input
from foundry.knowledge.task import TOLERANCE, Task, overridden_source

MOST_CASES = 8  # further shapes and dtypes that are spelt out; the rest is counted
MODES = {
    "as_given": "as the file leaves it",
    "train": "training: `model.train()` is called",
    "eval": "evaluation: `model.eval()` is called",
}


def reference(task: Task) -> str:
    """The task's text with its module constants as they are set for this run."""
    return overridden_source(task.text, task.overrides)


def describe_task(task: Task, graphs: Sequence[OpGraph] = (), seen: Signature | None = None) -> str:
    """The requirements on a kernel of this task, one a line: shapes, cases, mode, ranges, tolerance.

    `graphs`: one for each captured case, the file's own case first. If the task could not be captured there are none,
    and `seen` holds the tensors of one call.
    """
    options = task.options
    lines = []
    if task.overrides:
        lines.append(f"Sizes: {_constants(task.overrides)}, set for this run; the reference below shows it.")
    lines += _signature(graphs[0]) if graphs else _seen(seen)
    lines += _further_cases(task, graphs[1:])
    lines.append(f"Mode: {MODES[options.mode]}" + _captured_mode(graphs) + ".")
    if options.input_range is not None:
        low, high = options.input_range
        lines.append(f"Floating-point inputs are drawn uniformly from {low:g} to {high:g} instead of by get_inputs.")
    lines.append(_tolerance(task, _dtypes(graphs, seen)))
    if options.accuracy is not None:
        lines.append(f"Accuracy: class {options.accuracy} or better is accepted, nothing less.")
    return "\n".join(line if line.startswith(" ") else f"- {line}" for line in lines)


def _constants(values: dict[str, int]) -> str:
    """ "name = value" of each constant, separated by commas."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _signature(graph: OpGraph) -> list[str]:
    """Inputs and outputs of a captured case."""
    written = {written_input(key) for key in graph.mutations}
    lines = [
        f"Input {value.source}: {_spec(value.spec)}{', written to by forward' if value.source in written else ''}"
        for value in graph.inputs
    ]
    lines += [f"Input {position}: {value!r}, the same in every call" for position, value in graph.fixed.items()]
    values = graph.values
    lines += [f"Output {number}: {_spec(values[name].spec)}" for number, name in enumerate(graph.output_names)]
    return lines


def _seen(seen: Signature | None) -> list[str]:
    """Tensors of one call of a task that no tracer follows."""
    if seen is None:
        return ["No tracer follows the reference: its text says the shapes."]
    lines = [f"Input {number}: {_spec(spec)}" for number, spec in enumerate(seen.inputs)]
    return lines + [f"Output {number}: {_spec(spec)}, as one call gave it" for number, spec in enumerate(seen.outputs)]


def _spec(spec: TensorSpec) -> str:
    """Dtype, shape, and strides if the tensor is not contiguous."""
    layout = "contiguous" if spec.is_contiguous else f"strides {list(spec.strides)} (not contiguous)"
    return f"{spec.dtype} {list(spec.shape)}, {layout}"


def _further_cases(task: Task, graphs: Sequence[OpGraph]) -> Iterator[str]:
    """One line a further shape or dtype: one file must be right for all of them."""
    options = task.options
    usual = len(options.extra_shapes) + len(options.dtypes)
    cases = [f"inputs number {number + 2} of the file" for number in range(len(graphs) - usual)]
    cases += [_constants(shape) for shape in options.extra_shapes]
    cases += [f"{dtype}: parameters and floating-point inputs are converted to it" for dtype in options.dtypes]
    if not cases:
        return
    yield f"The same file must be right for {len(cases)} further case{'s' if len(cases) > 1 else ''}:"
    for number, case in enumerate(cases[:MOST_CASES]):
        shapes = f" ({'; '.join(_signature(graphs[number]))})" if number < len(graphs) else ""
        yield f"  - {case}{shapes}"
    if len(cases) > MOST_CASES:
        yield f"  - and {len(cases) - MOST_CASES} more"


def _captured_mode(graphs: Sequence[OpGraph]) -> str:
    """Words about the mode in which the graph was captured, and whether the other mode differs; "" without a graph."""
    if not graphs:
        return ""
    graph = graphs[0]
    own, other = ("training", "model.eval()") if graph.training else ("evaluation", "model.train()")
    differs = f"; after {other} the model does something else: compute that too, or raise an exception there"
    return f" (captured in {own} mode{differs if graph.reads_mode else ''})"


def _dtypes(graphs: Sequence[OpGraph], seen: Signature | None) -> set[DType]:
    """The dtypes of the outputs, as far as they are known."""
    outputs = [graph.values[name].spec for graph in graphs for name in graph.output_names]
    return {spec.dtype for spec in (outputs or (seen.outputs if seen else ()))}


def _tolerance(task: Task, dtypes: Set[DType]) -> str:
    """The sentence about the tolerance for these dtypes: the task's own, or the default of each type."""
    told = task.options.tolerance
    known = {dtype: value for dtype, value in TOLERANCE.items() if dtype in dtypes}
    if dtypes and not known:
        return "Outputs are compared exactly."
    if told is not None:
        size = f"{told:g}, as the task sets it"
    else:
        size = ", ".join(f"{value:g} for {dtype}" for dtype, value in (known or TOLERANCE).items())
    return (
        f"Tolerance of an element, relative to |truth| + the output's standard deviation: {size}; "
        "more only where PyTorch itself errs by more than half of it."
    )
