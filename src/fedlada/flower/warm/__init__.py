"""Warm nodes: a worker keeps the ClientApp loaded between the messages of a run."""
