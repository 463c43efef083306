"""Re-creation on the next broker, with transactions, in asyncio: orders become bills, each exactly once.

A transaction receives five orders and sends five bills. In the middle of the second one the program waits until the
master is killed. The client makes session and consumer again on the next broker. Nothing of the open transaction took
place, so the next call in it raises TransactionRolledBackError, and the program runs it again on the same session.

    python examples/failover/transaction_aio.py [URL]
"""

import argparse
import asyncio
import secrets
import sys

from amq import aio
from amq.client import ConnectionEvent, EventKind, TransactionRolledBackError

URL = "failover:(stomp://127.0.0.1:61613,stomp://127.0.0.1:61614,stomp://127.0.0.1:61615)"
ORDERS, ORDERS_EACH = 20, 5  # altogether, and in a transaction
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


async def send_orders(connection: aio.Connection, queue: str) -> None:
    async def send_all(session: aio.Session) -> None:
        bodies = [f"order {number}".encode() for number in range(ORDERS)]
        await session.producer(queue).send_many(bodies, text=True)

    async with connection.session(transacted=True) as session:
        await session.exactly_once(send_all)  # the loop of `bill_orders`, ready-made
    say(f"{ORDERS} orders are in {queue}")


async def wait_for_the_fault() -> None:
    say("kill the master now: the transaction is half done")
    try:
        await asyncio.wait_for(interrupted.wait(), PATIENCE_S)
    except TimeoutError:
        say(f"nobody killed the master for {PATIENCE_S:g} s, so the program goes on")


async def bill_orders(session: aio.Session, orders_queue: str, bills_queue: str) -> int:
    """Returns how many transactions were rolled back."""
    orders, bills = await session.consumer(orders_queue), session.producer(bills_queue)
    number, rolled_back = 1, 0
    while number <= ORDERS // ORDERS_EACH:
        try:
            async with session.transaction():  # commits at the end, rolls back if anything in it raises
                for place in range(1, ORDERS_EACH + 1):
                    order = await orders.receive()
                    assert order is not None  # only a receive with a timeout returns None
                    await bills.send(f"bill for {order.text}")
                    if (number, place) == (2, 3) and not interrupted.is_set():
                        await wait_for_the_fault()
        except TransactionRolledBackError as error:
            say(f"transaction {number}: rolled back, so it runs again ({error})")
            rolled_back += 1
        else:
            say(f"transaction {number}: committed")
            number += 1
    return rolled_back


async def take_all(connection: aio.Connection, queue: str) -> list[str]:
    """The texts of all messages that wait in the queue. Takes them out."""
    async with connection.session(ack="auto") as session:
        texts = [message.text async for message in await session.browser(queue)]
        consumer = await session.consumer(queue)
        for _ in texts:
            await consumer.receive()
    return texts


async def run(url: str) -> int:
    name = f"/queue/example.{secrets.token_hex(4)}"
    orders, bills = f"{name}.orders", f"{name}.bills"
    async with await aio.connect(url, on_event=told) as connection:
        say(f"connected to {connection.uri}")
        await send_orders(connection, orders)
        async with connection.session(transacted=True) as session:
            rolled_back = await bill_orders(session, orders, bills)
        left, found = await take_all(connection, orders), await take_all(connection, bills)
    right = not left and found == [f"bill for order {number}" for number in range(ORDERS)]
    say(f"{len(found)} bills of {len(set(found))} orders, {len(left)} orders left, rolled back: {rolled_back}")
    say("right: each order has one bill, in order" if right else f"WRONG: {found}, left: {left}")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=URL, help=f"default: {URL}")
    return asyncio.run(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
