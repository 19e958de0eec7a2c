"""What both sides share: messages, the tensors that are sent, their encoding and seeds."""
