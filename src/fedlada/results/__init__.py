"""Records of runs as tables and figures, and in trackers."""
