"""The CUDA printer: maps, pools, what all kernels share, and the module around them."""
