"""The anti-cheat gates: they read a candidate's text, its build and its execution to decide if it does its own work."""

from foundry.tools.audit.acts.provenance import heavier, later_work, provenance_gates
from foundry.tools.audit.binary.symbols import symbol_gates
from foundry.tools.audit.gates import audit, needs_watching

__all__ = [
    "audit",
    "heavier",
    "later_work",
    "needs_watching",
    "provenance_gates",
    "symbol_gates",
]
