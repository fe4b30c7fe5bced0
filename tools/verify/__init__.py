"""The commands `foundry verify`, `foundry profile` and `foundry tune`."""
