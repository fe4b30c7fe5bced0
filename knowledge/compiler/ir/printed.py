"""Results of the printers: source text, and the choices that it was printed with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foundry.knowledge.candidate import Choice
from foundry.knowledge.step_words import SWITCH

# Nouns that a tunable counts. The meaning of a number begins with one of them.
UNITS = frozenset(
    (
        *(
            "accesses",
            "blocks",
            "bytes",
            "channels",
            "columns",
            "elements",
            "groups",
            "images",
            "items",
            "keys",
            "lanes",
        ),
        *("outputs", "panels", "parts", "pixels", "points", "positions", "rounds", "rows", "sequences", "slices"),
        *("stretches", "threads", "tiles", "times", "units", "vectors", "warpgroups", "warps"),
    )
)
LONGEST_UNIT = 3  # words, e.g. "output channels"


@dataclass(frozen=True)
class Tunable:
    """A number or a choice of a template. `values` are all legal for this kernel on this device.

    Numbers are left to the tuner, never to a language model. The meaning of a number begins with its unit ("points of
    one task; small balances"), that of a switch between 0 and 1 with "1". So every line can say it.
    """

    name: str
    values: tuple[Choice, ...]
    default: Choice
    aspect: Literal["tile", "vector", "memory", "parallel", "algorithm", "precision"]
    meaning: str  # the unit of a number, then the trade-off of a larger value

    @property
    def is_switch(self) -> bool:
        return self.meaning.startswith("1") and all(value in (0, 1) for value in self.values)

    @property
    def unit(self) -> str:
        """The noun phrase that a number counts: "points", "output channels"; `SWITCH` if 1 means on.

        "" for a choice among words, and for a number of an author who names no unit.
        """
        if self.is_switch:
            return SWITCH
        if not all(isinstance(value, int) for value in self.values):
            return ""
        said = self.meaning.split(maxsplit=LONGEST_UNIT)[:LONGEST_UNIT]
        end = next((at for at, word in enumerate(said, 1) if word.strip(",:;") in UNITS), 0)
        return " ".join(said[:end]).strip(",:;")


@dataclass(frozen=True)
class PrintedKernel:
    """One kernel as source text: `functions` are definitions at file scope, `call` the statements that run it.

    In `call`, buffers are C identifiers `b_<name>` of their element type's pointer. `workspace_bytes` of scratch is
    available to the call as `char* workspace`. CUDA: `call` launches on `stream`.
    """

    functions: str
    call: str
    template: str  # "map", "row", "column", "scan", "gemm", "conv", "pool", "attention", "authored_<digest>"
    choices: dict[str, Choice]  # every tunable's value in this printing
    tunables: tuple[Tunable, ...]
    workspace_bytes: int = 0
    launches: int = 1
    prepare: dict[str, str] = field(default_factory=dict)  # prepared buffer -> C statements filling it from weights
    prepared_sizes: dict[str, int] = field(default_factory=dict)  # prepared buffer -> elements of float32
    prepared_bytes: int = 0  # CUDA: bytes that preparing launches fill, kept while parameters do not change
    labels: tuple[str, ...] = ()
    arch_feature: str = ""  # CUDA: the letter that the architecture's name needs, "a" for sm_90a
    shared: tuple[str, ...] = ()  # compiler's texts that `functions` needs, once a file and at its scope, in this order


@dataclass(frozen=True)
class KernelSummary:
    """Facts about one kernel of a lowered candidate, for the search."""

    name: str
    template: str
    ops: tuple[str, ...]
    choices: dict[str, Choice]
    tunables: tuple[Tunable, ...]
    flops: int
    traffic_bytes: int
