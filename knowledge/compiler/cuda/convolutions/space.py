"""Facts of every CUDA convolution: its geometry, its output space, and how wide its index arithmetic must be.

A pointer selects the image, once a thread; positions inside an image are then 32-bit numbers, whose divisions take a
fraction of the time of 64-bit ones. Only an image of more than 2^30 elements needs 64 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.contractions.tails import element_stores, element_values
from foundry.knowledge.compiler.cuda.dialect import element_type, register_type
from foundry.knowledge.compiler.cuda.launches import symbol_of
from foundry.knowledge.compiler.cuda.space import Space, body_leaves, buffers_of, element_load, list_parameters
from foundry.knowledge.compiler.ir import conv_geometry
from foundry.knowledge.compiler.ir.conv_geometry import Geometry
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Plan, View
from foundry.knowledge.compiler.ir.views import leaves, stored_views

# Half of what an int holds: a window may begin before its image or end behind it, where nothing is read.
NARROW = 2**30
POSITION = ("p0", "p1", "p2")


@dataclass(frozen=True)
class ConvSpace:
    """A convolution with three spatial axes and its index types. In C texts `image`, `channel`, `p0`, `p1`, `p2` name
    an output."""

    found: Geometry
    plan: Plan
    inside: str  # C type of a position inside one image: "int" or "long long"
    image: str  # C type of an image's number, wide enough for its offset

    @property
    def kernel(self) -> ConvKernel:
        """The kernel, with three spatial axes."""
        return self.found.kernel

    @property
    def name(self) -> str:
        """The name of its C++ function."""
        return symbol_of(self.kernel)

    @property
    def type(self) -> str:
        """C type of a sum in registers."""
        return register_type(self.kernel.dtype)

    @property
    def item_bytes(self) -> int:
        """Bytes of a sum."""
        return 8 if self.type == "double" else 4

    @property
    def taps(self) -> int:
        """Number of elements of a window."""
        return math.prod(self.kernel.kernel)

    @property
    def x_type(self) -> str:
        """C type of a stored element of the input."""
        return element_type(self.plan.buffers[self.kernel.x].dtype)

    def x_value(self, text: str) -> str:
        """C text that converts a stored element of the input to the type of sums."""
        return f"({self.type})({element_load(text, self.plan.buffers[self.kernel.x].dtype)})"

    def weight_value(self, text: str) -> str:
        """C text that converts a stored weight to the type of sums."""
        return f"({self.type})({element_load(text, self.plan.buffers[self.kernel.weight].dtype)})"

    def outputs(self) -> Space:
        """The space of the outputs: image, channel, three positions."""
        kernel = self.kernel
        sizes = (kernel.batch, kernel.out_channels, *kernel.output_size)
        seen = _output_views(kernel)
        return Space(sizes, ("image", "channel", *POSITION), {view: view for view in seen}, self.inside)

    def origin(self, image: str, group: str) -> str:
        """C text of the pointer to a group's first input channel in an image; only this sum may need 64 bits."""
        kernel = self.kernel
        text = f"b_{kernel.x} + ({self.image}){image} * {kernel.x_strides[0]}"
        if kernel.groups > 1:
            text += f" + ({self.image}){group} * {self.found.in_per_group * kernel.x_strides[1]}"
        return text + (f" + {kernel.x_offset}" if kernel.x_offset else "")

    def signature(self, extra: Sequence[str] = ()) -> tuple[str, list[str]]:
        """(C parameter list, buffer names) of the input, `extra` and what the epilogue reads and writes. Weights only
        if `extra` names them."""
        kernel = self.kernel
        reads, writes = self.epilogue_buffers()
        return list_parameters(self.plan, list(dict.fromkeys([kernel.x, *extra, *reads])), writes)

    def ignores_pixels(self) -> bool:
        """True if the epilogue reads nothing that differs from pixel to pixel."""
        found = [*body_leaves(self.kernel.stores), *leaves(element_values(self.kernel.tail))]
        return not any(stride for leaf in found for axis, stride in enumerate(leaf.view.strides) if axis != 1)

    def epilogue_buffers(self) -> tuple[list[str], list[str]]:
        """(buffers read, buffers written) by the epilogue at each element."""
        kernel = self.kernel
        found = [*body_leaves(kernel.stores), *leaves(element_values(kernel.tail))]
        return buffers_of(found, [*kernel.stores, *element_stores(kernel.tail)])


def make_conv_space(kernel: ConvKernel, plan: Plan) -> ConvSpace:
    """The facts of a convolution or transposed convolution, its spatial axes extended to three."""
    found = conv_geometry.geometry(kernel)
    kernel = found.kernel
    in_sizes = (kernel.batch, kernel.in_channels, *kernel.input_size)
    out_sizes = (kernel.batch, kernel.out_channels, *kernel.output_size)
    views = _output_views(kernel)
    reads = [(kernel.x_offset, kernel.x_strides, in_sizes), *((v.offset, v.strides, out_sizes) for v in views)]
    inside = max(_reach(0, strides[1:], sizes[1:]) for _, strides, sizes in reads)
    whole = max(_reach(offset, strides, sizes) for offset, strides, sizes in reads)
    position = "int" if inside < NARROW else "long long"
    return ConvSpace(found, plan, position, "int" if whole < NARROW else "long long")


def _output_views(kernel: ConvKernel) -> list[View]:
    """All views over the outputs."""
    more = [leaf.view for leaf in leaves(element_values(kernel.tail))]
    return [*stored_views([*kernel.stores, *element_stores(kernel.tail)]), *more]


def _reach(offset: int, strides: Iterable[int], sizes: Iterable[int]) -> int:
    """The largest offset that a view may have, in elements, whatever its strides' signs."""
    return abs(offset) + sum(abs(stride) * (size - 1) for stride, size in zip(strides, sizes, strict=True))
