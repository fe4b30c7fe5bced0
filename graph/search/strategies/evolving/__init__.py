"""How the advice in the experts' prompts evolves: what a section may be, what it brought, which text a step gets."""
