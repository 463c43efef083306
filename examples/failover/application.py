"""Application-level failover: the client reports the break, and the program does the rest.

Each URL names one broker, so the client does not fail over. The listener hears DISCONNECT, and calls that wait raise
ConnectionLostError. The program closes the old connection, asks the brokers in turn for the next master, connects, and
goes on: it sends again what was not confirmed, under the same duplicate id. In the middle it waits until the master is
killed.

    python examples/failover/application.py [URL …]
"""

import argparse
import secrets
import sys
import threading
import time
from collections.abc import Sequence

import amq
from amq.client import ConnectError, Connection, ConnectionEvent, ConnectionLostError, DeliveryLostError, EventKind

URLS = ["stomp://127.0.0.1:61613", "stomp://127.0.0.1:61614", "stomp://127.0.0.1:61615"]
ORDERS, BEFORE = 20, 10  # altogether; sent before the master is killed
ROUND_S = 0.2  # from one round through the brokers to the next
PATIENCE_S = 60.0

disconnected = threading.Event()


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: two threads talk


def told(event: ConnectionEvent) -> None:
    """The listener. It runs in the connection's own thread, so it is quick and waits for nothing."""
    if event.kind is EventKind.DISCONNECT:
        say(f"event DISCONNECT: the connection to {event.old_uri} is gone for good ({event.error})")
        disconnected.set()


def next_master(urls: Sequence[str]) -> Connection:
    """Ask the brokers in turn until one accepts. Slaves do not listen, so a round is quick."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for url in urls:
            try:
                connection = amq.connect(url, on_event=told)
            except ConnectError:
                say(f"no master at {url}")
            else:
                say(f"connected to {connection.uri}")
                return connection
        if time.monotonic() > deadline:
            raise TimeoutError(f"no master for {PATIENCE_S:g} s at any of {', '.join(urls)}")
        time.sleep(ROUND_S)


class Trade:
    """The work, and how far it is: everything that a new connection needs to go on."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.confirmed = 0
        self.received: list[int] = []
        self.message_ids: set[str] = set()

    def go_on(self, connection: Connection) -> None:
        """Send, then receive what is left to do. Raises ConnectionLostError when the broker goes away."""
        with connection.session() as session:
            producer, consumer = session.producer(self.queue), session.consumer(self.queue)
            while self.confirmed < ORDERS:
                if self.confirmed == BEFORE and not disconnected.is_set():
                    self.wait_for_the_fault()
                producer.send(str(self.confirmed), duplicate_id=f"{self.queue}:{self.confirmed}")
                self.confirmed += 1
            while len(self.received) < ORDERS:
                message = consumer.receive()
                assert message is not None  # only a receive with a timeout returns None
                self.message_ids.add(message.id)
                if int(message.text) not in self.received:  # else only its acknowledgement was lost
                    self.received.append(int(message.text))
                message.ack(wait=True)

    def wait_for_the_fault(self) -> None:
        say(f"kill the master now: {self.confirmed} orders are confirmed")
        if not disconnected.wait(PATIENCE_S):
            say(f"nobody killed the master for {PATIENCE_S:g} s, so the program goes on")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="*", metavar="URL", help=f"brokers of the group; default: {' '.join(URLS)}")
    urls = parser.parse_args().urls or URLS
    trade, connections = Trade(f"/queue/example.{secrets.token_hex(4)}.orders"), 0
    while len(trade.received) < ORDERS:
        connections += 1
        try:
            with next_master(urls) as connection:  # closes it, also when the work raises
                trade.go_on(connection)
        except (ConnectionLostError, DeliveryLostError) as error:
            say(f"the work stopped after {trade.confirmed} confirmed orders ({error}); the program connects again")
    right = trade.received == list(range(ORDERS)) and len(trade.message_ids) == ORDERS
    say(f"{len(trade.received)} orders received over {connections} connections")
    say("right: each order was stored once" if right else f"WRONG: {trade.received}, {trade.message_ids}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
