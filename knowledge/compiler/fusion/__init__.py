"""Kernel fusion: several kernels become one, and intermediate values stay in registers instead of going through
memory."""
