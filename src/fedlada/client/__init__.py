"""The client half: its round, its optimizer, a ready training loop and what it keeps.

Nothing here imports the server half.
"""
