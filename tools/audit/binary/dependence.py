"""Kernels that let the next one begin early, of which none waits: a race that no run has to show."""

from __future__ import annotations

import re
from pathlib import Path

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.binary.elf import is_device_code
from foundry.tools.protocol.reasons import make_gate
from foundry.tools.targets.disassembly import disassembled

DEPENDENCE = "dependent launches"
# Machine code of griddepcontrol.launch_dependents and griddepcontrol.wait (PTX ISA 9.0, section 9.7.13.13); their
# names in cuobjdump's output for sm_90 and later.
_ANNOUNCES, _WAITS = re.compile(r"\bPREEXIT\b"), re.compile(r"\bACQBULK\b")


def dependence_gate(library: Path) -> Gate | None:
    """Gate "dependent launches" of a built library or cubin; None where it has no device code that can be read.

    Only the wait makes what the kernel before it wrote visible. Code that announces and never waits is of no use, or
    reads what may not be written yet. Exhibit: early_dependent.
    """
    try:
        has_code = is_device_code(library) or b".nv_fatbin" in library.read_bytes()
    except OSError:
        return None
    text = disassembled(library) if has_code else ""
    if not text:
        return None
    against = [Reason(ReasonKind.RACES, "")] if never_waits(text) else []
    return make_gate(DEPENDENCE, against, "no kernel begins before the one whose results it reads")


def never_waits(disassembly: str) -> bool:
    """Whether some kernel of cuobjdump's or nvdisasm's output announces and none waits."""
    return _ANNOUNCES.search(disassembly) is not None and _WAITS.search(disassembly) is None
