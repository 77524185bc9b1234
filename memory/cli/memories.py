"""Commands on single memories, and the two that look for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from memory.cli import shapes
from memory.cli.commanding import command
from memory.cli.options import TIME, MemoryId, User, filters, json_object, text_value, time_value
from memory.cli.screen import Screen, moment
from memory.cli.session import Session
from memory.core.errors import UsageError
from memory.core.model import Memory, MemoryPage, MemoryType, Recalled, RecallFilter, Status

PANEL: Final = "Memories"
WIDE: Final = 120
"""From so many characters a line on a listing shows every column on a terminal; `get` always shows all."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "add", panel=PANEL)(add)
    command(app, "recall", panel=PANEL, where=filters)(recall)
    command(app, "list", panel=PANEL, where=filters)(list_)
    command(app, "get", panel=PANEL)(get)
    command(app, "update", panel=PANEL)(update)
    command(app, "archive", panel=PANEL)(archive)
    command(app, "delete", panel=PANEL)(delete)


def add(
    session: Session,
    content: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="What to remember; - reads it from stdin.", show_default=False),
    ],
    *,
    user: User,
    kind: Annotated[MemoryType, typer.Option("--type", help="What kind of memory it is.")] = MemoryType.FACT,
    importance: Annotated[
        float | None, typer.Option(help="0 to 1; worked out from type and length without it.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A label; repeatable.")] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="Data of your own, a JSON object.")] = None,
    source_session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="The conversation it comes from.")
    ] = None,
    created_at: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"When it happened; now without it. {TIME}.")
    ] = None,
    memory_id: Annotated[
        str | None,
        typer.Option("--id", metavar="UUID", help="An id of your own, so that adding twice is refused."),
    ] = None,
) -> None:
    """Remember something.

    Prints the memory with its id.
    """
    text = text_value(content, "content")
    data = None if metadata is None else json_object(metadata, "metadata")
    with session.provider() as store:
        memory = store.add_memory(
            text,
            user_id=user,
            memory_type=kind,
            importance=importance,
            tags=tag or (),
            metadata=data,
            source_session=source_session,
            created_at=time_value(created_at),
            memory_id=memory_id,
        )
    _answer(session, memory, "Added")


def recall(
    session: Session,
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="A question or a topic; - reads it from stdin.", show_default=False),
    ],
    *,
    user: User,
    where: RecallFilter,
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", help="At most this many; 10 without it.")] = None,
    min_relevance: Annotated[float | None, typer.Option(help="At least this relevant, 0 to 1.")] = None,
) -> None:
    """Find the memories that answer a question best, and say why.

    The score that orders them is a weighted sum of relevance (how well a memory answers), importance and
    recency, each scaled over the memories found.
    """
    text = text_value(query, "query")
    wanted = replace(where, min_relevance=min_relevance)
    with session.provider() as store:
        hits = store.recall(text, user_id=user, filters=wanted, top_k=top_k)
    shape = {"query": text, "user_id": user, "hits": [shapes.hit_shape(hit) for hit in hits]}
    session.show(shape, lambda screen: _view_hits(screen, hits))
    session.show_notices(*(hit.memory for hit in hits))


def list_(
    session: Session,
    *,
    user: User,
    where: RecallFilter,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many, up to 1000.")] = 50,
    cursor: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where the page before ended.")] = None,
) -> None:
    """List memories, newest first."""
    with session.provider() as store:
        page = store.list_memories(user_id=user, filters=where, limit=limit, cursor=cursor)
    session.show(shapes.page_shape(page), lambda screen: _view_page(screen, page))
    if page.next_cursor is not None and not session.as_json:
        Screen(session.beside).line(f"There are more: repeat the command with --cursor {page.next_cursor}")


def get(session: Session, memory_id: MemoryId, *, user: User) -> None:
    """Show one memory."""
    with session.provider() as store:
        memory = store.get_memory(memory_id, user_id=user)
    session.show(shapes.memory_shape(memory), lambda screen: view_memory(screen, memory))


