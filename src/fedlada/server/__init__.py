"""The server half: the loop over rounds, its state, the guard and the checkpoints.

Nothing here imports the client half.
"""
