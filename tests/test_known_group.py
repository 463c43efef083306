"""Acceptance: a client that was given one address of a group of real brokers finds the others and keeps them.

`test_announcing.py` has what brokers tell, tests/client/test_members.py and test_lists.py what a client makes of it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from brokers import ROOT, Broker, Brokers

import amq
from amq.client import Connection, aio
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
Q = "/queue/orders"
OPTIONS = f"randomize=false&timeout={DEADLINE_S * 1000:.0f}"


def url(*brokers: Broker, options: str = OPTIONS) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})?{options}"


def ports(connection: Connection) -> list[int]:
    return [uri.port for uri in connection.brokers]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.01)


def test_a_client_goes_on_at_a_broker_that_its_url_never_named(brokers: Brokers, tmp_path: Path) -> None:
    """And so does a program that starts later, with the same URL and the file that the first one has left."""
    first, second = brokers.master("a"), brokers.slave("b")
    file = tmp_path / "brokers.txt"
    where = url(first, options=f"{OPTIONS}&knownBrokersFile={file}")
    with amq.connect(where) as connection, connection.session() as session:
        # Perhaps the slave came after the client: then it is told within seconds.
        wait_for(lambda: ports(connection) == [first.port, second.port], "the client knows the slave")
        wait_for(lambda: file.exists() and str(second.port) in file.read_text(), "the file names the slave")
        producer = session.producer(Q)
        producer.send("before")
        first.kill()
        producer.send("after")

    async def later() -> list[str]:
        async with await aio.connect(where) as connection, connection.session() as session:
            return [message.text async for message in await session.browser(Q)]

    assert asyncio.run(later()) == ["before", "after"]


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
