"""A Flower app that times rounds."""
