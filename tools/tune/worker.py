"""The tuner's warm process: runs kernels that the compiler prints, and nothing else.

It prints every text itself and refuses one that differs by a byte, so the wrapper is always Foundry's own. An
author's code inside the wrapper is run only by a process in a candidate's sandbox, and refused by any other.
Configurations of one recipe share a process. It draws a kernel's inputs, remembers the present configuration's
outputs, and compares every other configuration with them. Its times choose what is tried next and are never a
result.
"""

from __future__ import annotations

import functools
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.codec import decode
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import expressions
from foundry.knowledge.compiler.ir.kernels import Buffer, Gather
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.grade.judge.paired_timing import SAMPLE_MS, ColdCache
from foundry.tools.grade.runner import cuda_events
from foundry.tools.process.channel import Channel, Message
from foundry.tools.process.sandbox import ENTERED
from foundry.tools.tune.alone import Subject, subjects

SEED = 20  # seed of the inputs
MOST_CALLS = 16  # calls of a short kernel in one sample on a CPU
# Least value of floating inputs, which reach up to 1: roots and logarithms are defined, no number is denormal.
LOWEST = 0.25
# Allowed difference of a float from the present configuration's, over the largest output: orders of sums differ.
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2}
EXACT_SHARE = 0.999  # share of integers and truth values that must agree: ties may fall either way

# Launches that the driver refused; after other errors the context is lost.
_REFUSED_LAUNCH = re.compile(r"CUDA error (1|701),")

Outputs = tuple[torch.Tensor, ...]
Call = Callable[[], Outputs]


@dataclass
class Stand:
    """A kernel with its own inputs and parameters, its expected outputs, and its loaded configurations."""

    subject: Subject
    inputs: list[torch.Tensor]
    parameters: dict[str, torch.Tensor]
    expected: Outputs = ()
    calls: dict[str, Call] = field(default_factory=dict)


class Stands:
    """The kernels of one recipe's plan on one device."""

    def __init__(self, message: Message) -> None:
        """Reads device, graph and recipe from the message; raises ValueError for an author's code outside a sandbox."""
        self._device = decode(Device, message["device"])
        recipe = decode(Recipe, message["recipe"])
        if recipe.authored is not None and not ENTERED:
            raise ValueError("refused: an author's code runs in a sandbox only")
        graph = decode(OpGraph, message["graph"])
        self._subjects = {subject.name: subject for subject in subjects(graph, recipe, self._device)}
        self._stands: dict[str, Stand] = {}
        self._on_gpu = not self._device.traits.uses_host_cores
        self.device_s = 0.0  # seconds of GPU work in the last timing
        self._cache = ColdCache(self._device.cache_bytes, on_cpu=not self._on_gpu)
        torch.set_num_threads(int(message["threads"]))
        if self._on_gpu:
            cuda_events.settle()

    def load(self, kernel: str, choices: Mapping[str, Choice], text: str) -> None:
        """Makes a configuration ready to be timed.

        Raises ValueError for a text that is not the compiler's and for one whose outputs differ.
        """
        subject = self._subjects[kernel]
        if text != subject.file(subject.print(choices)):
            raise ValueError("refused: the kernel compiler prints another text for these choices")
        stand = self._stand(subject)
        call = _ready(text, stand)
        if problem := difference(stand.expected, call()):
            raise ValueError(f"wrong: {problem}")
        stand.calls[text] = call

    def time(self, kernel: str, text: str) -> float:
        """Time in ms of a loaded configuration, with a cold cache."""
        call = self._stands[kernel].calls[text]
        self.device_s = 0.0
        return self._on_gpu_once(call) if self._on_gpu else self._on_cpu(call)

    def _on_gpu_once(self, call: Call) -> float:
        """The device time in ms of one call."""
        milliseconds = cuda_events.time_calls(call, 1)[1]
        self.device_s += cuda_events.last_span_ns() / 1e9
        return milliseconds

    def forget(self, kernel: str, text: str) -> None:
        """Forgets the kernel's built call of this text, if there is one."""
        self._stands[kernel].calls.pop(text, None)

    def _on_cpu(self, call: Call) -> float:
        """The time in ms of one call with a cold cache; the mean of several calls if one is too short to measure."""
        self._cache.evict()
        start = time.perf_counter_ns()
        call()
        once_ms = (time.perf_counter_ns() - start) / 1e6
        if once_ms >= SAMPLE_MS:
            return once_ms
        calls = min(MOST_CALLS, 1 + int(SAMPLE_MS / max(once_ms, 1e-3)))
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return (time.perf_counter_ns() - start) / 1e6 / calls

    def _stand(self, subject: Subject) -> Stand:
        """The kernel's inputs and its present configuration's outputs.

        If memory is short, other kernels' inputs are freed; they are drawn again when they are needed.
        """
        if subject.name not in self._stands:
            try:
                self._stands[subject.name] = _set_up(subject, self._device)
            except torch.OutOfMemoryError:
                self._stands.clear()
                torch.cuda.empty_cache()
                self._stands[subject.name] = _set_up(subject, self._device)
        return self._stands[subject.name]


