"""Search strategies that have shown no use, a file each: `--strategy NAME` (graph/search/strategy.py)."""
