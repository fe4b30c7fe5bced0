"""Proofs within a run: an early one of each structure, what failures have in common, and how much time is left."""
