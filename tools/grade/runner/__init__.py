"""The untrusted process: it holds one model, and whatever it says is data."""
