"""The client half: its round, its optimizer, its evaluation and its store.

Nothing here imports the server half.
"""
