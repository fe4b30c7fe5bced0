"""What a candidate's source suggests."""
