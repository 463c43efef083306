"""Dead letters through the management socket of the master: no login, no port, and the broker does the work.

`amq dlq` asks here where the operator names a store. Messages that come meanwhile are left alone: see
`amq.management.operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from amq.core.destination import QUEUE_SCHEME, means, source
from amq.management.client import Manager, part
from amq.management.listing import Row

PAGE = 100


def queues(client: Manager, names: Iterable[str], is_default: bool) -> list[Row]:
    """Rows of the queues that `names` (names or patterns) mean, by name. `is_default`: the operator named none, so the
    queues that the broker knows as dead-letter queues count too. Raises AmqError."""
    meant = [source(QUEUE_SCHEME + name) for name in names]
    return [
        row
        for row in client.all("/queues")
        if (is_default and row["dead_letter_queue"]) or any(means(each, QUEUE_SCHEME + row["name"]) for each in meant)
    ]


def messages(client: Manager, queue: str, selector: str) -> Iterator[Row]:
    """Messages of `queue` that `selector` selects, in the order of delivery. Raises AmqError."""
    after: str | None = ""
    while after is not None:
        page = client.get(f"/queues/{part(queue)}/messages", selector=selector, after=after, limit=PAGE)
        yield from page["items"]
        after = page["after"]


def change(client: Manager, verb: str, queue: str, selector: str, limit: int | None) -> int:
    """`verb` = "retry" or "purge". Returns how many messages of `queue` left it. Raises AmqError."""
    wanted: dict[str, Any] = {"selector": selector}
    if limit is not None:
        wanted["limit"] = limit
    return int(client.post(f"/queues/{part(queue)}/{verb}", wanted)["count"])
