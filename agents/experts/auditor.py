"""The auditor: is the speedup genuine kernel work, or cheating?

Executable gates come first (tools/audit), then the timing's numbers (knowledge/ruling.py); an opinion cannot
overrule them. What remains is an opinion on the whole file, for which a chat model is asked at the end of a run.
"""

from __future__ import annotations

from foundry.agents.expert import Expert

EXPERT = Expert(
    name="auditor",
    mandate="Decide whether a speedup is genuine kernel work; veto what is not.",
    prompt="auditor",
    calls=("check", "profile", "sass", "show"),
)
