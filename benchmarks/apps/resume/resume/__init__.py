"""A Flower app to be killed and started again."""
