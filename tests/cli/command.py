"""The command `foundry` as tests start it: a timing ends with the fewest and shortest groups that make an interval,
where a user's goes on for up to 14 s to make it narrow, and the tuner, which has tests of its own, gets no time. The
CPU has the cache that all tests give it. Nothing that the tests here ask depends on any of this."""

from dataclasses import replace

from foundry.cli import app
from foundry.graph.run import request
from foundry.tools.protocol.statistics import EFFORTS, MIN_GROUPS
from foundry.tools.targets.cpu import describe

SHORTEST_S = EFFORTS["screen"].group_s
SHORT_EFFORTS = {
    stage: replace(effort, budget_s=0.0, group_s=SHORTEST_S, min_groups=min(effort.min_groups, MIN_GROUPS))
    for stage, effort in EFFORTS.items()
}
UNTUNED_EFFORTS = {name: replace(effort, tune_s=0) for name, effort in request.EFFORTS.items()}

if __name__ == "__main__":
    EFFORTS.update(SHORT_EFFORTS)
    request.EFFORTS.update(UNTUNED_EFFORTS)
    describe._last_level_cache_bytes = lambda: 8 << 20  # OWN_CACHE_BYTES of tests/conftest.py
    app()
