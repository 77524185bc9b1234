"""Alembic environment for both databases: branch ``central`` on Postgres, branch ``edge`` on SQLite.

The application passes an open connection in ``config.attributes["connection"]``. From the command line:
``alembic -x url=postgresql://… upgrade central@head``.
"""

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, pool

BRANCHES = {"postgresql": "central", "sqlite": "edge"}


def refuse_other_branch(ctx, step, heads, run_args):
    """`upgrade heads` would put the tables of both databases into one; raising takes the step back."""
    branch = BRANCHES[ctx.dialect.name]
    if step.up_revision is not None and branch not in step.up_revision.branch_labels:
        raise CommandError(f"{ctx.dialect.name} takes the branch {branch!r} only: upgrade {branch}@head")


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=None,
        transaction_per_migration=True,
        on_version_apply=refuse_other_branch,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run(connection)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise CommandError("name the database: alembic -x url=postgresql://… upgrade central@head")
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg" + url.removeprefix("postgresql")
    with create_engine(url, poolclass=pool.NullPool).connect() as own:
        run(own)
        own.commit()


if context.is_offline_mode():
    raise CommandError("offline mode is not supported: migrations look at the database")
main()
