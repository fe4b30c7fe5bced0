"""How people and programs reach Foundry: commands, the benchmark, MCP and the web server."""
