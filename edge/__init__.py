"""Replicas on devices: a user's memories in SQLite and Qdrant, with no network needed."""
