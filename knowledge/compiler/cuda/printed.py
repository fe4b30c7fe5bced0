"""A printed CUDA kernel from its functions, its launches and its tunables."""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.compiler.cuda.launches import Launch, encode
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.printed import PrintedKernel
from foundry.knowledge.compiler.schedule.tuning import Tuning


def print_launches(
    functions: str,
    launches: Sequence[Launch],
    tuning: Tuning,
    *,
    template: str,
    shared: Sequence[str] = (),
    workspace_bytes: int = 0,
) -> PrintedKernel:
    """The printed kernel of these C++ functions and launches, which run in order, with the values and tunables of
    `tuning`. `shared` names library files below cuda/ that the functions need."""
    return PrintedKernel(
        functions=functions,
        call=encode(launches),
        template=template,
        choices=tuning.values,
        tunables=tuple(tuning.tunables),
        workspace_bytes=workspace_bytes,
        launches=len(launches),
        shared=tuple(read_library_text(f"cuda/{name}") for name in shared),
    )
