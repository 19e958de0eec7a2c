"""A Flower app whose messages are counted."""
