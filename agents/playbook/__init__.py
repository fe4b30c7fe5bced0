"""The brain without a model: diagnosis, ranking and choice among the legal moves of the kernel compiler."""
