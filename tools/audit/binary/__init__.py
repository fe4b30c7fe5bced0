"""Gates over a built library: its imports and its machine code."""
