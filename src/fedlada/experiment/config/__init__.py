"""An experiment as its file describes it."""
