"""The schedule of a kernel before any target spells it: passes over a row, kept values, tunables."""
