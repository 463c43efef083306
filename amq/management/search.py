"""Search: everything whose name has a part: queues, topics, subscriptions, connections and users.

Invariants: a row is about something that the caller may see in the lists, too; an answer has at most `limit` rows of
each kind, the best first, and counts all. The event loop works for it in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from amq.broker.actions import Action
from amq.core.destination import plain_name
from amq.management import views
from amq.management.listing import Row, invalid, number, text_of
from amq.management.resources import Context, Request
from amq.management.slices import pieces

SHOWN: Final = 20
SHOWN_MAX: Final = 100
KEPT: Final = 4  # times `limit` rows of a kind are kept before the best of them are chosen
Ranked = tuple[int, str, int, Row]


class SearchedKind(NamedTuple):
    """`texts(item)` = the name of an item, then what else it is found by; `row(item)` identifies it; `sees(item)` =
    may the caller see it?"""

    kind: str
    items: Iterable[Any]
    texts: Callable[[Any], tuple[str, ...]]
    row: Callable[[Any], Row]
    sees: Callable[[Any], bool] = lambda _: True


def _kinds(context: Context) -> Iterator[SearchedKind]:
    broker, caller = context.broker, context.caller
    everything = lambda _: True  # noqa: E731 (the caller is asked about what matches alone)
    yield SearchedKind(
        "queue",
        views.named_queues(broker, everything),
        lambda each: (plain_name(each.name),),
        lambda each: {"name": plain_name(each.name)},
        lambda each: context.sees(each.name),
    )
    yield SearchedKind(
        "topic",
        list(views.named_topics(broker, everything)),
        lambda name: (plain_name(name),),
        lambda name: {"name": plain_name(name)},
        context.sees,
    )
    if not caller.is_operator and not broker.access.may(caller.user, Action.MANAGE, "the broker"):
        return
    yield SearchedKind(
        "subscription",
        broker.durables.records(),
        lambda each: (str(each.definition["name"]), str(each.definition["client_id"] or "")),
        lambda each: {"name": str(each.definition["name"]), "client_id": each.definition["client_id"]},
    )
    yield SearchedKind(
        "connection",
        list(context.serving.connections.values()),
        lambda each: (views.connection_id(each), each.client_id or "", each.user or "", each.peer_name or ""),
        lambda each: {
            "name": views.connection_id(each),
            "client_id": each.client_id,
            "user": each.user,
            "address": each.peer_name,
        },
    )
    yield SearchedKind("user", context.member.users, lambda name: (name,), lambda name: {"name": name})


def _rank(texts: tuple[str, ...], wanted: str) -> int | None:
    """How well they match: 0 = one is it, 1 = one begins with it, 2 = one has it; None = none has it."""
    found = [text for text in map(str.casefold, texts) if wanted in text]
    if not found:
        return None
    return min(0 if text == wanted else 1 if text.startswith(wanted) else 2 for text in found)


async def search(context: Context, request: Request) -> Row:
    """{"items": rows with their `kind`, "totals": matches by kind, "total", "limit"}. Raises CommandError."""
    wanted = text_of(request.query, "text").strip().casefold()
    if not wanted:
        raise invalid("text=…: write a part of a name")
    limit = number(request.query, "limit", SHOWN, SHOWN_MAX)
    rows: list[Row] = []
    totals: dict[str, int] = {}
    for kind in _kinds(context):
        best: list[Ranked] = []
        count = 0
        async with context.slices.work() as work:
            for piece in pieces(kind.items):
                for each in piece:
                    texts = kind.texts(each)
                    rank = _rank(texts, wanted)
                    if rank is None or not kind.sees(each):
                        continue
                    count += 1
                    best.append((rank, texts[0], count, {"kind": kind.kind, **kind.row(each)}))
                if len(best) > KEPT * SHOWN_MAX:
                    best = nsmallest(limit, best)
                await work.did(len(piece))
        rows += [row for *_, row in nsmallest(limit, best)]
        totals[kind.kind] = count
    return {"items": rows, "totals": totals, "total": sum(totals.values()), "limit": limit}
