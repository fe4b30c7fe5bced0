"""The kernel compiler: lowers a captured graph to candidates; one expression generator, a printer for each target."""
