"""What a built library asks for."""
