"""The part of a prompt that does not change in a run: task, operators, buffers, device, header, form of an answer.

It stands first in every prompt, so that providers' caches hold it.
"""

from __future__ import annotations

import re
from collections import Counter

from foundry.agents.brief import Brief
from foundry.agents.prompt import render, template
from foundry.agents.prompt_text.source import code_words, is_shown_whole, outline_of_file
from foundry.agents.prompt_text.task_words import describe_task, reference
from foundry.agents.situation import COSTLY_KINDS, Situation
from foundry.knowledge.compiler.authored.planning import authored_buffers
from foundry.knowledge.compiler.ir.kernels import Buffer
from foundry.knowledge.compiler.printers import find_printer
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import Op, OpGraph, contiguous_strides
from foundry.knowledge.targets import find_target

FIRST = "c1"
MOST_OPERATORS = 24
MOST_BUFFERS = 40
RULES = {
    "fair": "The dominant operations run in the candidate's own kernels; exact algebra; TF32 as eager may use it.",
    "open": "System speed: vendor GEMM and convolution calls and declared approximations are allowed and labelled.",
    "strict": "IEEE float32 only: no TF32, relaxed maths, graphs or shape locks; prepared weights track the weights.",
}


def contract(target: str, *, is_traced: bool = True) -> str:
    """The rules of a candidate for this target, and the allowed forms of an answer.

    A task that no tracer follows (`is_traced` False) allows whole files only.
    """
    always, traits = template("contract_any"), find_target(target)
    if not is_traced:
        return render("contract_file", {"files": template(f"contract_file_{traits.prompts}"), "any": always})
    return render(
        "contract", {"language": traits.language, "files": template(f"contract_{traits.prompts}"), "any": always}
    )


def standing_words(brief: Brief) -> dict[str, str]:
    """The slots of a step's prompt that are the same at every step of a run."""
    task, device = brief.task, brief.device
    return {
        "task": task.name,
        "target": device.target,
        "instructions": f"The user says: {task.options.instructions}\n" if task.options.instructions else "",
        "asked": describe_task(task, brief.graphs, brief.seen),
        "reference": reference(task),
        "operators": operators(brief),
        "buffers": buffers(brief.graph, device.target) if brief.graph is not None else "",
        "device": describe_device(device),
        "policy": task.options.policy,
        "rules": RULES[task.options.policy],
        "contract": contract(device.target, is_traced=brief.graph is not None),
        "header": header_words(brief),
        "first": _first(brief),
    }


def header_words(brief: Brief) -> str:
    """The functions of the kernel compiler's header, without its 16-bit types if the task has none."""
    text = template(f"header_{brief.device.target}")
    graphs = [graph for graph in (brief.graph, *brief.further_graphs) if graph is not None]
    dtypes = {value.spec.dtype for graph in graphs for value in graph.values.values()}
    if not dtypes or dtypes & {"float16", "bfloat16"}:
        return text
    return "\n".join(part for part in re.split(r"\n(?=- )", text) if not part.startswith("- `float16`"))


def _first(brief: Brief) -> str:
    """The kernel compiler's first kernel, whole or as an outline; "" without one. Later prompts show parents like it by
    their differences."""
    if not brief.first:
        return ""
    title = f"## The kernel compiler's first kernel, {FIRST}"
    if not is_shown_whole(brief.first):
        return f"{title}\n{outline_of_file(brief.first)}\n"
    return f"{title}\n{code_words(brief.first)}\n"


def operators(brief: Brief) -> str:
    """One line an operator (result, MFLOP, MB of its operands), and a line of totals with the roofline floor."""
    graph = brief.graph
    if graph is None:
        return _operators_that_ran(brief)
    lines = [_operator(op, graph) for op in graph.ops[:MOST_OPERATORS]]
    if len(graph.ops) > MOST_OPERATORS:
        kinds = Counter(op.kind for op in graph.ops[MOST_OPERATORS:])
        lines.append(f"- and {', '.join(f'{count} {kind}' for kind, count in kinds.most_common(8))}")
    costly = sum(op.outputs[0].spec.numel for op in graph.ops if op.kind in COSTLY_KINDS)
    whole = f"In all {graph.flops / 1e6:.4g} MFLOP"
    whole += f" and {costly / 1e6:.4g} million exponentials, logarithms, roots or divisions" if costly else ""
    whole += f"; at least {graph.min_bytes / 1e6:.4g} MB move: inputs, parameters and outputs once, without what only"
    whole += " indices choose."
    floor_ms = Situation(brief).floor_ms
    return "\n".join([*lines, whole + (f" Roofline floor of that: {floor_ms:.4g} ms." if floor_ms else "")])


