"""What is simplified and prepared once kernels are fused, each by itself."""
