"""``python -m fedlada`` is the command ``fedlada``."""

from .cli import main

__all__: list[str] = []

main()
