"""A Flower app of private rounds, without masks and under masks."""
