"""Re-creation on the next broker, with transactions: orders become bills, each exactly once.

A transaction receives five orders and sends five bills. In the middle of the second one the program waits until the
master is killed. The client makes session and consumer again on the next broker. Nothing of the open transaction took
place, so the next call in it raises TransactionRolledBackError, and the program runs it again on the same session.

    python examples/failover/transaction.py [URL]
"""

import argparse
import secrets
import sys
import threading
from itertools import islice

import amq
from amq.client import Connection, ConnectionEvent, EventKind, Session, TransactionRolledBackError

URL = "failover:(stomp://127.0.0.1:61613,stomp://127.0.0.1:61614,stomp://127.0.0.1:61615)"
ORDERS, ORDERS_EACH = 20, 5  # altogether, and in a transaction
PATIENCE_S = 60.0

interrupted = threading.Event()


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: two threads talk


def told(event: ConnectionEvent) -> None:
    """The listener. It runs in the connection's own thread, so it is quick and waits for nothing."""
    if event.kind is EventKind.INTERRUPTED:
        say(f"event INTERRUPTED: the connection to {event.old_uri} broke. The client looks for the next master")
        interrupted.set()
    elif event.kind is EventKind.FAILOVER:
        say(f"event FAILOVER: {event.new_uri} serves after {event.duration_s:.2f} s; session and consumer are back")


def send_orders(connection: Connection, queue: str) -> None:
    def send_all(session: Session) -> None:
        session.producer(queue).send_many([f"order {number}".encode() for number in range(ORDERS)], text=True)

    with connection.session(transacted=True) as session:
        session.exactly_once(send_all)  # the loop of `bill_orders`, ready-made
    say(f"{ORDERS} orders are in {queue}")


def wait_for_the_fault() -> None:
    say("kill the master now: the transaction is half done")
    if not interrupted.wait(PATIENCE_S):
        say(f"nobody killed the master for {PATIENCE_S:g} s, so the program goes on")


def bill_orders(session: Session, orders_queue: str, bills_queue: str) -> int:
    """Returns how many transactions were rolled back."""
    orders, bills = session.consumer(orders_queue), session.producer(bills_queue)
    number, rolled_back = 1, 0
    while number <= ORDERS // ORDERS_EACH:
        try:
            with session.transaction():  # commits at the end, rolls back if anything in it raises
                for place, order in enumerate(islice(orders, ORDERS_EACH), start=1):
                    bills.send(f"bill for {order.text}")
                    if (number, place) == (2, 3) and not interrupted.is_set():
                        wait_for_the_fault()
        except TransactionRolledBackError as error:
            say(f"transaction {number}: rolled back, so it runs again ({error})")
            rolled_back += 1
        else:
            say(f"transaction {number}: committed")
            number += 1
    return rolled_back


def take_all(connection: Connection, queue: str) -> list[str]:
    """The texts of all messages that wait in the queue. Takes them out."""
    with connection.session(ack="auto") as session:
        texts = [message.text for message in session.browser(queue)]
        for _ in islice(session.consumer(queue), len(texts)):
            pass
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    url = parser.parse_args().url
    name = f"/queue/example.{secrets.token_hex(4)}"
    orders, bills = f"{name}.orders", f"{name}.bills"
    with amq.connect(url, on_event=told) as connection:
        say(f"connected to {connection.uri}")
        send_orders(connection, orders)
        with connection.session(transacted=True) as session:
            rolled_back = bill_orders(session, orders, bills)
        left, found = take_all(connection, orders), take_all(connection, bills)
    right = not left and found == [f"bill for order {number}" for number in range(ORDERS)]
    say(f"{len(found)} bills of {len(set(found))} orders, {len(left)} orders left, rolled back: {rolled_back}")
    say("right: each order has one bill, in order" if right else f"WRONG: {found}, left: {left}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
