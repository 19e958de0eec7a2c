"""What a run leaves on disk: checkpoints, their ledger and lock, exported models."""
