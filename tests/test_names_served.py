"""A user takes the ids of another in advance, over STOMP and OpenWire, against real brokers: nothing is lost.

`alice` sends and commits; `eve` has a login and, for the outcome ids, no right at all. The ids are those that OpenWire
makes of connection ids, which every reader of a message sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import amq
from amq.core.errors import AmqError
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq.protocols.openwire.transactions import BEGIN, COMMIT_ONE
from amq.security.users_edit import add_user
from amq_migrate.openwire.peer import OtherBroker
from bench.wire import WireError
from tests.brokers import Broker, Brokers
from tests.openwire_client import message, peer_of
from tests.patience import DEADLINE_S

PASSWORD = "correct horse"  # of all users
QUEUE = "orders"
NAMES = 3  # that are taken in advance
PERMISSIONS = f"""
[queues."{QUEUE}"]
write = ["shop"]
read = ["shop"]
[queues.shared]
write = ["*"]
read = ["shop"]
[roles]
shop = ["alice"]
"""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    for name in ("alice", "eve"):
        add_user(str(tmp_path / "users"), name, PASSWORD)
    (tmp_path / "permissions.toml").write_text(PERMISSIONS)
    options = {"usersFile": tmp_path / "users", "anonymous": "no", "permissionsFile": tmp_path / "permissions.toml"}
    with Brokers(tmp_path, scheme="auto", **options) as found:
        yield found


@contextmanager
def jms(broker: Broker, user: str) -> Iterator[OtherBroker]:
    with peer_of(f"tcp://127.0.0.1:{broker.port}", user, PASSWORD) as peer:
        yield peer


@contextmanager
def transacted(broker: Broker, user: str) -> Iterator[amq.Session]:
    with (
        amq.connect(f"stomp://127.0.0.1:{broker.port}", login=user, passcode=PASSWORD) as connection,
        connection.session(transacted=True) as session,
    ):
        yield session


def sent(peer: OtherBroker, producer: str, number: int, queue: str = QUEUE, **more: object) -> None:
    """A message with the id that the producer `producer` gives to its message `number`."""
    own = structure(table.PRODUCER_ID, connection=producer, session=1, value=1)
    id = structure(table.MESSAGE_ID, producer=own, producer_sequence=number)
    fields = {**message(number).fields, "producer": own, "id": id, "destination": structure(table.QUEUE, name=queue)}
    peer.request(Structure(table.TEXT_MESSAGE, {**fields, **more}))


def transaction_of(connection: str, number: int) -> Structure:
    """The id that a JMS client gives to the n-th local transaction of a connection."""
    id = structure(table.CONNECTION_ID, value=connection)
    return structure(table.LOCAL_TRANSACTION_ID, connection=id, value=number)


def ended(peer: OtherBroker, connection: str, number: int, kind: int) -> None:
    """BEGIN or COMMIT of a local transaction of that connection."""
    transaction = transaction_of(connection, number)
    id = transaction.fields["connection"]
    peer.request(structure(table.TRANSACTION_INFO, connection=id, transaction=transaction, kind=kind))


def committed(peer: OtherBroker, number: int) -> None:
    """The n-th local transaction of a JMS client, with one message in it."""
    name = peer.wire.connection
    ended(peer, name, number, BEGIN)
    sent(peer, name, number, transaction=transaction_of(name, number))
    ended(peer, name, number, COMMIT_ONE)


def take_outcomes(broker: Broker, ids: list[str], ask: bool) -> None:
    """`eve` commits nothing under these ids, or asks for commits that have not come yet."""
    for id in ids:
        with broker.connect(login="eve", passcode=PASSWORD) as eve:
            if not ask:
                eve.send("BEGIN", {"transaction": id})
            eve.send("COMMIT", {"transaction": id, "amq-outcome-id": id, "receipt": "c"})
            with pytest.raises(WireError, match="did not take place") if ask else nullcontext():
                eve.receipt("c", DEADLINE_S)


def waiting(broker: Broker, queue: str = QUEUE) -> int:
    """How many messages alice finds there."""
    with broker.connect(login="alice", passcode=PASSWORD) as client:
        client.send("SUBSCRIBE", {"destination": f"/queue/{queue}", "id": "1", "browser": "true"})
        found = 0
        while "browser" not in client.next_frame(DEADLINE_S).headers:
            found += 1
        return found


@pytest.mark.parametrize("ask", [False, True], ids=["committed before", "asked for before"])
def test_commits_of_openwire(brokers: Brokers, ask: bool) -> None:
    broker = brokers.master()
    with jms(broker, "alice") as alice:
        names = [f"TX:{alice.wire.connection}:{number}" for number in range(1, NAMES + 1)]
        take_outcomes(broker, names, ask)
        for number in range(1, NAMES + 1):
            committed(alice, number)
    assert waiting(broker) == NAMES


@pytest.mark.parametrize("ask", [False, True], ids=["committed before", "asked for before"])
def test_commits_of_openwire_whose_ids_are_taken_by_openwire(brokers: Brokers, ask: bool) -> None:
    broker = brokers.master()
    with jms(broker, "alice") as alice, jms(broker, "eve") as eve:
        name = alice.wire.connection
        for number in range(1, NAMES + 1):
            if not ask:
                ended(eve, name, number, BEGIN)
                sent(eve, name, number, "shared", transaction=transaction_of(name, number))  # or it never began
            with pytest.raises(AmqError, match="did not take place") if ask else nullcontext():
                ended(eve, name, number, COMMIT_ONE)
            committed(alice, number)
    assert waiting(broker) == NAMES


def test_work_that_is_done_once(brokers: Brokers) -> None:
    broker = brokers.master()
    take_outcomes(broker, ["order-17"], ask=False)
    with transacted(broker, "alice") as session:
        producer = session.producer(f"/queue/{QUEUE}")
        for _ in range(2):  # the second time it is known, of alice alone
            session.exactly_once(lambda _: producer.send("order 17"), id="order-17")
    assert waiting(broker) == 1


@pytest.mark.parametrize("protocol", ["stomp", "openwire"])
def test_ids_of_messages(brokers: Brokers, protocol: str) -> None:
    """`eve` may write to the same queue, and sends what alice's producer is going to send."""
    broker = brokers.master()
    with jms(broker, "alice") as alice:
        producer = alice.wire.connection
        sent(alice, producer, 1, "shared")
        if protocol == "openwire":
            with jms(broker, "eve") as eve:
                for number in range(2, NAMES + 2):
                    sent(eve, producer, number, "shared")
        else:
            with broker.connect(login="eve", passcode=PASSWORD) as eve_too:
                for number in range(2, NAMES + 2):
                    id, receipt = f"{producer}:1:1:{number}", str(number)
                    head = {"destination": "/queue/shared", "persistent": "true", "_AMQ_DUPL_ID": id}
                    eve_too.send("SEND", {**head, "receipt": receipt}, b"taken")
                    eve_too.receipt(receipt, DEADLINE_S)
        for number in [*range(2, NAMES + 2)] * 2:  # and again, as after a failover
            sent(alice, producer, number, "shared")
    assert waiting(broker, "shared") == 1 + 2 * NAMES


def test_users_stay_apart_on_the_next_master(brokers: Brokers) -> None:
    first, second = brokers.master(), brokers.slave("b")
    take_outcomes(first, ["order-17"], ask=False)
    with transacted(first, "alice") as session:
        session.producer(f"/queue/{QUEUE}").send("of alice", duplicate_id="m")
        session.commit(outcome_id="order-18")
    first.kill()
    second.wait_serving()
    with transacted(second, "alice") as session:
        producer = session.producer(f"/queue/{QUEUE}")
        session.exactly_once(lambda _: producer.send("order 17"), id="order-17")
        session.exactly_once(lambda _: producer.send("order 18"), id="order-18")  # alice's own, which took place
    assert waiting(second) == 2
    with second.connect(login="alice", passcode=PASSWORD) as client:
        client.send("SUBSCRIBE", {"destination": f"/queue/{QUEUE}", "id": "1"})
        assert client.next_frame(DEADLINE_S).headers["_AMQ_DUPL_ID"] == "m", "as its producer gave it"
