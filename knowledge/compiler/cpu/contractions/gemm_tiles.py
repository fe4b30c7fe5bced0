"""Register tiles and cache blocks of the CPU contractions, chosen by a documented cost model and open to the tuner.

A tile of `rows` x `vectors` accumulators reads, for each k, `vectors` vectors of B and broadcasts `rows` elements of A.
The micro-kernel analysis is that of Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import DType

# The device only knows its last-level cache; these hold for every x86-64 and aarch64 server core of the last decade.
L1_BYTES = 32 * 1024
L2_BYTES = 512 * 1024
FMA_LATENCY_CYCLES = 4
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
_VECTORS = (1, 2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class RegisterTile:
    """Accumulators of the micro-kernel: `rows` of A by `vectors` of B."""

    rows: int
    vectors: int

    @property
    def text(self) -> str:
        """Text such as "6x2", which `parse` reads."""
        return f"{self.rows}x{self.vectors}"

    @staticmethod
    def parse(text: str) -> RegisterTile:
        """The tile of a text such as "6x2"."""
        rows, vectors = text.split("x")
        return RegisterTile(int(rows), int(vectors))


def element_type(dtype: DType) -> tuple[str, int]:
    """(C type that a contraction of `dtype` accumulates in, its bytes); 16-bit floats accumulate in float32."""
    return {"float64": ("double", 8), "int64": ("int64_t", 8), "int32": ("int32_t", 4)}.get(dtype, ("float", 4))


def vector_registers(device: Device) -> int:
    """Number of vector registers: 32 with AVX-512 and on aarch64, else 16."""
    return 32 if device.vector_bytes >= 64 or device.arch.startswith(("aarch64", "arm")) else 16


def tile_cycles(rows: int, vectors: int) -> float:
    """Cycles of one k of a tile at two FMAs and two loads a cycle; few accumulators expose the FMA's latency."""
    arithmetic = max(rows * vectors, 2 * FMA_LATENCY_CYCLES) / 2
    return max(arithmetic, (rows + vectors) / 2) + 0.25


def covering_cycles(m: int, n_vectors: int, tile: RegisterTile) -> float:
    """Cycles of one k of the whole product, remainder tiles included."""

    def along(size: int, step: int) -> list[tuple[int, int]]:
        """(size of a tile, number of such tiles) of the whole tiles and of the remainder."""
        return [part for part in ((step, size // step), (size % step, 1)) if part[0] and part[1]]

    return sum(
        tile_cycles(rows, vectors) * repeat_m * repeat_n
        for rows, repeat_m in along(m, tile.rows)
        for vectors, repeat_n in along(n_vectors, tile.vectors)
    )


def list_tiles(m: int, n_vectors: int, registers: int) -> list[RegisterTile]:
    """The register tiles worth trying for a product of m rows and `n_vectors` vectors of columns, cheapest first."""
    fitting = [
        RegisterTile(rows, vectors)
        for rows in _ROWS
        for vectors in _VECTORS
        if rows <= m and vectors <= n_vectors and rows * vectors + vectors + 1 <= registers
    ]
    return sorted(fitting, key=lambda tile: (covering_cycles(m, n_vectors, tile), tile.rows + tile.vectors, tile.rows))


def tile_tunable(m: int, n: int, lanes: int, device: Device, count: int = 8) -> Tunable:
    """The tunable "tile", whose values are the `count` cheapest tiles of the model."""
    values = [tile.text for tile in list_tiles(m, math.ceil(n / lanes), vector_registers(device))[:count]]
    return Tunable(
        "tile", tuple(values), values[0], "tile", "rows x vectors held in registers: reuse of loads against spills"
    )


def split(size: int, limit: int, multiple: int) -> int:
    """Length of the blocks into which `size` is cut; the last may be shorter.

    They are about equal and at most about `limit`, each a multiple of `multiple`."""
    blocks = max(1, math.ceil(size / max(limit, 1)))
    return round_up(math.ceil(size / blocks), multiple)


def number_tunable(
    name: str, default: int, values: list[int], low: int, high: int, aspect_meaning: tuple[str, str]
) -> Tunable:
    """An integer tunable: `values` within [low, high], with `default` among them. `aspect_meaning`: its aspect and its
    meaning in words."""
    legal = tuple(sorted({default, *(value for value in values if low <= value <= high)}))
    aspect, meaning = aspect_meaning
    return Tunable(name, legal, default, aspect, meaning)  # type: ignore[arg-type]


def pick(tunables: tuple[Tunable, ...], choices: dict[str, Choice]) -> dict[str, Choice]:
    """The value of every tunable: the wanted one if it is legal for this kernel, else the default.

    A recipe may carry numbers from another algorithm or shape of the same kernel; the result has those that are
    used."""
    return {
        tunable.name: choices[tunable.name] if choices.get(tunable.name) in tunable.values else tunable.default
        for tunable in tunables
    }
