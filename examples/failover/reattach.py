"""A glitch of the network: the connection breaks, the master lives, and the client gets its session back.

The program puts a cable between itself and the brokers (cable.py) and pulls it, so nobody has to kill anything. At this
moment an order is in hand, a transaction is open, and an answer waits in a temporary queue. All three go on as if
nothing had happened, because the URL asks the broker to keep them: reconnectWindow=10000, in ms.

    python examples/failover/reattach.py [URL]
"""

import argparse
import secrets
import sys
import threading

from cable import Cable

import amq
from amq.client import (
    Connection,
    ConnectionEvent,
    Consumer,
    DeliveryLostError,
    EventKind,
    Message,
    TransactionRolledBackError,
)
from amq.client.uri import parse

URL = "failover:(stomp://127.0.0.1:61613,stomp://127.0.0.1:61614,stomp://127.0.0.1:61615)?reconnectWindow=10000"
ORDERS = 20
PATIENCE_S = 60.0

heard: list[EventKind] = []
back = threading.Event()


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: two threads talk


def told(event: ConnectionEvent) -> None:
    """The listener. It runs in the connection's own thread, so it is quick and waits for nothing."""
    heard.append(event.kind)
    if event.kind is EventKind.INTERRUPTED:
        say(f"event INTERRUPTED: the connection broke ({event.error})")
    elif event.kind is EventKind.REATTACHED:
        say(f"event REATTACHED: the session is back after {event.duration_s:.2f} s")
        back.set()
    elif event.kind is EventKind.FAILOVER:
        say(f"event FAILOVER: the session was made anew after {event.duration_s:.2f} s")
        back.set()


def next_message(consumer: Consumer) -> Message:
    message = consumer.receive(PATIENCE_S)
    if message is None:
        raise TimeoutError(f"nothing came within {PATIENCE_S:g} s")
    return message


def trade(connection: Connection, cable: Cable, orders: str) -> list[int]:
    """Returns the numbers of the orders that were delivered, in this order. Each is acknowledged."""
    session, transaction = connection.session(), connection.session(transacted=True)
    producer, consumer = session.producer(orders), session.consumer(orders)
    answers = session.consumer("/temp-queue/answers")
    for number in range(ORDERS):
        producer.send(str(number))
    message = next_message(consumer)
    say(f"{ORDERS} orders sent, order {message.text} is in hand")
    transaction.producer(f"{orders}.bills").send(f"bill of order {message.text}")
    session.producer("/temp-queue/answers").send(f"answer to order {message.text}")
    say("a transaction with a bill is open, an answer is in the temporary queue")

    say("the cable is pulled, and plugged in again at once")
    cable.pull()
    if not back.wait(PATIENCE_S):
        raise TimeoutError(f"not connected again within {PATIENCE_S:g} s")

    message.ack(wait=True)
    say(f"order {message.text} is acknowledged late, and that counts")
    transaction.commit()
    say("the transaction is committed")
    answer = next_message(answers)
    answer.ack(wait=True)
    say(f"the temporary queue still has the {answer.text}")

    delivered = [int(message.text)]
    while len(delivered) < ORDERS:
        message = next_message(consumer)
        message.ack(wait=True)
        delivered.append(int(message.text))
    return delivered


def waiting(connection: Connection, queue: str) -> list[str]:
    """The messages that are in the queue."""
    with connection.session() as session:
        return [message.text for message in session.browser(queue)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    url = parse(parser.parse_args().url)
    if not url.options.reconnect_window_ms:
        parser.error("this URL does not ask the broker to keep the session: add reconnectWindow=10000 to its options")
    orders = f"/queue/example.{secrets.token_hex(4)}.orders"
    with Cable(url) as cable, amq.connect(cable.url, on_event=told) as connection:
        say(f"connected to {connection.uri}, which is the cable's end")
        try:
            delivered = trade(connection, cable, orders)
        except (DeliveryLostError, TransactionRolledBackError, TimeoutError) as error:
            say(f"WRONG: the session was not kept: {error}")
            return 1
        left, bills = waiting(connection, orders), waiting(connection, f"{orders}.bills")
    say(f"{len(delivered)} orders acknowledged, {len(bills)} bill written, {len(left)} orders left")
    right = heard == [EventKind.INTERRUPTED, EventKind.REATTACHED]
    right = right and delivered == list(range(ORDERS)) and bills == ["bill of order 0"] and not left
    say("right: nothing was lost, and nothing came again" if right else f"WRONG: {heard}, {delivered}, {bills}, {left}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
