"""Three clients behind one face: stomp.py and stompit with the recipe of their users for a failover, and our own.

`Link` is one connection for life: each call goes through the death of the master, and says what became of it. What a
user of a stock client has to write for that is `StockLink`: connect to whichever broker accepts, subscribe again, send
again with the same `_AMQ_DUPL_ID`, ask what became of a commit by its `amq-outcome-id`.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from matrix_wires import Delivery, Lost, Node, Refused, StompPyWire, Wire

import amq
from amq.client.core import PREFETCH_DEFAULT
from amq.client.errors import DeliveryLostError
from amq.client.requests import ConnectionEvent, EventKind
from amq.core.errors import TransactionRolledBackError
from tests.patience import DEADLINE_S

RETRY_S = 0.05
ATTEMPTS_MAX = 10
_numbers = itertools.count(1)
OpenWire = Callable[[int, dict[str, str]], Wire]


class RolledBack(Exception):
    """The transaction is gone, with the connection: run it again."""


@dataclass(frozen=True)
class Received:
    """A message. `ack` and `nack` wait for the receipt; False = the connection broke before, so it may come again."""

    body: str
    headers: dict[str, str]
    settle: Callable[[str, bool], bool]
    handle: object  # the library's own

    def ack(self) -> bool:
        return self.settle("ACK", False)

    def nack(self, requeue: bool) -> bool:
        return self.settle("NACK", requeue)


class Consumer(ABC):
    @abstractmethod
    def receive(self, timeout_s: float = DEADLINE_S) -> Received | None:
        """The next message; None = there was none for so long."""


class Transaction(ABC):
    """Calls raise RolledBack when it is gone."""

    @abstractmethod
    def send(self, destination: str, body: str) -> None: ...

    @abstractmethod
    def take(self, consumer: Consumer) -> str:
        """Receive a message and acknowledge it in the transaction."""

    @abstractmethod
    def commit(self) -> bool:
        """Did it take place?"""

    @abstractmethod
    def prepare(self, xid: str, owner: str = "", batch: int = 0) -> bool:
        """Is it prepared?"""


Work = Callable[[Transaction], None]


class Link(ABC):
    """A client's connection to whoever is master."""

    @abstractmethod
    def send(self, destination: str, body: str, **headers: object) -> None:
        """Send a persistent message, unless headers say otherwise, and wait until it is stored."""

    @abstractmethod
    def consumer(
        self, destination: str, options: dict[str, str] | None = None, *, transacted: bool = False, pull: bool = False
    ) -> Consumer:
        """Subscribe, with these further headers of SUBSCRIBE; single acknowledgements."""

    @abstractmethod
    def unsubscribe(self, name: str) -> None:
        """End a durable subscription. One that is not there, or no longer: nothing."""

    @abstractmethod
    def browse(self, destination: str) -> list[str]:
        """The bodies of all messages there, each once."""

    @abstractmethod
    def begin(self) -> Transaction: ...

    @abstractmethod
    def finish(self, command: str, xid: str) -> None:
        """COMMIT or ABORT what is prepared."""

    @abstractmethod
    def commit_batch(self, owner: str, batch: int, xids: list[str]) -> str:
        """committed, duplicate, or "" where the library does not tell."""

    @abstractmethod
    def once(self, work: Work, name: str) -> None:
        """Run `work` in a transaction until it has taken place, or turns out to have done so before."""

    @abstractmethod
    def expect_loss(self) -> None:
        """The master is about to die."""

    @abstractmethod
    def wait_back(self) -> None:
        """Until, after that, there is a connection to the next one and all subscriptions are there again."""

    @abstractmethod
    def close(self) -> None: ...


# -- stock clients ----------------------------------------------------------------------------------------------------


class StockConsumer(Consumer):
    def __init__(self, link: StockLink, headers: dict[str, str], pull: bool) -> None:
        self.headers = headers
        self._link = link
        self._pull = pull

    def receive(self, timeout_s: float = DEADLINE_S) -> Received | None:
        number = self.headers["id"]
        while True:
            wire = self._link.wire()
            try:
                if self._pull:
                    wire.request("CREDIT", {"id": number, "credit": "1"})
                delivery = wire.receive(number, timeout_s)
                if delivery is None and self._pull:
                    wire.request("CREDIT", {"id": number, "credit": "0"})
                    delivery = wire.receive(number, 0)
            except Lost:
                continue
            return None if delivery is None else _received(delivery)


