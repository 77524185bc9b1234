"""Alembic environment for both databases: branch ``central`` on Postgres, branch ``edge`` on SQLite.

The application passes an open connection in ``config.attributes["connection"]``. From the command line:
``alembic -x url=postgresql://… upgrade central@head``.
"""

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, pool

BRANCHES = {"postgresql": "central", "sqlite": "edge"}


def run(connection: Connection) -> None:
    branch = BRANCHES[connection.dialect.name]

    def only_own_branch(revision, migration_context):
        script = migration_context.script.get_revision(f"{branch}@head")
        steps = destination(revision, migration_context)
        for step in steps:
            if branch not in getattr(step, "revision", script).branch_labels:
                raise CommandError(
                    f"{connection.dialect.name} takes the branch {branch!r} only: upgrade {branch}@head"
                )
        return steps

    context.configure(connection=connection, target_metadata=None, transaction_per_migration=True)
    migration_context = context.get_context()
    destination = migration_context._migrations_fn
    if destination is not None:
        migration_context._migrations_fn = only_own_branch
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run(connection)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise CommandError("name the database: alembic -x url=postgresql+psycopg://… upgrade central@head")
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg" + url.removeprefix("postgresql")
    with create_engine(url, poolclass=pool.NullPool).connect() as own:
        run(own)
        own.commit()


if context.is_offline_mode():
    raise CommandError("offline mode is not supported: migrations look at the database")
main()
