"""Lowers writes through indices: each element compares all indices with its position, or items are sorted by target."""
