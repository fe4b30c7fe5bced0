"""The CUDA target: builds with nvcc, describes and measures the GPU, reads machine code and counters, names limits."""
