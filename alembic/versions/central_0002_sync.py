"""What the centre keeps for its replicas: epochs, digests, devices, marks, and texts that lost to another edit.

Revision ID: central_0002
Revises: central_0001
"""

from alembic import op

revision = "central_0002"
down_revision = "central_0001"
branch_labels = None
depends_on = None

STATEMENTS = (
    'ALTER TABLE sync_user ADD COLUMN epoch text COLLATE "C"',
    "UPDATE sync_user SET epoch = (SELECT epoch FROM sync_meta)",
    """
    ALTER TABLE sync_user
        ALTER COLUMN epoch SET NOT NULL,
        ADD COLUMN digest bigint NOT NULL DEFAULT 0,
        ADD COLUMN live_count bigint NOT NULL DEFAULT 0,
        ADD COLUMN access_total bigint NOT NULL DEFAULT 0,
        ADD COLUMN hashed_rev bigint NOT NULL DEFAULT 0,
        ADD COLUMN watched_until bigint NOT NULL DEFAULT 0
    """,
    """
    CREATE TABLE sync_lineage (
        user_id text COLLATE "C" NOT NULL,
        epoch text COLLATE "C" NOT NULL,
        bound_rev bigint NOT NULL,
        PRIMARY KEY (user_id, epoch)
    )
    """,
    """
    CREATE TABLE sync_device (
        user_id text COLLATE "C" NOT NULL,
        device_id text COLLATE "C" NOT NULL,
        schema text COLLATE "C" NOT NULL,
        model text COLLATE "C" NOT NULL,
        token_hash text COLLATE "C",
        registered_at bigint NOT NULL,
        last_seen_at bigint NOT NULL,
        revoked_at bigint,
        pruned_rev bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (user_id, device_id)
    )
    """,
    """
    CREATE TABLE sync_mark (
        user_id text COLLATE "C" NOT NULL,
        device_id text COLLATE "C" NOT NULL,
        number bigint GENERATED ALWAYS AS IDENTITY,
        mark text COLLATE "C" NOT NULL,
        rev bigint NOT NULL,
        PRIMARY KEY (user_id, device_id, number)
    )
    """,
    # No reference to memories: the hash of a deleted one is still to be taken out of the digest.
    """
    CREATE TABLE memory_hashes (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        row_hash bigint NOT NULL,
        PRIMARY KEY (user_id, memory_id)
    )
    """,
    """
    CREATE TABLE memory_conflicts (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        stamp text COLLATE "C" NOT NULL,
        content text NOT NULL,
        winner text COLLATE "C" NOT NULL,
        device_id text COLLATE "C" NOT NULL,
        logged_at bigint NOT NULL,
        PRIMARY KEY (user_id, memory_id, stamp),
        FOREIGN KEY (user_id, memory_id) REFERENCES memories ON DELETE CASCADE
    )
    """,
    "CREATE INDEX memory_access_revisions ON memory_access (user_id, rev)",
)
TABLES = ("memory_conflicts", "memory_hashes", "sync_mark", "sync_device", "sync_lineage")
COLUMNS = ("epoch", "digest", "live_count", "access_total", "hashed_rev", "watched_until")


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP INDEX memory_access_revisions")
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    for column in COLUMNS:
        op.execute(f"ALTER TABLE sync_user DROP COLUMN {column}")
