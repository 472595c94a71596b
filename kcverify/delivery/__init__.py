"""From proof to production: stages of a candidate, the gate between them, the store of what was decided and why."""
