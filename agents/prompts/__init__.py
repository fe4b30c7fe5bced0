"""The experts' prompts, one Markdown file each."""
