"""Scans by tiles of vectors. With `tiles` a team or a block walks a row and reads a tile ahead. With `look_back` every
tile has a block of its own that looks back for the total ahead of it, for few and long rows."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.rows.scan_space import ScanSpace, ScanText
from foundry.knowledge.compiler.cuda.space import signature_of
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.opgraph import ITEM_BYTES

TEAMS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
ROUNDS = (1, 2, 4, 8)
LOOK_BACK_THREADS = (128, 256, 512, 1024)
_HELD = 16  # 32-bit words of a tile that one thread holds by default
_ROUNDS_MEANING = "vectors of a tile that one thread holds"
_SHARED = ("rows/scan.cuh",)
_ROWS_BLOCK = 256  # threads of a block whose rows each have a warp or less


def print_tiles(space: ScanSpace, tuning: Tuning) -> PrintedKernel:
    """The printed kernel in which a team of threads walks each row, tile by tile; declares "team" and "rounds" in
    `tuning`."""
    vector = space.widest()
    pieces = math.ceil(space.length / vector)
    words = max(1, ITEM_BYTES[space.kernel.dtype] // 4)
    wide = max(1, min(8, _HELD // (vector * words)))
    team = min([size for size in TEAMS if size * wide >= pieces and size <= 32] or [32])
    if pieces > 32 * wide * 2:
        team = min([size for size in TEAMS if 64 <= size <= 512 and size * wide >= pieces], default=512)
    team = tuning.number("team", TEAMS, team, "parallel", "threads that share a row")
    fitting = min([n for n in ROUNDS if n * team >= pieces], default=8)
    rounds = tuning.number("rounds", ROUNDS, min(wide, fitting), "vector", _ROUNDS_MEANING)
    threads = max(team, _ROWS_BLOCK) if team <= 32 else team
    per_block = threads // team
    name = symbol_of(space.kernel)
    signature, arguments = signature_of(space.plan, space.found, space.kernel.stores)
    values = space.holes() | ScanText(space, vector, rounds).holes()
    values |= {"NAME": name, "PARAMETERS": signature, "THREADS": threads, "ROWS_PER_BLOCK": per_block}
    values |= {"LANES": min(team, 32), "WARPS": max(1, team // 32)}
    source = fill(read_library_text("cuda/rows/scan_rows.cu"), values)
    launch = Launch(name, (math.ceil(space.rows / per_block), 1, 1), (threads, 1, 1), tuple(arguments))
    return print_launches(source, [launch], tuning, template="scan", shared=_SHARED)


def print_look_back(space: ScanSpace, tuning: Tuning) -> PrintedKernel:
    """The printed kernel in which each tile has a block, with a launch that clears the memory for their totals;
    declares "threads" and "rounds" in `tuning`."""
    vector = space.widest()
    usual = 256 if ITEM_BYTES[space.kernel.dtype] <= 4 else 512  # totals of two words need a fence
    threads = tuning.number("threads", LOOK_BACK_THREADS, usual, "parallel", "threads of a block, which has one tile")
    rounds = tuning.number("rounds", ROUNDS, max(1, min(8, 2 * _HELD // vector)), "vector", _ROUNDS_MEANING)
    tiles = math.ceil(space.length / (threads * rounds * vector))
    groups = math.ceil(tiles / 32)
    slot_words = 1 if ITEM_BYTES[space.kernel.dtype] <= 4 else 2
    words = 2 + space.rows * (tiles + groups + math.ceil(groups / 32)) * slot_words
    name = symbol_of(space.kernel)
    signature, arguments = signature_of(space.plan, space.found, space.kernel.stores)
    values = space.holes() | ScanText(space, vector, rounds).holes()
    values |= {"NAME": name, "THREADS": threads, "TILES": tiles, "WORDS": words}
    values |= {"PARAMETERS": f"{signature}, unsigned long long* memory"}
    source = fill(read_library_text("cuda/rows/scan_look_back.cu"), values)
    memory = launches.workspace_argument(0)
    made = [
        Launch(f"{name}_clear", (math.ceil(words / 256), 1, 1), (256, 1, 1), (memory,)),
        Launch(name, (space.rows * tiles, 1, 1), (threads, 1, 1), (*arguments, memory)),
    ]
    return print_launches(source, made, tuning, template="scan", shared=_SHARED, workspace_bytes=8 * words)
