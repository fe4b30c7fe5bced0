"""What a candidate's process was seen to do."""
