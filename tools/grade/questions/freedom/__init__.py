"""Freedom of a right answer: other orders of equal elements and other roundings, found by running the reference
again."""
