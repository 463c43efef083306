"""The sentences of the import about amq itself: each option, command, page and protocol that they name is real."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from amq.cli.main import main
from amq.config import BY_KEY
from amq.core.errors import ConfigError
from amq.node.catalogue import PROTOCOLS
from amq_migrate import foreign
from amq_migrate.foreign import activemq, activemq_policies, artemis, load

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "migrate/foreign").glob("*.py"))
# Names of the other brokers and of Java that sentences mention. Each is one of an element or attribute in the tables.
THEIRS = {
    word
    for table in (
        activemq.BROKER,
        activemq.PERSISTENCE,
        activemq.LIMITS,
        activemq.SECURITY,
        artemis.CORE,
        artemis.HA,
        activemq_policies.PolicyEntries().rules(),
        artemis.Addresses().rules(),
    )
    for key in table
    for word in re.split(r"[@/]", key)
} | {"startupMaxReconnectAttempts", "publishedAddressPolicy"}
NOT_NAMES = {"amq", "by"}  # of "set amq …", which are no options
_CAMEL = re.compile(r"(?<![\w.:/$-])[a-z]+(?:[A-Z][a-z0-9]*)+(?![\w(])")


def sentences() -> Iterator[tuple[str, str]]:
    """(where, text) of every text that is more than a name."""
    for path in FILES:
        tree = ast.parse(path.read_text())
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documents:
                continue
            if " set " in node.value or (" " in node.value and not re.fullmatch(r"[\w@/. -]+", node.value)):
                yield f"{path.name}:{node.lineno}", node.value


def test_there_are_sentences() -> None:
    assert len(list(sentences())) > 150


def test_options_that_sentences_name_are_there() -> None:
    for where, text in sentences():
        for name in _CAMEL.findall(text):
            assert name in BY_KEY or name in THEIRS, f"{where}: {name}: {text}"
        for name in re.findall(r"(?:^|[ ;:,(])set (\w+)(?= (?:by hand|in bytes|=)|[,;:]|$)", text):
            assert name in BY_KEY or name in NOT_NAMES | {"it", "them"}, f"{where}: {name}: {text}"


def test_commands_and_pages_that_sentences_name_are_there() -> None:
    for where, text in sentences():
        for words in re.findall(r"`amq ([^`]+)`", text):
            command: click.Command | None = main
            for word in words.split():
                if not isinstance(command, click.Group) or not word.islower():
                    break
                command = command.get_command(click.Context(command), word)
                assert command is not None, f"{where}: amq {words}"
        for page in re.findall(r"docs/[\w-]+\.md", text):
            assert (ROOT / page).is_file(), f"{where}: {page}"


def test_sentences_about_protocols_name_those_that_are_served() -> None:
    titles = [each.title for each in PROTOCOLS]
    for where, text in sentences():
        assert "not yet" not in text, where
        assert not re.search(r"\bno \w+( \w+)? yet\b", text), f"{where}: {text}"
        if re.search(r"amq (?:speaks|serves) (?!TLS)|protocols? that amq speaks", text):
            assert all(title in text for title in titles), f"{where}: {text}"
        for name in re.findall(r"does not speak (\w+)", text):
            assert name not in titles, f"{where}: {text}"


JDBC = """<beans><bean id="db"><property name="url" value="jdbc:{url}"/><property name="username" value="mq"/>
<property name="password" value="s3cret"/></bean><broker brokerName="one"><persistenceAdapter>
<jdbcPersistenceAdapter dataSource="#db" lockKeepAlivePeriod="5000"><locker>
<lease-database-locker lockAcquireSleepInterval="10000"/></locker></jdbcPersistenceAdapter></persistenceAdapter>
<transportConnectors><transportConnector uri="tcp://127.0.0.1:47821"/></transportConnectors>
<plugins><{plugin}AuthenticationPlugin/></plugins></broker></beans>"""


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("postgresql://db.example.com/mq", "--store postgresql://mq@db.example.com/mq,"),
        ("postgresql://h:5433/mq?ssl=true", "--store postgresql://mq@h:5433/mq,"),
        ("mysql://h/mq", "--store postgresql://HOST/DATABASE"),
    ],
)
def test_a_store_in_a_database(tmp_path: Path, url: str, store: str) -> None:
    path = tmp_path / "activemq.xml"
    path.write_text(JDBC.format(url=url, plugin="jaas"))
    with pytest.raises(ConfigError) as caught:
        load(str(path), {}, require_store=True)
    assert store in caught.value.description
    config = load(str(path), {}, ["store=postgresql://mq@db.example.com/mq"])
    assert (config.lock_keep_alive_period_s, config.lock_acquire_sleep_interval_s) == (5.0, 10.0)
    assert not any("s3cret" in warning for warning in config.warnings)
    artemis_file = (
        f"<configuration><core><store><database-store><jdbc-connection-url>jdbc:{url}</jdbc-connection-url>"
        "<jdbc-user>mq</jdbc-user></database-store></store></core></configuration>"
    )
    assert store in foreign.read(artemis_file.encode(), "broker.xml", {}, {}).store_advice


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("jaas", ["ldapUrls"]),
        ("jaasCertificate", ["certificateUsersFile"]),
        ("jaasDual", ["certificateUsersFile", "ldapUrls"]),
    ],
)
def test_users_that_are_elsewhere(plugin: str, options: list[str]) -> None:
    found = foreign.read(JDBC.format(url="postgresql://h/d", plugin=plugin).encode(), "activemq.xml", {}, {})
    (told,) = [line.told for line in found.report.unsupported() if "AuthenticationPlugin" in line.near]
    assert all(option in told for option in options)


def test_the_report_begins_with_what_is_not_carried() -> None:
    found = foreign.read(
        (ROOT / "tests/migrate/files/shared-store.xml").read_bytes(),
        "a.xml",
        {"activemq.data": "/d", "feeder.password": "x"},
        {},
    )
    statuses = [line.status is foreign.Status.UNSUPPORTED for line in found.report.told()]
    assert any(statuses)
    assert statuses == sorted(statuses, reverse=True)


def test_slow_consumers_of_queues_and_dropped_dead_letters() -> None:
    def entry(kind: str, inside: str) -> foreign.Foreign:
        text = f"<policyEntries><policyEntry {kind}='>'>{inside}</policyEntry></policyEntries>"
        return foreign.read(f"<broker><destinationPolicy>{text}</destinationPolicy></broker>".encode(), "a", {}, {})

    slow = "<slowConsumerStrategy><abortSlowConsumerStrategy/></slowConsumerStrategy>"
    assert entry("topic", slow).values["", "slowConsumerPolicy"].value == "disconnect"
    found = entry("queue", slow)
    assert ("", "slowConsumerPolicy") not in found.values
    assert [line.near for line in found.report.unsupported() if line.line] == [
        "slowConsumerStrategy/abortSlowConsumerStrategy"
    ]
    dropped = entry("queue", "<deadLetterStrategy><discarding/></deadLetterStrategy>")
    assert dropped.values["", "expiredMessages"].value == "drop"
