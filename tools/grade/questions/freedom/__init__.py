"""What PyTorch leaves open: other orders of equal elements, other roundings, and where it uses TF32, by running the
reference again."""
