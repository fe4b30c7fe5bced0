"""MAP-Elites (Mouret and Clune 2015): one elite per cell of the kernel's three coordinates, an archive per island.

Experts are shown the best elites of all cells. A parent is drawn by merit and by how empty the cells around it are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from foundry.agents.brief import Brief, Example
from foundry.graph.search.strategy import Here, Strategy, Weights
from foundry.knowledge.candidate import candidate_number
from foundry.knowledge.merit import CORRECT
from foundry.tools.audit.text.native import native_code

if TYPE_CHECKING:
    from foundry.graph.run.services import Services
    from foundry.knowledge.candidate import Evaluation, Resources
    from foundry.knowledge.thought import ExpertName

SHOWN_ELITES = 6
LEVELS = 4
SHARED_BYTES = 1024  # bytes of shared memory; a block with more keeps tiles there
BLEND = 0.3  # share of the archive in a parent's weight; the rest is merit
Vector = tuple[float, float, float]
# Patterns in C++ or CUDA of levels 1 to 3 of each coordinate. A cell keeps kernels diverse; it does not judge them.
MEMORY = (
    r"\b(?:float|double|int|half|uint)[248]\b|\bVec<|omp\s+(?:parallel\s+for\s+)?simd|_mm(?:256|512)_|vector_size",
    r"__shared__|for\s*\([^;]*;[^;]*;\s*\w+\s*\+=\s*(?!1\b)\w+",
    r"cp\.async|__pipeline_|wgmma|mma\.sync|\bw?mma::|\w+\s+\w+\s*\[\s*\w+\s*\]\s*\[\s*\w+\s*\]\s*(?:=\s*\{|;)",
)
ALGORITHM = (
    r"(?:expf?|logf?|tanhf?|erff?|r?sqrtf?|fmaxf?|fminf?)\s*\([^;]*(?:expf?|logf?|tanhf?|erff?|r?sqrtf?|[-+*/])",
    r"exp2?f?\s*\(\s*\w+\s*-\s*\w+\s*\)|(?i:split_?k|im2col|welford)|\bpartial\w*\s*\[",
    r"(?i)winograd|strassen|\bfft|butterfl|look_?back",
)
SYNCHRONISATION = (
    r"__syncthreads|bar\.sync|mbarrier|omp\s+barrier",
    r"__shfl|__reduce_\w+_sync|tiled_partition|\bwarp_\w+\s*\(|\bteam_\w+\s*\(|\breduction\s*\(",
    r"\batomic\w+\s*\(|grid\.sync|cluster\.sync|__threadfence|omp\s+(?:atomic|critical)|std::atomic",
)


def read_cell(text: str, resources: Resources) -> str:
    """The cell of a candidate's file, such as `"120"`: memory use, algorithm, synchronisation, each 0 to 3."""
    code = native_code(text)
    levels = [
        max((level for level, pattern in enumerate(patterns, 1) if re.search(pattern, code)), default=0)
        for patterns in (MEMORY, ALGORITHM, SYNCHRONISATION)
    ]
    if resources.shared_bytes > SHARED_BYTES:
        levels[0] = max(2, levels[0])
    return "".join(map(str, levels))


@dataclass
class Archive:
    """The candidates of an island by cell. `cells`: the cell of each; `merits`: merits of the correct ones."""

    cells: dict[str, str] = field(default_factory=dict)
    merits: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, memory: str, population: Mapping[str, float], services: Services) -> Archive:
        """The archive of an island: that in `memory`, with the candidates of `population` that are not in it yet."""
        archive = cls(**json.loads(memory)["archive"]) if memory else cls()
        for name, merit in population.items():
            if name not in archive.cells:
                found = services.latest(name)
                archive.add(name, read_cell(services.text(found), found.build.resources), merit)
        return archive

    def add(self, name: str, cell: str, merit: float) -> None:
        """Adds a candidate; it can become an elite only if it is correct."""
        self.cells[name] = cell
        if merit >= CORRECT:
            self.merits[name] = merit

    def elites(self) -> dict[str, str]:
        """{cell: its best correct candidate}, the best first; of equals the older one."""
        best: dict[str, str] = {}
        for name in sorted(self.merits, key=lambda name: (-self.merits[name], candidate_number(name))):
            best.setdefault(self.cells[name], name)
        return best

    def exploration(self, cell: str) -> Vector:
        """Direction towards empty cells (weight 1) and weak ones (weight: their lack of merit), by inverse distance.

        Only cells within distance 2 count.
        """
        elites, here = self.elites(), [int(level) for level in cell]
        highest = max(self.merits.values(), default=1.0)
        pull, total = [0.0, 0.0, 0.0], 0.0
        for number in range(LEVELS**3):
            there = [number // LEVELS**2, number // LEVELS % LEVELS, number % LEVELS]
            distance = math.dist(here, there)
            if distance == 0 or distance > 2:
                continue
            elite = elites.get("".join(map(str, there)))
            need = 1.0 if elite is None else max(0.0, 1.0 - self.merits[elite] / highest)
            total += 1.0 / distance
            for dimension in range(3):
                pull[dimension] += need / distance * (there[dimension] - here[dimension]) / distance
        first, second, third = (value / total if total else 0.0 for value in pull)
        return first, second, third


def blend(weights: Weights, pulls: Mapping[str, float]) -> Weights:
    """Weights of parents, each with the share BLEND from the pull at its cell; their sum is 1."""
    of_weights, of_pulls = sum(weights.values()) or 1.0, sum(pulls.values()) or 1.0
    return {
        name: (1 - BLEND) * weight / of_weights + BLEND * pulls.get(name, 0.0) / of_pulls
        for name, weight in weights.items()
    }


def show_elites(brief: Brief, archive: Archive, services: Services) -> Brief:
    """The brief with the best elites of all cells, and the text of the best one of another kind than those shown."""
    elites = [services.latest(name) for name in list(archive.elites().values())[:SHOWN_ELITES]]
    shown = [item.evaluation for item in brief.examples[:1]]
    other = _other_kind(elites, archive, {brief.parent.candidate.id, *(item.candidate.id for item in shown)}, shown)
    extra = (Example(other, services.text(other), "the best of another kind"),) if other else ()
    return replace(brief, elites=tuple(elites) or brief.elites, examples=(*brief.examples[:1], *extra))


def _other_kind(
    elites: Iterable[Evaluation], archive: Archive, known: set[str], best: Sequence[Evaluation]
) -> Evaluation | None:
    """The first elite that is not in `known` and whose cell differs from those of `best`; None if there is none."""
    cells = {archive.cells.get(item.candidate.id) for item in best}
    fresh = (item for item in elites if item.candidate.id not in known)
    return next((item for item in fresh if archive.cells[item.candidate.id] not in cells), None)


class MapElites(Strategy):
    async def parents(self, here: Here, weights: Weights) -> Weights:
        """The weights, of which a part follows the exploration bonus of each candidate's cell."""
        archive = Archive.of(here.memory, here.state["population"], here.services)
        pulls = {name: math.hypot(*archive.exploration(archive.cells.get(name, "000"))) for name in weights}
        return blend(weights, pulls)

    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """The brief with the best elites of all cells, and the text of the best one of another kind."""
        return show_elites(brief, Archive.of(here.memory, here.state["population"], here.services), here.services)

    async def learn(self, here: Here, child: Evaluation | None) -> str:
        """The memory with the archive of the island's population; unchanged at the end of the search."""
        if child is None:
            return here.memory
        archive = Archive.of(here.memory, here.state["population"], here.services)
        return json.dumps({"archive": vars(archive)})


STRATEGY = MapElites()
