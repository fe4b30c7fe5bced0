"""The division of a recurrent kernel in CUDA: units to blocks, rows of weights and their columns to threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.space import make_tunable, pick, pick_number
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import GATES, RecurrentKernel, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.devices import constant
from foundry.knowledge.errors import CannotLower

THREADS = (128, 256, 512)
TILES = (1, 2, 4, 8, 12, 16)
LANES = (4, 8, 16, 32)
HOMES = ("registers", "shared", "memory")
_REGISTERS = {128: 255, 256: 255, 512: 128}
_OTHER_REGISTERS = 64  # registers of a thread for addresses, exchanged states and gates
_AT_ONCE = 4


@dataclass(frozen=True)
class Threads:
    """How a block's threads share a product: `k_lanes` lanes of a warp and `k_warps` warps share its columns, the
    others its rows. A thread has `rows` times 4 `vectors` weights."""

    k_lanes: int
    k_warps: int
    rows: int
    vectors: int


@dataclass(frozen=True)
class WalkShape:
    """The division of a recurrent kernel: a block has `units` of a layer and direction, and takes `tile` sequences
    through all steps at a time. `lanes` lanes of a warp share the columns of a row of weights."""

    kernel: RecurrentKernel
    device: Device
    units: int
    tile: int
    threads: int
    lanes: int

    @property
    def products(self) -> int:
        """Number of products in each step of a block: with its own layer's states, and with those of a layer below."""
        return 1 + (len(self.kernel.layers) > 1)

    @property
    def sums(self) -> int:
        """Number of sums that a step keeps apart: a GRU's reset gate weights only the sum of its own states."""
        return self.products if self.kernel.cell == "gru" else 1

    @property
    def hands_over(self) -> bool:
        """True if a block needs states of another one."""
        return self.splits > 1 or self.products > 1

    @property
    def at_once(self) -> int:
        """Number of vectors of four states that a thread loads before it uses one."""
        return min(_AT_ONCE, math.ceil(self.tile * math.ceil(self.kernel.shape[3] / 4) / self.threads))

    @property
    def cells(self) -> int:
        """Number of layers times directions."""
        return len(self.kernel.layers) * self.kernel.shape[0]

    @property
    def splits(self) -> int:
        """Number of blocks that share a layer's units."""
        return math.ceil(self.kernel.shape[3] / self.units)

    @property
    def slices(self) -> int:
        """Number of groups of blocks that take different sequences."""
        most = math.ceil(self.kernel.shape[2] / self.tile)
        return max(1, min(most, self.device.cores // (self.cells * self.splits)))

    @property
    def blocks(self) -> int:
        """Number of blocks of the launch."""
        return self.cells * self.splits * self.slices

    @cached_property
    def part(self) -> Threads:
        """The division of a product among a block's threads that takes the fewest estimated cycles."""
        return min(self._divide_product(), key=self._product_cycles)

    def _divide_product(self) -> Iterator[Threads]:
        """Yields the possible divisions of a product among a block's threads."""
        warps, hidden = self.threads // 32, self.kernel.shape[3]
        for k_warps in (n for n in (1, 2, 4, 8, 16) if warps % n == 0):
            rows = math.ceil(GATES[self.kernel.cell] * self.units / (32 // self.lanes * (warps // k_warps)))
            yield Threads(self.lanes, k_warps, rows, math.ceil(hidden / (4 * self.lanes * k_warps)))

    def _product_cycles(self, part: Threads) -> float:
        """Estimated cycles of one multiprocessor for a step's products: additions or reads of shared memory, whichever
        take longer, and folding the sums."""
        warps = self.threads // 32
        reads = part.vectors * self.tile * max(part.k_lanes / 8, 2)
        additions = part.vectors * self.tile * part.rows
        folded = round_up(part.rows * self.tile, part.k_lanes)
        folding = 2 * folded * (1 - 1 / part.k_lanes) + part.k_warps * part.rows * self.tile / 8
        spilled = 4 if self._registers(part, "registers") > _REGISTERS[self.threads] else 1
        return spilled * self.products * warps * (max(reads, additions) + folding)

    def _registers(self, part: Threads, home: str) -> int:
        """Estimated registers of a thread if the weights are in `home`."""
        weights = self.products * part.rows * part.vectors * 4 if home == "registers" else part.rows * 4
        return weights + round_up(part.rows * self.tile, part.k_lanes) + _OTHER_REGISTERS

    @property
    def pitch(self) -> int:
        """Floats between two rows of weights or states in shared memory."""
        return 4 * self.part.k_lanes * self.part.k_warps * self.part.vectors

    @property
    def rows(self) -> int:
        """Number of rows of weights in a block, padding included."""
        part = self.part
        return 32 // part.k_lanes * (self.threads // 32 // part.k_warps) * part.rows

    def shared_bytes(self, home: str) -> int:
        """Bytes of shared memory of a block if the weights are in `home`."""
        sums = self.sums * self.part.k_warps * self.tile * self.rows
        weights = self.rows * self.pitch if home == "shared" else 0
        return 4 * (self.products * (self.tile * self.pitch + weights) + sums)

    @cached_property
    def homes(self) -> tuple[str, ...]:
        """The memories that can hold a block's weights ("registers", "shared", "memory"), fastest first."""
        limit = max_shared_bytes(self.device.arch)
        fitting = [home for home in HOMES if self._registers(self.part, home) <= _REGISTERS[self.threads]]
        return tuple(home for home in fitting if self.shared_bytes(home) <= limit)

    @property
    def is_legal(self) -> bool:
        """True if all blocks run at once and some memory can hold the weights."""
        return self.blocks <= self.device.cores and bool(self.homes)

    def cycles(self) -> float:
        """Estimated cycles of a step, for all sequences of a block; by the card's constants (knowledge/devices)."""
        rounds = math.ceil(self.kernel.shape[2] / (self.tile * self.slices))
        step = self._product_cycles(self.part) + (constant(self.device, "state_handover") if self.splits > 1 else 0)
        ways = math.ceil(self.tile * self.kernel.shape[3] / 4 / (self.threads * self.at_once))
        step += constant(self.device, "state_read") * (ways - 1) * self.products
        if self.homes[0] == "memory":
            weights = self.products * GATES[self.kernel.cell] * self.units * self.kernel.shape[3] * 4
            step += weights / constant(self.device, "weight_reading")
        elif self.homes[0] == "shared":
            step += self.products * self.rows * self.pitch / 32
        return rounds * step


def _list_legal(kernel: RecurrentKernel, device: Device) -> list[WalkShape]:
    """All shapes that fit the device."""
    directions, _, batch, hidden = kernel.shape
    least = math.ceil(hidden / max(1, device.cores // (directions * len(kernel.layers))))
    units = sorted({min(hidden, least * n) for n in (1, 2, 3, 4, 8)} | ({hidden} if hidden <= 128 else set()))
    tiles = sorted({min(batch, tile) for tile in TILES} | {math.ceil(batch / math.ceil(batch / 16))})
    found = (WalkShape(kernel, device, *items) for items in itertools.product(units, tiles, THREADS, LANES))
    return [shape for shape in found if shape.is_legal]


def choose_walk(
    kernel: RecurrentKernel, device: Device, choices: dict[str, Choice]
) -> tuple[WalkShape, str, tuple[Tunable, ...]]:
    """(shape, memory of the weights, tunables). Raises CannotLower if no shape fits the device.

    The shape has the choices if they are legal together; else it is the one with the fewest estimated cycles."""
    legal = _list_legal(kernel, device)
    if not legal:
        raise CannotLower(f"recurrence {kernel.name}: {kernel.shape[3]} units do not fit on the device")
    best = min(legal, key=WalkShape.cycles)
    meanings = {
        "units": ("tile", "units of a layer in a block; fewer, and more blocks wait for each other"),
        "tile": ("tile", "sequences that a block takes through all steps at a time"),
        "threads": ("parallel", "threads of a block"),
        "lanes": ("parallel", "lanes of a warp that share a row of weights; more, and sums are folded longer"),
    }
    values = {name: tuple(sorted({int(getattr(shape, name)) for shape in legal})) for name in meanings}
    wanted = {name: pick_number(choices, name, values[name], getattr(best, name)) for name in meanings}
    shape = next((s for s in legal if all(getattr(s, name) == value for name, value in wanted.items())), best)
    homes = shape.homes
    tunables = [
        make_tunable(name, values[name], getattr(best, name), aspect, text) for name, (aspect, text) in meanings.items()
    ]
    tunables.append(make_tunable("weights", homes, homes[0], "memory", "where a block has its weights as it walks"))
    return shape, str(pick(choices, "weights", homes, homes[0])), tuple(tunables)
