"""ActiveMQ Classic, as Debian packages it, with a port for JMS clients: the peer from which people come.

Invariant: the broker dies with the test run, and its files lie in the directory that was given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amq.client.errors import ConnectError
from amq.client.tls import Contexts
from amq.doors.clock import SystemClock
from amq_migrate.openwire.addresses import parse
from amq_migrate.openwire.peer import connect
from bench.brokers import PROBE_PAUSE_S, START_TIMEOUT_S, ActiveMqBroker, BrokerProcessError, broker_class
from tests.ports import free_port

USERS = """<amq:plugins><amq:simpleAuthenticationPlugin anonymousAccessAllowed="false"><amq:users>
<amq:authenticationUser username="admin" password="s3cret" groups="admins"/></amq:users>
</amq:simpleAuthenticationPlugin></amq:plugins>"""


class ActiveMq(ActiveMqBroker):
    """Also listens for OpenWire, on `openwire_port`. `plugins` = elements for its configuration."""

    def __init__(self, store: Path, options: dict[str, str], plugins: str) -> None:
        super().__init__("old", store, free_port(), 2000, options)
        self.openwire_port: int | None = free_port()
        self._plugins = plugins

    def command(self) -> list[str]:
        words = super().command()
        base = self.store.parent / f"{self.name}-base"
        made = (base / "broker.xml").read_text()
        made = made.replace("<amq:systemUsage>", f"{self._plugins}<amq:systemUsage>", 1)
        (base / "broker.xml").write_text(made)
        return ["java", "-Xms64m", "-Xmx512m", *(word for word in words[1:] if not word.startswith("-Xm"))]

    def wait_serving(self, login: tuple[str, str]) -> None:
        """Until clients can log in."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connect(parse(self.url), *login, "ID:first:1", SystemClock(), "ActiveMQ", Contexts()).leave()
            except ConnectError:
                self.check()
                assert time.monotonic() < deadline, self.log_text()
                time.sleep(PROBE_PAUSE_S)
            else:
                return

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.openwire_port}"


def have_activemq() -> bool:
    """Is it installed? In CI a missing one is a failure."""
    try:
        broker_class("activemq")
    except BrokerProcessError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        return False
    return True


@contextmanager
def activemq(
    directory: Path, options: dict[str, str] | None = None, plugins: str = "", login: tuple[str, str] = ("", "")
) -> Iterator[ActiveMq]:
    """A broker that serves clients; `login` = of one that it admits. Skips the test where ActiveMQ is not installed."""
    if not have_activemq():
        pytest.skip("no ActiveMQ here: apt-get install --no-install-recommends activemq libactivemq-java")
    store = directory / "kahadb"
    store.mkdir(parents=True)
    broker = ActiveMq(store, options or {}, plugins)
    broker.start()
    try:
        broker.wait_serving(login)
        yield broker
    finally:
        print(broker.log_text())  # pytest shows it where the test fails
        broker.stop()
