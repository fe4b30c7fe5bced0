"""The folder of everything that outlives a run: caches, locks, ceilings and the experience store."""

from __future__ import annotations

import os
from pathlib import Path


def foundry_home() -> Path:
    """$FOUNDRY_HOME, or ~/.foundry."""
    return Path(os.environ.get("FOUNDRY_HOME") or Path.home() / ".foundry")
