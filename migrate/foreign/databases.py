"""Stores in a database, of ActiveMQ (JDBC) and Artemis: `store` is the URL of a PostgreSQL database here."""

from __future__ import annotations

from collections.abc import Iterable

from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import CONTAINER, FilePart, Rule, each_of, ignored, natural, special
from amq_migrate.foreign.report import Status

_JDBC = "jdbc:"
_POSTGRESQL = "postgresql://"
_ANY = "postgresql://HOST/DATABASE"
_OTHERS = ("mysql", "mariadb", "oracle", "sqlserver", "db2", "derby", "h2", "hsqldb")
_TABLES = "amq makes its own tables: see docs/postgresql.md"
DATABASE_LOCK = "set locker = postgresql://…, which amq takes for a store in a directory: see docs/postgresql.md"


def rules() -> dict[str, Rule]:
    """The table for a store in a database."""
    return {
        **dict.fromkeys(("jdbcPersistenceAdapter", "journaledJDBC"), special(_adapter)),
        **each_of(
            ignored(_TABLES),
            "@dataSource @createTablesOnStartup @dataDirectory @dataDirectoryFile @adapter @statements @lockDataSource "
            "@maxRows @cleanupPeriod @cleanupOnStop @transactionIsolation @changeAutoCommitAllowed @auditRecoveryDepth "
            "jdbcPersistenceAdapter@maxProducersToAudit jdbcPersistenceAdapter@enableAudit jdbcPersistenceAdapter@id",
        ),
        "@useDatabaseLock": natural("the database holds the lock"),
        "@useLock": natural("the lock is always used"),
        "statements": ignored(_TABLES, whole=True),
        "adapter": ignored(_TABLES, whole=True),
        **dict.fromkeys(("lease-database-locker", "database-locker"), special(_locker)),
        "lease-database-locker@leaseHolderId": ignored("each broker has another name"),
        **each_of(
            ignored("the lock needs no separate table"),
            "@queryTimeout @maxAllowableDiffFromDBTime",
        ),
    }


def artemis_rules() -> dict[str, Rule]:
    return {"database-store": special(_database_store, whole=True), "store": CONTAINER}


def _adapter(part: FilePart) -> None:
    name = part.element.attributes.get("dataSource", "").removeprefix("#")
    beans = [each for each in part.importing.root.below() if each.name == "bean" and each.attributes.get("id") == name]
    texts = {
        each.attributes.get("name", ""): part.importing.fill(each.attributes.get("value", each.text), each, "value")
        for bean in beans[:1]
        for each in bean.children
    }
    user = texts.get("username", texts.get("user", ""))
    _advise(part, (texts.get(key, "") for key in ("url", "jdbcUrl", "jdbcURL")), user)


def _database_store(part: FilePart) -> None:
    children = {each.name: part.importing.fill(each.text, each, each.name) for each in part.element.below()}
    _advise(part, [children.get("jdbc-connection-url", "")], children.get("jdbc-user", ""))


def _advise(part: FilePart, urls: Iterable[str], user: str) -> None:
    """Name the store that says the same. No password is shown."""
    url = next(filter(None, urls), "").removeprefix(_JDBC)
    known = url.startswith(_POSTGRESQL) and "@" not in url
    place = url.partition("?")[0].removeprefix(_POSTGRESQL)
    store = f"{_POSTGRESQL}{user}@{place}" if known and user else f"{_POSTGRESQL}{place}" if known else _ANY
    told = f"give --store {store}, or set store: amq keeps its messages in a database, too (docs/postgresql.md)"
    if any(word in url for word in _OTHERS):
        told = f"amq keeps messages in PostgreSQL or in a directory: give --store {_ANY} (docs/postgresql.md) or DIR"
    part.importing.store_advice = told
    part.tell(Status.UNSUPPORTED, told)


def _locker(part: FilePart) -> None:
    element: Element = part.element
    if "kahaDB" in element.path:
        part.tell(Status.UNSUPPORTED, DATABASE_LOCK)
    else:
        part.tell(Status.NATURAL, "the database that is the store holds the lock")
