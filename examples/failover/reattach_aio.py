"""A glitch of the network, in asyncio: the connection breaks, the master lives, and the client connects to it again.

The program puts a cable between itself and the brokers (cable.py) and pulls it while an order is in hand, so nobody has
to kill anything. It goes on to send and receive with the same session, and notices one thing: the order in hand comes
again, so its first acknowledgement counts no more.

    python examples/failover/reattach_aio.py [URL]
"""

import argparse
import asyncio
import secrets
import sys

from cable import Cable

from amq import aio
from amq.client import ConnectionEvent, DeliveryLostError, EventKind
from amq.client.uri import parse

URL = "failover:(stomp://127.0.0.1:61613,stomp://127.0.0.1:61614,stomp://127.0.0.1:61615)"
ORDERS, BEFORE = 20, 10  # altogether; sent before the glitch
PATIENCE_S = 60.0

restored = asyncio.Event()


def say(text: str) -> None:
    print(text, flush=True)


def told(event: ConnectionEvent) -> None:
    """The listener, a plain function that the event loop calls. It is quick and waits for nothing."""
    if event.kind is EventKind.INTERRUPTED:
        say(f"event INTERRUPTED: the connection broke ({event.error})")
    elif event.kind is EventKind.FAILOVER:
        where = "the same broker" if event.new_uri == event.old_uri else "another broker"
        say(f"event FAILOVER: {where} serves after {event.duration_s:.2f} s; session and consumer are back")
        restored.set()


async def next_order(consumer: aio.Consumer) -> aio.Message:
    message = await consumer.receive()
    assert message is not None  # only a receive with a timeout returns None
    return message


async def trade(session: aio.Session, queue: str, cable: Cable) -> list[int]:
    """Returns the numbers of the orders whose acknowledgement was confirmed."""
    producer, consumer = session.producer(queue), await session.consumer(queue)
    for number in range(BEFORE):
        await producer.send(str(number))
    message = await next_order(consumer)
    say(f"{BEFORE} orders sent, order {message.text} is in hand")

    say("the cable is pulled, and plugged in again at once")
    cable.pull()
    for number in range(BEFORE, ORDERS):
        await producer.send(str(number))
    say(f"{ORDERS - BEFORE} more orders sent, as if nothing had happened")

    acknowledged: list[int] = []
    while True:
        try:
            await message.ack(wait=True)
        except DeliveryLostError:
            say(f"order {message.text} comes again: its delivery ended with the old connection")
        else:
            acknowledged.append(int(message.text))
        if len(acknowledged) == ORDERS:
            return acknowledged
        message = await next_order(consumer)


async def run(url: str) -> int:
    queue = f"/queue/example.{secrets.token_hex(4)}.orders"
    with Cable(parse(url).uris) as cable:
        async with await aio.connect(cable.url, on_event=told) as connection:
            say(f"connected to {connection.uri}, which is the cable's end")
            async with connection.session() as session:
                acknowledged = await trade(session, queue, cable)
            async with connection.session() as session:
                left = [message.text async for message in await session.browser(queue)]
            await asyncio.wait_for(restored.wait(), PATIENCE_S)
    say(f"{len(acknowledged)} orders acknowledged, {len(left)} left")
    right = sorted(acknowledged) == list(range(ORDERS)) and not left
    say("right: each order was stored once and acknowledged once" if right else f"WRONG: {acknowledged}, left: {left}")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    return asyncio.run(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
