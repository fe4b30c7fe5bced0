"""The intermediate form: loop nests over scalar expressions, and operations on them; independent of targets."""
