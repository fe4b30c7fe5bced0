"""Targets: the kinds of device that kernels are written for, and what is true of each.

A target is one record, which every room may ask for facts. It names the target's parts as "module:object", because
rooms that may not import each other have one each; a part is imported when it is first asked for. A package adds a
target by an entry point of the group `foundry.targets` that names a `TargetTraits` and has the target's name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import math
from dataclasses import dataclass
from typing import Any

from foundry.knowledge.errors import UsageError

GROUP = "foundry.targets"  # group of the entry points that add targets


@dataclass(frozen=True)
class JoinLimits:
    """Sizes from which a target is faster with two kernels (rows, then a map) than with one fused kernel.

    Two kernels are faster for fewer than `rows` rows of at least `elements` elements each, because all cores or SMs
    share the map. They are also faster if the map stores at least `scattered` elements across the rows, because each
    such store touches a cache line of its own.
    """

    rows: int
    elements: int
    scattered: int


@dataclass(frozen=True)
class KernelForms:
    """The kernel forms that a target's templates support well, and their largest sizes; rules and fusion follow them.

    Counts are of elements unless a line says otherwise.
    """

    join_limits: JoinLimits
    split_runs: tuple[float, float]  # fewest neighbours along n and along m for the stores of a split product
    has_tails: bool  # products and convolutions may end in a reduction or pool of their result
    turns_operands: bool  # operands that lie across are copied in order before use
    chains_layers: bool  # one kernel walks several recurrent layers
    has_groups: bool  # products whose rows choose their matrix are sorted by it
    direct_segments: bool  # items are added into a table of all segments as they come, without a sort
    depthwise_channels_last: bool  # depthwise convolutions write channels last where they read them so
    topk_takes_first: bool  # PyTorch's topk of one element takes the first of equal ones on this device
    most_in_turn: int  # largest elements of a row that are found one after the other
    longest_asking_row: int  # longest row whose elements are each compared with all others
    most_sorted_bytes: float  # elements kept in order by one kernel, in bytes
    longest_table: int  # entries of a table of interpolation weights; longer ones are computed at each use
    longest_transform: int  # Fourier transforms of up to so many elements are products with tables
    longest_loop: int  # items that one thread writes one after the other
    longest_wide_loop: int  # the same where each item has many neighbours that other threads write
    few_indices: int  # indices that every element compares itself with
    most_index_questions: int  # comparisons of elements with indices in all


@dataclass(frozen=True)
class TargetTraits:
    """Facts of a target.

    `uses_host_cores` decides most: kernels then run on the cores that also compile, draw inputs and grade. So nothing
    else may run during a timing, host memory is device memory, and a call has ended when it returns.
    """

    name: str  # value of --target, and the target's name in stores and receipts
    language: str  # language of the kernels, as a reader is told it
    fence: str  # language of a fence of code in Markdown
    compiler: str  # command that compiles SOURCE
    workers: str  # word for what `Device.cores` counts
    torch_device: str  # type of torch.device on which inputs and outputs lie
    uses_host_cores: bool
    has_tf32: bool  # float32 products may run in TF32, or as products of scaled 16-bit floats
    has_counters: bool  # a profiler counts what the hardware does of each kernel
    sanitizer: str  # tool that checks the memory accesses of a kernel; "" without one
    near_bytes: int  # memory nearest to the arithmetic that a tile should fit: shared memory or first-level cache
    visible_devices: str  # environment variable that chooses which devices a process sees; "" without one
    forms: KernelForms
    printer: str  # "module:class" of `knowledge/compiler/printers/base.py:Printer`
    toolchain: str  # "module:class" of `tools/targets/base.py:Target`
    torch_side: str  # "module:class" of `tools/process/torch_device.py:TorchDevice`
    prompts: str  # name under which `agents/prompts/` and the playbook's cards speak of the target


CPU = TargetTraits(
    name="cpu",
    language="C++",
    fence="cpp",
    compiler="g++",
    workers="threads",
    torch_device="cpu",
    uses_host_cores=True,
    has_tf32=False,
    has_counters=False,
    sanitizer="",
    near_bytes=32 << 10,  # first-level data cache of every x86-64 and Arm server core of the last decade
    visible_devices="",
    forms=KernelForms(
        # Measured: from 16384 scattered elements on, a separate map took 1.5 times less time (23 times for 8 million);
        # for 2048 elements it took no more time than the fused kernel.
        join_limits=JoinLimits(rows=2, elements=16384, scattered=1 << 12),
        # Measured: products took 1.6 times as long with 8 contiguous elements along n, and less time from 16 on. They
        # took 1.5 times as long with all of m contiguous.
        split_runs=(16, math.inf),
        has_tails=False,
        turns_operands=False,
        chains_layers=False,
        has_groups=True,
        direct_segments=True,
        depthwise_channels_last=True,
        topk_takes_first=False,
        most_in_turn=2,
        longest_asking_row=0,
        most_sorted_bytes=math.inf,
        longest_table=4096,
        longest_transform=64,
        longest_loop=1 << 16,
        longest_wide_loop=1 << 16,
        few_indices=1,
        most_index_questions=1 << 13,
    ),
    printer="foundry.knowledge.compiler.printers.cpu:CpuPrinter",
    toolchain="foundry.tools.targets.cpu.build:CpuTarget",
    torch_side="foundry.tools.process.torch_device:TorchDevice",
    prompts="cpu",
)

CUDA = TargetTraits(
    name="cuda",
    language="CUDA",
    fence="cuda",
    compiler="nvcc",
    workers="multiprocessors",
    torch_device="cuda",
    uses_host_cores=False,
    has_tf32=True,
    has_counters=True,
    sanitizer="compute-sanitizer",
    near_bytes=48 << 10,  # shared memory that a block has without asking for more
    visible_devices="CUDA_VISIBLE_DEVICES",
    forms=KernelForms(
        # Calculated, not measured: a separate map costs a launch of about 3 us, in which L2 takes that many stores of
        # 32 bytes. A split product's runs have at least 16 bytes, and the rows of a warp's store.
        join_limits=JoinLimits(rows=32, elements=8192, scattered=1 << 18),
        split_runs=(8, 16),
        has_tails=True,
        turns_operands=True,
        chains_layers=True,
        has_groups=False,
        direct_segments=False,
        depthwise_channels_last=False,
        topk_takes_first=True,
        most_in_turn=8,
        longest_asking_row=1024,
        most_sorted_bytes=16 << 10,
        longest_table=0,
        longest_transform=1024,
        longest_loop=64,
        longest_wide_loop=4096,
        few_indices=64,
        most_index_questions=1 << 22,
    ),
    printer="foundry.knowledge.compiler.printers.cuda:CudaPrinter",
    toolchain="foundry.tools.targets.cuda.build:CudaTarget",
    torch_side="foundry.tools.targets.cuda.torch_device:CudaDevice",
    prompts="cuda",
)

BUILT_IN = {target.name: target for target in (CPU, CUDA)}


@functools.cache
def find_target(name: str) -> TargetTraits:
    """The target of this name, Foundry's own or a package's. Raises UsageError for a name that nothing provides and for
    an entry point that does not name a target."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in importlib.metadata.entry_points(group=GROUP, name=name):
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(f"the target {name} of {point.value} does not load: {error}") from error
        if not isinstance(found, TargetTraits) or found.name != name:
            raise UsageError(f"{point.value} is no target named {name}", "it has to be a TargetTraits of that name")
        return found
    raise UsageError(f"there is no target {name!r}", f"one of {', '.join(target_names())}")


def target_names() -> tuple[str, ...]:
    """The names of all targets: Foundry's own, then those of installed packages in alphabetical order."""
    added = {point.name for point in importlib.metadata.entry_points(group=GROUP)}
    return (*BUILT_IN, *sorted(added - BUILT_IN.keys()))


def find_torch_side(torch_device: str) -> str:
    """The `torch_side` of the first target whose tensors lie on torch.devices of this type; "" without one."""
    for target in BUILT_IN.values():
        if target.torch_device == torch_device:
            return target.torch_side
    for name in target_names()[len(BUILT_IN) :]:
        if find_target(name).torch_device == torch_device:
            return find_target(name).torch_side
    return ""


def load_part(place: str) -> Any:
    """The object at "module:object", for example the class of a target's toolchain; its module is imported now."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
