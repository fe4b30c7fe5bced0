"""Lowering rules: each turns one ATen operator into kernels of the compiler's IR."""
