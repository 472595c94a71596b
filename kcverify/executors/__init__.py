"""Ways to spread jobs over processes and machines, behind one `map`."""
