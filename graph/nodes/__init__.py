"""The nodes of the root graph, a file each."""
