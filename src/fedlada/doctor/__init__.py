"""``fedlada doctor``: checks on one machine, before the first round, of what a deployment needs."""
