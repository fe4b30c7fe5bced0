"""Finds kernels that let the next kernel start early while no kernel waits: a race that a run may not show."""

from __future__ import annotations

import re
from pathlib import Path

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.binary.elf import is_device_code
from foundry.tools.protocol.reasons import make_gate
from foundry.tools.targets.cuda.disassembly import INSTALL, disassembled

DEPENDENCE = "dependent launches"
# Machine code of griddepcontrol.launch_dependents and griddepcontrol.wait (PTX ISA, "griddepcontrol"), by
# cuobjdump's names: seen in the output of nvcc 13.0 for sm_90.
_ANNOUNCES = re.compile(r"\bPREEXIT\b")
_WAITS = re.compile(r"\bACQBULK\b")


def dependence_gate(library: Path) -> Gate | None:
    """Gate "dependent launches" of a built library or cubin; None without device code; passes with a note if
    unreadable.

    Only the wait makes the previous kernel's writes visible. Code that announces and never waits is useless, or
    reads data that may not be written yet. Exhibit: early_dependent.
    """
    try:
        has_code = is_device_code(library) or b".nv_fatbin" in library.read_bytes()
    except OSError:
        return None
    text = disassembled(library) if has_code else ""
    if not has_code:
        return None
    if not text:
        return Gate(DEPENDENCE, True, f"not looked at: no disassembler here reads it ({INSTALL})")
    against = [Reason(ReasonKind.RACES, "")] if never_waits(text) else []
    return make_gate(DEPENDENCE, against, "no kernel begins before the one whose results it reads")


def never_waits(disassembly: str) -> bool:
    """True if some kernel in cuobjdump's or nvdisasm's output starts the next one early and none waits."""
    return _ANNOUNCES.search(disassembly) is not None and _WAITS.search(disassembly) is None
