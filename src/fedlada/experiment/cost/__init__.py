"""What a federation costs: bytes, memory, CPU, time and money, before it is run."""
