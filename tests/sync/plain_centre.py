"""The centre in plain dictionaries: obviously right, in this process, for tests of everything that syncs with one.

It answers as ``core.centre.SyncCentre`` says, with streams framed for real. Its own verbs do what other writers at the
centre, operators and accidents would do. Records carry no vectors.
"""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.errors import ClockAhead, DeviceRevoked, EpochChanged, FormatError, InvalidValue
from memory.core.framing import encode_line
from memory.core.merge import merge
from memory.core.record import KIND, Record, decode_record, encode_record
from memory.core.state import Changes, State, created_state
from memory.core.sync import (
    ANSWER,
    GONE,
    MANIFEST,
    OK,
    PULL,
    PUSH,
    RECORDS,
    REJECTED,
    UNKNOWN,
    Entry,
    FetchRequest,
    Hello,
    ManifestRequest,
    Mark,
    Page,
    PullRequest,
    Verdict,
    Welcome,
    access_line,
    encode_entry,
    encode_verdict,
    read_page,
    require_protocol,
    user_name,
    write_page,
)
from memory.policies.records import admit_record
from tests.sync.plain_user import Row, User

Request = PullRequest | ManifestRequest | FetchRequest
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Backup:
    """All of the centre at one moment."""

    users: Mapping[str, User]
    devices: Mapping[str, bool]


