"""`foundry bench`: the ordinary search on every task of a folder, one result file, a table and pictures."""