def update(
    session: Session,
    memory_id: MemoryId,
    *,
    user: User,
    content: Annotated[str | None, typer.Option(metavar="TEXT", help="The new text; - reads it from stdin.")] = None,
    kind: Annotated[MemoryType | None, typer.Option("--type")] = None,
    importance: Annotated[float | None, typer.Option(help="0 to 1.")] = None,
    status: Annotated[Status | None, typer.Option(help="active takes it back from the archive.")] = None,
    source_session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="The conversation it comes from.")
    ] = None,
    no_session: Annotated[bool, typer.Option("--no-session", help="It comes from no conversation.")] = False,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="The whole new set of tags; repeatable.")
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    add_tag: Annotated[list[str] | None, typer.Option("--add-tag", metavar="TAG", help="Repeatable.")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option("--remove-tag", metavar="TAG", help="Repeatable.")] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="Keys to set, a JSON object; others stay.")
    ] = None,
    remove_metadata: Annotated[
        list[str] | None, typer.Option("--remove-metadata", metavar="KEY", help="Repeatable.")
    ] = None,
    expected_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Change it only if it is still at this version."),
    ] = None,
) -> None:
    """Change the given fields of a memory; the others stay as they are."""
    if (tag and no_tags) or (source_session is not None and no_session):
        raise UsageError("an option and its --no-… form exclude each other")
    given: dict[str, Any] = {
        "content": None if content is None else text_value(content, "content"),
        "memory_type": kind,
        "importance": importance,
        "status": status,
        "source_session": source_session,
        "tags": tag,
        "add_tags": add_tag,
        "remove_tags": remove_tag,
        "metadata": None if metadata is None else json_object(metadata, "metadata"),
        "remove_metadata": remove_metadata,
    }
    changes = {name: value for name, value in given.items() if value is not None and value != []}
    changes |= {"tags": ()} if no_tags else {}
    changes |= {"source_session": None} if no_session else {}
    if not changes:
        raise UsageError("nothing to change", hint="name what to change, e.g. --content or --add-tag")
    with session.provider() as store:
        memory = store.update_memory(memory_id, user_id=user, expected_version=expected_version, **changes)
    _answer(session, memory, "Updated")


def archive(session: Session, memory_id: MemoryId, *, user: User) -> None:
    """Take a memory out of recall; `update --status active` brings it back."""
    with session.provider() as store:
        memory = store.archive_memory(memory_id, user_id=user)
    _answer(session, memory, "Archived")


def delete(session: Session, memory_id: MemoryId, *, user: User) -> None:
    """Erase a memory for good."""
    with session.provider() as store:
        store.delete_memory(memory_id, user_id=user)
    shape = {"memory_id": memory_id, "user_id": user, "deleted": True}
    session.show(shape, lambda screen: screen.line(("Deleted ", "bold"), memory_id))


# Views


def _answer(session: Session, memory: Memory, verb: str) -> None:
    def view(screen: Screen) -> None:
        screen.line((f"{verb} ", "bold"), memory.memory_id)
        view_memory(screen, memory)

    session.show(shapes.memory_shape(memory), view)
    session.show_notices(memory)


def view_memory(screen: Screen, memory: Memory) -> None:
    """All fields, the empty ones aside."""
    fields: list[tuple[str, str]] = [
        ("content", memory.content),
        ("id", memory.memory_id),
        ("user", memory.user_id),
        ("type", memory.memory_type),
        ("status", memory.status),
        ("importance", f"{memory.importance:.2f}"),
        ("tags", ", ".join(memory.tags)),
        ("metadata", shapes.encode(memory.metadata) if memory.metadata else ""),
        ("session", memory.source_session or ""),
        ("created", moment(memory.created_at)),
        ("updated", moment(memory.updated_at)),
        ("recalled", f"{memory.access_count} times, last {moment(memory.last_access_at)}"),
        ("version", memory.version),
    ]
    for name, value in fields:
        if value:
            screen.line((f"  {name:<11}", "dim"), value.replace("\n", "\n" + " " * 13))


def _view_hits(screen: Screen, hits: list[Recalled]) -> None:
    if not hits:
        screen.line("Nothing found.")
    for number, hit in enumerate(hits, start=1):
        view_hit(screen, hit, number)


def view_hit(screen: Screen, hit: Recalled, number: int) -> None:
    """A hit and why it came up."""
    memory = hit.memory
    screen.line((f"{number:>2}. ", "dim"), (memory.content.replace("\n", "\n    "), "bold"))
    screen.line(
        "    ",
        (f"score {hit.score:.3f}", "green"),
        f" (relevance {hit.relevance:.3f}, importance {hit.importance:.3f}, recency {hit.recency:.3f})",
    )
    details = (
        memory.memory_type,
        moment(memory.created_at),
        *(f"#{tag}" for tag in memory.tags),
        memory.memory_id,
    )
    screen.line(("    " + " · ".join(details), "dim"))


def _view_page(screen: Screen, page: MemoryPage) -> None:
    if not page.items:
        screen.line("No memories.")
        return
    columns: dict[str, Callable[[Memory], str]] = {
        "id": lambda m: m.memory_id,
        "created": lambda m: moment(m.created_at),
        "type": lambda m: m.memory_type,
        "status": lambda m: m.status,
        "imp.": lambda m: f"{m.importance:.2f}",
        "tags": lambda m: ", ".join(m.tags),
        "content": lambda m: m.content,
    }
    if screen.is_terminal and screen.width < WIDE:
        columns = {name: columns[name] for name in ("id", "created", "content")}
    rows = ([cell(memory) for cell in columns.values()] for memory in page.items)
    screen.table(list(columns), rows, wide=len(columns) - 1)