def _received(delivery: Delivery) -> Received:
    def settle(command: str, requeue: bool) -> bool:
        headers = {"id": delivery.headers["ack"], **({"requeue": "true"} if requeue else {})}
        try:
            delivery.wire.request(command, headers)
        except Lost:
            return False
        return True

    return Received(delivery.body, delivery.headers, settle, delivery)


class StockTransaction(Transaction):
    def __init__(self, link: StockLink, outcome_id: str) -> None:
        self._link = link
        self._wire = link.wire()
        self._outcome_id = outcome_id
        self._name = {"transaction": f"t{next(_numbers)}"}
        self._request("BEGIN", {})

    def _request(self, command: str, headers: dict[str, str], body: str = "") -> None:
        try:
            self._wire.request(command, self._name | headers, body)
        except Lost as error:
            raise RolledBack(str(error)) from None

    def send(self, destination: str, body: str) -> None:
        self._request("SEND", {"destination": destination, "persistent": "true"}, body)

    def take(self, consumer: Consumer) -> str:
        message = consumer.receive()
        assert message is not None, "nothing to take"
        assert isinstance(message.handle, Delivery)
        if message.handle.wire is not self._wire:
            raise RolledBack("the message came by a newer connection")
        self._request("ACK", {"id": message.headers["ack"]})
        return message.body

    def commit(self) -> bool:
        return self._end({"amq-outcome-id": self._outcome_id})

    def prepare(self, xid: str, owner: str = "", batch: int = 0) -> bool:
        return self._end({"phase": "prepare", "xid": xid} | ({"owner": owner, "batch": str(batch)} if owner else {}))

    def _end(self, headers: dict[str, str]) -> bool:
        """COMMIT; where the connection breaks the next broker is asked by the same frame, and may refuse."""
        wire = self._wire
        while True:
            try:
                wire.request("COMMIT", self._name | headers)
            except Refused:
                return False
            except Lost:
                wire = self._link.wire()
            else:
                return True


