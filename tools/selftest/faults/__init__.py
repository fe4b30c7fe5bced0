"""Faults to plant into a correct kernel: in its graph, its expressions, its kernels, its text."""
