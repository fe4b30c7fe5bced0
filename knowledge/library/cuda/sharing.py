"""Kernels that differ in names only have one text: a network of fifty alike layers compiles as one layer does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from foundry.knowledge.library.cuda.launches import KERNEL_PREFIX, decode, encode
from foundry.knowledge.library.cuda.space import identifier
from foundry.knowledge.library.ir.kernels import Kernel, PrintedKernel, TorchCall

# Buffers, and what row kernels call their states and values; no text of the library's own has such a name.
_OWN_NAME = re.compile(r"\b([bsaSn])_\w+")


def share_texts(
    steps: Sequence[Kernel | TorchCall], kernels: Sequence[PrintedKernel | None]
) -> tuple[PrintedKernel | None, ...]:
    """The printed kernels of a plan, later ones with the text and the kernels' names of the first one that is alike."""
    first: dict[str, tuple[str, PrintedKernel]] = {}
    found: list[PrintedKernel | None] = []
    for step, printed in zip(steps, kernels, strict=True):
        if printed is None:
            found.append(None)
            continue
        own = KERNEL_PREFIX + identifier(step.name)
        name, text = first.setdefault(_nameless(printed.functions, own), (own, printed))
        found.append(printed if text is printed else _renamed(printed, text, own, name))
    return tuple(found)


def _nameless(functions: str, own: str) -> str:
    """The text with the kernel's own name, and its buffers' and values' in their order of appearance, the same for
    all."""
    numbers: dict[str, str] = {}
    text = re.sub(rf"\b{own}(?=_|\b)", f"{KERNEL_PREFIX}@", functions)
    return _OWN_NAME.sub(lambda match: numbers.setdefault(match[0], f"{match[1]}_{len(numbers)}"), text)


def _renamed(printed: PrintedKernel, text: PrintedKernel, own: str, name: str) -> PrintedKernel:
    launches = [replace(item, kernel=name + item.kernel.removeprefix(own)) for item in decode(printed.call)]
    return replace(printed, functions=text.functions, call=encode(launches))
