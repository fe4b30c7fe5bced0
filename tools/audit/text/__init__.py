"""Gates over a candidate's source text, and the leads that it gives."""
