"""Where the two halves meet without a network."""
