"""Operators without a kernel are replaced by PyTorch's decompositions, one at a time, and by some of our own."""
