"""Messages: a look at those of one queue, and a way to take some of them from it.

Looking is a browse of the broker's: it changes nothing. Taking gets what no consumer holds: whatever is taken is in
`Queue.messages` and in no line, until it leaves or is put back. Invariant: each step looks at a bounded part.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from amq.broker.actions import Action
from amq.broker.broker import Broker
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import PRIORITIES, Queue, Subscription
from amq.core import values
from amq.core.destination import wire_name
from amq.core.errors import CommandError
from amq.core.message import (
    BINARY_ID,
    CONTENTS,
    LOOP_BYTES_MAX,
    MAP,
    ORIGINAL_DESTINATION,
    STREAM,
    CostlyError,
    GivenIds,
    Message,
    bare,
    neutral,
)
from amq.management.listing import Row, invalid
from amq.protocols.commands import Browse, Failure, Filter, Flow, Range, Subscribe
from amq.selectors import Selector

LOOK_S: Final = 5.0  # for one page: a selector may match nothing in very many messages
LOOK_BYTES: Final = 4 << 20  # of a page, beside its last message
PAGE_MAX: Final = 100
BODY_BYTES_SHOWN: Final = 1000  # of each body in a list, unless the query asks for more
BODY_BYTES_MAX: Final = 1 << 20  # of all bodies of a page
PREFIX: Final = "ID:"
AS_IT_CAME: Final = "the body is shown as its client sent it: to inflate or translate it takes too long here"
Place = tuple[int, int]  # priority and seq: the order of delivery
_FIRST: Final = (PRIORITIES - 1, 0)


class FoundMessage(NamedTuple):
    """A message and how often it was delivered before."""

    message: Message
    redelivered: int


class MessagePage(NamedTuple):
    """`after` = where the next page begins; None = there is no more."""

    found: list[FoundMessage]
    after: Place | None


class _Browser(Browser):
    """A selector may be asked for each: a turn is shorter than that of a client's browse."""

    step_messages = 200
    __slots__ = ()


class Look:
    """One browse, as its own peer and owner, page by page; close it, or use it as a context manager. Its user was let
    in before. It begins behind `after`, and ends with `until`. Raises SelectorError.
    """

    number = 0
    known_as = ""

    def __init__(
        self, broker: Broker, queue: Queue, selector: str = "", after: Place = _FIRST, until: Place | None = None
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._found: list[FoundMessage] = []
        self._limit = self._bytes = 0
        self._ended: asyncio.Future[None] | None = None
        terms_max = broker.config.max_selector_terms
        # It is held until the browse has it: a text with too many terms is not compiled at all.
        chosen = Selector(selector, broker.message_id_prefix, terms_max) if selector else None
        command = Subscribe(
            "look",
            queue.name,
            flow=Flow(credit=0),
            filter=Filter(selector),
            browse=Browse(range=Range(after, until)),
        )
        self._browser = _Browser(command, broker, self, 1, queue)
        del chosen

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.end()

    async def page(self, limit: int) -> MessagePage:
        """Return up to `limit` further messages."""
        browser, broker = self._browser, self._broker
        self._found, self._limit, self._bytes = [], limit, 0
        if not browser.done:
            self._ended = asyncio.get_running_loop().create_future()
            browser.grant(limit)
            browser.make_ready()
            broker.dirty[self._queue] = None
            broker.wake()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended, LOOK_S)
            browser.make_unready()
            self._ended = None
        return MessagePage(self._found, None if browser.done else browser.position)

    # -- ConsumerOwner and Recipient, as far as a browse needs them ---------------------------------------------------

    @property
    def peer(self) -> Any:
        return self

    @property
    def user(self) -> str:
        return ""

    def may(self, action: Action, name: str) -> bool:  # noqa: ARG002
        return True

    def end_with(self, subscription: Subscription, error: Exception) -> None:  # noqa: ARG002
        self._end()

    def subscribed(self, command: Subscribe, session: int) -> None:
        """No protocol has facts to keep."""

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        self._found.append(FoundMessage(message, redelivered))
        self._bytes += len(message.body)
        if len(self._found) >= self._limit or self._bytes >= LOOK_BYTES:
            subscription.make_unready()
            self._end()

    def browsed(self, subscription: Subscription) -> None:  # noqa: ARG002
        self._end()

    def fail(self, failure: Failure) -> None:  # noqa: ARG002
        self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


# -- ids ---------------------------------------------------------------------------------------------------------------


def seq_of(broker: Broker, id: str) -> int:
    """The seq of the message that the broker gave this id, also as a client of a gateway sees it. Raises
    CommandError."""
    seq = _ids_of(broker, id).seq_of(id)
    if seq is None:
        raise CommandError(
            f"{id[:100]!r} is not an id of a message of this broker: write it as a list shows it, "
            f"{broker.message_id_prefix}N",
            code="MESSAGE_UNKNOWN",
        )
    return seq


def _ids_of(broker: Broker, id: str) -> GivenIds:
    """The ids of which that one may be."""
    of_gateways = None if broker.homes is None else broker.homes.message_ids()
    if of_gateways is not None and id.startswith(of_gateways.prefix):
        return of_gateways
    return GivenIds(broker.message_id_prefix)


