"""What travels with a checkpoint: fingerprints, replays of single requests, signed statements, and what voids a run."""
