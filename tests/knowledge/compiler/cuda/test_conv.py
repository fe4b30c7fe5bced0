"""CUDA convolutions against float64 truth: on the emulator, several to a compile, and on a GPU where one is."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.emulator.emulator import build_emulation
from tests.knowledge.compiler.cuda.cases import H200, Case
from tests.knowledge.compiler.cuda.compiled import spills_of
from tests.knowledge.compiler.cuda.conv_cases import (
    CONVOLUTIONS,
    CONVOLUTIONS_SIXTEEN_BIT,
    PACKED,
    PLANES,
    TILED,
    conv,
)
from tests.knowledge.compiler.cuda.emulated import check_emulated, parts
from tests.knowledge.compiler.cuda.test_kernels import candidate, run_candidate

from foundry.knowledge.compiler.cuda.convolutions.space import make_conv_space
from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.launches import decode
from foundry.knowledge.compiler.ir.conv_geometry import geometry
from foundry.knowledge.compiler.ir.cost import flops
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Named, Store, View
from foundry.knowledge.compiler.printers import print_kernel
from foundry.knowledge.opgraph import contiguous_strides

PARTS = 4
_EVERY = CONVOLUTIONS | CONVOLUTIONS_SIXTEEN_BIT
_NAMES = sorted(CONVOLUTIONS)


@pytest.mark.parametrize("part", parts(PARTS))
def test_emulated(part: int, tmp_path: Path) -> None:
    torch.manual_seed(7)
    check_emulated({name: _EVERY[name]() for name in sorted(_EVERY)[part::PARTS]}, tmp_path)


def test_a_block_computes_one_tile_after_the_other(tmp_path: Path) -> None:
    """Warpgroups take turns on a device of two multiprocessors: uneven phases, groups, and a phase without any tap."""
    torch.manual_seed(7)
    choices: dict[str, Any] = {"algorithm": PACKED, "precision": "half", "tile_pixels": 64, "stages": 4}
    cases = {
        "turned": conv(2, 20, 16, (9, 10), (3, 3), stride=2, padding=1, transposed=True, turns=3, **choices),
        "grouped": conv(2, 24, 32, (14, 11), (3, 2), groups=2, turns=2, **choices),
        "gaps": conv(2, 4, 16, (14, 15), (1, 2), stride=3, transposed=True, turns=1, **choices),
    }
    check_emulated(cases, tmp_path, replace(H200, cores=2))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_templates_compile_without_spills(every: int, tmp_path: Path) -> None:
    spills = spills_of({name: make() for name, make in list(_EVERY.items())[::every]}, tmp_path)
    assert max(spills.values()) <= 128, spills


FAR = 2**31 + 8
WIDE_CHILD = """
import sys, numpy
from pathlib import Path
from tests.emulator.emulator import run_emulation
arrays = {name: numpy.memmap(f"{sys.argv[2]}/{name}", numpy.float32, "r+") for name in sys.argv[3].split(",")}
addresses = {name: array.ctypes.data for name, array in arrays.items()}
run_emulation(Path(sys.argv[1]), sys.argv[3].split(","), addresses, 1 << 16)
"""


def _emulate_far(
    kernel: ConvKernel, case: Case, apart: Mapping[str, int], algorithm: str, folder: Path
) -> dict[str, torch.Tensor]:
    """Runs a kernel on sparse files; the first dimension of the tensors in `apart` has that stride there."""
    printed = print_kernel(kernel, case.plan(), H200, {"algorithm": algorithm})
    source = f"{runtime_header()}\n{printed.functions}"
    library, names = build_emulation(source, decode(printed.call), folder)
    places = {}
    for name, tensor in {**case.inputs, **case.outputs}.items():
        parts = list(tensor) if name in apart else [tensor]
        elements = apart.get(name, 0) * (len(parts) - 1) + parts[0].numel()
        file = numpy.memmap(folder / name, numpy.float32, "w+", shape=(elements,))
        places[name] = [file[i * apart.get(name, 0) :][: part.numel()] for i, part in enumerate(parts)]
        for place, part in zip(places[name], parts, strict=True):
            place[:] = part.flatten().numpy() if name in case.inputs else math.nan
    argv = [sys.executable, "-c", WIDE_CHILD, str(library), str(folder), ",".join(names)]
    done = subprocess.run(argv, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = {name: numpy.concatenate([place.copy() for place in places[name]]) for name in case.outputs}
    return {name: torch.from_numpy(flat).reshape(case.outputs[name].shape) for name, flat in found.items()}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("algorithm", [TILED, "direct"])
def test_images_that_32_bits_cannot_tell_apart(algorithm: str, transposed: bool, tmp_path: Path) -> None:
    """Between images 64 bits, inside an image 32."""
    torch.manual_seed(7)
    stride = 2 if transposed else 1
    case = conv(2, 4, 4, (5, 6), (3, 3), padding=1, groups=2, stride=stride, transposed=transposed)
    assert isinstance(case.kernel, ConvKernel)
    stores = tuple(replace(s, view=View(0, (FAR, *s.view.strides[1:]))) for s in case.kernel.stores)
    kernel = replace(case.kernel, x_strides=(FAR, *case.kernel.x_strides[1:]), stores=stores)
    space = make_conv_space(kernel, case.plan())
    assert (space.inside, space.image) == ("int", "long long")
    case.check(_emulate_far(kernel, case, {"x": FAR, "y": FAR}, algorithm, tmp_path))


def test_an_image_that_32_bits_cannot_span(tmp_path: Path) -> None:
    torch.manual_seed(7)
    case = conv(1, 3, 4, (5, 6), (3, 3), padding=1)
    assert isinstance(case.kernel, ConvKernel)
    kernel = replace(case.kernel, x_strides=(0, FAR, *case.kernel.x_strides[2:]))
    assert make_conv_space(kernel, case.plan()).inside == "long long"
    case.inputs["x"] = case.inputs["x"][0]  # its first dimension, the channels, lies apart
    case.check(_emulate_far(kernel, case, {"x": FAR}, TILED, tmp_path))


@pytest.mark.parametrize("name", ["one_three", "two_two", "two_common", "two_gaps", "three_three"])
def test_phases_of_a_transposed_convolution_make_the_products_that_its_cost_counts(name: str) -> None:
    """With a factor of stride^rank between them, a floor would be wrong, or the kernel."""
    case = CONVOLUTIONS[f"conv_t_{name}"]()
    assert isinstance(case.kernel, ConvKernel)
    kernel = replace(case.kernel, stores=(Store("y", case.kernel.stores[-1].view, Named("acc", "float32")),))
    found = geometry(kernel)
    per_tap = kernel.batch * found.in_per_group * kernel.out_channels
    made = sum(math.prod(axis.count * len(axis.taps) for axis in part) for part in found.parts) * per_tap * 2
    # Products with the padding at an image's edges are made, those with cropped outputs are counted: both are few.
    edges = math.prod(
        1 + kernel_size * dilation / size
        for kernel_size, dilation, size in zip(kernel.kernel, kernel.dilation, kernel.input_size, strict=True)
    )
    assert flops(kernel) / edges <= made <= flops(kernel) * edges


@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [
        ((8, 8, (16, 16), (3, 3), 8, False), "direct"),
        ((32, 64, (16, 16), (3, 3), 8, False), "direct"),
        ((64, 3, (16, 16), (3, 3), 1, True), "direct"),
        ((32, 32, (16, 16), (3, 3), 1, False), "implicit_gemm"),
        ((32, 32, (16, 16), (3, 3), 2, True), "implicit_gemm"),
        ((32, 32, (16, 16), (1, 1), 1, False), "implicit_gemm"),
        # A line of 300 taps does not fit into a thread's registers.
        ((8, 8, (400,), (300,), 8, False), ""),
    ],
)
def test_the_algorithm_follows_from_the_channels_of_a_group(shape: tuple[Any, ...], algorithm: str) -> None:
    planes, out, size, window, groups, transposed = shape
    case = conv(1, planes, out, size, window, groups=groups, transposed=transposed)
    printed = print_kernel(case.kernel, case.plan(), H200, {})
    assert printed.choices.get("algorithm", "") == algorithm
    assert {item.name for item in printed.tunables} == set(printed.choices)
    for item in printed.tunables:
        assert item.default in item.values and printed.choices[item.name] == item.default


@pytest.mark.parametrize(
    ("precision", "algorithm"), [("half", PACKED), ("half3", PACKED), ("tf32x3", TILED), ("ieee", TILED)]
)
def test_the_default_algorithm_computes_in_the_precision_that_was_chosen(precision: str, algorithm: str) -> None:
    case = conv(4, 64, 128, (48, 48), (3, 3), precision=precision)
    printed = print_kernel(case.kernel, case.plan(), H200, case.choices)
    assert (printed.choices["algorithm"], printed.choices["precision"]) == (algorithm, precision)


@pytest.mark.parametrize(
    ("planes", "size", "algorithm"),
    [
        (64, (272, 272), "planes"),
        (64, (272, 271), "planes"),
        (64, (27, 27), TILED),  # few tiles: the weights that every block reads would take longer
        (64, (271, 271), TILED),  # rows that are not aligned
        (160, (272, 272), TILED),
        (320, (272, 272), PACKED),
    ],
)
def test_a_large_pointwise_convolution_reads_its_input_in_place(
    planes: int, size: tuple[int, int], algorithm: str
) -> None:
    case = conv(1, 8, 16, (2, 2), (1, 1))
    case.ieee_only = False
    assert isinstance(case.kernel, ConvKernel)
    pixels = size[0] * size[1]
    strides = (64 * pixels, pixels, size[1], 1)
    stores = (Store("y", View(0, strides), Named("acc", "float32")),)
    kernel = replace(case.kernel, in_channels=planes, out_channels=64, input_size=size, output_size=size)
    kernel = replace(kernel, stores=stores, x_strides=(planes * pixels, *strides[1:]))
    assert print_kernel(kernel, case.plan(), H200, {}).choices["algorithm"] == algorithm


@pytest.mark.parametrize(("size", "is_split"), [((7, 7), True), ((272, 272), False)])
def test_few_pixels_of_many_channels_are_shared_by_blocks(size: tuple[int, int], is_split: bool) -> None:
    case = conv(1, 8, 16, (2, 2), (1, 1))
    case.ieee_only = False
    assert isinstance(case.kernel, ConvKernel)
    pixels = size[0] * size[1]
    strides = (32 * pixels, pixels, size[1], 1)
    stores = (Store("y", View(0, strides), Named("acc", "float32")),)
    kernel = replace(case.kernel, in_channels=4096, out_channels=32, input_size=size, output_size=size)
    kernel = replace(kernel, stores=stores, x_strides=(4096 * pixels, *strides[1:]))
    printed = print_kernel(kernel, case.plan(), H200, {"algorithm": TILED})
    assert (int(printed.choices["splits"]) > 1, printed.launches == 2) == (is_split, is_split)
    whole = print_kernel(kernel, case.plan(), H200, {"algorithm": TILED, "splits": 1})
    assert whole.launches == 1 and whole.workspace_bytes == 0


@pytest.mark.parametrize(
    ("window", "stride", "algorithm"),
    [(11, 4, PACKED), (11, 11, TILED), (5, 1, TILED)],
    ids=["large", "apart", "small"],
)
def test_three_channels_are_packed_for_large_windows_that_overlap(window: int, stride: int, algorithm: str) -> None:
    case = conv(1, 3, 16, (35, 35), (window, window), stride=stride)
    case.ieee_only = False
    assert isinstance(case.kernel, ConvKernel)
    many = replace(case.kernel, batch=16384)
    assert print_kernel(many, case.plan(), H200, {}).choices["algorithm"] == algorithm


def test_every_value_of_every_tunable_is_taken() -> None:
    """What the search may choose is what it gets, whichever algorithm it starts from."""
    strided = conv(4, 8, 16, (30, 32), (3, 3), padding=1, stride=2, groups=2, transposed=True)
    one = conv(4, 64, 64, (8, 8), (1, 1))
    for case, algorithm in ((strided, TILED), (strided, "direct"), (strided, PACKED), (one, PLANES)):
        case.ieee_only = False
        first = print_kernel(case.kernel, case.plan(), H200, {"algorithm": algorithm})
        for item in first.tunables:
            for value in item.values:
                found = print_kernel(case.kernel, case.plan(), H200, {**first.choices, item.name: value})
                assert found.choices[item.name] == value


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("name", [*_NAMES, *CONVOLUTIONS_SIXTEEN_BIT])
def test_on_the_gpu(name: str) -> None:
    torch.manual_seed(7)
    case = (CONVOLUTIONS | CONVOLUTIONS_SIXTEEN_BIT)[name]()
    case.check(run_candidate(candidate(case), case))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize(("planes", "groups", "algorithm"), [(64, 64, "direct"), (2, 1, TILED)])
def test_large_images_on_the_gpu(planes: int, groups: int, algorithm: str) -> None:
    """More than 2^31 outputs (10 GB): the last image is as right as the first."""
    out, edge = 64, 2048
    images = 2**31 // (out * edge * edge) + 1
    small = conv(1, planes, out, (4, 4), (3, 3), padding=1, groups=groups)
    assert isinstance(small.kernel, ConvKernel)
    strides = contiguous_strides((images, out, edge, edge))
    kernel = replace(
        small.kernel,
        batch=images,
        input_size=(edge, edge),
        output_size=(edge, edge),
        x_strides=contiguous_strides((images, planes, edge, edge)),
        stores=tuple(replace(store, view=View(0, strides)) for store in small.kernel.stores),
    )
    x = torch.randn(images, planes, edge, edge, device="cuda")
    shapes = {"x": torch.empty(x.shape, device="meta"), "w": small.inputs["w"], "bias": small.inputs["bias"]}
    large = Case(kernel, shapes, {"y": torch.empty(images, out, edge, edge, device="meta")}, {"algorithm": algorithm})
    namespace: dict[str, Any] = {}
    exec(compile(candidate(large), "candidate.py", "exec"), namespace)
    weight, bias = small.inputs["w"].cuda(), small.inputs["bias"].cuda()
    (found,) = namespace["ModelNew"]()(x, weight, bias)
    for image in (0, images - 1):
        truth = torch.nn.functional.conv2d(
            x[image : image + 1].double(), weight.double(), bias.double(), padding=1, groups=groups
        ).relu()
        error = (found[image : image + 1].double() - truth).norm() / truth.norm()
        assert error < 2e-6, f"image {image} of {images}: {error:.1e}"
