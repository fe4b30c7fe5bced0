"""The kernel library: lowers a captured graph to candidates; one expression generator, two printers."""
