"""The tuner: sweeps the tunables of each kernel of a plan by itself; an author's code runs confined."""
