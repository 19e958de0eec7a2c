"""What both sides agree on: messages, which tensors travel, how they become bytes, seeds."""