def _set_up(subject: Subject, device: Device) -> Stand:
    """Draws a kernel's inputs and kept tensors, and computes its answer with the present choices, for comparison."""
    generator = torch.Generator(device.traits.torch_device).manual_seed(SEED)
    plan = subject.plan()
    bound = index_bound(subject)
    tensors = {
        name: _drawn(buffer, bound, generator)
        for name, buffer in plan.buffers.items()
        if buffer.role != "output" and buffer.data is None
    }
    inputs = sorted((b for b in plan.buffers.values() if b.role == "input"), key=lambda buffer: int(buffer.source))
    kept = {b.source: tensors[b.name] for b in plan.buffers.values() if b.role != "input" and b.name in tensors}
    stand = Stand(subject, [tensors[buffer.name] for buffer in inputs], kept)
    stand.expected = _ready(subject.file(subject.print(subject.present)), stand)()
    return stand


def index_bound(subject: Subject) -> int:
    """Upper bound of integer inputs, so that each is a legal index wherever it may be used as one."""
    bounds = [
        node.bound for expr, _ in expressions(subject.kernel) for node in views.nodes(expr) if isinstance(node, Gather)
    ]
    return max(1, min(bounds, default=2))


def _drawn(buffer: Buffer, bound: int, generator: torch.Generator) -> torch.Tensor:
    """A tensor with a buffer's shape, strides and dtype, filled with uniform random numbers, or integers below
    `bound`."""
    dtype = getattr(torch, buffer.dtype)
    spanned = 1 + sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    memory = torch.empty(max(spanned, 1), dtype=dtype, device=generator.device)
    if dtype.is_floating_point:
        memory.uniform_(LOWEST, 1.0, generator=generator)
    else:
        memory.random_(0, 2 if dtype == torch.bool else bound, generator=generator)
    return memory.as_strided(buffer.shape, buffer.strides)


def _ready(text: str, stand: Stand) -> Call:
    """The file as a call on the stand's inputs; its build is taken from the cache."""
    module = ModuleType("tuned")
    exec(compile(text, "tuned.py", "exec"), module.__dict__)
    model = module.__dict__["ModelNew"]()
    for name, tensor in stand.parameters.items():
        model.register_buffer(name, tensor)
    return functools.partial(model.forward, *stand.inputs)


def difference(expected: Outputs, found: Outputs) -> str:
    """Says how a configuration's outputs differ from the present one's; "" if they agree."""
    if len(expected) != len(found):
        return f"{len(found)} outputs instead of {len(expected)}"
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not one.dtype.is_floating_point:
            share = (one == other).double().mean().item() if one.numel() else 1.0
            if share < EXACT_SHARE:
                return f"output {index}: {100 * (1 - share):.3g} % of the elements differ"
            continue
        scale = torch.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0).abs().max().item() if one.numel() else 0.0
        equal = torch.isclose(other, one, rtol=0.0, atol=TOLERANCES[str(one.dtype)[6:]] * scale, equal_nan=True)
        if not bool(equal.all()):
            return f"output {index}: {int((~equal).sum())} of {one.numel()} elements differ"
    return ""


def _ask_compilers_once() -> None:
    """Remembers compilers' versions, which every candidate's file asks for when it is loaded."""
    run = subprocess.run
    known: dict[str, Any] = {}

    def remembered(command: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a command; the answer of `COMPILER --version` is cached."""
        if isinstance(command, list) and command[1:] == ["--version"]:
            if command[0] not in known:
                known[command[0]] = run(command, *args, **kwargs)
            return known[command[0]]
        return run(command, *args, **kwargs)

    subprocess.run = remembered  # type: ignore[assignment]


def serve(channel: Channel) -> None:
    """Runs the tuner's worker: answers one message after the other. A kernel's error is an answer, or ends the
    process."""
    _ask_compilers_once()
    message, _ = channel.receive(None)
    stands = Stands(message)
    channel.send({"ready": True})
    while True:
        message, _ = channel.receive(None)
        channel.send(_answer(stands, message))


def _answer(stands: Stands, message: Message) -> Message:
    """Carries out one request about a kernel (load, forget, time); an error becomes a problem, and whether the GPU is
    lost."""
    kernel, text = message["kernel"], message["text"]
    try:
        if message["do"] == "load":
            stands.load(kernel, message["choices"], text)
            return {}
        if message["do"] == "forget":
            stands.forget(kernel, text)
            return {}
        return {"ms": stands.time(kernel, text), "device_s": stands.device_s}
    except (ValueError, RuntimeError) as error:
        said = str(error).splitlines()[0][:300]
        return {"problem": said, "is_lost": "CUDA error" in said and not _REFUSED_LAUNCH.search(said)}
