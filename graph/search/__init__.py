"""How islands search: thinking and testing steps, archive, merit, migration, lessons, the end."""
