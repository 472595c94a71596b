"""What each command prints: text for people, plain data for JSON."""
