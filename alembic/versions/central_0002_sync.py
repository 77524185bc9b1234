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
    "CREATE INDEX memory_access_revisions ON memory_access (user_id, rev) WHERE rev > 0",
)
# Raw SQL kept honest. Our own connections say `SET nightingale.stamps = 'kept'`; whoever else changes rows, a person at
# psql or another program, gets stamps and revisions drawn here, so that replicas hear of it and no merge undoes it.
FOREIGN = "WHEN (current_setting('nightingale.stamps', true) IS DISTINCT FROM 'kept')"
TRIGGERS = (
    # The tick after the clock's last, as `next_tick` has it; the user's row stays locked to the commit.
    """
    CREATE FUNCTION memory_draw(whose text, OUT drawn_rev bigint, OUT drawn_stamp text, OUT drawn_ms bigint)
    LANGUAGE plpgsql AS $$
    DECLARE
        wall bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    BEGIN
        INSERT INTO sync_user AS s (user_id, epoch, rev, hlc_ms, hlc_counter)
        VALUES (whose, (SELECT m.epoch FROM sync_meta m), 1, wall, 0)
        ON CONFLICT (user_id) DO UPDATE SET
            rev = s.rev + 1,
            hlc_ms = CASE WHEN wall > s.hlc_ms THEN wall
                WHEN s.hlc_counter < 999999999 THEN s.hlc_ms ELSE s.hlc_ms + 1 END,
            hlc_counter = CASE WHEN wall <= s.hlc_ms AND s.hlc_counter < 999999999 THEN s.hlc_counter + 1 ELSE 0 END
        RETURNING s.rev, s.hlc_ms || '.' || s.hlc_counter || '.' || s.epoch, s.hlc_ms
        INTO drawn_rev, drawn_stamp, drawn_ms;
    END $$
    """,
    """
    CREATE FUNCTION memory_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        drawn record;
    BEGIN
        NEW.memory_id := coalesce(NEW.memory_id, gen_random_uuid());
        IF EXISTS (SELECT FROM memory_tombstones t WHERE t.user_id = NEW.user_id AND t.memory_id = NEW.memory_id) THEN
            RAISE EXCEPTION 'memory % was deleted', NEW.memory_id
                USING HINT = 'insert it under a new id: a deletion is never undone';
        END IF;
        SELECT * INTO drawn FROM memory_draw(NEW.user_id);
        NEW.memory_type := coalesce(NEW.memory_type, 'fact');
        NEW.importance := coalesce(NEW.importance, 0.5);
        NEW.status := coalesce(NEW.status, 'active');
        NEW.created_at := coalesce(NEW.created_at, drawn.drawn_ms);
        NEW.metadata := coalesce(NEW.metadata, '{}');
        NEW.extra := coalesce(NEW.extra, '{}');
        NEW.stamps := jsonb_build_object('*', drawn.drawn_stamp);
        NEW.updated_at := drawn.drawn_ms;
        NEW.rev := drawn.drawn_rev;
        NEW.terms := ''::tsvector;
        NEW.length := 0;
        NEW.embedding_due := true;
        RETURN NEW;
    END $$
    """,
    # A new content stamp is the default of all registers without one of their own: what has not changed keeps the old.
    """
    CREATE FUNCTION memory_settled(before memories) RETURNS jsonb LANGUAGE sql STABLE AS $$
        SELECT (SELECT coalesce(jsonb_object_agg(name, before.stamps -> '*'), '{}')
                FROM unnest(ARRAY['memory_type', 'importance', 'status', 'source_session', 'created_at']
                    || ARRAY(SELECT jsonb_object_keys(before.extra))) AS name)
            || before.stamps
            || jsonb_build_object(
                'tags', (SELECT coalesce(jsonb_object_agg(t.tag, before.stamps -> '*'), '{}') FROM memory_tags t
                    WHERE t.user_id = before.user_id AND t.memory_id = before.memory_id)
                    || coalesce(before.stamps -> 'tags', '{}'),
                'metadata', (SELECT coalesce(jsonb_object_agg(key, before.stamps -> '*'), '{}')
                    FROM jsonb_object_keys(before.metadata) AS key)
                    || coalesce(before.stamps -> 'metadata', '{}'))
    $$
    """,
    """
    CREATE FUNCTION memory_updated() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        drawn record;
        stamp jsonb;
        changed text[];
        keys text[];
    BEGIN
        IF (NEW.user_id, NEW.memory_id) IS DISTINCT FROM (OLD.user_id, OLD.memory_id) THEN
            RAISE EXCEPTION 'a memory keeps its user and its id'
                USING HINT = 'insert a new memory, and delete this one';
        END IF;
        NEW.extra := OLD.extra || NEW.extra;
        changed := ARRAY(
            SELECT name FROM (VALUES
                ('content', NEW.content IS DISTINCT FROM OLD.content),
                ('memory_type', NEW.memory_type IS DISTINCT FROM OLD.memory_type),
                ('importance', NEW.importance IS DISTINCT FROM OLD.importance),
                ('status', NEW.status IS DISTINCT FROM OLD.status),
                ('source_session', NEW.source_session IS DISTINCT FROM OLD.source_session),
                ('created_at', NEW.created_at IS DISTINCT FROM OLD.created_at)) AS field(name, differs)
            WHERE differs
            UNION ALL
            SELECT e.key FROM jsonb_each(NEW.extra) e WHERE OLD.extra -> e.key IS DISTINCT FROM e.value);
        keys := ARRAY(
            SELECT key FROM (SELECT jsonb_object_keys(OLD.metadata) UNION SELECT jsonb_object_keys(NEW.metadata)) k(key)
            WHERE OLD.metadata -> key IS DISTINCT FROM NEW.metadata -> key);
        IF cardinality(changed) + cardinality(keys) = 0 AND NEW.stamps = OLD.stamps THEN
            RETURN NEW;
        END IF;
        SELECT * INTO drawn FROM memory_draw(NEW.user_id);
        stamp := to_jsonb(drawn.drawn_stamp);
        IF 'content' = ANY(changed) THEN
            NEW.stamps := memory_settled(OLD) || jsonb_build_object('*', stamp);
            NEW.terms := ''::tsvector;
            NEW.length := 0;
            NEW.embedding_due := true;
            DELETE FROM memory_vectors v WHERE v.user_id = NEW.user_id AND v.memory_id = NEW.memory_id;
        END IF;
        NEW.stamps := NEW.stamps
            || (SELECT coalesce(jsonb_object_agg(name, stamp), '{}') FROM unnest(changed) AS name
                WHERE name <> 'content');
        IF cardinality(keys) > 0 THEN
            NEW.stamps := NEW.stamps || jsonb_build_object('metadata', coalesce(NEW.stamps -> 'metadata', '{}')
                || (SELECT jsonb_object_agg(key, stamp) FROM unnest(keys) AS key));
        END IF;
        NEW.updated_at := drawn.drawn_ms;
        NEW.rev := drawn.drawn_rev;
        UPDATE memory_vectors v SET status = NEW.status, memory_type = NEW.memory_type, created_at = NEW.created_at
        WHERE v.user_id = NEW.user_id AND v.memory_id = NEW.memory_id AND
            (v.status, v.memory_type, v.created_at) IS DISTINCT FROM (NEW.status, NEW.memory_type, NEW.created_at);
        RETURN NEW;
    END $$
    """,
    """
    CREATE FUNCTION memory_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO memory_tombstones AS t (user_id, memory_id, stamp, rev)
        SELECT OLD.user_id, OLD.memory_id, drawn_stamp, drawn_rev FROM memory_draw(OLD.user_id)
        ON CONFLICT (user_id, memory_id) DO UPDATE SET stamp = excluded.stamp, rev = excluded.rev;
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION memory_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'TRUNCATE of % would go unnoticed by replicas', TG_TABLE_NAME
            USING HINT = 'use DELETE FROM memories: deletions are told to them';
    END $$
    """,
    """
    CREATE FUNCTION memory_tagged() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        drawn record;
        touched record;
    BEGIN
        FOR touched IN
            SELECT OLD.user_id, OLD.memory_id, OLD.tag WHERE TG_OP IN ('UPDATE', 'DELETE')
            UNION SELECT NEW.user_id, NEW.memory_id, NEW.tag WHERE TG_OP IN ('UPDATE', 'INSERT')
        LOOP
            CONTINUE WHEN NOT EXISTS (  -- it goes with its memory
                SELECT FROM memories m WHERE m.user_id = touched.user_id AND m.memory_id = touched.memory_id);
            SELECT * INTO drawn FROM memory_draw(touched.user_id);
            PERFORM set_config('nightingale.stamps', 'kept', true);
            UPDATE memories m SET rev = drawn.drawn_rev, updated_at = drawn.drawn_ms,
                stamps = m.stamps || jsonb_build_object('tags',
                    coalesce(m.stamps -> 'tags', '{}') || jsonb_build_object(touched.tag, drawn.drawn_stamp))
            WHERE m.user_id = touched.user_id AND m.memory_id = touched.memory_id;
            PERFORM set_config('nightingale.stamps', '', true);
        END LOOP;
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION memory_accessed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.rev := (SELECT drawn_rev FROM memory_draw(NEW.user_id));
        RETURN NEW;
    END $$
    """,
    f"CREATE TRIGGER inserted BEFORE INSERT ON memories FOR EACH ROW {FOREIGN} EXECUTE FUNCTION memory_inserted()",
    f"CREATE TRIGGER updated BEFORE UPDATE ON memories FOR EACH ROW {FOREIGN} EXECUTE FUNCTION memory_updated()",
    f"CREATE TRIGGER deleted AFTER DELETE ON memories FOR EACH ROW {FOREIGN} EXECUTE FUNCTION memory_deleted()",
    f"CREATE TRIGGER truncated BEFORE TRUNCATE ON memories {FOREIGN} EXECUTE FUNCTION memory_truncated()",
    f"CREATE TRIGGER truncated BEFORE TRUNCATE ON memory_tombstones {FOREIGN} EXECUTE FUNCTION memory_truncated()",
    f"""
    CREATE TRIGGER tagged AFTER INSERT OR UPDATE OR DELETE ON memory_tags FOR EACH ROW {FOREIGN}
    EXECUTE FUNCTION memory_tagged()
    """,
    f"""
    CREATE TRIGGER accessed BEFORE INSERT OR UPDATE ON memory_access FOR EACH ROW {FOREIGN}
    EXECUTE FUNCTION memory_accessed()
    """,
    # Devices that listen hear of a change when it is committed; the payload names the user without telling who it is.
    """
    CREATE FUNCTION memory_told() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('memory_changes', left(encode(sha256(convert_to(NEW.user_id, 'UTF8')), 'hex'), 32));
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER told AFTER UPDATE OF rev ON sync_user FOR EACH ROW
    WHEN (NEW.rev <> OLD.rev AND NEW.watched_until > NEW.hlc_ms) EXECUTE FUNCTION memory_told()
    """,
)
FUNCTIONS = (
    "memory_told()",
    "memory_accessed()",
    "memory_tagged()",
    "memory_truncated()",
    "memory_deleted()",
    "memory_updated()",
    "memory_inserted()",
    "memory_settled(memories)",
    "memory_draw(text)",
)
TABLES = ("memory_conflicts", "memory_hashes", "sync_mark", "sync_device", "sync_lineage")
COLUMNS = ("epoch", "digest", "live_count", "access_total", "hashed_rev", "watched_until")


def upgrade() -> None:
    for statement in (*STATEMENTS, *TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function} CASCADE")
    op.execute("DROP INDEX memory_access_revisions")
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    for column in COLUMNS:
        op.execute(f"ALTER TABLE sync_user DROP COLUMN {column}")
