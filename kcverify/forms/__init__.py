"""Forms of a contract file: `.kc` text, YAML and JSON, all read to one syntax tree."""
