"""Memories, their tags, vectors, accesses and tombstones.

Revision ID: central_0001
Revises:
"""

from alembic import op

revision = "central_0001"
down_revision = None
branch_labels = ("central",)
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE embedding_models (
        model_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text COLLATE "C" NOT NULL,
        dimension smallint NOT NULL,
        UNIQUE (name, dimension)
    )
    """,
    """
    CREATE TABLE sync_meta (
        singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT sync_meta_singleton CHECK (singleton),
        epoch text COLLATE "C" NOT NULL,
        origin text COLLATE "C",
        model_id integer REFERENCES embedding_models
    )
    """,
    # The epoch is the writer of the centre's stamps. Opening a database whose origin, the cluster and database
    # it was drawn in, is another one (a copy, a restore) draws a new epoch.
    "INSERT INTO sync_meta (epoch) VALUES (left(replace(gen_random_uuid()::text, '-', ''), 16))",
    """
    CREATE TABLE sync_user (
        user_id text COLLATE "C" PRIMARY KEY,
        rev bigint NOT NULL,
        hlc_ms bigint NOT NULL,
        hlc_counter bigint NOT NULL
    )
    """,
    """
    CREATE TABLE memories (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        content text NOT NULL,
        memory_type text COLLATE "C" NOT NULL,
        importance double precision NOT NULL,
        status text COLLATE "C" NOT NULL,
        source_session text COLLATE "C",
        created_at bigint NOT NULL,
        updated_at bigint NOT NULL,
        metadata jsonb NOT NULL,
        stamps jsonb NOT NULL,
        extra jsonb NOT NULL,
        length integer NOT NULL,
        embedding_due boolean NOT NULL,
        rev bigint NOT NULL,
        terms tsvector NOT NULL,
        PRIMARY KEY (user_id, memory_id)
    )
    """,
    """
    CREATE INDEX memories_listing ON memories (user_id, status, created_at DESC, memory_id)
        INCLUDE (memory_type, length)
    """,
    "CREATE INDEX memories_revisions ON memories (user_id, rev)",
    "CREATE INDEX memories_terms ON memories USING gin (terms) WITH (fastupdate = off)",
    "CREATE INDEX memories_due ON memories (user_id, memory_id) WHERE embedding_due",
    """
    CREATE TABLE memory_tags (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        tag text COLLATE "C" NOT NULL,
        PRIMARY KEY (user_id, memory_id, tag),
        FOREIGN KEY (user_id, memory_id) REFERENCES memories ON DELETE CASCADE
    )
    """,
    "CREATE INDEX memory_tags_by_tag ON memory_tags (user_id, tag, memory_id)",
    """
    CREATE TABLE memory_access (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        writer text COLLATE "C" NOT NULL,
        count bigint NOT NULL,
        last_access_at bigint NOT NULL,
        rev bigint NOT NULL,
        PRIMARY KEY (user_id, memory_id, writer),
        FOREIGN KEY (user_id, memory_id) REFERENCES memories ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE memory_vectors (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        model_id integer NOT NULL REFERENCES embedding_models,
        status text COLLATE "C" NOT NULL,
        memory_type text COLLATE "C" NOT NULL,
        created_at bigint NOT NULL,
        dimension smallint NOT NULL,
        embedding vector NOT NULL,
        PRIMARY KEY (user_id, memory_id, model_id),
        FOREIGN KEY (user_id, memory_id) REFERENCES memories ON DELETE CASCADE
    )
    """,
    # In the row while it fits a page: reading a vector from TOAST costs more than comparing it.
    "ALTER TABLE memory_vectors ALTER COLUMN embedding SET STORAGE MAIN",
    # Reading a user's vectors from this index alone needs fresh visibility information.
    """
    ALTER TABLE memory_vectors SET (
        autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.05
    )
    """,
    """
    CREATE INDEX memory_vectors_covering ON memory_vectors (user_id, model_id, status, created_at, memory_id)
        INCLUDE (memory_type, embedding) WHERE dimension <= 512
    """,
    """
    CREATE INDEX memory_vectors_long ON memory_vectors (user_id, model_id, status, created_at)
        INCLUDE (memory_type, memory_id) WHERE dimension > 512
    """,
    """
    CREATE TABLE memory_tombstones (
        user_id text COLLATE "C" NOT NULL,
        memory_id uuid NOT NULL,
        stamp text COLLATE "C" NOT NULL,
        rev bigint NOT NULL,
        PRIMARY KEY (user_id, memory_id)
    )
    """,
    "CREATE INDEX memory_tombstones_revisions ON memory_tombstones (user_id, rev)",
)
TABLES = (
    "memory_tombstones",
    "memory_vectors",
    "memory_access",
    "memory_tags",
    "memories",
    "sync_user",
    "sync_meta",
    "embedding_models",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
