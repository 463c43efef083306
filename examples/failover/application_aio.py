"""Application-level failover in asyncio: the client reports the break, and the program does the rest.

Each URL names one broker, so the client does not fail over. The listener hears DISCONNECT, and calls that wait raise
ConnectionLostError. The program closes the old connection, asks the brokers in turn for the next master, connects, and
goes on: it sends again what was not confirmed, under the same duplicate id. In the middle it waits until the master is
killed.

    python examples/failover/application_aio.py [URL …]
"""

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import Sequence

from amq import aio
from amq.client import ConnectError, ConnectionEvent, ConnectionLostError, DeliveryLostError, EventKind

URLS = ["stomp://127.0.0.1:61613", "stomp://127.0.0.1:61614", "stomp://127.0.0.1:61615"]
ORDERS, BEFORE = 20, 10  # altogether; sent before the master is killed
ROUND_S = 0.2  # from one round through the brokers to the next
PATIENCE_S = 60.0

disconnected = asyncio.Event()


def say(text: str) -> None:
    print(text, flush=True)


def told(event: ConnectionEvent) -> None:
    """The listener, a plain function that the event loop calls. It is quick and waits for nothing."""
    if event.kind is EventKind.DISCONNECT:
        say(f"event DISCONNECT: the connection to {event.old_uri} is gone for good ({event.error})")
        disconnected.set()


async def next_master(urls: Sequence[str]) -> aio.Connection:
    """Ask the brokers in turn until one accepts. Slaves do not listen, so a round is quick."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for url in urls:
            try:
                connection = await aio.connect(url, on_event=told)
            except ConnectError:
                say(f"no master at {url}")
            else:
                say(f"connected to {connection.uri}")
                return connection
        if time.monotonic() > deadline:
            raise TimeoutError(f"no master for {PATIENCE_S:g} s at any of {', '.join(urls)}")
        await asyncio.sleep(ROUND_S)


class Trade:
    """The work, and how far it is: everything that a new connection needs to go on."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.confirmed = 0
        self.received: list[int] = []
        self.message_ids: set[str] = set()

    async def go_on(self, connection: aio.Connection) -> None:
        """Send, then receive what is left to do. Raises ConnectionLostError when the broker goes away."""
        async with connection.session() as session:
            producer, consumer = session.producer(self.queue), await session.consumer(self.queue)
            while self.confirmed < ORDERS:
                if self.confirmed == BEFORE and not disconnected.is_set():
                    await self.wait_for_the_fault()
                await producer.send(str(self.confirmed), duplicate_id=f"{self.queue}:{self.confirmed}")
                self.confirmed += 1
            while len(self.received) < ORDERS:
                message = await consumer.receive()
                assert message is not None  # only a receive with a timeout returns None
                self.message_ids.add(message.id)
                if int(message.text) not in self.received:  # else only its acknowledgement was lost
                    self.received.append(int(message.text))
                await message.ack(wait=True)

    async def wait_for_the_fault(self) -> None:
        say(f"kill the master now: {self.confirmed} orders are confirmed")
        try:
            await asyncio.wait_for(disconnected.wait(), PATIENCE_S)
        except TimeoutError:
            say(f"nobody killed the master for {PATIENCE_S:g} s, so the program goes on")


async def run(urls: Sequence[str]) -> int:
    trade, connections = Trade(f"/queue/example.{secrets.token_hex(4)}.orders"), 0
    while len(trade.received) < ORDERS:
        connections += 1
        try:
            async with await next_master(urls) as connection:  # closes it, also when the work raises
                await trade.go_on(connection)
        except (ConnectionLostError, DeliveryLostError) as error:
            say(f"the work stopped after {trade.confirmed} confirmed orders ({error}); the program connects again")
    right = trade.received == list(range(ORDERS)) and len(trade.message_ids) == ORDERS
    say(f"{len(trade.received)} orders received over {connections} connections")
    say("right: each order was stored once" if right else f"WRONG: {trade.received}, {trade.message_ids}")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="*", metavar="URL", help=f"brokers of the group; default: {' '.join(URLS)}")
    return asyncio.run(run(parser.parse_args().urls or URLS))


if __name__ == "__main__":
    sys.exit(main())
