"""The candidate's Python file, and the texts that it is made of."""
