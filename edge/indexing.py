"""Keeps one user's index of vectors, and of words, in step with the file.

The queue (``edge.sqlite.todo``) says what is to be done. Before an index is trusted, all it holds is compared with
the file: one that is lost, stale, damaged or somebody else's is brought right from the stored vectors.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Final

from edge.recall import Search
from edge.sqlite import todo
from edge.sqlite.database import Database
from edge.sqlite.points import next_work, right_entries, waiting_points, work_done
from edge.steps import Step
from edge.vectors.port import Hit, IndexFactory, Place, VectorIndex
from memory.core.errors import StoreError, StoreFull, VectorIndexDamaged, VectorIndexUnavailable
from memory.core.ports import Vector
from memory.policies.admission import Filter

logger = logging.getLogger(__name__)
BATCH: Final = 500
"""Memories carried to an index at a time."""
RETRY_SECONDS: Final = 5.0
"""How long an index that did not answer is left alone."""


class Indexer:
    """Methods may be called from any thread."""

    def __init__(self, database: Database, factory: IndexFactory, place: Place, step: Step) -> None:
        self._database, self._factory, self._place, self._step = database, factory, place, step
        self._index: VectorIndex | None = None
        self._working = threading.RLock()
        self._not_before = 0.0
        self._silent = False
        self._wrong = 0
        self._closed = False

    def searcher(self) -> Search:
        """How to ask the index that is there now. Get it before the view of the file that the answers meet.

        The other way round an index could be lost and begun anew in between, and the view would know nothing of all
        that it still lacks.
        """
        index = self._index
        if index is None and self._working.acquire(blocking=False):  # else somebody is comparing it already
            try:
                index = self._trusted()
            finally:
                self._working.release()
        return partial(self._search, index)

    def _search(self, index: VectorIndex | None, vector: Vector, limit: int, where: Filter) -> list[Hit] | None:
        """See ``edge.recall.Search``: None also when the index has been lost meanwhile."""
        if index is None:
            return None
        try:
            hits = index.search(vector, limit, where)
        except (VectorIndexUnavailable, VectorIndexDamaged) as error:
            self._lose(index, error)
            return None
        # Of an index that was lost meanwhile the answer may be short, which must not pass for all there is.
        return hits if index is self._index else None

    def drain(self) -> bool:
        """Carry out what is queued, as far as the index answers; returns whether nothing is left."""
        with self._working:
            if self._closed:
                return False
            self._drain_words()
            index = self._trusted()
            while index is not None and self._carry(index):
                pass
            return index is not None and index is self._index and time.monotonic() >= self._not_before

    def wrong_points(self) -> int | None:
        """How many points were not as the file says when the index was opened; None if it does not answer."""
        with self._working:
            return None if self._trusted() is None else self._wrong

    def held_vectors(self, memory_ids: list[str]) -> dict[str, Vector]:
        """Vectors as the index holds them; nothing if it does not answer."""
        with self._working:
            index = self._trusted()
            if index is None:
                return {}
            try:
                return index.vectors(memory_ids)
            except (VectorIndexUnavailable, VectorIndexDamaged) as error:
                self._lose(index, error)
                return {}

    def rebuild(self) -> None:
        """Throw the index away and queue everything."""
        with self._working:
            self._let_go()
            self._factory.discard(self._place)
            self._not_before = 0.0
            self._trusted()
            self._wrong = 0  # that it was empty was our own doing

    def compact(self) -> None:
        """Give back the space of deleted points."""
        with self._working:
            index = self._index
            if index is None:
                return
            try:
                index.compact()
            except (VectorIndexUnavailable, VectorIndexDamaged) as error:
                self._lose(index, error)

    def close(self) -> None:
        """Let go of the index, after the work that is under way. Idempotent."""
        with self._working:
            self._closed = True
            self._let_go()

    # -- steps

    def _trusted(self) -> VectorIndex | None:
        """The index, open and compared; None if it does not answer, or did not a moment ago."""
        if self._index is not None or self._closed or time.monotonic() < self._not_before:
            return self._index
        try:
            index = self._opened()
        except StoreError as error:  # also if it is damaged again at once, or cannot be removed
            self._put_off(error)
            return None
        if self._silent:
            logger.info("%s: the vector index answers again", self._place.folder.name)
        self._index, self._silent = index, False
        return index

    def _put_off(self, error: StoreError) -> None:
        """Leave an index alone for a while; said once, however long it lasts."""
        logger.log(logging.DEBUG if self._silent else logging.WARNING, "%s: %s", self._place.folder.name, error)
        self._not_before, self._silent = time.monotonic() + RETRY_SECONDS, True

    def _opened(self) -> VectorIndex:
        try:
            return self._compared(self._factory.open(self._place))
        except VectorIndexDamaged as error:
            logger.warning("%s: %s; it is made anew", self._place.folder.name, error)
            self._factory.discard(self._place)
            return self._compared(self._factory.open(self._place))

    def _compared(self, index: VectorIndex) -> VectorIndex:
        """Queue every point that is not as the file says."""
        try:
            held = index.entries()
        except BaseException:
            index.close()
            raise
        with self._database.read() as connection:
            right, waiting = right_entries(connection), waiting_points(connection)
        wrong = [memory_id for memory_id, version in right.items() if held.get(memory_id) != version]
        wrong += [memory_id for memory_id in held if memory_id not in right]
        self._wrong = sum(memory_id not in waiting for memory_id in wrong)
        if not wrong:
            return index
        with self._database.write() as connection:
            if held:
                todo.queue_points(connection, wrong)
            else:  # to begin anew is shorter than to queue everything
                todo.begin_points_anew(connection)
        return index

    def _lose(self, index: VectorIndex, error: VectorIndexUnavailable | VectorIndexDamaged) -> None:
        """Stop trusting an index. The next who needs one opens and compares it anew."""
        with self._working:
            if self._index is not index:
                return
            self._let_go()
            if isinstance(error, VectorIndexUnavailable):
                self._put_off(error)
                return
            logger.warning("%s: %s; it is made anew", self._place.folder.name, error)
            try:
                self._factory.discard(self._place)
            except StoreError as refused:
                self._put_off(refused)

    def _let_go(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()

    def _drain_words(self) -> None:
        done = BATCH
        while done == BATCH:
            with self._database.write() as connection:
                done = todo.index_words(connection, BATCH)

    def _carry(self, index: VectorIndex) -> bool:
        """Bring one batch to the index; False when nothing is left or the index failed."""
        with self._database.read() as connection:
            work = next_work(connection, BATCH)
        if not work:
            return False
        try:
            index.remove(work.removals)
            self._step("points removed")
            index.upsert(work.points)
            self._step("points written")
            index.flush()
            self._step("points flushed")
        except (VectorIndexUnavailable, VectorIndexDamaged) as error:
            self._lose(index, error)
            return False  # also when it is made anew: one that is damaged each time must not keep us here
        except StoreFull as error:
            self._put_off(error)
            return False
        with self._database.write() as connection:
            work_done(connection, work)
        self._silent = False
        return True
