"""A client of a cluster: it sends orders to queues in several stores and handles them while a node is killed.

The program knows addresses of nodes, and neither stores nor masters. In the middle it waits until the node of its
connection is killed: its client goes to another node, and the stores that the dead node served have other masters. An
order that was delivered and not yet acknowledged comes again, and the program knows it by its number.

    python examples/cluster/orders.py [URL]
"""

import argparse
import secrets
import sys
import threading

import amq
from amq.client import ConnectionEvent, Consumer, DeliveryLostError, EventKind, Producer, Session

URL = "failover:(stomp://127.0.0.1:61616,stomp://127.0.0.1:61626,stomp://127.0.0.1:61636)"
QUEUES = 9  # in a cluster of three stores: some in each
ORDERS, BEFORE, HANDLED = 40, 30, 10  # of each queue: altogether; sent, and handled, before the node is killed
PATIENCE_S = 60.0

interrupted = threading.Event()


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: two threads talk


def told(event: ConnectionEvent) -> None:
    """The listener. It runs in the connection's own thread, so it is quick and waits for nothing."""
    if event.kind is EventKind.INTERRUPTED:
        say(f"event INTERRUPTED: the connection to {event.old_uri} broke. The client goes to another node")
        interrupted.set()
    elif event.kind is EventKind.FAILOVER:
        say(f"event FAILOVER: connected to {event.new_uri} after {event.duration_s:.2f} s; consumers are back")


class Desk:
    """Handles the orders of one queue, each once and in order."""

    def __init__(self, session: Session, queue: str) -> None:
        self.queue = queue
        self.handled: list[int] = []
        self.came_again = 0
        self._producer: Producer = session.producer(queue)
        self._consumer: Consumer = session.consumer(queue)

    def send(self, numbers: range) -> None:
        for number in numbers:
            self._producer.send(str(number), wait=False)

    def flush(self) -> None:
        """Wait until the orders are on disk, in whichever store."""
        self._producer.flush()

    def handle(self, count: int) -> None:
        """Until so many are handled altogether."""
        while len(self.handled) < count:
            message = self._consumer.receive()
            assert message is not None  # only a receive with a timeout returns None
            if int(message.text) in self.handled:
                self.came_again += 1
            else:
                self.handled.append(int(message.text))
            try:
                message.ack(wait=True)  # once this returns, the order never comes back
            except DeliveryLostError:
                say(f"{self.queue}: order {message.text} was delivered before the kill, and comes again")


def send(desks: list[Desk], numbers: range) -> None:
    for desk in desks:
        desk.send(numbers)
    for desk in desks:
        desk.flush()


def handle(desks: list[Desk], count: int) -> None:
    for desk in desks:
        desk.handle(count)


def trade(desks: list[Desk], node: str) -> None:
    send(desks, range(BEFORE))
    handle(desks, HANDLED)
    say(f"{QUEUES * BEFORE} orders sent to {QUEUES} queues, {QUEUES * HANDLED} of them handled")
    say(f"kill the node now: {node}")
    if not interrupted.wait(PATIENCE_S):
        say(f"the node has not been killed within {PATIENCE_S:g} s, so the program goes on")
    send(desks, range(BEFORE, ORDERS))
    say(f"{QUEUES * (ORDERS - BEFORE)} more orders sent")
    handle(desks, ORDERS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    url = parser.parse_args().url
    queues = [f"/queue/example.{secrets.token_hex(4)}.orders" for _ in range(QUEUES)]
    with amq.connect(url, on_event=told) as connection:
        say(f"connected to {connection.uri}")
        with connection.session() as session:
            desks = [Desk(session, queue) for queue in queues]
            trade(desks, str(connection.uri))
        handled = sum(len(desk.handled) for desk in desks)
        again = sum(desk.came_again for desk in desks)
        say(f"{handled} of {QUEUES * ORDERS} orders handled, {again} came again")
        with connection.session() as session:
            left = sum(1 for queue in queues for _ in session.browser(queue))
        say(f"{left} orders left")
    right = all(desk.handled == list(range(ORDERS)) for desk in desks) and not left
    say("right: each order was handled once and in order" if right else f"WRONG: {[desk.handled for desk in desks]}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