def place_of(queue: Queue, seq: int) -> Place | None:
    """Where the message is in the order of delivery; None = it is not in `queue`."""
    message = queue.messages.get(seq)
    if message is not None:
        return message.priority, seq
    return next(((priority, seq) for priority, each in queue.backlogs.items() if seq in each), None)


async def message_of(broker: Broker, queue: Queue, seq: int) -> FoundMessage | None:
    """That message of `queue`, read from the disk where it must be."""
    place = place_of(queue, seq)
    if place is None:
        return None
    with Look(broker, queue, "", (place[0], seq - 1), place) as look:
        page = await look.page(1)
    return page.found[0] if page.found else None


# -- rows --------------------------------------------------------------------------------------------------------------


def row_of(broker: Broker, found: FoundMessage, body_bytes: int = BODY_BYTES_SHOWN) -> Row:
    """A message as plain values. `body` is text, `body_base64` what is none; the first `body_bytes` of it. Maps and
    streams are JSON in `body`. A body that takes long to show is as it came, with a `remark`."""
    remark = {}
    try:
        message = neutral(found.message)
        body, is_text = _body(message)
    except CostlyError:
        message, remark = bare(found.message), {"remark": AS_IT_CAME}
        body, is_text = message.body, False
    shown = body[:body_bytes]
    envelope = message.envelope
    row: Row = {
        "id": f"{broker.message_id_prefix}{message.seq}",
        "priority": message.priority,
        "persistent": message.persistent,
        "timestamp_ms": message.timestamp_ms,
        "expires_ms": message.expires_ms,
        "redelivered": found.redelivered,
        "content": CONTENTS[message.content],
        "content_type": message.content_type,
        "bytes": len(message.body),
        "truncated": len(shown) < len(body),
        "properties": {name: _plain(value) for name, value in (message.properties or {}).items()},
        "destination": wire_name(message.destination),
    }
    if envelope is not None:
        id = envelope.correlation_id
        row["headers"] = {
            "message_id": envelope.message_id,
            "type": envelope.type,
            "reply_to": envelope.reply_text,
            "correlation_id": BINARY_ID + id.hex().upper() if isinstance(id, bytes) else id or "",
        }
    text = _text(shown, len(shown) < len(body)) if is_text else None
    row |= remark
    return {**row, "body": text} if text is not None else {**row, "body_base64": base64.b64encode(shown).decode()}


def _body(message: Message) -> tuple[bytes, bool]:
    """The body for people, and whether it may be text. Raises CostlyError."""
    if message.content in (MAP, STREAM):
        if len(message.body) > LOOP_BYTES_MAX:
            raise CostlyError
        with suppress(ValueError):  # of a body that no codec wrote the bytes are all that can be shown
            return values.to_json(values.decode(message.body)).encode("utf-8", "replace"), True
        return message.body, False
    return message.body, True


def _text(data: bytes, is_cut: bool) -> str | None:
    """`data` as text; None where it is not text. A cut may go through a character."""
    for fewer in range(4 if is_cut else 1):
        with suppress(UnicodeDecodeError):
            text = data[: len(data) - fewer].decode()
            return None if "\0" in text else text
    return None


def _plain(value: Any) -> Any:
    return json.loads(values.to_json(value)) if isinstance(value, bytes | float) else value


def place_text(place: Place | None) -> str | None:
    return None if place is None else f"{place[0]}-{place[1]}"


def parse_place(text: str) -> Place:
    """Parse a text of `place_text`; "" = the beginning. Raises CommandError."""
    if not text:
        return _FIRST
    priority, _, seq = text.partition("-")
    good = priority.isascii() and seq.isascii() and priority.isdecimal() and seq.isdecimal() and len(text) < 24
    if not good or int(priority) >= PRIORITIES:
        raise invalid(f"after={text[:40]!r}: give what the page before said")
    return int(priority), int(seq)


# -- taking ------------------------------------------------------------------------------------------------------------


def take(broker: Broker, queue: Queue, found: Iterable[Message]) -> list[tuple[Message, bytes]]:
    """Those of `found`, as a look has read them, that nobody holds: each as the queue has it, with its body. They are
    in no line."""
    taken: list[tuple[Message, bytes]] = []
    for message in found:
        if message.seq in queue.messages:
            taken += [(each, message.body) for each in queue.take_out({message.seq})]
        elif queue.find(message.seq) is not None:
            taken += [(each, message.body) for each in broker.state.page_in(queue, [message])]
    return taken


def take_seqs(broker: Broker, queue: Queue, seqs: set[int]) -> list[Message]:
    """Those of `seqs` that nobody holds, without their bodies: they are about to leave."""
    return queue.take_out(seqs) + (broker.state.take_from_disk(queue, seqs) if queue.backlogs else [])


def origin_of(message: Message) -> str:
    """Where a dead letter was meant to go, as it is in its headers; "" = it is none."""
    found = (message.properties or {}).get(ORIGINAL_DESTINATION, "")
    return found if isinstance(found, str) else ""
