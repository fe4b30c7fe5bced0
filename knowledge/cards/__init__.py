"""Playbook cards: what a kernel engineer would try, when and why; one Markdown file each."""
