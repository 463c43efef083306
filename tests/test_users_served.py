"""Users of a real broker over STOMP and OpenWire: the rights of a file, also one that changes, and names of one's own.

A smoke test: tests/security/test_permissions.py has the rules, tests/broker/test_broker_permitted.py the rights that
each command needs, tests/security/test_two_users.py every name that a client chooses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import amq
from amq.core.errors import AmqError
from amq.protocols.openwire import table
from amq.protocols.openwire.table import structure
from amq.security.users_edit import add_user
from amq_migrate.openwire.queues import consuming
from bench.wire import WireError
from tests import openwire_client
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S

PASSWORD = "correct horse"  # of all users
RULES = """
[roles]
shop = ["alice"]
warehouse = ["bob"]
[queues."orders.*"]
read = ["warehouse"]
write = ["shop"]
"""


def served(directory: Path) -> Brokers:
    for name in ("alice", "bob"):
        add_user(str(directory / "users"), name, PASSWORD)
    (directory / "permissions.toml").write_text(RULES)
    options = {"usersFile": directory / "users", "permissionsFile": directory / "permissions.toml"}
    return Brokers(directory, scheme="auto", anonymous="no", **options)


def once(broker: Broker, id: str) -> None:
    """What alice does once under that name."""
    url = f"stomp://127.0.0.1:{broker.port}"
    with amq.connect(url, login="alice", passcode=PASSWORD) as alice, alice.session(transacted=True) as session:
        producer = session.producer("/queue/orders.eu")
        session.exactly_once(lambda _: producer.send(id, duplicate_id=id), id=id)


def test_rights_and_a_file_that_changes(tmp_path: Path) -> None:
    with served(tmp_path) as brokers:
        broker, file = brokers.master(), tmp_path / "permissions.toml"
        with openwire_client.peer_of(f"tcp://127.0.0.1:{broker.port}", "alice", PASSWORD) as peer:
            openwire_client.send(peer, "orders.eu", [openwire_client.message(1)])
            with (
                pytest.raises(AmqError, match="may not consume"),
                consuming(peer, 1, structure(table.QUEUE, name="orders.eu"), 10, False),
            ):
                pass
        with (
            broker.connect(login="bob", passcode=PASSWORD) as bob,
            broker.connect(login="alice", passcode=PASSWORD) as alice,
        ):
            bob.send("SUBSCRIBE", {"destination": "/queue/orders.eu", "id": "1", "receipt": "r"})
            bob.receipt("r", DEADLINE_S)
            assert bob.next_frame(DEADLINE_S).command == "MESSAGE"
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


def test_names_of_another_user_are_apart_also_on_the_next_master(tmp_path: Path) -> None:
    """Bob may not even write there, and has committed under the ids that alice is going to use."""
    with served(tmp_path) as brokers:
        first, second = brokers.master(), brokers.slave("b")
        for id in ("order-17", "order-18"):
            with first.connect(login="bob", passcode=PASSWORD) as bob:
                bob.send("BEGIN", {"transaction": id})
                bob.send("COMMIT", {"transaction": id, "amq-outcome-id": id, "receipt": "c"})
                bob.receipt("c", DEADLINE_S)
        once(first, "order-17")
        first.kill()
        second.wait_serving()
        for id in ("order-17", "order-18"):  # the first is alice's own, which took place
            once(second, id)
        with second.connect(login="bob", passcode=PASSWORD) as bob:
            bob.send("SUBSCRIBE", {"destination": "/queue/orders.eu", "id": "1", "browser": "true"})
            found = []
            while "browser" not in (frame := bob.next_frame(DEADLINE_S)).headers:
                found.append((frame.headers["_AMQ_DUPL_ID"], frame.body))
        assert found == [(id, id.encode()) for id in ("order-17", "order-18")]
