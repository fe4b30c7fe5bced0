"""The pages of runs on this machine, live while they work, with a box to talk to their experts."""
