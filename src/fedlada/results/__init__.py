"""Records of runs as tables and figures."""
