"""Loop nests over scalar expressions, and the arithmetic on them; no target."""
