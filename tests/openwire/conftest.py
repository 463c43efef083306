"""The Java client, compiled once, and the brokers that it drives.

A machine without Java, or without the client's jars, skips these tests; with CI=true that fails: .ci/run installs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import activemq_peer
import java_suite
import pytest
from brokers import Broker, Brokers

CONFIG = """
[destinations."jms.Topics.retroactive.>"]
subscriptionRecoveryCount = 10

[queues]
deadLetterStrategy = "shared"
expiredMessages = "dead-letter"
"""


def needed(why: str) -> None:
    """Skip, or fail in CI, where `why` says what is missing."""
    if why:
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="session")
def java() -> java_suite.Program:
    """The suite with Debian's client."""
    needed(java_suite.missing())
    return java_suite.compiled()


@pytest.fixture(scope="module")
def amq_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one broker for all cases: they do not disturb each other."""
    directory = tmp_path_factory.mktemp("openwire")
    (directory / "amq.toml").write_text(CONFIG)
    with Brokers(directory, config=directory / "amq.toml", scheme="auto") as brokers:
        broker: Broker = brokers.master()
        yield f"tcp://127.0.0.1:{broker.port}"
        print(f"log of {broker.name}:\n{broker.log_text()}")


@pytest.fixture(scope="module")
def activemq_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of ActiveMQ, where it is installed: a peer, which also CI may be without."""
    why = activemq_peer.missing()
    if why:
        pytest.skip(why)
    base: Path = tmp_path_factory.mktemp("activemq")
    with activemq_peer.ActiveMQ(base / "peer") as peer:
        yield peer.url
