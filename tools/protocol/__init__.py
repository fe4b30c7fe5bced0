"""What correct and fast mean: distributions, tolerances, statistics; no process of its own."""
