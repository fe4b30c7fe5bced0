"""The live view of a run: read from its log as it grows, drawn in a terminal beside a line to type on, or told in plain
lines."""
