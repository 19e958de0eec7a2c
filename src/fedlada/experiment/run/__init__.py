"""An experiment while it runs, in a directory of its own."""
