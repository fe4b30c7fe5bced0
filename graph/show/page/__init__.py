"""The page of a run and of a bench: one HTML file that opens offline, and what it says."""
