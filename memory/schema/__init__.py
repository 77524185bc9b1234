"""Columns that the central database and the replicas share, written once."""
