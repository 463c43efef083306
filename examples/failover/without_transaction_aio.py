"""Re-creation on the next broker, without transactions, in asyncio: duplicate detection makes it exactly once.

The program sends orders and handles them. In the middle it waits until the master is killed. Then it sends on: while
there is no master the client keeps what it is given, and sends it to the next broker. It also sends the last orders a
second time under their old duplicate ids, as a program does that was started again and does not know what arrived. The
broker stores each order once. The order that was in hand at the kill comes again; the program knows it by its number.

    python examples/failover/without_transaction_aio.py [URL]
"""

import argparse
import asyncio
import secrets
import sys
from collections import defaultdict

from amq import aio
from amq.client import ConnectionEvent, DeliveryLostError, EventKind

URL = "failover:(stomp://127.0.0.1:61613,stomp://127.0.0.1:61614,stomp://127.0.0.1:61615)"
ORDERS, BEFORE, HANDLED = 60, 40, 10  # altogether; sent, and handled, before the master is killed
UNSURE = 20  # so many of the last are sent twice
PATIENCE_S = 60.0

interrupted = asyncio.Event()


def say(text: str) -> None:
    print(text, flush=True)


def told(event: ConnectionEvent) -> None:
    """The listener, a plain function that the event loop calls. It is quick and waits for nothing."""
    if event.kind is EventKind.INTERRUPTED:
        say(f"event INTERRUPTED: the connection to {event.old_uri} broke. The client looks for the next master")
        interrupted.set()
    elif event.kind is EventKind.FAILOVER:
        say(f"event FAILOVER: {event.new_uri} serves after {event.duration_s:.2f} s; session and consumer are back")


class Shop:
    """Handles each order once, however often it is delivered.

    handled      numbers, in the order of the work. An application keeps them where it keeps its results
    message_ids  of each number: more than one means that the broker stored the order more than once
    """

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.came_again = 0
        self.message_ids: defaultdict[int, set[str]] = defaultdict(set)

    def handle(self, message: aio.Message) -> None:
        number = int(message.text)
        self.message_ids[number].add(message.id)
        if number in self.handled:
            self.came_again += 1
            say(f"order {number} comes again and was handled before: only acknowledge it")
        else:
            self.handled.append(number)

    async def acknowledge(self, message: aio.Message) -> None:
        try:
            await message.ack(wait=True)  # once this returns, the order never comes back
        except DeliveryLostError:
            say(f"order {message.text} was delivered before the failover: its acknowledgement counts no more")

    def stored_once(self) -> bool:
        return all(len(ids) == 1 for ids in self.message_ids.values())


async def send(producer: aio.Producer, queue: str, numbers: range) -> None:
    """Send these orders and wait until all are on disk. An order always has the same id, whenever it is sent."""
    for number in numbers:
        await producer.send(str(number), duplicate_id=f"{queue}:{number}", wait=False)
    await producer.flush()


async def next_order(consumer: aio.Consumer) -> aio.Message:
    message = await consumer.receive()
    assert message is not None  # only a receive with a timeout returns None
    return message


async def wait_for_the_fault() -> None:
    say("kill the master now: one order is in hand, others are still to be sent")
    try:
        await asyncio.wait_for(interrupted.wait(), PATIENCE_S)
    except TimeoutError:
        say(f"nobody killed the master for {PATIENCE_S:g} s, so the program goes on")


async def trade(session: aio.Session, queue: str, shop: Shop) -> None:
    producer, consumer = session.producer(queue), await session.consumer(queue)
    await send(producer, queue, range(BEFORE))
    for _ in range(HANDLED):
        message = await next_order(consumer)
        shop.handle(message)
        await shop.acknowledge(message)
    say(f"{BEFORE} orders sent, {len(shop.handled)} of them handled and acknowledged")

    in_hand = await next_order(consumer)
    shop.handle(in_hand)
    await wait_for_the_fault()

    await send(producer, queue, range(BEFORE, ORDERS))
    say(f"{ORDERS - BEFORE} more orders sent")
    await send(producer, queue, range(ORDERS - UNSURE, ORDERS))
    say(f"the last {UNSURE} orders sent once more under their old duplicate ids")

    await shop.acknowledge(in_hand)
    while len(shop.handled) < ORDERS:
        message = await next_order(consumer)
        shop.handle(message)
        await shop.acknowledge(message)


async def run(url: str) -> int:
    queue, shop = f"/queue/example.{secrets.token_hex(4)}.orders", Shop()
    async with await aio.connect(url, on_event=told) as connection:
        say(f"connected to {connection.uri}")
        async with connection.session() as session:
            await trade(session, queue, shop)
        async with connection.session() as session:
            left = [message.text async for message in await session.browser(queue)]
    say(f"{len(shop.handled)} orders handled, {shop.came_again} came again, {len(left)} left")
    right = shop.handled == list(range(ORDERS)) and shop.stored_once() and not left
    say("right: each order was stored once and handled once" if right else f"WRONG: {shop.message_ids}, left: {left}")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    return asyncio.run(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
