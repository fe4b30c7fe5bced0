"""Search mechanisms that are off by default because they have shown no use without a model."""
