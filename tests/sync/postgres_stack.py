"""The stack with nothing in place of anything: real replicas, and a real Postgres behind a network that is cut."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from memory.core.centre import SyncCentre
from memory.core.clock import parse_stamp
from memory.core.errors import StoreError
from memory.core.state import ABSENT, Changes, State
from memory.core.sync import FetchRequest, Hello, ManifestRequest, PullRequest, Welcome
from memory.core.text import document_terms
from memory.engine.storage import Draft, NewText, Touch
from memory.postgres import models
from memory.postgres.centre import PostgresCentre
from memory.postgres.database import Database
from memory.postgres.devices import head_of
from memory.postgres.digest import settle
from memory.postgres.epoch import adopt_epoch
from memory.postgres.rows import SELECT_STATE, read_state
from memory.postgres.storage import PostgresStorage
from tests.plain_index import PlainFactory
from tests.sync.model import USER
from tests.sync.ports import Centre, Fact, MakeStack, Position, registers_of, written_at
from tests.sync.proxy import TcpProxy
from tests.sync.real_edge import EMBEDDER, RealEdge

T = TypeVar("T")
CUTS = 0.05
"""The share of calls that the network is cut in."""
MOST_BYTES = 4_000
ROUNDS = 20
AHEAD_MS = 600_000
"""The time of the machine begins so far ahead of the real one, so that no trigger writes stamps out of its future."""


class Table(NamedTuple):
    """One table of a backup."""

    name: str
    rows: bytes


class PostgresCentreVerbs:
    """``ports.Centre`` on a database: its own writers reach it directly, devices through the proxy."""

    def __init__(self, url: str, now: Callable[[], int], rng: random.Random) -> None:
        self._now, self._rng = now, rng
        self._raw = psycopg.connect(url, autocommit=True)
        self._empty()
        self._database = Database(url, pool_size=2, timeout=10)
        model_id, dimension = models.adopt_model(self._database, EMBEDDER)
        self._storage = PostgresStorage(
            self._database, self, model_id=model_id, model=EMBEDDER.name, dimension=dimension
        )
        place = conninfo_to_dict(url)
        self.proxy = TcpProxy.before_postgres(str(place["host"]), int(str(place.get("port", 5432))))
        self.reached = Database(self.proxy.url(str(place["dbname"])), pool_size=2, timeout=10)
        self._served = CutCentre(PostgresCentre(self.reached, self), self.proxy, rng)
        self.port: SyncCentre = self._served

    def now(self) -> int:
        return self._now()

    # -- verbs

    def create(self, content: str, metadata: Mapping[str, Any]) -> list[Fact]:
        memory_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        scalars = {
            "content": content,
            "memory_type": "fact",
            "importance": 0.5,
            "status": "active",
            "source_session": None,
            "created_at": self.now(),
        }
        changes = Changes(scalars=scalars, add_tags=frozenset(), metadata=dict(metadata))
        text = _text(content)
        draft = Draft(memory_id=memory_id, changes=changes, terms=text.terms, vector=text.vector)
        stored = self._storage.insert(USER, [draft], fresh_ids=True)[0].state
        return [Fact(memory_id, name, stored.scalars["content"].stamp) for name in registers_of(stored)]

    def edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        return self._change(memory_id, Changes(scalars=scalars))

    def tag(self, memory_id: str, tag: str, *, present: bool) -> list[Fact]:
        names = frozenset([tag])
        return self._change(memory_id, Changes(add_tags=names) if present else Changes(remove_tags=names))

    def set_metadata(self, memory_id: str, key: str, value: Any) -> list[Fact]:
        gone = value is ABSENT
        changes = Changes(remove_metadata=frozenset([key])) if gone else Changes(metadata={key: value})
        return self._change(memory_id, changes)

    def _change(self, memory_id: str, changes: Changes) -> list[Fact]:
        before, content = self.states()[memory_id], changes.scalars.get("content")
        text = None if content is None else _text(content)
        self._storage.change(USER, memory_id, changes, text=text, expected_version=None)
        return self._written(memory_id, before)

    def _written(self, memory_id: str, before: State) -> list[Fact]:
        after = self.states()[memory_id]
        fresh = set(after.stamps()) - set(before.stamps())
        return [Fact(memory_id, name, max(fresh)) for name in written_at(after, max(fresh))] if fresh else []

    def raw_edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        """The triggers draw the stamp from the server's clock, which is behind that of the machine: it is told."""
        before = self.states()[memory_id]
        with self._raw.transaction():
            self._raw.execute(
                "UPDATE sync_user SET hlc_ms = %(now)s, hlc_counter = 0 WHERE user_id = %(user)s AND hlc_ms < %(now)s",
                {"now": self.now(), "user": USER},
            )
            for name, value in scalars.items():
                statement = sql.SQL("UPDATE memories SET {} = %s WHERE user_id = %s AND memory_id = %s")
                self._raw.execute(statement.format(sql.Identifier(name)), [value, USER, memory_id])
        return self._written(memory_id, before)

    def delete(self, memory_id: str) -> list[Fact]:
        self._storage.delete(USER, memory_id)
        deleted = self.states()[memory_id].deleted
        assert deleted is not None
        return [Fact(memory_id, "deleted", deleted)]

    def access(self, memory_id: str) -> tuple[str, int]:
        self._storage.touch([Touch(user_id=USER, memory_id=memory_id, count=1, last_access_at=self.now())])
        writer = self.position().epoch
        assert writer is not None
        return writer, self.states()[memory_id].accesses[writer]

    # -- looking

    def states(self) -> dict[str, State]:
        found = {}
        for row in self._raw.execute(f"{SELECT_STATE} WHERE m.user_id = %s", [USER]).fetchall():
            found[str(row[0])] = read_state(row).state
        dead = self._raw.execute("SELECT memory_id::text, stamp FROM memory_tombstones WHERE user_id = %s", [USER])
        return found | {memory_id: State(deleted=parse_stamp(stamp)) for memory_id, stamp in dead.fetchall()}

    def position(self) -> Position:
        row = self._raw.execute("SELECT epoch, rev FROM sync_user WHERE user_id = %s", [USER]).fetchone()
        if row is None:
            row = self._raw.execute("SELECT epoch, 0 FROM sync_meta").fetchone()
        return Position(*(row or (None, 0)))

    def digest(self) -> int:
        settle(self._database, USER)
        columns = "rev, digest, live_count, access_total, hashed_rev"
        row = self._raw.execute(f"SELECT {columns} FROM sync_user WHERE user_id = %s", [USER]).fetchone()
        return 0 if row is None else head_of(*row).digest or 0

    # -- life

    def calm(self) -> None:
        """The network is whole from now on."""
        self._served.share = 0.0
        self.proxy.cut_after(2**62)
        self.proxy.cut()
        for _ in range(ROUNDS):
            with contextlib.suppress(StoreError), self.reached.connection() as connection:
                connection.execute("SELECT")

    def backup(self) -> list[Table]:
        with self._raw.transaction():
            return [Table(name, self._copied(name)) for name in self._tables()]

    def _copied(self, table: str) -> bytes:
        statement = sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(sql.Identifier(table))
        with self._raw.cursor().copy(statement) as copy:
            return b"".join(bytes(part) for part in copy)

    def restore(self, backup: Sequence[Table], *, known: bool) -> None:
        with self._raw.transaction():
            self._raw.execute("SET LOCAL session_replication_role = replica")
            for table in backup:
                self._raw.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
            for table in backup:
                statement = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(table.name))
                with self._raw.cursor().copy(statement) as copy:
                    copy.write(table.rows)
            if known:
                self._raw.execute("UPDATE sync_meta SET origin = 'elsewhere/1/00000001'")
        if known:
            adopt_epoch(self._database)

    def _tables(self) -> list[str]:
        rows = self._raw.execute(
            "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'"
            " AND c.relname NOT LIKE 'alembic%%' AND c.relname NOT IN ('embedding_models') ORDER BY 1",
            [],
        )
        return [row[0] for row in rows.fetchall()]

    def _empty(self) -> None:
        with self._raw.transaction():
            self._raw.execute("SET LOCAL session_replication_role = replica")
            for name in self._tables():
                if name != "sync_meta":
                    self._raw.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))

    def close(self) -> None:
        self.reached.close()
        self.proxy.close()
        self._database.close()
        self._raw.close()


