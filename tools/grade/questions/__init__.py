"""What is asked: the reference, inputs and parameters of each distribution, and float64 truths, in the judge."""