class StockLink(Link):
    """`open_wire` connects to one of the ports, behind which the brokers may change roles."""

    def __init__(self, ports: list[int], open_wire: OpenWire, client_id: str) -> None:
        self._ports = ports
        self._open_wire = open_wire
        self._headers = {"client-id": client_id} if client_id else {}
        self._consumers: list[StockConsumer] = []
        self._wire: Wire | None = None
        self._old: Wire | None = None
        self.wire()

    def wire(self) -> Wire:
        """A connection that works, as far as one knows."""
        give_up_at = time.monotonic() + DEADLINE_S
        while self._wire is None or self._wire.lost:
            if self._wire is not None:
                self._wire.close()
            self._wire = self._round()
            if self._wire is None:
                assert time.monotonic() < give_up_at, "no broker accepts"
                time.sleep(RETRY_S)
        return self._wire

    def _round(self) -> Wire | None:
        """One attempt with each broker."""
        for port in self._ports:
            try:
                wire = self._open_wire(port, self._headers)
            except Lost:
                continue
            try:
                for consumer in self._consumers:
                    wire.request("SUBSCRIBE", consumer.headers)
            except Lost:
                wire.close()
                continue
            return wire
        return None

    def _ask(self, command: str, headers: dict[str, str], body: str = "") -> dict[str, str]:
        """A request that may be repeated, on the next connection too."""
        while True:
            try:
                return self.wire().request(command, headers, body)
            except Lost:
                continue

    def send(self, destination: str, body: str, **headers: object) -> None:
        wanted = {name: str(value) for name, value in headers.items()}
        fixed = {"destination": destination, "_AMQ_DUPL_ID": f"d{next(_numbers)}.{time.monotonic_ns()}"}
        self._ask("SEND", {"persistent": "true"} | fixed | wanted, body)

    def consumer(
        self, destination: str, options: dict[str, str] | None = None, *, transacted: bool = False, pull: bool = False
    ) -> Consumer:
        del transacted  # any message may be acknowledged in a transaction of its connection
        headers = {"destination": destination, "id": f"s{next(_numbers)}", "ack": "client-individual"}
        headers |= (options or {}) | ({"credit": "0"} if pull else {})
        consumer = StockConsumer(self, headers, pull)
        wire = self.wire()
        self._consumers.append(consumer)
        try:
            wire.request("SUBSCRIBE", headers)
        except Lost:
            self.wire()
        return consumer

    def unsubscribe(self, name: str) -> None:
        try:
            self._ask("UNSUBSCRIBE", {"id": "none", "activemq.subscriptionName": name})
        except Refused as error:
            if "has no durable subscription" not in str(error):
                raise

    def browse(self, destination: str) -> list[str]:
        while True:
            wire, number = self.wire(), f"b{next(_numbers)}"
            shown: list[str] = []
            try:
                wire.request("SUBSCRIBE", {"destination": destination, "id": number, "ack": "auto", "browser": "true"})
                while True:
                    delivery = wire.receive(number, DEADLINE_S)
                    assert delivery is not None, f"the browse of {destination} does not end: {shown}"
                    if delivery.headers.get("browser") == "end":
                        wire.request("UNSUBSCRIBE", {"id": number})
                        return shown
                    shown.append(delivery.body)
            except Lost:
                continue

    def begin(self) -> Transaction:
        return StockTransaction(self, f"o{next(_numbers)}.{time.monotonic_ns()}")

    def finish(self, command: str, xid: str) -> None:
        self._ask(command, {"xid": xid})

    def commit_batch(self, owner: str, batch: int, xids: list[str]) -> str:
        answer = self._ask("COMMIT", {"owner": owner, "batch": str(batch), "xids": ",".join(xids)})
        return answer.get("outcome", "")

    def once(self, work: Work, name: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            try:
                transaction = StockTransaction(self, name)
                work(transaction)
                transaction._request("COMMIT", transaction._name | {"amq-outcome-id": name})
            except RolledBack:
                if self._took_place(name):
                    return
            except Refused as error:
                if "took place before" in str(error):
                    return
            else:
                return
        raise AssertionError(f"{name} is rolled back again and again")

    def _took_place(self, name: str) -> bool:
        try:
            self._ask("COMMIT", {"transaction": f"t{next(_numbers)}", "amq-outcome-id": name})
        except Refused:
            return False
        return True

    def expect_loss(self) -> None:
        self._old = self.wire()

    def wait_back(self) -> None:
        assert self._old is not None
        self._old.wait_lost()
        self.wire()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


# -- our own ----------------------------------------------------------------------------------------------------------


class OurConsumer(Consumer):
    def __init__(self, consumer: amq.Consumer) -> None:
        self.consumer = consumer

    def receive(self, timeout_s: float = DEADLINE_S) -> Received | None:
        try:
            message = self.consumer.receive(timeout_s)
        except TransactionRolledBackError as error:
            raise RolledBack(str(error)) from None
        if message is None:
            return None

        def settle(command: str, requeue: bool) -> bool:
            try:
                if command == "ACK":
                    message.ack(wait=True)
                else:
                    message.nack(requeue=requeue, wait=True)
            except DeliveryLostError:
                return False
            return True

        return Received(message.text, dict(message.headers), settle, message)


class OurTransaction(Transaction):
    def __init__(self, session: amq.Session) -> None:
        self._session = session

    def send(self, destination: str, body: str) -> None:
        try:
            self._session.producer(destination).send(body)
        except TransactionRolledBackError as error:
            self._session.rollback()
            raise RolledBack(str(error)) from None

    def take(self, consumer: Consumer) -> str:
        try:
            message = consumer.receive()
        except RolledBack:
            self._session.rollback()
            raise
        assert message is not None, "nothing to take"
        return message.body

    def commit(self) -> bool:
        return self._end(self._session.commit)

    def prepare(self, xid: str, owner: str = "", batch: int = 0) -> bool:
        return self._end(lambda: self._session.prepare(xid, owner=owner, batch=batch))

    def _end(self, end: Callable[[], None]) -> bool:
        try:
            end()
        except TransactionRolledBackError:
            return False
        return True


class OurLink(Link):
    def __init__(self, ports: list[int], client_id: str) -> None:
        urls = ",".join(f"stomp://127.0.0.1:{port}" for port in ports)
        self._changed = threading.Condition()
        self._told = dict.fromkeys(EventKind, 0)
        self._failovers_before = 0
        options = f"timeout={int(DEADLINE_S * 1000)}&updateURIsSupported=false"  # or it would leave the relay out
        url = f"failover:({urls})?{options}"
        self._connection = amq.connect(url, client_id=client_id, on_event=self._on_event)
        self._session = self._connection.session()
        self._transacted = self._connection.session(transacted=True)

    def _on_event(self, event: ConnectionEvent) -> None:
        with self._changed:
            self._told[event.kind] += 1
            self._changed.notify_all()

    def send(self, destination: str, body: str, **headers: object) -> None:
        wanted = dict(headers)
        persistent = wanted.pop("persistent", "true") == "true"
        expires_ms = int(str(wanted.pop("expires", 0)))
        time_to_live = max(0.001, expires_ms / 1000 - time.time()) if expires_ms else 0.0
        producer = self._session.producer(destination)
        producer.send(body, headers=wanted, persistent=persistent, time_to_live=time_to_live)

    def consumer(
        self, destination: str, options: dict[str, str] | None = None, *, transacted: bool = False, pull: bool = False
    ) -> Consumer:
        session = self._transacted if transacted else self._session
        headers = dict(options or {})
        prefetch = int(headers.pop("activemq.prefetchSize", 0 if pull else PREFETCH_DEFAULT))
        return OurConsumer(session.consumer(destination, prefetch=prefetch, headers=headers))

    def unsubscribe(self, name: str) -> None:
        self._session.unsubscribe(name)

    def browse(self, destination: str) -> list[str]:
        shown: dict[str, str] = {}
        browser = self._session.browser(destination, prefetch=5)
        while (message := browser.receive(DEADLINE_S)) is not None:
            shown[message.id] = message.text
        assert browser.finished, f"the browse of {destination} does not end: {shown}"
        return list(shown.values())

    def begin(self) -> Transaction:
        return OurTransaction(self._transacted)

    def finish(self, command: str, xid: str) -> None:
        (self._connection.commit_prepared if command == "COMMIT" else self._connection.rollback_prepared)(xid)

    def commit_batch(self, owner: str, batch: int, xids: list[str]) -> str:
        return self._connection.commit_batch(owner, batch, xids)

    def once(self, work: Work, name: str) -> None:
        def run(session: amq.Session) -> None:
            transaction = OurTransaction(session)
            try:
                work(transaction)
            except RolledBack as error:
                raise TransactionRolledBackError(str(error)) from None

        self._transacted.exactly_once(run, id=name)

    def expect_loss(self) -> None:
        self._failovers_before = self._told[EventKind.FAILOVER]

    def wait_back(self) -> None:
        def back() -> bool:
            failovers = self._told[EventKind.FAILOVER]
            return failovers > self._failovers_before and failovers == self._told[EventKind.INTERRUPTED]

        with self._changed:
            assert self._changed.wait_for(back, DEADLINE_S), f"no failover: {self._told}"

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_clients(ports: Sequence[int], node_modules: Path | None) -> Iterator[dict[str, Callable[[str], Link]]]:
    """Name → what opens a connection with a client id. Without Node there is one less."""
    clients: dict[str, Callable[[str], Link]] = {
        "amq": lambda client_id: OurLink(ports, client_id),
        "stomp-py": lambda client_id: StockLink(ports, StompPyWire, client_id),
    }
    if node_modules is None:
        yield clients
        return
    node = Node(node_modules)
    try:
        yield clients | {"stompit": lambda client_id: StockLink(ports, node.connect, client_id)}
    finally:
        assert node.close() == 0
