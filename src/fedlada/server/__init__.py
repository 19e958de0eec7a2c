"""The server half: the loop over rounds, its state, and what guards and saves it.

Nothing here imports the client half.
"""
