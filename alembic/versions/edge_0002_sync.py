"""What a replica remembers of the centre: bases, shadows, the cursor, marks, and the log of conflicts.

Revision ID: edge_0002
Revises: edge_0001
"""

from alembic import op

revision = "edge_0002"
down_revision = "edge_0001"
branch_labels = None
depends_on = None

ADDED = (
    ("memories", "dirty", "BOOLEAN NOT NULL DEFAULT 0"),
    ("memories", "base_epoch", "TEXT"),
    ("memories", "base_rev", "BIGINT"),
    ("memories", "shadow", "JSON"),
    ("memories", "shadow_hash", "BIGINT"),
    ("memory_access", "acked", "BIGINT NOT NULL DEFAULT 0"),
    ("memory_tombstones", "dirty", "BOOLEAN NOT NULL DEFAULT 0"),
    ("memory_tombstones", "shadow_hash", "BIGINT"),
)
STATEMENTS = (
    # Memories that are here already have a number above `pushed_upto` and no base: they will be pushed as new ones.
    "UPDATE memory_tombstones SET dirty = 1",
    "CREATE INDEX memories_dirty ON memories (rev) WHERE dirty",
    "CREATE INDEX memory_access_unsent ON memory_access (memory_id) WHERE count > acked",
    "CREATE INDEX memory_tombstones_dirty ON memory_tombstones (rev) WHERE dirty",
    """
    CREATE TABLE sync_state (
        singleton BOOLEAN NOT NULL PRIMARY KEY,
        device TEXT,
        epoch TEXT,
        cursor BIGINT NOT NULL,
        pushed_upto INTEGER NOT NULL,
        digest BIGINT NOT NULL,
        live INTEGER NOT NULL,
        suspicious BOOLEAN NOT NULL,
        clock_offset BIGINT NOT NULL,
        centre_rev BIGINT,
        equal BOOLEAN,
        state TEXT NOT NULL,
        problem TEXT,
        hint TEXT,
        synced_at BIGINT,
        tried_at BIGINT,
        verified_at BIGINT
    )
    """,
    """
    INSERT INTO sync_state (singleton, cursor, pushed_upto, digest, live, suspicious, clock_offset, state)
    VALUES (1, 0, 0, 0, 0, 0, 0, 'never synced')
    """,
    "CREATE TABLE sync_marks (number INTEGER NOT NULL PRIMARY KEY, mark TEXT NOT NULL, rev BIGINT NOT NULL)",
    """
    CREATE TABLE conflicts (
        number INTEGER NOT NULL PRIMARY KEY,
        memory_id TEXT NOT NULL,
        reason TEXT NOT NULL,
        problem TEXT,
        content TEXT,
        record JSON NOT NULL,
        logged_at BIGINT NOT NULL
    )
    """,
    "CREATE INDEX conflicts_by_memory ON conflicts (memory_id)",
)
TABLES = ("conflicts", "sync_marks", "sync_state")
INDEXES = ("memories_dirty", "memory_access_unsent", "memory_tombstones_dirty")


def upgrade() -> None:
    for table, column, kind in ADDED:
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for index in INDEXES:
        op.execute(f"DROP INDEX {index}")
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    for table, column, _ in reversed(ADDED):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
