"""The execution of experiments, each run in its own directory."""
