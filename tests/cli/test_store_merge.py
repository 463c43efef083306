"""`amq store merge`: two real groups, their masters killed in the middle, and a client that finds the new brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import amq as client_of
from bench.wire import WireError
from tests.brokers import Brokers
from tests.cli.amq_process import amq, one_line, running
from tests.patience import DEADLINE_S

COUNT = 400
BODY = "x" * 1000


class Groups:
    """FROM has brokers a and b, INTO has c and d."""

    def __init__(self, directory: Path) -> None:
        self.secret = directory / "secret"
        self.secret.touch(0o600)
        self.secret.write_text("a secret of two groups")
        (directory / "from").mkdir()
        (directory / "into").mkdir()
        self.source = Brokers(directory / "from", scheme="auto")
        self.into = Brokers(directory / "into", scheme="auto")
        self.links = {"linkListen": "tcp://127.0.0.1:0", "linkSecretFile": self.secret}
        self.a = self.source.master("a")
        self.c = self.into.master("c", **self.links)

    def merge(self, *words: object) -> Any:
        return amq("store", "merge", self.source.store, self.into.store, "--secret", self.secret, *words)

    def close(self) -> None:
        self.source.__exit__()
        self.into.__exit__()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    found = Groups(tmp_path)
    try:
        yield found
    finally:
        found.close()


def fill(port: int, queue: str, count: int) -> None:
    with client_of.connect(f"stomp://127.0.0.1:{port}") as connection, connection.session() as session:
        producer = session.producer(f"/queue/{queue}")
        for number in range(count):
            producer.send(f"{number} {BODY}", wait=False)
        producer.flush()


def numbers(port: int, queue: str) -> list[int]:
    found: list[int] = []
    with client_of.connect(f"stomp://127.0.0.1:{port}") as connection, connection.session() as session:
        consumer = session.consumer(f"/queue/{queue}")
        session.producer(f"/queue/{queue}").send("end")
        while (message := consumer.receive(timeout=DEADLINE_S)) is not None and message.text != "end":
            found.append(int(str(message.text).split()[0]))
            message.ack()
    return found


def test_a_group_is_merged_and_its_clients_go_on(groups: Groups) -> None:
    fill(groups.a.port, "q", COUNT)
    plan = json.loads(groups.merge("--dry-run", "--json").stdout)
    assert (plan["messages"], plan["waits_for"]) == (COUNT, [])
    url = f"failover:(stomp://127.0.0.1:{groups.a.port})"
    with client_of.connect(url) as connection, connection.session() as session:
        done = groups.merge("--json", "--wait", "20")
        assert done.returncode == 0, done.stderr + groups.a.log_text() + groups.c.log_text()
        facts = json.loads(done.stdout)
        assert (facts["sent"], facts["left"], facts["over"], facts["eta_s"]) == (COUNT, 0, True, 0)
        session.producer("/queue/q").send(f"{COUNT} behind all that waited")
    assert numbers(groups.c.port, "q") == [*range(COUNT + 1)]
    with pytest.raises(WireError, match=r"merged into another one.*connect to failover"):  # it knows no failover
        groups.a.connect().next_frame(DEADLINE_S)
    again = groups.merge()
    assert again.returncode == 0
    assert "clients go to failover:(" in again.stdout


def test_what_is_in_the_way_is_named(groups: Groups, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_text("another secret of the same length")
    refused = amq("store", "merge", groups.source.store, groups.into.store, "--secret", other)
    assert refused.returncode != 0
    assert "secret" in one_line(refused)
    no_link = amq("store", "merge", groups.into.store, groups.source.store)
    assert "set linkListen and linkSecretFile" in one_line(no_link)
    for port, selector in ((groups.a.port, "a = 1"), (groups.c.port, "a = 2")):
        url = f"stomp://127.0.0.1:{port}"
        with client_of.connect(url, client_id="c") as connection, connection.session() as session:
            session.consumer("/topic/t", subscription="d", selector=selector)
    differs = groups.merge()
    assert differs.returncode != 0
    assert "both stores have a durable subscription 'd'" in differs.stderr
    assert groups.a.alive
    fill(groups.a.port, "q", 1)  # nothing has begun


@pytest.mark.deep
def test_kills_of_all_who_take_part_lose_and_double_nothing(groups: Groups) -> None:
    b = groups.source.slave("b")
    d = groups.into.slave("d", **groups.links)
    fill(groups.a.port, "q", COUNT)
    fill(groups.a.port, "r", 50)
    with running(
        "store", "merge", groups.source.store, groups.into.store, "--secret", groups.secret, "--rate", "100KiB"
    ) as command:
        groups.a.wait_event("the store is being merged")
        command.kill()
    groups.a.kill()
    b.wait_serving()
    groups.c.kill()
    d.wait_serving()
    done = groups.merge("--json")
    assert done.returncode == 0, f"{done.stderr}\n{b.log_text()}\n{d.log_text()}"
    assert numbers(d.port, "q") == [*range(COUNT)]
    assert numbers(d.port, "r") == [*range(50)]
