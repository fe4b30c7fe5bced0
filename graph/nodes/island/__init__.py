"""The nodes of an island, a file each; `expert` is the node of every expert."""
