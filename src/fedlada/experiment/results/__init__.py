"""The results of runs: data frames, comparisons, the best settings."""
