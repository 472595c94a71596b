"""What editors ask for: diagnostics, hover, completion, definitions, formatting, quick fixes, a TextMate grammar."""
