"""JSON shapes of ``--json``, stable: keys are added, never renamed or removed. Times are ms UTC.

| command | value on stdout |
| --- | --- |
| add, get, update, archive | a *memory*: the fields of ``memory.Memory`` |
| recall | {query, user_id, hits: [{score, relevance, importance, recency, memory}]}, best first |
| list | {memories: [*memory*], next_cursor} |
| delete | {memory_id, user_id, deleted} |
| export | the fields of ``memory.ExportReport``, target; on stderr if stdout carries the export |
| import | the fields of ``memory.ImportReport``, source; ``rejected``: [{line, reason, hint, memory_id}] |
| stats | the fields of ``memory.Stats``, user_id |
| db current, db check | {revision, head, up_to_date}; check adds {embedding_model, embedding_dimension} |
| db upgrade | {from_revision, revision, changed} |
| db reembed | {embedded, embedding_model, embedding_dimension} |
| doctor | {healthy, checked, findings: [*finding*], repaired: [{name, rows}]} |
| edge init, edge sync, edge reconcile | {reports: [the fields of ``edge.sync.report.SyncReport``]} |
| edge sync --watch | a line for each change: the fields of ``edge.sync.report.SyncStatus`` |
| edge sync --request | {file, changes, bytes} |
| edge answer | {request, reply, changes} |
| edge status | {users: [the fields of ``edge.sync.report.SyncStatus``]} |
| edge conflicts list | {user_id, conflicts: [{number, memory_id, reason, problem, content, record, logged_at}]} |
| edge conflicts restore, dismiss | {user_id, number, memory_id} or {user_id, number, dismissed} |
| edge wipe | {user_id, removed, unsent} |
| devices list | {user_id, devices: [{device_id, schema, model, registered_at, last_seen_at, revoked_at}]} |
| devices revoke | {user_id, device, revoked} |
| quickstart | {ok, user_id, where, seconds, steps: [{name, ok, detail}]} |
| --version | {version} |

``notices`` of a memory is [{code, message, hint}]. A *finding* is {name, meaning, rows, remedy, repairable,
informational}; after a repair the findings are what is still there.

An error is {error: {type, message, hint, retryable, exit_code, …}} on stderr, with the fields of the error
(``field``, ``memory_id`` …) beside these, and stdout is empty.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from memory.core.errors import Error
from memory.core.model import Memory, MemoryPage, Recalled


def encode(value: object) -> str:
    """One line of JSON. What is not JSON, in the fields of an error, becomes its text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def memory_shape(memory: Memory) -> dict[str, Any]:
    """See the module."""
    return {**asdict(memory), "metadata": dict(memory.metadata)}


def hit_shape(hit: Recalled) -> dict[str, Any]:
    """See the module."""
    parts = {
        "score": hit.score,
        "relevance": hit.relevance,
        "importance": hit.importance,
        "recency": hit.recency,
    }
    return {**parts, "memory": memory_shape(hit.memory)}


def page_shape(page: MemoryPage) -> dict[str, Any]:
    """See the module."""
    return {"memories": [memory_shape(memory) for memory in page.items], "next_cursor": page.next_cursor}


def error_shape(error: Error, exit_code: int) -> dict[str, Any]:
    """See the module."""
    head = {
        "type": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
        "exit_code": int(exit_code),
    }
    return {"error": {**error.fields, **head}}
