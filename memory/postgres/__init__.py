"""The centre: every user's memories in Postgres with pgvector, and the embedded server for those who have none."""
