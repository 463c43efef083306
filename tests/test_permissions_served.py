"""A permissions file as clients meet it: STOMP and OpenWire against a real broker, and a file that changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from amq.core.errors import AmqError
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq.security.users_edit import add_user
from amq_migrate.openwire.queues import consuming
from bench.wire import WireError
from tests.brokers import Broker, Brokers
from tests.openwire_client import message, peer_of
from tests.patience import DEADLINE_S

PASSWORD = "correct horse"  # of all users
RULES = """
[roles]
shop = ["alice"]
warehouse = ["bob"]
operators = ["root"]
[queues."orders.*"]
read = ["warehouse"]
write = ["shop"]
[queues."orders.audit"]
only = true
browse = ["warehouse"]
write = ["operators"]
[queues."DLQ.>"]
read = ["operators"]
browse = ["shop"]
[queues.">"]
admin = ["operators"]
[queues.returns]
read = ["shop"]
admin = ["shop"]
[topics."prices.>"]
read = ["warehouse"]
write = ["shop"]
[topics."prices.secret"]
only = true
write = ["shop"]
[topics.news]
read = ["*"]
"""
USERS = ("alice", "bob", "root", "eve")
# Action, destination, who may. tests/security/test_permissions.py has the rules, tests/broker/test_broker_permitted.py
# the commands.
CASES = [
    ("write", "/queue/orders.eu", "alice"),
    ("write", "/queue/orders.audit", "root"),
    ("write", "/queue/orders.eu,/topic/prices.eu", "alice"),
    ("write", "/queue/orders.eu,/queue/x", ""),
    ("read", "/queue/orders.eu", "bob"),
    ("read", "/queue/orders.audit", ""),
    ("read", "/queue/>", "alice bob root"),
    ("read", "/topic/prices.>", "bob"),
    ("read", "/topic/news", "alice bob root eve"),
    ("read", "/topic/ActiveMQ.Advisory.Queue", ""),
    ("browse", "/queue/orders.audit", "bob"),
    ("browse", "/queue/DLQ.orders.eu", "alice root"),
    ("read durably", "/topic/prices.eu", "bob"),
    ("read durably", "/topic/prices.>", ""),
    ("delete", "/queue/orders.eu", "root"),
    ("delete", "/queue/returns", "alice root"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("permitted")
    for name in USERS:
        add_user(str(path / "users"), name, PASSWORD)
    (path / "permissions.toml").write_text(RULES)
    return path


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    options = {"usersFile": directory / "users", "anonymous": "no", "permissionsFile": directory / "permissions.toml"}
    with Brokers(directory, scheme="auto", **options) as brokers:
        yield brokers.master()


def refused_by_stomp(broker: Broker, user: str, action: str, destination: str) -> bool:
    durably = action == "read durably"
    with broker.connect(login=user, passcode=PASSWORD, client_id=f"{user} {destination}" if durably else "") as client:
        if action == "write":
            client.send("SEND", {"destination": destination, "receipt": "r"}, b"x")
        else:
            how = {"browser": "true"} if action == "browse" else {"activemq.subscriptionName": "d"} if durably else {}
            client.send("SUBSCRIBE", {"destination": destination, "id": "1", "receipt": "r", **how})
        try:
            client.receipt("r", DEADLINE_S)
            if durably:
                client.send("UNSUBSCRIBE", {"id": "1", "activemq.subscriptionName": "d", "receipt": "u"})
                client.receipt("u", DEADLINE_S)
        except WireError as error:
            return "may not" in str(error)
        return False


def refused_by_openwire(broker: Broker, user: str, action: str, destination: str) -> bool:
    kind = table.QUEUE if destination.startswith("/queue/") else table.TOPIC
    text = (
        destination.split("/")[2]
        if "," not in destination
        else ",".join(f"{each.split('/')[1]}://{each.split('/')[2]}" for each in destination.split(","))
    )
    named = structure(kind, name=text)
    with peer_of(f"tcp://127.0.0.1:{broker.port}", user, PASSWORD) as peer:
        try:
            if action == "write":
                producer = structure(table.PRODUCER_ID, connection=peer.wire.connection, session=1, value=1)
                peer.request(structure(table.PRODUCER_INFO, id=producer))
                sent = message(1)
                peer.request(Structure(sent.type, {**sent.fields, "producer": producer, "destination": named}))
            elif action == "delete":
                peer.request(
                    structure(
                        table.DESTINATION_INFO,
                        destination=named,
                        kind=1,
                        connection=structure(table.CONNECTION_ID, value=peer.wire.connection),
                    )
                )
            else:
                with consuming(peer, 1, named, 10, action == "browse"):
                    pass
        except AmqError as error:
            return "may not" in str(error)
        return False


@pytest.mark.parametrize(("action", "destination", "who"), [each for each in CASES if each[0] != "delete"])
def test_who_may_over_stomp(broker: Broker, action: str, destination: str, who: str) -> None:
    assert {user for user in USERS if not refused_by_stomp(broker, user, action, destination)} == set(who.split())


@pytest.mark.parametrize(("action", "destination", "who"), [each for each in CASES if each[0] != "read durably"])
def test_who_may_over_openwire(broker: Broker, action: str, destination: str, who: str) -> None:
    assert {user for user in USERS if not refused_by_openwire(broker, user, action, destination)} == set(who.split())


def test_a_jms_producer_is_refused_when_it_is_made(broker: Broker) -> None:
    with peer_of(f"tcp://127.0.0.1:{broker.port}", "bob", PASSWORD) as peer:
        producer = structure(table.PRODUCER_ID, connection=peer.wire.connection, session=1, value=1)
        named = structure(table.QUEUE, name="orders.eu")
        with pytest.raises(AmqError, match="may not send to"):
            peer.request(structure(table.PRODUCER_INFO, id=producer, destination=named))


def test_a_changed_file_counts_at_once_for_those_who_are_there(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "permissions.toml"
    file.write_text(RULES)
    options = {"usersFile": directory / "users", "anonymous": "no", "permissionsFile": file}
    with Brokers(tmp_path, **options) as brokers:
        broker = brokers.master()
        with (
            broker.connect(login="bob", passcode=PASSWORD) as bob,
            broker.connect(login="alice", passcode=PASSWORD) as alice,
        ):
            bob.send("SUBSCRIBE", {"destination": "/queue/orders.eu", "id": "1", "receipt": "r"})
            bob.receipt("r", DEADLINE_S)
            file.write_text(RULES + "[nonsense]\n")
            assert "nonsense" in broker.wait_event("permissions not changed")["reason"]
            alice.send("SEND", {"destination": "/queue/orders.eu", "receipt": "1"}, b"x")
            alice.receipt("1", DEADLINE_S)
            assert bob.next_frame(DEADLINE_S).command == "MESSAGE"
            file.write_text(RULES.replace("bob", "carol").replace("alice", "carol"))
            assert broker.wait_event("permissions read")["generation"] == 2
            with pytest.raises(WireError, match="may not consume"):
                bob.next_frame(DEADLINE_S)
            alice.send("SEND", {"destination": "/queue/orders.eu", "receipt": "2"}, b"x")
            with pytest.raises(WireError, match="may not send to"):
                alice.receipt("2", DEADLINE_S)
