"""Hints: why a queue does not drain, as far as its broker can see. Each is a sentence with the cause and the cure.

Invariant: at most `LOOKED_MAX` messages and `SELECTORS_MAX` selectors are looked at, in slices of the event loop.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from amq.broker.queues.queue import NO_LIMIT, Queue, Subscription
from amq.core.destination import QUEUE_SCHEME, plain_name
from amq.management.listing import Row
from amq.management.messages import PAGE_MAX, FoundMessage, Look
from amq.management.resources import Context
from amq.management.slices import pieces

LOOKED_MAX: Final = 1000
SELECTORS_MAX: Final = 20
SELECTOR_CHARS_MAX: Final = 100
MESSAGES_A_PIECE: Final = 5


class Hint(NamedTuple):
    """`code` for programs; `id` and `queue` = the message, or another queue, that it is about; "" = none."""

    code: str
    text: str
    id: str = ""
    queue: str = ""


async def hints(context: Context, queue: Queue) -> Row:
    """{"items": hints, the most certain first; "looked_at": messages}"""
    broker = context.broker
    found = [*_of_broker(context), *_of_queue(context, queue)]
    looked: list[FoundMessage] = []
    if queue.stored and not queue.is_dead_letter_queue:
        with Look(broker, queue) as look:
            after: Any = True
            while after is not None and len(looked) < LOOKED_MAX:
                page = await look.page(PAGE_MAX)
                looked += page.found
                after = page.after if page.found else None
        found += await _of_selectors(context, queue, looked)
        found += _of_redeliveries(context, queue, looked)
    if not queue.is_dead_letter_queue:
        found += _of_dead_letters(context, queue)
    return {"items": [hint._asdict() for hint in found], "looked_at": len(looked)}


def _of_broker(context: Context) -> list[Hint]:
    journal, memory, found = context.broker.journal, context.broker.memory, []
    if journal.disk_full:
        found.append(
            Hint(
                "disk-full",
                "The disk of the store is full: new messages are rejected, consumers go on. "
                "Make room on it, or consume; service resumes then.",
            )
        )
    elif journal.at_limit:
        found.append(Hint("store-limit", "storeLimit is reached: producers wait. Consume, purge, or raise storeLimit."))
    if memory.is_full:
        found.append(
            Hint(
                "memory-limit",
                "memoryLimit is reached: producers wait. Consumers hold messages that they "
                "have not acknowledged, or there are very many queues.",
            )
        )
    return found


def _of_queue(context: Context, queue: Queue) -> list[Hint]:
    found = []
    consumers = list(queue.subscriptions)
    held = sum(each.held for each in consumers)
    limit = queue.options.queue_limit_bytes
    if queue.name in context.broker.paused:
        found.append(Hint("paused", "It is paused: consumers get nothing until it is resumed."))
    if 0 < limit < NO_LIMIT and queue.stored_bytes >= limit:
        found.append(Hint("queue-limit", "It has reached queueLimit: consume, purge, or raise queueLimit."))
    if queue.stored and not consumers and not queue.is_dead_letter_queue:
        found.append(Hint("no-consumer", "It has no consumer. Its messages wait until a client subscribes."))
    if consumers and held and all(each.credit <= 0 for each in consumers):
        of, them = (
            (f"Its {len(consumers):,} consumers hold", "them") if len(consumers) > 1 else ("Its consumer holds", "it")
        )
        found.append(
            Hint(
                "slow",
                f"{of} {held:,} messages, as many as the prefetch allows, without acknowledging them: slower than "
                f"producers, or stuck. The page Consumers names {them}; the rates below show whether anything leaves.",
            )
        )
    elif queue.stored and held == queue.stored:
        found.append(
            Hint(
                "in-flight",
                "Consumers hold all of its messages, and have not acknowledged them yet. "
                "Where nothing leaves it, they hang: the page Consumers names them.",
            )
        )
    if queue.delayed:
        found.append(Hint("delayed", f"{len(queue.delayed):,} messages failed, and wait for redeliveryDelay."))
    apart = sum(each.in_transactions for each in consumers)
    if apart:
        found.append(Hint("transactions", f"{apart:,} messages are acknowledged in transactions that have not ended."))
    return found


async def _of_selectors(context: Context, queue: Queue, looked: list[FoundMessage]) -> list[Hint]:
    """Do the selectors of its consumers match nothing?"""
    consumers: list[Subscription] = list(queue.subscriptions)
    chosen = {each.selector.text: each.selector for each in consumers if each.selector is not None}
    takes_all = any(each.selector is None for each in consumers)
    if not chosen or takes_all or len(chosen) > SELECTORS_MAX or not looked:
        return []
    async with context.slices.work() as work:
        for piece in pieces(looked, MESSAGES_A_PIECE):
            if any(selector.matches(each.message) for each in piece for selector in chosen.values()):
                return []
            await work.did(len(piece) * len(chosen))
    text = ", ".join(f"“{text[:SELECTOR_CHARS_MAX]}”" for text in list(chosen)[:3])
    of = (
        f"{len(consumers):,} consumers, but their selectors match"
        if len(consumers) > 1
        else ("1 consumer, but its selector matches")
    )
    none = f"none of the first {len(looked):,} messages" if len(looked) > 1 else "not the first message"
    return [Hint("selector", f"{of} {none}: {text}. Compare it with the properties of a message below.")]


def _of_redeliveries(context: Context, queue: Queue, looked: list[FoundMessage]) -> list[Hint]:
    """Do messages come back again and again?"""
    back = [each for each in looked if each.redelivered]
    if not back:
        return []
    worst = max(back, key=lambda each: each.redelivered)
    limit = queue.options.maximum_redeliveries
    then = "" if limit < 0 else f" After {limit:,} failed redeliveries (maximumRedeliveries) it becomes a dead letter."
    id = f"{context.broker.message_id_prefix}{worst.message.seq}"
    count = f"{len(back):,} messages" if len(back) > 1 else "1 message"
    why = "a consumer failed on it, or ended before it acknowledged it"
    if worst.redelivered > 1:
        why = "consumers fail on it, or end before they acknowledge it. Look at it, and at their logs"
    return [
        Hint(
            "redelivered",
            f"{count} came back from consumers of {plain_name(queue.name)[:100]}; {id} was redelivered "
            f"{_times(worst.redelivered)}: {why}.{then}",
            id,
        )
    ]


def _of_dead_letters(context: Context, queue: Queue) -> list[Hint]:
    name = queue.options.dead_letter_prefix + plain_name(queue.name)
    dead = context.broker.state.queues.get(QUEUE_SCHEME + name)
    if dead is None or not dead.stored:
        return []
    return [
        Hint(
            "dead-letters", f"Consumers gave up {dead.stored:,} of its messages: they are in {name[:200]}.", queue=name
        )
    ]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
