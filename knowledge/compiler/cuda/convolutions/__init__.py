"""Convolutions in CUDA: as a product, by phases, direct."""
