"""What a chat model is told: its prompts in words, each section within a budget."""
