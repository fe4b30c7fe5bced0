"""Chooses which faults to plant and makes the faulty files. Free of torch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from foundry.knowledge.errors import CannotLower
from foundry.tools.selftest.faults import any_source, on_expressions, on_graph, on_kernels, on_source
from foundry.tools.selftest.faults.fault import FAMILIES, Mutant, PlantableFault
from foundry.tools.selftest.faults.original import Original

DEFAULT_FAULTS = 32  # faults planted if the user names no number


def library_mutants(original: Original, count: int, seed: int) -> list[Mutant]:
    """Up to `count` faulty copies of the compiler's kernel, taken round-robin from all fault families."""
    sources = (on_graph, on_kernels, on_expressions, on_source)
    found = [proposal for source in sources for proposal in source.faults(original)]
    return plant(found, original.text, count, seed)


def source_mutants(text: str, count: int, seed: int) -> list[Mutant]:
    """Up to `count` faulty copies of a given candidate file; raises UsageError for a file that is not Python."""
    return plant(any_source.faults(text), text, count, seed)


def plant(proposals: Iterable[PlantableFault], correct: str, count: int, seed: int) -> list[Mutant]:
    """Makes up to `count` faulty files, without those that the compiler cannot express and those equal to another
    file."""
    mutants: list[Mutant] = []
    known = {correct}
    for proposal in in_turn(list(proposals), seed):
        if len(mutants) >= count:
            break
        try:
            text = proposal.make()
        except CannotLower:
            continue
        if text not in known:
            known.add(text)
            mutants.append(Mutant(proposal.fault, text))
    return mutants


def in_turn(proposals: Sequence[PlantableFault], seed: int) -> list[PlantableFault]:
    """The faults ordered so that families take turns; within a family the seed decides."""
    generator = random.Random(seed)
    groups: list[list[PlantableFault]] = []
    for family in FAMILIES:
        group = [proposal for proposal in proposals if proposal.fault.family == family]
        generator.shuffle(group)
        groups.append(group)
    longest = max((len(group) for group in groups), default=0)
    return [group[turn] for turn in range(longest) for group in groups if turn < len(group)]
