"""Devices at a real centre: what others write there, of another version or with another model."""

from __future__ import annotations

import io
import json

import psycopg
import pytest

import memory
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import StorageProvider
from memory.testing.base import everything
from tests.integration.sync.devices import OpenDevice, texts

USER = "用户"
ZH = "项目代号叫夜莺"


def test_what_is_changed_and_deleted_by_raw_sql_reaches_all_replicas(database_url: str, device: OpenDevice) -> None:
    a, b = device("a", database_url), device("b", database_url)
    kept = a.add_memory(ZH, user_id=USER)
    gone = a.add_memory("to be deleted", user_id=USER)
    a.sync_now(USER)
    b.sync_now(USER)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE memories SET content = '代号改为杜鹃' WHERE memory_id = %s", [kept.memory_id])
        psql.execute("DELETE FROM memories WHERE memory_id = %s", [gone.memory_id])
    for replica in (a, b):
        assert replica.sync_now(USER)[0].equal
        assert texts(replica, USER) == {"代号改为杜鹃"}
        assert replica.recall("杜鹃", user_id=USER)[0].memory.memory_id == kept.memory_id


@pytest.mark.parametrize(("revision", "word"), [("central_0001", "older"), ("central_9999", "newer")])
def test_a_centre_of_another_schema_is_named_and_the_replica_works_on(
    database_url: str, device: OpenDevice, revision: str, word: str
) -> None:
    a = device("a", database_url)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE alembic_version SET version_num = %s", [revision])
    a.add_memory(ZH, user_id=USER)
    with pytest.raises(memory.SchemaMismatch, match=word):
        a.sync_now(USER)
    [status] = a.sync_status(USER)
    assert (status.condition, status.pending) == ("versions differ", 1)
    assert texts(a, USER) == {ZH}


def test_a_device_with_another_model_keeps_to_its_own_and_dimensions_never_mix(
    database_url: str, device: OpenDevice
) -> None:
    with memory.connect(database_url, embedding_model="hashing") as centre:
        centre.add_memory(ZH, user_id=USER)
        other = HashingEmbedder(dimension=32, name="another")
        a = device("a", database_url, embedder=other)
        a.add_memory("tea at five", user_id=USER)
        [report] = a.sync_now(USER)
        assert (report.equal, report.deferred) == (True, 1)
        a.embed_pending()
        assert {hit.memory.content for hit in a.recall(ZH, user_id=USER)} >= {ZH}
        assert isinstance(centre, StorageProvider)
        assert centre.embed_pending() == 1
        with psycopg.connect(database_url) as psql:
            dimensions = psql.execute("SELECT DISTINCT vector_dims(embedding) FROM memory_vectors").fetchall()
        assert dimensions == [(centre.stats().embedding_dimension,)]
        assert (a.stats().embedding_dimension, a.stats().pending_embeddings) == (32, 0)


def test_a_field_of_a_later_version_survives_devices_that_do_not_know_it(database_url: str, device: OpenDevice) -> None:
    a, b = device("a", database_url), device("b", database_url)
    a.add_memory("with a mood", user_id=USER)
    a.sync_now(USER)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute(
            """UPDATE memories SET extra = '{"mood": "平静"}',"""
            " stamps = stamps || jsonb_build_object('mood', stamps -> '*')"
        )
        a.sync_now(USER)
        [known] = everything(a, USER)
        a.update_memory(known.memory_id, user_id=USER, content="edited by who knows no moods")
        a.sync_now(USER)
        rows = psql.execute("SELECT content, extra FROM memories").fetchall()
    assert rows == [("edited by who knows no moods", {"mood": "平静"})]
    assert b.sync_now(USER)[0].equal
    for replica in (a, b):
        exported = io.BytesIO()
        replica.export_memories(exported, user_id=USER)
        [line] = [line for line in exported.getvalue().splitlines() if known.memory_id.encode() in line]
        assert json.loads(line)["mood"] == "平静"
