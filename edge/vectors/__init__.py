"""Qdrant behind one port. What is in it is derived from SQLite and may be lost at any time."""
