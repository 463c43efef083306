"""`amq store`: the tables of a store in a database, and the merge of two stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from amq.cli.output import examples, json_option, print_json
from amq.cli.store_merge import merge
from amq.core.errors import StoreError
from amq.store.name import is_directory
from amq.store.open import open_store

if TYPE_CHECKING:
    from amq.store.postgres.sessions import ServerConnection, Sessions

_URL = "postgresql://owner@db.example.com/amq"
_option = click.option(
    "--store", metavar="URL", envvar="AMQ_STORE", required=True, help="URL of the database. Default: $AMQ_STORE."
)


@click.group(epilog=examples(f"amq store init --store {_URL}", f"amq store upgrade --store {_URL}"))
def store() -> None:
    """Make or upgrade the tables of a store in a database, or merge two stores of any kind.

    A store in a directory needs no tables. Run init, upgrade and accept as the owner of the tables; brokers may run as
    another role, see docs/postgresql.md.
    """


@store.command(
    epilog=examples(f"amq store init --store {_URL}", f"amq store init --store '{_URL}?tablePrefix=shop_' --json")
)
@_option
@json_option
def init(store: str, as_json: bool) -> None:
    """Make the tables of a new store. Tables that are there stay as they are."""
    with _opened(store) as (sessions, session):
        before = sessions.tables.version(session)
        now = before or sessions.tables.upgrade(session)[1]
    if as_json:
        print_json({"store": store, "made": not before, "version": now})
    else:
        click.echo(f"tables of version {now} {'are there already' if before else 'made'}")


@store.command(epilog=examples(f"amq store upgrade --store {_URL}"))
@_option
@json_option
def upgrade(store: str, as_json: bool) -> None:
    """Bring the tables to the version that this amq uses. Stop all brokers of the store before.

    All steps are one transaction: if one fails, nothing has changed.
    """
    with _opened(store) as (sessions, session):
        if not sessions.tables.version(session):
            raise StoreError(f"{store} has no tables of a store: use `amq store init`", code="STORE_MISSING")
        before, now = sessions.tables.upgrade(session)
    if as_json:
        print_json({"store": store, "before": before, "version": now})
    else:
        click.echo(f"tables have version {now}" + (f", had {before}" if before != now else " already"))


@store.command(epilog=examples(f"amq store accept --store {_URL} --yes"))
@_option
@click.option("--yes", is_flag=True, help="Accept it: the newest messages may be missing.")
@json_option
def accept(store: str, yes: bool, as_json: bool) -> None:
    """Let brokers use a server that is another one than the last master used: a promoted standby, a restored backup.

    Without a synchronous standby such a server may lack the newest messages that were confirmed, and acknowledgements,
    so that messages come again. Brokers refuse it (STORE_INCOMPLETE) until a person has decided. Without --yes the
    command only shows both servers (system identifier and timeline).
    """
    with _opened(store) as (sessions, session):
        if not sessions.tables.version(session):
            raise StoreError(f"{store} has no tables of a store: use `amq store init`", code="STORE_MISSING")
        before, now = sessions.servers(session)
        if yes:
            sessions.accept(session)
    if as_json:
        print_json({"store": store, "before": before, "server": now, "accepted": yes or before == now})
    elif before == now:
        click.echo(f"it is the server that the last master used: {now}")
    else:
        click.echo(f"the last master used {before}, this is {now}" + (": accepted" if yes else "; --yes accepts it"))


store.add_command(merge)


@contextmanager
def _opened(store: str) -> Iterator[tuple[Sessions, ServerConnection]]:
    """A connection to the database, whatever is in it. Raises StoreError, ConfigError, OSError."""
    if is_directory(store):
        raise StoreError(f"{store} is a directory: brokers make such a store themselves", code="STORE_UNUSABLE")
    open_store(store)  # says what is missing where psycopg is
    from amq.store.postgres.sessions import Sessions
    from amq.store.postgres.url import SqlUrl

    sessions = Sessions(SqlUrl.parse(store))
    session = sessions.open(store)
    try:
        with sessions.guarded(session, store):
            yield sessions, session
    finally:
        sessions.drop(session)
