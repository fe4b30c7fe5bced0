"""GPU gates: the kernels that ran during forward are the candidate's, and the caller's stream waits for them.

The profiler sees every kernel of the process, however it was launched: beside the dispatcher, from a thread, from a
graph. A stream of its own is honest if the caller's stream waits for it before the outputs are read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.acts.observed import Launch, UnfinishedOutputs
from foundry.tools.audit.text.source import CandidateSource, string_constants

LEAST_SHARE = 0.9  # share of the device's time that the candidate's own kernels must take
# PyTorch kernels that a binding may use: allocate, fill, copy.
_MEMORY = re.compile(r"Memcpy|Memset|FillFunctor|fill_kernel|copy_kernel|CatArrayBatchedCopy|elementwise_kernel.*copy")
# Kernels of operators that the audit may excuse (`operators.foreign_name`), by the operator.
_FOREIGN = {"sort": re.compile(r"[sS]ort"), "fft_fft": re.compile(r"fft", re.IGNORECASE)}
_KERNEL = re.compile(r"__global__\s+(?:[\w:<>,\s*&()]*?)\b(\w+)\s*(?:<[^<>;{}]*>)?\s*\([^;{}]*\)\s*\{")
_LIBRARIES = frozenset({"at", "c10", "torch", "cub", "thrust", "cutlass", "cudnn", "cublas", "cublasLt"})
_MANGLED_LIBRARIES = tuple(f"_ZN{len(name)}{name}" for name in _LIBRARIES)
_ATTRIBUTE = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)")


def own_kernels(source: CandidateSource) -> set[str]:
    """Names of the kernels in the candidate's text: CUDA's __global__ functions and Triton's."""
    texts = [_ATTRIBUTE.sub(" ", str(constant.value)) for constant in string_constants(source.tree)]
    names = {name for text in texts for name in _KERNEL.findall(text)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            decorators = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
            if any(source.dotted(item).startswith("triton.") for item in decorators):
                names.add(node.name)
    return names


def kernel_gate(rows: Sequence[Launch], names: set[str]) -> Gate:
    """Gate "kernels": the candidate's own kernels take at least LEAST_SHARE of the device's time.

    `rows` begin with a kernel's name and its time; `names` are the kernels defined in the candidate's text. If only
    kernels of foreign operators are too long, these operators are the gate's reasons, and the audit may excuse them.
    """
    working = [(name, time) for name, time, *_ in rows if not _MEMORY.search(name)]
    whole = sum(time for _, time in working)
    if not whole:
        return Gate("kernels", True, "the profiler saw no kernels")
    times: dict[str, float] = {}
    for name, time in working:
        times[name] = times.get(name, 0.0) + time
    foreign = sorted(
        [(name, time) for name, time in times.items() if not _is_one_of(name, names)], key=lambda row: -row[1]
    )
    share = 1.0 - sum(time for _, time in foreign) / whole
    if share >= LEAST_SHARE:
        return Gate(
            "kernels", True, f"{100 * share:.3g} % of the device's time is spent in the candidate's own kernels"
        )
    words = ", ".join(f"{name[:80]} ({100 * time / whole:.2g} %)" for name, time in foreign[:4])
    said = f"only {100 * share:.2g} % of the device's time is its own kernels'; others ran: {words}"
    excusable = {name: kind for name, _ in foreign for kind, mark in _FOREIGN.items() if mark.search(name)}
    rest = sum(time for name, time in foreign if name not in excusable)
    is_rest_short = rest <= (1 - LEAST_SHARE) * (whole - sum(times[name] for name in excusable))
    reasons = [Reason(ReasonKind.TORCH_OPERATOR, kind) for kind in dict.fromkeys(excusable.values())]
    return Gate("kernels", False, said, tuple(reasons) if is_rest_short else ())


def stream_gate(found: UnfinishedOutputs | None) -> Gate:
    """Gate "finished in its stream": work queued next in the caller's stream reads complete outputs.

    `found["changed"]` are the outputs that still changed after a copy in the caller's stream, made right after the
    call while a kernel of the grader held every multiprocessor. `found["held"]` is true if it still held them at
    that copy.
    """
    name = "finished in its stream"
    if found is not None and found["changed"]:
        numbers = ", ".join(map(str, found["changed"][:4]))
        words = (
            f"output {numbers} was written after what the caller's stream did next: a copy of it in that stream, right "
            "after the call, has other bytes than when the device was idle. Let the caller's stream wait for kernels "
            "on other streams (cudaStreamWaitEvent)"
        )
        return Gate(name, False, words)
    if found is None or not found["held"]:
        return Gate(name, True, "queueing the call took longer than the device was held, so this proves little here")
    return Gate(name, True, "a copy in the caller's stream, right after the call, waits for all of its outputs")


def _is_one_of(name: str, names: set[str]) -> bool:
    """True if a kernel's demangled signature or mangled symbol belongs to one of the names."""
    if name.startswith("_Z"):
        return not name.startswith(_MANGLED_LIBRARIES) and any(f"{len(own)}{own}" in name for own in names)
    path = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""))[0].split(" ")[-1].split("::")
    return path[0] not in _LIBRARIES and path[-1] in names