class PlainCentre:
    """A centre for any number of users; ``clock`` gives its time, ``hashing = False`` keeps digests back."""

    def __init__(self, clock: Callable[[], int], rng: random.Random | None = None, *, model: str = "") -> None:
        self.clock = clock
        self.hashing = True
        self._rng = rng or random.Random()
        self._model = model
        self._users: dict[str, User] = {}
        self._devices: dict[str, bool] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._lock = threading.RLock()

    # -- what a replica calls

    def hello(self, hello: Hello) -> Welcome:
        require_protocol(hello.protocol)
        with self._lock:
            self._admit(hello.device)
            user = self.user(hello.user_id)
            lineage, reconcile = self._judge(user, hello)
            return Welcome(
                epoch=user.epoch,
                lineage=lineage,
                head=user.head(hashed=self.hashing),
                reconcile=reconcile,
                now=self.clock(),
                model=self._model or None,
                dimension=None,
            )

    def _judge(self, user: User, hello: Hello) -> tuple[Mapping[str, int], bool]:
        """Find out whether what the replica has seen is still here, and begin a new epoch if unnoticed it is not.

        Returns the lineage as this replica may trust it, and whether it must compare everything.
        """
        kept = {mark.name for mark in user.marks.get(hello.device, ())}
        last = hello.marks[-1] if hello.marks else None
        unknown = last is not None and last.name not in kept
        if unknown and last is not None and last.rev <= user.pruned.get(hello.device, 0) and hello.cursor <= user.rev:
            return dict(user.lineage), True
        common = max((mark.rev for mark in hello.marks if mark.name in kept), default=0)
        if hello.epoch == user.epoch and (unknown or hello.cursor > user.rev):
            self._begin_epoch(user, common)
        if not unknown:
            return dict(user.lineage), False
        trusted = {epoch: min(bound, common) for epoch, bound in {**user.lineage, user.epoch: user.rev}.items()}
        return {**trusted, str(hello.epoch): common}, True

    def push(self, lines: Sequence[bytes]) -> Iterable[bytes]:
        received = read_page(lines, PUSH)
        page = received.page
        with self._lock:
            user = self._enter(page.device, page.user_id, page.epoch)
            if any(_latest(line) > self.clock() + MAX_SKEW_MS for line in received.lines):
                raise ClockAhead(now=self.clock())
            before = user.rev
            verdicts = [self._take(user, page.user_id, line) for line in received.lines]
            mark = self._note(user, page.device, user.rev, page.mark)
            answer = self._page(ANSWER, page.device, page.user_id, after=before, to=user.rev, mark=mark)
        if user.rev > before:
            self._tell(page.user_id)
        return list(write_page(answer, map(encode_verdict, verdicts)))

    def _take(self, user: User, user_id: str, line: Line) -> Verdict:
        """Merge one pushed line."""
        memory_id, seq = str(line.get("memory_id")), int(line["sync"]["seq"])
        if line["kind"] != KIND:
            return _take_accesses(user, memory_id, seq, line)
        try:
            sent = self._admit_record(user_id, line)
        except (InvalidValue, FormatError) as error:
            return Verdict(memory_id=memory_id, seq=seq, code=REJECTED, problem=error.message)
        held = user.rows.get(memory_id)
        base = line["sync"].get("base")
        if held is None and base is not None and base[1] <= user.bound(base[0]):
            return Verdict(memory_id=memory_id, seq=seq, code=GONE)
        if held is not None:
            _log_loser(user, memory_id, held.state, sent, line["sync"].get("seen"))
        merged = sent if held is None else merge(held.state, sent)
        user.put(memory_id, merged)
        equal = merged.without_accesses() == sent.without_accesses() and _has_slots(merged, sent)
        return Verdict(memory_id=memory_id, seq=seq, code=OK, rev=user.rows[memory_id].rev, equal=equal)

    def _admit_record(self, user_id: str, line: Line) -> State:
        record = decode_record(line)
        admitted = admit_record(record, now=self.clock())
        if admitted.user_id != user_id:
            raise InvalidValue("user_id", "is not the user of this page")
        if admitted.memory_id != record.memory_id or _written(admitted.state) != _written(record.state):
            raise InvalidValue("record", "is not in the form in which it would be kept")
        return admitted.state

    def pull(self, request: PullRequest) -> Iterable[bytes]:
        with self._lock:
            user = self._enter(request.device, request.user_id, request.epoch)
            due = sorted(_due(user, request.user_id, request.after))
            chosen = due[: request.limit]
            more = len(due) > len(chosen)
            to = chosen[-1][0] if more else user.rev
            mark = self._note(user, request.device, to, None) if chosen else None
            page = self._page(
                PULL,
                request.device,
                request.user_id,
                after=request.after,
                to=to,
                more=more,
                mark=mark,
                head=None if more else user.head(hashed=self.hashing),
            )
        return list(write_page(page, (line for _, line in chosen)))

    def manifest(self, request: ManifestRequest) -> Iterable[bytes]:
        with self._lock:
            user = self._enter(request.device, request.user_id, request.epoch)
            ids = sorted(memory_id for memory_id in user.rows if memory_id > request.above)
            chosen = ids[: request.limit]
            entries = [
                Entry(memory_id=i, hash=row.hash, rev=row.rev, deleted=row.state.deleted is not None)
                for i, row in ((i, user.rows[i]) for i in chosen)
            ]
            more = len(ids) > len(chosen)
            page = self._page(MANIFEST, request.device, request.user_id, to=user.rev, more=more)
        return list(write_page(page, map(encode_entry, entries)))

    def fetch(self, request: FetchRequest) -> Iterable[bytes]:
        with self._lock:
            user = self._enter(request.device, request.user_id, request.epoch)
            wanted = [memory_id for memory_id in request.memory_ids if memory_id in user.rows]
            lines = [_record_line(request.user_id, memory_id, user.rows[memory_id]) for memory_id in wanted]
            page = self._page(RECORDS, request.device, request.user_id, to=user.rev)
        return list(write_page(page, lines))

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None] | None:
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def close(self) -> None:
        pass

    # -- what others do at the centre

    def add(self, user_id: str, content: str, *, memory_id: str | None = None, **values: Any) -> str:
        """Write a new memory; ``values`` are scalars, ``tags`` (names) and ``metadata``. Returns its id."""
        made = str(uuid.UUID(int=self._rng.getrandbits(128), version=4)) if memory_id is None else memory_id
        tags, metadata = frozenset(values.pop("tags", ())), values.pop("metadata", {})
        scalars = {
            "memory_type": "fact",
            "importance": 0.5,
            "status": "active",
            "source_session": None,
            "created_at": self.clock(),
            **values,
            "content": content,
        }
        with self._lock:
            user = self.user(user_id)
            changes = Changes(scalars=scalars, add_tags=tags, metadata=metadata)
            user.put(made, created_state(user.next_stamp(self.clock()), changes))
        self._tell(user_id)
        return made

    def edit(self, user_id: str, memory_id: str, **scalars: Any) -> Stamp:
        """Write scalar registers of a live memory; returns their stamp."""
        return self._write(user_id, memory_id, Changes(scalars=scalars))

    raw_edit = edit
    """Raw SQL: a trigger gives what it has changed a stamp and the row a revision, so it is an edit like any other."""

    def tag(self, user_id: str, memory_id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Stamp:
        """Set and remove tags; returns their stamp."""
        return self._write(user_id, memory_id, Changes(add_tags=frozenset(add), remove_tags=frozenset(remove)))

    def set_metadata(self, user_id: str, memory_id: str, **values: Any) -> Stamp:
        """Write metadata keys; returns their stamp."""
        return self._write(user_id, memory_id, Changes(metadata=values))

    def _write(self, user_id: str, memory_id: str, changes: Changes) -> Stamp:
        with self._lock:
            user = self.user(user_id)
            stamp = user.next_stamp(self.clock())
            user.put(memory_id, user.live()[memory_id].written(stamp, changes))
        self._tell(user_id)
        return stamp

    def delete(self, user_id: str, memory_id: str) -> Stamp:
        """Leave a tombstone; returns its stamp."""
        with self._lock:
            user = self.user(user_id)
            stamp = user.next_stamp(self.clock())
            user.put(memory_id, State(deleted=stamp))
        self._tell(user_id)
        return stamp

    def touch(self, user_id: str, memory_id: str) -> tuple[str, int]:
        """Count an access; returns the slot and what it now holds."""
        with self._lock:
            user = self.user(user_id)
            state = user.live()[memory_id]
            count = state.accesses.get(user.epoch, 0) + 1
            user.put(memory_id, merge(state, State(accesses={user.epoch: count}, last_access=self.clock())))
        self._tell(user_id)
        return user.epoch, count

    def purge(self, user_id: str, memory_id: str) -> None:
        """Remove a memory without a trace, as nobody should."""
        with self._lock:
            del self.user(user_id).rows[memory_id]

    def revoke(self, device: str) -> None:
        """Admit a device no longer."""
        with self._lock:
            self._devices[device] = False

    def backup(self) -> Backup:
        """All of it, to restore it later."""
        with self._lock:
            return Backup({user_id: user.copy() for user_id, user in self._users.items()}, dict(self._devices))

    def restore(self, backup: Backup, *, known: bool) -> None:
        """Put a backup back: noticed, as after pg_restore, or unnoticed, as after a snapshot of the disk."""
        with self._lock:
            self._users = {user_id: user.copy() for user_id, user in backup.users.items()}
            self._devices = dict(backup.devices)
            for user in self._users.values() if known else ():
                self._begin_epoch(user, user.rev)

    def state(self, user_id: str) -> dict[str, State]:
        """What is there of each memory, live and deleted."""
        with self._lock:
            return {memory_id: row.state for memory_id, row in self.user(user_id).rows.items()}

    def digest(self, user_id: str) -> int:
        """XOR of the row hashes of the live memories."""
        return self.user(user_id).head().digest or 0

    def conflicts(self, user_id: str) -> list[tuple[str, str]]:
        """(memory, text) of what lost to a concurrent edit."""
        return [(memory_id, text) for (memory_id, _), text in sorted(self.user(user_id).conflicts.items())]

    def user(self, user_id: str) -> User:
        """One user's part, to look at."""
        with self._lock:
            if user_id not in self._users:
                self._users[user_id] = User(self._new_name())
            return self._users[user_id]

    # -- inside

    def _new_name(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    def _note(self, user: User, device: str, rev: int, _asked: str | None) -> str:
        """Note a mark. Its name is drawn here, not by the replica: else a request that arrives again after the database
        was rewound would make a mark known that its history does not contain."""
        user.note(device, mark := Mark(self._new_name(), rev))
        return mark.name

    def _begin_epoch(self, user: User, bound: int) -> None:
        user.begin_epoch(self._new_name(), bound)

    def _admit(self, device: str) -> None:
        if not self._devices.setdefault(device, True):
            raise DeviceRevoked

    def _enter(self, device: str, user_id: str, epoch: str) -> User:
        self._admit(device)
        user = self.user(user_id)
        if epoch != user.epoch:
            raise EpochChanged
        return user

    def _page(self, stream: str, device: str, user_id: str, **fields: Any) -> Page:
        epoch = self.user(user_id).epoch
        return Page(
            stream=stream, device=device, user_id=user_id, epoch=epoch, model=self._model, now=self.clock(), **fields
        )

    def _tell(self, user_id: str) -> None:
        for changed in list(self._listeners):
            changed(user_name(user_id))


def _take_accesses(user: User, memory_id: str, seq: int, line: Line) -> Verdict:
    row = user.rows.get(memory_id)
    if row is None:
        return Verdict(memory_id=memory_id, seq=seq, code=UNKNOWN)
    sent = State(accesses=line["accesses"], last_access=line["last_access_at"])
    user.put(memory_id, merge(row.state, sent))
    now = user.rows[memory_id]
    return Verdict(memory_id=memory_id, seq=seq, code=OK, rev=now.rev, equal=_has_slots(now.state, sent))


def _has_slots(state: State, sent: State) -> bool:
    return all(state.accesses.get(writer) == count for writer, count in sent.accesses.items())


def _log_loser(user: User, memory_id: str, held: State, sent: State, seen: str | None) -> None:
    """Keep the text that loses, if neither side had seen the other's."""
    if held.deleted is not None or sent.deleted is not None:
        return
    a, b = held.scalars["content"], sent.scalars["content"]
    if a.value != b.value and a.stamp != b.stamp and seen not in (str(a.stamp), str(b.stamp)):
        loser = min(a, b, key=lambda register: register.stamp)
        user.conflicts[memory_id, loser.stamp] = loser.value


def _latest(line: Line) -> int:
    """The latest time that a pushed line speaks of; what cannot be read is judged later."""
    if line["kind"] != KIND:
        return line["last_access_at"] or 0
    try:
        state = decode_record(line).state
    except FormatError:
        return 0
    return max((*(stamp.ms for stamp in state.stamps()), state.last_access or 0))


def _due(user: User, user_id: str, after: int) -> Iterator[tuple[int, bytes]]:
    """All that has changed after a revision: records, and access counts of those whose record has not."""
    for memory_id, row in user.rows.items():
        if row.rev > after:
            yield row.rev, _record_line(user_id, memory_id, row)
        elif row.touched > after:
            slots = {writer: row.state.accesses[writer] for writer, rev in row.slots.items() if rev > after}
            line = access_line(memory_id, user_id, slots, row.state.last_access)
            yield row.touched, encode_line({**line, "rev": row.touched})


def _record_line(user_id: str, memory_id: str, row: Row) -> bytes:
    return encode_line(encode_record(Record(memory_id=memory_id, user_id=user_id, state=row.state, rev=row.rev)))


def _written(state: State) -> str:
    return json.dumps(encode_record(Record(memory_id="", user_id="", state=state)), sort_keys=True)
