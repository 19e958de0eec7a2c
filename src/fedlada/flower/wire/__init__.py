"""Tasks and replies as Flower records."""
