"""The table in docs/migration.md of options for high availability: complete, in four kinds of answers, up to date.

Invariant: each option that the manuals of HornetQ, Artemis, AMQ 7, A-MQ and Sun MQ name for high availability is in
the first column. Names in parentheses behind "Not yet" are those of what will come: once one exists, its row is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import click
import pytest
from prose import ROOT
from test_docs import all_commands

from amq.cli.main import main
from amq.client.options import ALIASES, FailoverOptions, TransportOptions, declared
from amq.config import names


def _listed(separator: str, text: str) -> list[str]:
    return text.strip().replace("\n", separator).split(separator)


PAGE = ROOT / "docs" / "migration.md"
ANSWERS = ("Yes", "Not needed", "Partly", "Not yet")
PRODUCTS = {"HornetQ", "Artemis", "AMQ 7", "A-MQ", "Sun MQ", "–", "all but Sun MQ"}
OPTIONS = _listed(
    " ",
    """
backup ha-policy shared-store replication live-only master slave primary cluster-name backup-group-name group-name
failover-on-shutdown wait-for-activation allow-failback allow-fail-back restart-backup
initial-replication-sync-timeout check-for-live-server max-saved-replicated-journals-size
vote-on-replication-failure quorum-vote-wait vote-retries vote-retries-wait manager class-name properties
connect-string session-ms session-percent connection-ms retries retries-ms namespace coordination-id
colocated request-backup backup-request-retries backup-request-retry-interval max-backups backup-port-offset
excludes connector-ref scale-down connectors discovery-group-ref discovery-group-name cluster-connection
ha reconnect-attempts reconnectAttempts retryInterval retryIntervalMultiplier maxRetryInterval initialConnectAttempts
initial-connect-attempts setInitialConnectAttempts TRANSACTION_ROLLED_BACK
client-failure-check-period connection-ttl confirmationWindowSize
ExceptionListener SessionFailureListener failedOver FAILOVER DISCONNECT UNBLOCKED TransactionRolledBackException
XAException.XA_RETRY HeuristicMixedException
persistenceAdapter lockKeepAlivePeriod lockAcquireSleepInterval shared-file-locker
soft timeo=20 retrans=2 lookupcache=none sync intr proto=tcp
failover:(tcp://a,tcp://b) (tcp://a,tcp://b)?ha=true&reconnectAttempts=3
updateURIsSupported updateURIsURL nested.NAME priorityBackup jdbcPersistenceAdapter
imq.persist.store=jdbc imq.cluster.ha imq.brokerid imq.cluster.clusterid imq.cluster.ha.takeoverWaitTimeout
imq.cluster.heartbeat.hostname imq.cluster.heartbeat.port imq.cluster.heartbeat.interval
imq.cluster.heartbeat.threshold imq.cluster.monitor.interval imq.cluster.monitor.threshold
""",
)
PROMISES = _listed(
    "|",
    """
live-backup group|elected by lock|restarted live server has priority|rejoin|only persistent messages survive
cluster connection|large-message directories|storage: a fast SAN|finds no live server activates|OCFS2, NFSv3
NFSv4, GFS2, CIFS/SMB|which is latest|replicating backup waits|search for a live server|majority|peers
directories of a colocated backup|clients are told the target|reattachment|automatic client failover
temporary and non-persistent queues|discovery group|no failover before the first connection
no full replication|calls under way|transaction in progress|commit under way|session without transactions
once and only once|application-level failover|transaction failover|multi-active|heartbeat packets
the taker gets messages|temporary destinations of the failed broker go after a wait|advice for ZooKeeper
""",
)


@dataclass(frozen=True)
class Row:
    there: str
    product: str
    does: str
    here: str

    @property
    def answer(self) -> str:
        return self.here.removeprefix("**").partition("**")[0]

    @property
    def to_come(self) -> list[str]:
        """Names of what will come."""
        match = re.match(r"\*\*Not yet\*\* \(([^)]*)\)", self.here)
        return re.findall(r"`([^`]+)`", match[1]) if match else []


def table(text: str) -> list[Row]:
    part = text.partition("<!-- begin of the table")[2].partition("<!-- end of the table -->")[0]
    lines = [line for line in part.split("\n") if line.startswith("| ")]
    rows = [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]
    return [row for row in rows if row.product]  # without the headings of groups


def is_there(name: str) -> bool:
    """Is this an option of a broker or of a URL, a command, or an option of a command?"""
    commands = dict(all_commands(main))
    if name.startswith("amq "):
        words = tuple(name.split()[1:])
        return any(path[: len(words)] == words for path in commands)
    if name.startswith("--"):
        options = [each for command in commands.values() for each in command.params if isinstance(each, click.Option)]
        return any(name in option.opts for option in options)
    return bool(names.find(name)) or name in {*declared(FailoverOptions), *declared(TransportOptions), *ALIASES}


ROWS = table(PAGE.read_text())


def test_every_row_answers() -> None:
    assert len(ROWS) > 80
    for row in ROWS:
        assert row.answer in ANSWERS, f"{row.there}: begin with one of {ANSWERS}"
        assert set(row.product.split(", ")) <= PRODUCTS, row.product
        assert row.answer in ("Yes", "Not yet") or ":" in row.here, f"{row.there}: say why"


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_its_row(name: str) -> None:
    assert any(f"`{name}`" in row.there for row in ROWS), f"no row for {name}"


@pytest.mark.parametrize("words", PROMISES)
def test_every_promise_has_its_row(words: str) -> None:
    assert [row for row in ROWS if words in row.there or words in row.does], f"no row for {words}"


def test_what_is_still_to_come_is_not_there() -> None:
    come = {name for row in ROWS for name in row.to_come if is_there(name)}
    assert not come, f"{PAGE.name} says that these are not there yet, and they are: change their rows"


def test_what_is_there_is_found() -> None:
    """Else the test above could not fail."""
    for name in ("lockKeepAlivePeriod", "amq status", "amq config check", "--store", "priorityBackup", "retryInterval"):
        assert is_there(name), name
    for name in ("lockKeepAlive", "amq statuses", "--storing"):
        assert not is_there(name), name


def test_a_row_that_is_late_is_found() -> None:
    [row] = table("<!-- begin of the table -->\n| a | b | c | d |\n|--|\n| x | Artemis | y | **Not yet** (`store`) |\n")
    assert (row.answer, row.to_come) == ("Not yet", ["store"])
    assert is_there(*row.to_come)
