"""One user's memories on a device: with tags, vectors, accesses, tombstones and the index of words.

Revision ID: edge_0001
Revises:
"""

from alembic import op

revision = "edge_0001"
down_revision = None
branch_labels = ("edge",)
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE replica (
        user_id TEXT NOT NULL PRIMARY KEY,
        rev BIGINT NOT NULL,
        hlc_ms BIGINT NOT NULL,
        hlc_counter BIGINT NOT NULL,
        numbers INTEGER NOT NULL,
        words_upto INTEGER NOT NULL,
        points_upto INTEGER NOT NULL,
        words_removed BOOLEAN NOT NULL,
        origin TEXT,
        model TEXT NOT NULL,
        dimension INTEGER NOT NULL
    )
    """,
    # The order of columns: what every reader of a memory wants first, its words last.
    """
    CREATE TABLE memories (
        number INTEGER NOT NULL PRIMARY KEY,
        user_id TEXT NOT NULL,
        memory_id TEXT NOT NULL,
        rev BIGINT NOT NULL,
        edited BOOLEAN NOT NULL,
        status TEXT NOT NULL,
        memory_type TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        length INTEGER NOT NULL,
        importance FLOAT NOT NULL,
        embedding_due BOOLEAN NOT NULL,
        updated_at BIGINT NOT NULL,
        source_session TEXT,
        version TEXT NOT NULL,
        stamps JSON NOT NULL,
        metadata JSON NOT NULL,
        tags JSON NOT NULL,
        extra JSON NOT NULL,
        content TEXT NOT NULL,
        terms TEXT NOT NULL,
        UNIQUE (memory_id)
    )
    """,
    # New memories are found by their number: an index that an insert need not touch keeps it fast.
    "CREATE INDEX memories_edits ON memories (rev) WHERE edited",
    "CREATE INDEX memories_due ON memories (memory_id) WHERE embedding_due",
    # The columns of the key first: without a rowid, SQLite before 3.41 checks the others wrongly otherwise.
    """
    CREATE TABLE memory_tags (
        tag TEXT NOT NULL,
        memory_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        PRIMARY KEY (tag, memory_id)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE memory_access (
        memory_id TEXT NOT NULL,
        writer TEXT NOT NULL,
        user_id TEXT NOT NULL,
        count BIGINT NOT NULL,
        last_access_at BIGINT NOT NULL,
        rev BIGINT NOT NULL,
        PRIMARY KEY (memory_id, writer),
        FOREIGN KEY (memory_id) REFERENCES memories (memory_id) ON DELETE CASCADE
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE memory_vectors (
        number INTEGER NOT NULL PRIMARY KEY,
        embedding BLOB NOT NULL,
        FOREIGN KEY (number) REFERENCES memories (number) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE staged_vectors (
        number INTEGER NOT NULL PRIMARY KEY,
        model TEXT NOT NULL,
        embedding BLOB NOT NULL,
        FOREIGN KEY (number) REFERENCES memories (number) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE memory_tombstones (
        memory_id TEXT NOT NULL PRIMARY KEY,
        user_id TEXT NOT NULL,
        stamp TEXT NOT NULL,
        rev BIGINT NOT NULL,
        number INTEGER
    ) WITHOUT ROWID
    """,
    "CREATE INDEX memory_tombstones_revisions ON memory_tombstones (rev)",
    """
    CREATE TABLE index_todo (
        memory_id TEXT NOT NULL PRIMARY KEY,
        ticket BIGINT NOT NULL,
        words BOOLEAN NOT NULL,
        vector BOOLEAN NOT NULL
    ) WITHOUT ROWID
    """,
    # Terms are separated by blanks and hold letters, digits, emoji and apostrophes only. Like this the tokenizer
    # of SQLite takes them as they are; what it can tell apart is ours to decide.
    """
    CREATE VIRTUAL TABLE memory_terms USING fts5 (
        terms, content = 'memories', content_rowid = 'number', detail = none, columnsize = 0,
        tokenize = "ascii tokenchars ''''"
    )
    """,
)
TABLES = (
    "memory_terms",
    "index_todo",
    "memory_tombstones",
    "staged_vectors",
    "memory_vectors",
    "memory_access",
    "memory_tags",
    "memories",
    "replica",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
