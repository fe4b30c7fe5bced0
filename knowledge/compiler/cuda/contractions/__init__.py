"""Matrix products and attention in CUDA."""
