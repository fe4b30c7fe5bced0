"""How the advice in the experts' prompts changes: what a section may be, what it brought, which text a step gets."""
