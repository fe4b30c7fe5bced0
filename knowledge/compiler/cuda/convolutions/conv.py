"""Convolutions in CUDA: the algorithm that computes one, and the tunable that changes it.

`direct` keeps outputs in registers and walks the input that reaches them. It is the default where a group has at most
DIRECT_CHANNELS output channels: a matrix product would fill at most half of its smallest tile. Depthwise layers, small
groups and last layers of three colours are such. It is also the default for three-dimensional images of a few colours.

`channels_last` is a matrix product of warpgroups from a packed copy of the input, where channels and window are large
enough to win the copy back. `planes` is the same for a 1x1 window, from the unpacked input, where reading it takes
longer than multiplying. `implicit_gemm` is the tiled matrix product over gathered inputs, for the rest. All run a
transposed convolution by the phases of its stride: no product with an inserted zero is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.convolutions import channels_last, direct, planes, product
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace, make_conv_space
from foundry.knowledge.compiler.cuda.space import make_tunable, pick
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Plan, PrintedKernel
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

DIRECT_CHANNELS = 8  # output channels of a group; for more `direct` is not the default
DIRECT_LIMIT = 32  # output channels of a group; for more the search may not choose it
FEW_INPUTS = 8  # input channels of a group; for so few it may be chosen for any number of outputs


class Algorithm(Protocol):
    """One way to compute a convolution: a module of its own with its template and tunables."""

    def fits(self, space: ConvSpace) -> bool:
        """True if it can compute this convolution at all."""
        ...

    def print_algorithm(self, space: ConvSpace, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
        """The printed kernel, by `choices` or defaults."""


ALGORITHMS: Mapping[str, Algorithm] = {
    "implicit_gemm": product,
    "direct": direct,
    "channels_last": channels_last,
    "planes": planes,
}


def default_algorithm(space: ConvSpace, offered: tuple[str, ...], cores: int, choices: dict[str, Choice]) -> str:
    """The name of the default algorithm among those `offered`. Takes account of the precision that was chosen; `cores`
    is the number of multiprocessors."""
    small = space.found.out_per_group <= DIRECT_CHANNELS
    few = direct.has_few_inputs(space) and "precision" not in choices  # `direct` has no precisions
    if (small or few) and "direct" in offered:
        return "direct"
    if "planes" in offered and planes.takes(choices) and planes.pays(space, cores):
        return "planes"
    packs = "channels_last" in offered and channels_last.pays(space) and channels_last.takes(space, choices)
    return "channels_last" if packs else "implicit_gemm"


def _takes(name: str, space: ConvSpace, choices: dict[str, Choice]) -> bool:
    """True if an algorithm can multiply in the precision that was asked for. `direct` is as accurate as any."""
    if name == "channels_last":
        return channels_last.takes(space, choices)
    return name != "planes" or planes.takes(choices)


def _offered(space: ConvSpace, arch: str) -> tuple[str, ...]:
    """The names of the algorithms that can compute this convolution and may be worth it."""
    if space.kernel.tail:  # a warp needs all channels of a pixel, or all pixels of a channel
        return ("channels_last",) if channels_last.runs_on(arch) and channels_last.fits(space) else ()
    few = space.found.out_per_group <= DIRECT_LIMIT or space.found.in_per_group <= FEW_INPUTS
    worth = {"direct": few, "channels_last": channels_last.runs_on(arch), "planes": planes.runs_on(arch)}
    return tuple(name for name, kind in ALGORITHMS.items() if worth.get(name, True) and kind.fits(space))


def print_conv(kernel: ConvKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a convolution or transposed convolution with its epilogue. Raises CannotLower for a tail that cannot be
    made.

    `choices` may hold "algorithm" ("implicit_gemm", "direct", "channels_last", "planes") and what that one takes:
    - `direct`: "outputs" (of a thread along the width), "rows" (output rows of a thread), "channels" (output channels
      of a thread), "threads" (of a block) and "weights" ("cached", or in "shared" memory)
    - `implicit_gemm`: those of a matrix product, "splits" but for transposed ones
    - `channels_last`: "precision", "near" (L1 keeps lines for the next tap: "yes" or "no"), "weights" ("kept" in shared
      memory or "moved" with the input), "tile_pixels" and "tile_channels" (of a tile), "turns" (warpgroups that take
      turns), "stages" and "neighbours" (pixels that a lane stores as a vector)
    - `planes`: "tile_channels", "warpgroups" (of a block), "stages" and "stores" (by "lanes", or by "rows" of pixels)
    A value that is not legal for this kernel gives way to the default, and an algorithm to the precision that was asked
    for."""
    space = make_conv_space(kernel, plan)
    offered = _offered(space, device.arch)
    if space.kernel.tail and not (offered and channels_last.pays(space) and channels_last.takes(space, choices)):
        raise CannotLower("the tail needs tiles of pixels and channels")
    default = default_algorithm(space, offered, device.cores, choices)
    able = tuple(name for name in offered if _takes(name, space, choices))
    name = str(pick(choices, "algorithm", able, default))
    printed = ALGORITHMS[name].print_algorithm(space, device, choices)
    if len(offered) == 1:
        return printed
    meaning = (
        "direct: outputs kept in registers by threads of their own; implicit_gemm: tiles of a matrix product shared by "
        "a block; channels_last: the same from a packed copy of the input; planes: the same from a 1x1 window's input"
    )
    choice = make_tunable("algorithm", offered, default, "algorithm", meaning)
    return replace(printed, choices={"algorithm": name, **printed.choices}, tunables=(choice, *printed.tunables))