def _text(content: str) -> NewText:
    return NewText(terms=document_terms(content), vector=EMBEDDER.embed_documents([content])[0])


class CutCentre:
    """A centre whose network breaks now and then in the middle of a call."""

    def __init__(self, centre: PostgresCentre, proxy: TcpProxy, rng: random.Random) -> None:
        self._centre, self._proxy, self._rng = centre, proxy, rng
        self.share = CUTS

    def _call(self, call: Callable[[], T]) -> T:
        if self._rng.random() < self.share:
            self._proxy.cut_after(self._rng.randrange(MOST_BYTES))
        return call()

    def hello(self, hello: Hello) -> Welcome:
        return self._call(lambda: self._centre.hello(hello))

    def push(self, lines: Sequence[bytes]) -> Iterable[bytes]:
        return self._call(lambda: list(self._centre.push(lines)))

    def pull(self, request: PullRequest) -> Iterable[bytes]:
        return self._call(lambda: list(self._centre.pull(request)))

    def manifest(self, request: ManifestRequest) -> Iterable[bytes]:
        return self._call(lambda: list(self._centre.manifest(request)))

    def fetch(self, request: FetchRequest) -> Iterable[bytes]:
        return self._call(lambda: list(self._centre.fetch(request)))

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None] | None:
        return self._centre.listen(changed)

    def close(self) -> None:
        """Nothing: a replica that has lost it dials again, and gets the same one."""


class PostgresStack:
    """``ports.Stack``: real replicas in a directory that goes with it, and a database that is emptied first."""

    def __init__(self, url: str, now: Callable[[], int], rng: random.Random) -> None:
        self._now, self._rng = now, rng
        self.began = int(time.time() * 1_000) + AHEAD_MS
        self._verbs = PostgresCentreVerbs(url, lambda: max(now(), self.began), rng)
        self.centre: Centre = self._verbs
        self.folder = Path(tempfile.mkdtemp(prefix="memory-sync-"))

    def calm(self) -> None:
        """The network is whole from now on."""
        self._verbs.calm()

    def new_edge(self, name: str, carrier: SyncCentre) -> RealEdge:
        factory = PlainFactory()
        return RealEdge(name, carrier, self._now, self._rng, self.folder, lambda _replica: factory)

    def close(self) -> None:
        self.centre.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def postgres_stack(url: str) -> MakeStack:
    """Makes stacks on one migrated database, one after the other."""
    return lambda now, rng: PostgresStack(url, now, rng)
