"""A client of a replicated store: it sends orders and handles them while members die, until it is told to stop.

A producer and a consumer, each with a connection whose failover URL has all members. The producer waits until each
order is confirmed: enough copies have it on their disks then. On Enter, or at the end of standard input, it stops, and
the consumer handles the rest. Some last orders stay in the queue, for somebody who wants to find them in a copy.

    python examples/replication/shop.py [URL]
"""

import argparse
import sys
import threading

import amq
from amq.client import ConnectionEvent, DeliveryLostError, EventKind

URL = "failover:(stomp://127.0.0.1:61613,stomp://127.0.0.1:61614,stomp://127.0.0.1:61615)"
QUEUE = "/queue/example.orders"
STEP = 20  # a line of output for so many orders
LAST = 20  # orders that stay
PAUSE_S = 0.01  # between two orders

stopped, sold = threading.Event(), threading.Event()  # told to stop; the producer has sent all but the last orders


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: several threads talk


def told(event: ConnectionEvent) -> None:
    """The listener. It runs in a thread of the connection, so it is quick and waits for nothing."""
    if event.kind is EventKind.FAILOVER:
        say(f"event FAILOVER: connected to {event.new_uri} after {event.duration_s:.2f} s")


class Trade:
    """confirmed   how many orders are in the store, or have been: 0, 1, …, confirmed - 1
    handled     their numbers, in the order in which the consumer handled them
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmed = 0
        self.handled: list[int] = []
        self.came_again = 0

    def produce(self) -> None:
        with amq.connect(self._url, on_event=told) as connection, connection.session() as session:
            producer = session.producer(QUEUE)
            while not stopped.is_set():
                producer.send(str(self.confirmed))  # it returns when the order is confirmed
                self.confirmed += 1
                if self.confirmed % STEP == 0:
                    say(f"{self.confirmed} orders confirmed, {len(self.handled)} handled")
                stopped.wait(PAUSE_S)

    def consume(self) -> None:
        with amq.connect(self._url, on_event=told) as connection, connection.session() as session:
            consumer = session.consumer(QUEUE)
            while not (sold.is_set() and len(self.handled) == self.confirmed):
                message = consumer.receive(timeout=0.2)
                if message is None:
                    continue
                if int(message.text) in self.handled:
                    self.came_again += 1  # its acknowledgement was lost with the master
                else:
                    self.handled.append(int(message.text))
                try:
                    message.ack(wait=True)
                except DeliveryLostError:
                    say(f"order {message.text} was delivered before the failover, so it may come again")

    def leave(self) -> None:
        """Send the last orders, which nobody handles."""
        with amq.connect(self._url) as connection, connection.session() as session:
            producer = session.producer(QUEUE)
            for number in range(LAST):
                producer.send(str(self.confirmed + number))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    trade = Trade(parser.parse_args().url)
    producer, consumer = threading.Thread(target=trade.produce), threading.Thread(target=trade.consume)
    producer.start()
    consumer.start()
    sys.stdin.readline()
    stopped.set()
    producer.join()
    sold.set()
    consumer.join()
    trade.leave()
    say(f"{trade.confirmed} orders confirmed, {len(trade.handled)} handled, {trade.came_again} came again")
    right = trade.handled == list(range(trade.confirmed))
    say("right: each order was handled, in order" if right else f"WRONG: handled were {trade.handled}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
