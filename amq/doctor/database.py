"""Is a database fit to be a store? Reads the server's settings and the rights of the role, and measures.

Invariant: no table is written; a store may be in use meanwhile.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from amq.config import BrokerConfig
from amq.doctor.finding import Examination, Finding, Level, unfit
from amq.doctor.probes import Times
from amq.doors.clock import Clock, SystemClock
from amq.store.postgres.schema import STEPS
from amq.store.postgres.sessions import ServerConnection, Sessions
from amq.store.postgres.url import SqlUrl

VERSION_MIN = 120_000  # PostgreSQL 12, as server_version_num
SYNCS, BUDGET_S = 200, 1.0
SYNC_S_MAX = 0.05
_SETTINGS = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('fsync'),
       current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
       (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only'), current_user
"""
_STRANGERS = """
SELECT current_database(), has_database_privilege('public', current_database(), 'CONNECT'),
       has_schema_privilege('public', n.oid, 'CREATE') FROM pg_namespace n WHERE n.nspname = %s
"""
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def examine_database(url: str, quick: bool, clock: Clock | None = None) -> Examination:
    """Raises OSError where the server cannot be reached or takes no writes, ConfigError, StoreError."""
    sessions = Sessions(SqlUrl.parse(url))
    report = Examination(url, url)
    session = sessions.open(url)
    try:
        with sessions.guarded(session, url):
            row = session.execute(_SETTINGS).fetchone()
            assert row is not None
            report.findings += _judge_settings(*row[:8])
            report.findings.append(_judge_connection(session))
            report.findings.append(_judge_tables(sessions, session, str(row[8])))
            report.findings += _judge_strangers(sessions, session)
            if not quick:
                _measure(report, session, clock or SystemClock(), waits=bool(row[4]) and not row[5])
    finally:
        sessions.drop(session)
    return report


def _judge_settings(
    text: str,
    version: int,
    fsync: str,
    full_page_writes: str,
    standbys: str,
    synchronous: int,
    commit: str,
    read_only: str,
) -> list[Finding]:
    found = [Finding(Level.OK, "server", f"PostgreSQL {text}")]
    if version < VERSION_MIN:
        found = [unfit("server", f"PostgreSQL {text}", "amq is tested with 12 and later", "upgrade the server")]
    for name, value in (("fsync", fsync), ("full_page_writes", full_page_writes)):
        why = "a crash of the server's host may lose confirmed messages, or damage the store"
        bad = unfit(name, value, why, f"set {name} = on")
        found.append(bad if value != "on" else Finding(Level.OK, name, value))
    level = Level.OK if commit not in ("off", "local") else Level.NOTE
    why = "a commit is durable before it is confirmed" if level is Level.OK else "brokers set it to on for themselves"
    found.append(Finding(level, "synchronous_commit", commit, why))
    if read_only == "on":
        cure = "set it to off, for this role at least"
        found.append(unfit("default_transaction_read_only", read_only, "brokers could write nothing", cure))
    why = "a standby that is promoted has all that was confirmed"
    if not standbys:
        why = "without one, a standby that is promoted may lack confirmed messages (STORE_INCOMPLETE)"
        found.append(Finding(Level.NOTE, "synchronous standby", "none", why))
    elif not synchronous:
        cure = "start the standby, or change synchronous_standby_names"
        why = "each commit waits until it is connected: the broker confirms nothing"
        found.append(Finding(Level.WARNING, "synchronous standby", f"{standbys}: not connected", why, cure))
    else:
        found.append(Finding(Level.OK, "synchronous standby", f"{standbys}: {synchronous} connected", why))
    return found


