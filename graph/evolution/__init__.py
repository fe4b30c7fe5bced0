"""A run with evolving prompts: the texts that it chooses among, what each brought, and the section that it rewrites."""
