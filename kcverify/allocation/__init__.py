"""Which format for which module: sensitivity, the cheapest assignment that keeps a contract, and maps of drift."""
