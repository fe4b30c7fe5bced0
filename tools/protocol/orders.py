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
OUT_OF_TURN = "out of turn"
UNDISTURBED = "undisturbed reference"
COMPUTED_ANEW = "computed anew"
PROCESS_EVENTS = "process events"
OTHER_CLOCKS = "other clocks"
OTHER_STRIDES = "other strides"
OTHER_MODE = "other mode"
GRADIENTS = "gradients"
FUNCTIONS = "function identities"
STATE = "global state"
PROCESSES = "threads and processes"
PUBLIC_SEEDS = (42, 0)  # seeds of inputs that benchmarks draw, the most usual first
LONG_DRAW_BYTES = 1 << 30  # bytes of inputs that count as long to draw: a host draws 0.7 GB a second, on one core
IN_ITS_PROCESS = (FUNCTIONS, STATE, PROCESSES)  # gates over state that a candidate must leave as it found it
NOT_ASKED = "not asked for want of"  # evidence of a question that was left out; "time" or "memory" follows
LEADS = "leads in the text"
NO_LEADS = "none"  # evidence of the gate LEADS if there are none


def public_seeds(nbytes: int) -> tuple[int, ...]:
    """The seeds that benchmarks use, the most usual first; only that one for inputs that take long to draw."""
    return PUBLIC_SEEDS if nbytes < LONG_DRAW_BYTES else PUBLIC_SEEDS[:1]
