"""Who thinks: the experts, their playbooks and prompts, the two brains, the cost ledger."""
