"""A permissions file as clients meet it: STOMP and OpenWire against a real broker, and a file that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amq.client.openwire.queues import consuming
from amq.errors import AmqError
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq.security.users_edit import add_user
from bench.wire import WireError
from tests.brokers import Broker, Brokers
from tests.openwire_client import message, peer_of

PASSWORD = "correct horse"  # of all users
RULES = """
[roles]
shop = ["alice"]
warehouse = ["bob"]
[queues."orders.*"]
read = ["warehouse"]
write = ["shop"]
[topics."prices.*"]
read = ["warehouse"]
write = ["shop"]
"""
# action, destination → who may
TABLE = {
    ("write", "/queue/orders.eu"): {"alice"}, ("write", "/topic/prices.eu"): {"alice"}, ("write", "/queue/x"): set(),
    ("read", "/queue/orders.eu"): {"bob"}, ("read", "/topic/prices.eu"): {"bob"}, ("read", "/queue/x"): set(),
    ("browse", "/queue/orders.eu"): {"bob"}, ("browse", "/queue/x"): set(),
}  # fmt: skip
USERS = ("alice", "bob", "eve")


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
    with broker.connect(login=user, passcode=PASSWORD) as client:
        if action == "write":
            client.send("SEND", {"destination": destination, "receipt": "r"}, b"x")
        else:
            more = {"browser": "true"} if action == "browse" else {}
            client.send("SUBSCRIBE", {"destination": destination, "id": "1", "receipt": "r", **more})
        try:
            client.receipt("r", 10)
        except WireError as error:
            return "may not" in str(error)
        return False


def refused_by_openwire(broker: Broker, user: str, action: str, destination: str) -> bool:
    kind = table.QUEUE if destination.startswith("/queue/") else table.TOPIC
    named = structure(kind, name=destination.split("/")[2])
    with peer_of(f"tcp://127.0.0.1:{broker.port}", user, PASSWORD) as peer:
        try:
            if action == "write":
                producer = structure(table.PRODUCER_ID, connection=peer.wire.connection, session=1, value=1)
                peer.request(structure(table.PRODUCER_INFO, id=producer))
                sent = message(1)
                peer.request(Structure(sent.type, {**sent.fields, "producer": producer, "destination": named}))
            else:
                with consuming(peer, 1, named, 10, action == "browse"):
                    pass
        except AmqError as error:
            return "may not" in str(error)
        return False


@pytest.mark.parametrize("refused", [refused_by_stomp, refused_by_openwire])
@pytest.mark.parametrize(("what", "allowed"), TABLE.items(), ids=lambda each: "-".join(map(str, each)))
def test_the_table_of_roles_and_actions(
    broker: Broker, refused: Callable[..., bool], what: tuple[str, str], allowed: set[str]
) -> None:
    assert {user for user in USERS if not refused(broker, user, *what)} == allowed


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
            bob.receipt("r", 10)
            file.write_text(RULES + "[nonsense]\n")
            assert "nonsense" in broker.wait_event("permissions not changed")["reason"]
            alice.send("SEND", {"destination": "/queue/orders.eu", "receipt": "1"}, b"x")
            alice.receipt("1", 10)
            assert bob.next_frame(10).command == "MESSAGE"
            file.write_text(RULES.replace("bob", "carol").replace("alice", "carol"))
            assert broker.wait_event("permissions read")["generation"] == 2
            with pytest.raises(WireError, match="may not consume"):
                bob.next_frame(10)
            alice.send("SEND", {"destination": "/queue/orders.eu", "receipt": "2"}, b"x")
            with pytest.raises(WireError, match="may not send to"):
                alice.receipt("2", 10)
