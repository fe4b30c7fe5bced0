"""The tuner: sweeps the tunables of each kernel of a plan by itself, on texts that only the library prints."""
