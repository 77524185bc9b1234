"""Replicas on devices: per-user slices of a central memory in SQLite and Qdrant. Not in this release."""
