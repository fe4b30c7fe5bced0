"""What a candidate's source must be, by definition, and the leads that it gives."""
