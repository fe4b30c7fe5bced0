"""Options of the judge's questions to a runner, and the names of gates that the judge and the main process share."""

from __future__ import annotations

from typing import Literal

# Byte values written to the memory that a candidate may find free before a call.
NAN_BYTES = 0xFF  # four of them are NaN as float32
LARGE_BYTES = 0x7F  # four of them are 3.4e38 as float32
SPOILED = -1  # not a byte: fill with the last answer, a few of its elements changed

# Layouts of inputs in memory: "" as sent, "elsewhere" at addresses aligned to the element's size only, "strided" with
# other strides.
Layout = Literal["", "elsewhere", "strided"]
ELSEWHERE: Layout = "elsewhere"
STRIDED: Layout = "strided"

TIMED_OUTPUTS = "timed outputs"
OUT_OF_TURN, UNDISTURBED, COMPUTED_ANEW = "out of turn", "undisturbed reference", "computed anew"
PROCESS_EVENTS, OTHER_CLOCKS = "process events", "other clocks"
OTHER_STRIDES, OTHER_MODE, GRADIENTS = "other strides", "other mode", "gradients"
FEWER_ROWS = "provenance (fewer rows)"
FUNCTIONS, STATE, PROCESSES = "function identities", "global state", "threads and processes"
PUBLIC_SEEDS = (42, 0)  # seeds with which benchmarks draw inputs, the most usual first
LONG_DRAW_BYTES = 1 << 30  # bytes of inputs that take long to draw: one core of a host draws 0.7 GB a second
IN_ITS_PROCESS = (FUNCTIONS, STATE, PROCESSES)  # what a candidate must leave as it found it
DRIFT = "parameters unchanged"  # the gate of a forward that writes to parameters which the reference's leaves alone
NOT_ASKED = "not asked for want of"  # begins the evidence of a question that was left out, before "time" or "memory"
DECISION = "decision in line"  # begins the name of a gate about Python that reads values; the line follows
ONE_SIDED = "one-sided:"  # begins its evidence if no question took the other side
LEADS, NO_LEADS = "leads in the text", "none"  # a gate's name, and its evidence where there are none


def public_seeds(nbytes: int) -> tuple[int, ...]:
    """The seeds that benchmarks use, the most usual first; only that one for inputs that take long to draw."""
    return PUBLIC_SEEDS if nbytes < LONG_DRAW_BYTES else PUBLIC_SEEDS[:1]
