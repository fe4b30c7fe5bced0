"""How long a run takes beyond its search: proofs, and the comparison with torch.compile.

The whole run should end within twice the search's time and one proof. The first proof is always made; what follows it
is shortened where the time is short.
"""

from __future__ import annotations

from foundry.graph.run.journal import Diverged
from foundry.graph.run.request import SEARCHES
from foundry.graph.run.services import Services
from foundry.knowledge.candidate import RivalName

# What a proof takes on a quiet machine: seconds, and forwards of the reference.
PROOF_S, PROOF_FORWARDS = 20.0, 250
# What the comparison takes: seconds, seconds for each operator that torch.compile compiles, forwards of the reference.
COMPARISON_S, OPERATOR_S, COMPARISON_FORWARDS = 12.0, 0.1, 40
SCREEN_FORWARDS = 20  # forwards of the reference in the first kernel's screen
PLAN = "plan"  # the note's name
QUIET_S = 8.0  # seconds between a run's start and its first measured time on a quiet machine
MOST_SLOWED = 5.0  # times by which a busy machine is expected to slow proofs


def slowed(begun_s: float, eager_ms: float) -> float:
    """How many times slower than a quiet machine this one seems to be."""
    own_s = max(0.0, begun_s - COMPARISON_FORWARDS * eager_ms / 1e3)
    return min(MOST_SLOWED, max(1.0, own_s / QUIET_S))


async def plan_words(services: Services) -> str:
    """When the search ends and an answer may be expected, in words, from the baseline's time and how slow the machine
    is."""
    eager_ms, begun_s = (await services.measure.baseline()).eager_ms, services.log.elapsed_s()
    slower, minutes = slowed(begun_s, eager_ms), services.ledger.allowed().minutes
    proof_s = slower * PROOF_S + PROOF_FORWARDS * eager_ms / 1e3
    end_s = max(60.0 * minutes, begun_s + SCREEN_FORWARDS * eager_ms / 1e3)
    expected_s = await _comparison_s(services, eager_ms, slower)
    compares = "compile" in services.request.rivals and end_s + expected_s <= 60.0 * SEARCHES * minutes
    total_s = end_s + proof_s + (expected_s if compares else 0.0)
    then = "a proof and the comparison with torch.compile follow" if compares else "a proof follows"
    return f"the search ends at {minutes:.2g} min; {then}: expect an answer at about {total_s / 60:.1f} min"


async def rivals_in_time(services: Services, proof_s: float) -> list[RivalName]:
    """The requested baselines if the comparison fits into the run's time after its proofs, else none, with a note.

    `proof_s`: seconds of the first proof. On a GPU they were compiled beside the search, so all are returned; so in a
    bench.
    """
    rivals = list(services.request.rivals)
    is_apart = not services.device.traits.uses_host_cores
    if is_apart or services.request.effort == "bench" or services.request.foreign:
        return rivals

    eager_ms = (await services.measure.baseline()).eager_ms
    quiet_s = PROOF_S + PROOF_FORWARDS * eager_ms / 1e3
    slower = min(MOST_SLOWED, max(1.0, proof_s / quiet_s))  # as the proof was
    expected_s = await _comparison_s(services, eager_ms, slower)

    def look() -> bool:
        """True if the comparison's expected seconds fit into the rest of the run's time."""
        left_min = SEARCHES * services.ledger.allowed().minutes + proof_s / 60 - services.ledger.spent().minutes
        return expected_s / 60 <= left_min

    try:
        has_time = services.journal.plain("contest/time", "outside", look)
    except Diverged:  # a recording from before this was asked
        has_time = True
    if has_time:
        return rivals
    if not proof_s:  # there is no kernel that it could be compared with
        return []
    words = f"it takes about {expected_s:.0f} s, more than the run has left; a larger --minutes has time for it"
    services.log.note_once("note", "torch.compile was not compared", reason=words)
    return []  # eager in its default arithmetic is the baseline itself on a CPU


async def _comparison_s(services: Services, eager_ms: float, slower: float) -> float:
    """Seconds that compiling and timing the reference are expected to take."""
    graphs = await services.graphs()
    operators = len(graphs[0].ops) if graphs else 0
    return slower * (COMPARISON_S + OPERATOR_S * operators) + COMPARISON_FORWARDS * eager_ms / 1e3