def _judge_connection(session: ServerConnection) -> Finding:
    """Whether it is encrypted, and whether this side knows whose server it is."""
    address = session.info.hostaddr
    is_local = not address or ipaddress.ip_address(address).is_loopback
    how = "unencrypted, on this host" if is_local else "not encrypted"
    mode = session.info.get_parameters().get("sslmode", "prefer")
    if session.pgconn.ssl_in_use:
        ((version, bits),) = session.execute("SELECT version, bits FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        how = f"{version}, {bits} bits, sslmode={mode}"
        if mode == "verify-full":
            return Finding(Level.OK, "connection", how, "encrypted, and the server has shown a certificate of its name")
        why = "encrypted, but anybody on the way can pose as the server"
        if mode == "verify-ca":
            why = "encrypted, but any holder of a certificate of this CA can pose as the server"
    elif _is_encrypted_by_kerberos(session):
        why = "encrypted, and Kerberos has shown whose server it is"
        return Finding(Level.OK, "connection", "encrypted by Kerberos", why)
    else:
        why = "messages and the login can be read and changed on the way"
    if is_local:
        return Finding(Level.OK, "connection", how)
    cure = "add sslmode=verify-full&sslrootcert=FILE to the URL"
    return Finding(Level.WARNING, "connection", how, why, cure)


def _is_encrypted_by_kerberos(session: ServerConnection) -> bool:
    if session.info.server_version < VERSION_MIN:
        return False  # it has no such view
    row = session.execute("SELECT encrypted FROM pg_stat_gssapi WHERE pid = pg_backend_pid()").fetchone()
    return row is not None and row[0] is True


def _judge_tables(sessions: Sessions, session: ServerConnection, role: str) -> Finding:
    tables = sessions.tables
    names = tables.names
    lacking = []
    for name in names:
        for right in _RIGHTS:  # NULL where there is no such table
            asked = [tables.full(name), right]
            row = session.execute("SELECT has_table_privilege(to_regclass(%s), %s)", asked).fetchone()
            if row is not None and row[0] is False:
                lacking.append(f"{right} on {name}")
    if lacking:
        cure = f"GRANT {', '.join(_RIGHTS)} ON {', '.join(names)} TO {role}"
        return unfit("tables", f"role {role} lacks {', '.join(lacking)}", "a broker needs them", cure)
    version = sessions.tables.version(session)
    if not version:
        how = "`amq store init` makes them, or the first broker (createTablesOnStartup)"
        return Finding(Level.NOTE, "tables", "none", how)
    if version != len(STEPS):
        cure = "run `amq store upgrade`" if version < len(STEPS) else "upgrade amq"
        return unfit("tables", f"version {version}", f"this amq uses version {len(STEPS)}", cure)
    return Finding(Level.OK, "tables", f"version {version}")


def _judge_strangers(sessions: Sessions, session: ServerConnection) -> list[Finding]:
    """Roles without rights on the tables may do this: no content is theirs, but the server is shared."""
    schema = sessions.tables.schema
    row = session.execute(_STRANGERS, [schema]).fetchone()
    if row is None:
        return []
    database, may_connect, may_create = row
    found = []
    if may_connect:
        why = "they can use up connections and locks; REVOKE CONNECT ON DATABASE … FROM PUBLIC keeps them out"
        found.append(Finding(Level.NOTE, "other roles", f"every role may connect to {database}", why))
    if may_create:
        cure = f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"
        why = "before the tables are made, somebody else could make them"
        found.append(Finding(Level.WARNING, "schema", f"every role may make objects in {schema}", why, cure))
    return found


def _measure(report: Examination, session: ServerConnection, clock: Clock, waits: bool) -> None:
    """`waits`: a commit would wait for ever, for a standby that is not there."""
    trips = _times(session, clock, "SELECT 1")
    report.measured["round_trip"] = trips.to_json()
    report.findings.append(Finding(Level.OK, "round trip", str(trips), "each statement takes one"))
    if waits:
        return
    syncs = _times(session, clock, "SELECT pg_logical_emit_message(true, 'amq', repeat('x', 4096))")
    report.measured["sync"] = syncs.to_json()
    slow = syncs.median_s > SYNC_S_MAX
    cure = "a server that is nearer, a faster disk, or a nearer standby" if slow else ""
    level = Level.WARNING if slow else Level.OK
    report.findings.append(Finding(level, "commit of 4 KiB", str(syncs), "each confirmation waits for one", cure))
    period_s = BrokerConfig().lock_keep_alive_period_s
    report.recommended["lockKeepAlivePeriod"] = f"{round(max(period_s, 15 * syncs.p99_s) * 1000)}ms"


def _times(session: ServerConnection, clock: Clock, statement: Any) -> Times:
    times: list[float] = []
    first = clock.monotonic()
    while len(times) < SYNCS and (not times or clock.monotonic() - first < BUDGET_S):
        started = clock.monotonic()
        session.execute(statement)
        times.append(clock.monotonic() - started)
    return Times.of(times)
