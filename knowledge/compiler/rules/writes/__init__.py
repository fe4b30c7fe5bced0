"""Writes through indices: each element asks its indices, or items are sorted by what they are written to."""
