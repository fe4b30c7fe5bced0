"""The state machine: nodes, islands, archive, migration, budget, inbox, run directory, trace."""
