"""The client half: its round, its optimizer, a ready training loop and its store.

Nothing here imports the server half.
"""
