"""Lessons of earlier runs: an append-only SQLite journal and its rebuildable Chroma index."""
