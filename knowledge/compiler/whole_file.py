"""Texts that an author's whole file names by one line each: the target's header, Foundry's build, the task's model.

A task that no tracer follows has no graph to wrap a kernel for, so its author writes the Python around it. With these
lines that is a few lines more than the kernel. The file is built as the kernel compiler's own: in a second, with the
compiler's errors, its registers and its machine code. `expand_foundry_lines` writes the texts out, and
`agents/prompt_text/source.py` shows a file with the lines in their place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from foundry.knowledge.compiler.file.assemble import split_task
from foundry.knowledge.compiler.printers import find_printer
from foundry.knowledge.device import Device

HEADER, BUILD, MODEL = "// @foundry header@", "# @foundry build@", "# @foundry model@"  # lines of an author's file
_BEGIN, _END = "----- begin", "----- end"  # stand behind such a line once it is written out
REGION = re.compile(
    rf"^(// @foundry header@|# @foundry build@|# @foundry model@) {_BEGIN}$.*?^\1 {_END}[^\n]*$",
    re.DOTALL | re.MULTILINE,
)
_LINE = re.compile(r"^(// @foundry header@|# @foundry build@|# @foundry model@)(?! -----)[^\n]*$", re.MULTILINE)


def expand_foundry_lines(text: str, device: Device, task_source: str, overrides: Mapping[str, int]) -> str:
    """The author's file with its `@foundry header@`, `build@` and `model@` lines followed by the texts they name.

    The texts stand between begin and end marks; `overrides` are the task's constants. A file without such lines stays
    as it is.
    """
    printer = find_printer(device.target)

    def written(found: re.Match[str]) -> str:
        """The text that one of Foundry's lines stands for, between marks."""
        line = found[1]
        if line == HEADER:
            at = text.count("\n", _source_start(text, found.start()), found.start()) + 1
            return f'{line} {_BEGIN}\n{printer.header().strip()}\n#line {at} "kernel"\n{line} {_END}'
        inside = printer.build_text(device) if line == BUILD else split_task(task_source, overrides)[1]
        return f"{line} {_BEGIN}\n{inside.strip()}\n{line} {_END}"

    return _LINE.sub(written, text)


def _source_start(text: str, position: int) -> int:
    """The offset at which the string with the header begins; compiler messages count the author's lines from there."""
    return max(text.rfind('"""', 0, position), 0)