def _operators_that_ran(brief: Brief) -> str:
    """The operators that PyTorch's profiler saw, for a reference that no tracer could follow."""
    if not brief.ran:
        return "No tracer follows the reference: its operators are not known."
    lines = [
        f"- {row.name}: {row.calls} calls, {row.ms:.3g} ms, {row.flops / 1e6:.4g} MFLOP, "
        f"{row.traffic_bytes / 1e6:.4g} MB"
        for row in brief.ran
    ]
    return "\n".join(["No tracer follows the reference. PyTorch runs, by its profiler:", *lines])


def _operator(op: Op, graph: OpGraph) -> str:
    """A line about an operator: its inputs, result, MFLOP, and the MB that it would move alone."""
    values = graph.values
    moved = sum(values[name].spec.nbytes for name in op.reads if name in values)
    moved += sum(value.spec.nbytes for value in op.outputs)
    spec = op.outputs[0].spec
    work = f", {op.flops / 1e6:.4g} MFLOP" if op.flops else ""
    read = ", ".join(op.reads[:4])
    return f"- {op.name} = {op.kind}({read}): {spec.dtype} {list(spec.shape)}{work}, {moved / 1e6:.4g} MB alone"


def buffers(graph: OpGraph, target: str) -> str:
    """The buffers that a kernel may take, one a line, with name, C++ type, role and shape."""
    try:
        found = authored_buffers(graph)
    except CannotLower as error:
        return f"None: {error}. Only a whole file can be given."
    lines = [_buffer(buffer, target) for buffer in found.values()]
    return "\n".join(
        [*lines[:MOST_BUFFERS], *([f"- and {len(lines) - MOST_BUFFERS} more"] * (len(lines) > MOST_BUFFERS))]
    )


def _buffer(buffer: Buffer, target: str) -> str:
    """A line about a buffer for an author: its C type, role, shape, and strides if it is not contiguous."""
    kind = find_printer(target).element(buffer.dtype)
    roles = {
        "input": f"const {kind}*, input {buffer.source}",
        "parameter": f"const {kind}*, parameter {buffer.source}",
        "constant": f"const {kind}*, the model's {buffer.source}",
        "output": f"{kind}*, output, to be written",
    }
    role = roles.get(buffer.role, f"{kind}*, new value of {buffer.source}, to be written")
    layout = "" if buffer.strides == contiguous_strides(buffer.shape) else f", strides {list(buffer.strides)}"
    return f"- `{buffer.name}`: {role} {list(buffer.shape)}{layout}"


def describe_device(device: Device) -> str:
    """The device's name and size, its measured rates, and the limits that decide about tiles."""
    traits = device.traits
    cache_mb = device.cache_bytes / 1e6
    lines = [f"{device.name} ({device.arch}), {device.cores} {traits.workers}, {cache_mb:.4g} MB of last-level cache"]
    lines.append(find_printer(device.target).limits(device))
    if device.ceilings:
        top = device.ceilings
        half = f"16-bit floats {top.half_flops_per_s / 1e9:.4g} GFLOP/s, "
        rates = f"TF32 {top.tf32_flops_per_s / 1e9:.4g}, {half}" if traits.has_tf32 else half
        lines.append(
            f"measured here: copy {top.copy_bytes_per_s / 1e9:.4g} GB/s, in cache "
            f"{top.cache_bytes_per_s / 1e9:.4g} GB/s, float32 products {top.ieee_flops_per_s / 1e9:.4g} GFLOP/s, "
            f"{rates}one launch or parallel region {1e3 * top.launch_ms:.3g} us"
        )
    lines += [f"{name}: {device.facts[name]}" for name in ("caches", "compiler") if device.facts.get(name)]
    return "\n".join(f"- {line}" for line in lines)
