"""Faults to plant into a correct kernel: into its graph, its expressions, its kernels or its text."""
