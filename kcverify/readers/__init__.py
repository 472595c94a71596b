"""Streams of log-probabilities and logits as engines and trainers write them, read into one record."""
