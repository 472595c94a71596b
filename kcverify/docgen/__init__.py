"""Pages of the documentation that are generated from the tables of the catalogue."""
