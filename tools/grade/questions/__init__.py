"""The judge's questions: the reference, inputs and parameters of each distribution, and float64 truths."""
