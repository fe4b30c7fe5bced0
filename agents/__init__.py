"""The experts that propose steps: their playbooks and prompts, the two brains, the cost ledger."""
