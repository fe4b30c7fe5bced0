"""The brain without a model: diagnosis, ranking and choice among the library's legal moves."""
