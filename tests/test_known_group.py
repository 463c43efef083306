"""Acceptance: a client that was given one address of a group of real brokers finds the others and keeps them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import ROOT, Broker, Brokers

import amq
from amq.client import Connection, aio
from amq.client.errors import ConnectError
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
Q = "/queue/orders"
OPTIONS = f"randomize=false&timeout={DEADLINE_S * 1000:.0f}"


def url(*brokers: Broker, options: str = OPTIONS) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})?{options}"


def ports(connection: Connection | aio.Connection) -> list[int]:
    return [uri.port for uri in connection.brokers]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.01)


def play(face: str, url: str, body: str, between: Callable[[Any], None]) -> tuple[str, int]:
    """Send `body`, do something to the brokers, send it again, receive both. Returns the second, and the port then."""
    if face == "sync":
        with amq.connect(url) as connection, connection.session() as session:
            producer = session.producer(Q)
            producer.send(body)
            between(connection)
            producer.send(f"{body} again")
            consumer = session.consumer(Q)
            found = []
            for _ in range(2):
                message = consumer.receive(timeout=DEADLINE_S)
                assert message is not None
                message.ack()
                found.append(message.text)
            assert connection.uri is not None
            return found[1], connection.uri.port

    async def main() -> tuple[str, int]:
        async with await aio.connect(url) as connection, connection.session() as session:
            producer = session.producer(Q)
            await producer.send(body)
            await asyncio.get_running_loop().run_in_executor(None, between, connection)
            await producer.send(f"{body} again")
            consumer = await session.consumer(Q)
            found = []
            for _ in range(2):
                message = await consumer.receive(timeout=DEADLINE_S)
                assert message is not None
                await message.ack()
                found.append(message.text)
            assert connection.uri is not None
            return found[1], connection.uri.port

    return asyncio.run(main())


@pytest.mark.parametrize("face", ["sync", "aio"])
def test_a_client_goes_on_at_a_broker_that_its_url_never_named(brokers: Brokers, face: str) -> None:
    first = brokers.master("a")
    second = brokers.slave("b")

    def kill(connection: Connection) -> None:
        # Perhaps the slave came after the client: then it is told within seconds.
        wait_for(lambda: ports(connection) == [first.port, second.port], "the client knows the slave")
        first.kill()

    assert play(face, url(first), "a message", kill) == ("a message again", second.port)


def test_a_slave_that_comes_later_is_told_of(brokers: Brokers) -> None:
    first = brokers.master("a")
    with amq.connect(url(first)) as connection:
        assert ports(connection) == [first.port]
        second = brokers.slave("b")
        third = brokers.slave("c")
        wait_for(lambda: ports(connection) == [first.port, second.port, third.port], "the client knows both")
        assert second.stop() == 0
        wait_for(lambda: ports(connection) == [first.port, third.port], "the client forgets the one that stopped")


@pytest.mark.parametrize("face", ["sync", "aio"])
def test_a_client_that_starts_anew_finds_the_group_by_its_file(brokers: Brokers, face: str, tmp_path: Path) -> None:
    first = brokers.master("a")
    second = brokers.slave("b")
    file = tmp_path / "brokers.txt"
    options = f"{OPTIONS}&knownBrokersFile={file}"
    with amq.connect(url(first, options=options)) as connection:
        wait_for(lambda: len(ports(connection)) == 2, "the client knows both")
    wait_for(lambda: file.exists() and str(second.port) in file.read_text(), "the file names the slave")
    first.kill()
    assert play(face, url(first, options=options), "late", lambda _: None) == ("late again", second.port)

    def said() -> list[str]:
        return [line for line in file.read_text().splitlines() if not line.startswith("#")]

    wait_for(lambda: said() == [f"stomp://127.0.0.1:{second.port}"], "the file names the second one alone")


def test_a_client_that_may_try_once_still_reads_its_list(brokers: Brokers, tmp_path: Path) -> None:
    gone, master = brokers.add("gone"), brokers.master("a")
    file = tmp_path / "list.txt"
    file.write_text(f"# ours\nstomp://127.0.0.1:{master.port}\n")
    for option in ("knownBrokersFile", "updateURIsURL"):
        options = f"maxReconnectAttempts=1&{option}={file}"
        with amq.connect(url(gone, options=options)) as connection:
            assert connection.uri is not None
            assert connection.uri.port == master.port
    with pytest.raises(ConnectError, match="no broker answers after 1 round"):
        amq.connect(url(gone, options="maxReconnectAttempts=1&updateURIsURL=" + str(tmp_path / "none")))


def test_the_addresses_are_those_that_the_operator_advertises(brokers: Brokers) -> None:
    first = brokers.master("a", advertisedTransports="stomp://one.example.com:7001")
    brokers.slave("b", advertisedTransports="stomp://two.example.com:7001,stomp://two.example.com:7002")
    with amq.connect(url(first)) as connection:
        names = ["127.0.0.1", "one.example.com", "two.example.com", "two.example.com"]
        wait_for(lambda: [uri.host for uri in connection.brokers] == names, "the client knows the names")
    with amq.connect(url(first, options="updateURIsSupported=false")) as connection:
        assert ports(connection) == [first.port]


def test_a_broker_that_tells_nobody(brokers: Brokers) -> None:
    first = brokers.master("a", updateClusterClients="false")
    brokers.slave("b", updateClusterClients="false")
    with amq.connect(url(first)) as connection, connection.session() as session:
        session.producer(Q).send("x")
        assert ports(connection) == [first.port]


def test_a_command_takes_the_options_too(brokers: Brokers, tmp_path: Path) -> None:
    first = brokers.master("a")
    second = brokers.slave("b")
    file = tmp_path / "brokers.txt"
    options = f"{OPTIONS}&knownBrokersFile={file}"

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "amq.cli.main", *words, "--destination", Q]
        command += ["--url", url(first, options=options)]
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=DEADLINE_S, check=True
        ).stdout

    with amq.connect(url(first)) as connection:
        wait_for(lambda: len(ports(connection)) == 2, "the master knows the slave")
    run("producer", "--message", "one line")
    assert str(second.port) in file.read_text()  # a program of a moment leaves it, too
    first.kill()
    assert run("consumer", "--count", "1") == "one line\n"
