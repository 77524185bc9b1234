"""One user's memories in one SQLite file: the truth of a replica."""
