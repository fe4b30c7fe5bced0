"""What earlier runs learnt: an append-only SQLite journal and its rebuildable Chroma index."""
