"""Routes: the table of all views and operations, and what each does."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from amq.broker.access import Access
from amq.broker.actions import Action
from amq.broker.names import SCHEDULE_SCHEME, check_made
from amq.broker.queues.queue import Queue
from amq.broker.queues.redelivery import CAUSE
from amq.broker.transfer.merging import MergeOrder
from amq.config.transport_url import parse_transport_url
from amq.core.destination import QUEUE_SCHEME, flaw, plain_name, wire_name
from amq.core.errors import AccessError, CommandError
from amq.core.message import BYTES, TEXT, Message, check
from amq.management import operations, views
from amq.management.hints import hints
from amq.management.listing import Query, Row, invalid, number, text_of
from amq.management.messages import (
    BODY_BYTES_MAX,
    BODY_BYTES_SHOWN,
    PAGE_MAX,
    FoundMessage,
    Look,
    message_of,
    origin_of,
    parse_place,
    place_text,
    row_of,
    seq_of,
)
from amq.management.openapi import STORES
from amq.management.operations import ALL, REASON, Done, Selected, queue_of, unknown
from amq.management.resources import (
    CONSOLE,
    DESCRIPTION,
    LOGIN,
    RATES,
    STATUS,
    Context,
    Demand,
    Handler,
    Request,
    Route,
    queue_name,
    text,
    texts,
    topic_name,
    truth,
    whole,
    within,
)
from amq.management.search import search
from amq.management.slices import pieces

OPERATION_S: Final = 3600.0
COUNT_S: Final = 5.0  # for a preview, or for groups of dead letters
IDS_MAX: Final = 1000
DEAD_LETTERS_MAX: Final = 10_000  # looked at for one answer
GROUPS_MAX: Final = 500
CAUSE_CHARS_MAX: Final = 200
SENT_BYTES_MAX: Final = 1 << 20
PROPERTIES_MAX: Final = 100
LIST = ("name", "filter", "sort", "offset", "limit")
SELECTED = ("ids", "selector", "limit", "dry_run")


# -- demands -----------------------------------------------------------------------------------------------------------


def nothing(request: Request) -> Iterable[Demand]:  # noqa: ARG001
    """Demand nothing of a user who has logged in; rows are filtered."""
    return ()


def manage(request: Request) -> Iterable[Demand]:  # noqa: ARG001
    return [(Action.MANAGE, "the broker")]


def view(request: Request) -> Iterable[Demand]:
    return [(Action.VIEW, queue_name(request))]


def browse(request: Request) -> Iterable[Demand]:
    return [(Action.BROWSE, queue_name(request))]


def administer(request: Request) -> Iterable[Demand]:
    return [(Action.ADMINISTER, queue_name(request))]


def to_target(request: Request) -> Iterable[Demand]:
    return [(Action.SEND, _target(request))]


def move_demands(request: Request) -> Iterable[Demand]:
    return [*administer(request), *browse(request), *to_target(request)]


def copy_demands(request: Request) -> Iterable[Demand]:
    return [*browse(request), *to_target(request)]


def _target(request: Request) -> str:
    name = QUEUE_SCHEME + text(request, "to").removeprefix("/queue/")
    _check_target(name)
    return name


# -- views -------------------------------------------------------------------------------------------------------------


async def queues(context: Context, request: Request) -> Row:
    found = views.named_queues(context.broker, context.sees)
    page = await views.queues(context.broker).page(context.slices, found, Query.parse(request.query))
    for row in page["items"]:
        row["in_per_s"], row["out_per_s"] = context.member.rates.latest(QUEUE_SCHEME + row["name"])
    return page


async def queue(context: Context, request: Request) -> Row:
    return views.queues(context.broker).row(queue_of(context.broker, queue_name(request)))


async def queue_hints(context: Context, request: Request) -> Row:
    return await hints(context, queue_of(context.broker, queue_name(request)))


async def topics(context: Context, request: Request) -> Row:
    durably = await views.durably_heard(context.broker, context.slices)
    found = views.named_topics(context.broker, context.sees)
    return await views.topics(context.broker, durably).page(context.slices, found, Query.parse(request.query))


async def topic(context: Context, request: Request) -> Row:
    name = topic_name(request)
    if name not in context.broker.known_topics:
        raise unknown(f"there is no topic {wire_name(name)[:200]} in use: `amq topics` lists them")
    durably = await views.durably_heard(context.broker, context.slices)
    return views.topics(context.broker, durably).row(name)


async def subscriptions(context: Context, request: Request) -> Row:
    broker = context.broker
    return await views.subscriptions(broker).page(context.slices, broker.durables.records(), Query.parse(request.query))


async def consumers(context: Context, request: Request) -> Row:
    found = views.held_consumers(context.broker, text_of(request.query, "destination"))
    return await views.consumers().page(context.slices, found, Query.parse(request.query))


async def connections(context: Context, request: Request) -> Row:
    found = list(context.serving.connections.values())
    return await views.connections().page(context.slices, found, Query.parse(request.query))


async def prepared(context: Context, request: Request) -> Row:
    found = views.listed_prepared(context.broker)
    return await views.prepared().page(context.slices, found, Query.parse(request.query))


async def outboxes(context: Context, request: Request) -> Row:
    found = list(context.broker.outbox.rows())
    return await views.outboxes().page(context.slices, found, Query.parse(request.query))


async def segments(context: Context, request: Request) -> Row:
    found = list(context.broker.journal.segments)
    return await views.segments().page(context.slices, found, Query.parse(request.query))


async def totals(context: Context, request: Request) -> Row:  # noqa: ARG001
    serving = context.serving
    sums = await views.sums(context.broker, context.slices)
    clients = await views.clients(list(serving.connections.values()), context.slices)
    return {
        **views.totals(context.broker),
        **sums,
        **clients,
        **views.traffic(serving.traffic),
        **context.member.facts(),
    }


async def messages(context: Context, request: Request) -> Row:
    return await _messages(context, request, queue_of(context.broker, queue_name(request)))


async def scheduled(context: Context, request: Request) -> Row:
    """Of all destinations, one after the other."""
    broker = context.broker
    names = sorted(name for name in list(broker.state.queues) if name.startswith(SCHEDULE_SCHEME))
    wanted = text_of(request.query, "name")
    rows: list[Row] = []
    for name in [each for each in names if not wanted or wanted in each]:
        with Look(broker, broker.state.queues[name]) as look:
            page = await look.page(PAGE_MAX)
        for found in page.found:
            rows.append({**row_of(broker, found), "due_ms": found.message.expires_ms, "for": _meant_for(name)})
            if len(rows) >= PAGE_MAX:
                return {"items": rows, "complete": False}
    return {"items": rows, "complete": True}


def _meant_for(schedule: str) -> str:
    kind, _, name = schedule.removeprefix(SCHEDULE_SCHEME).partition(".")
    return f"/{kind}/{name}"


async def _messages(context: Context, request: Request, queue: Queue) -> Row:
    query = request.query
    limit = number(query, "limit", min(50, PAGE_MAX), PAGE_MAX)
    body = number(query, "body", BODY_BYTES_SHOWN, BODY_BYTES_MAX)
    with Look(context.broker, queue, text_of(query, "selector"), parse_place(query.get("after", ""))) as look:
        page = await look.page(max(1, limit))
    rows, left = [], BODY_BYTES_MAX
    async with context.slices.work() as work:
        for piece in pieces(page.found, 1):
            rows += [row_of(context.broker, each, min(body, left)) for each in piece]
            left -= min(left, body, len(piece[0].message.body))
            await work.did(1)
    return {"items": rows, "after": place_text(page.after)}


async def message(context: Context, request: Request) -> Row:
    broker, queue = context.broker, queue_of(context.broker, queue_name(request))
    found = await message_of(broker, queue, seq_of(broker, request.names["id"]))
    if found is None:
        raise unknown(f"{request.names['id'][:100]} is not in {wire_name(queue.name)[:200]}")
    return row_of(broker, found, number(request.query, "body", BODY_BYTES_MAX, BODY_BYTES_MAX))


async def find(context: Context, request: Request) -> Row:
    """The queue in which a message is."""
    broker = context.broker
    seq = seq_of(broker, request.names["id"])
    async with context.slices.work() as work:
        for piece in pieces(views.named_queues(broker, context.sees)):
            for each in piece:
                if seq in each.messages or each.find(seq) is not None:
                    return {"id": request.names["id"], "queue": plain_name(each.name)}
            await work.did(len(piece))
    raise CommandError(f"no queue has {request.names['id'][:100]} any more", code="MESSAGE_UNKNOWN")


async def dead_letters(context: Context, request: Request) -> Row:
    """Grouped by queue, origin, reason and cause."""
    broker, wanted = context.broker, text_of(request.query, "name")
    groups: Counter[tuple[str, str, str, str]] = Counter()
    looked, complete = 0, True
    names = [each.name for each in views.named_queues(broker, context.sees) if each.is_dead_letter_queue]
    for name in sorted(names):
        queue = broker.state.queues.get(name)
        if queue is None:
            continue
        with Look(broker, queue) as look:
            while complete:
                page = await look.page(PAGE_MAX)
                looked += len(page.found)
                groups.update(key for each in page.found if wanted in (key := _group_of(name, each))[1])
                if page.after is None:
                    break
                complete = looked < DEAD_LETTERS_MAX and len(groups) < GROUPS_MAX
    rows = [
        {"queue": queue_, "meant_for": origin, "reason": reason, "cause": cause, "messages": count}
        for (queue_, origin, reason, cause), count in groups.most_common()
    ]
    return {"items": rows, "complete": complete, "looked_at": looked}


def _group_of(name: str, found: FoundMessage) -> tuple[str, str, str, str]:
    properties = found.message.properties or {}
    cause = str(properties.get(CAUSE, "")).partition("\n")[0][:CAUSE_CHARS_MAX]
    return plain_name(name), origin_of(found.message).removeprefix("/queue/"), str(properties.get(REASON, "")), cause


# -- operations --------------------------------------------------------------------------------------------------------


def _selected(request: Request) -> Selected:
    return Selected(texts(request, "ids", IDS_MAX), text(request, "selector", ""), whole(request, "limit", ALL, ALL))


async def _preview(context: Context, queue: Queue, selected: Selected) -> Row:
    """How many messages are meant now, at least, where there is no time to look at all."""
    if selected.is_everything:
        return {"count": queue.waiting, "complete": True, "dry_run": True}
    if selected.ids:
        return {"count": len(selected.ids), "complete": True, "dry_run": True}
    clock, count, is_late, is_done = context.broker.clock, 0, False, False
    until = clock.monotonic() + COUNT_S
    with Look(context.broker, queue, selected.selector) as look:
        while count < selected.limit and not is_done and not is_late:
            page = await look.page(PAGE_MAX)
            count += len(page.found)
            is_done, is_late = page.after is None, clock.monotonic() > until
    return {"count": min(count, selected.limit), "complete": not is_late or is_done, "dry_run": True}


async def _counted(count: Any) -> Row:
    return {"count": await count}


async def purge(context: Context, request: Request) -> Row:
    queue, selected = queue_of(context.broker, queue_name(request)), _selected(request)
    if truth(request, "dry_run"):
        return await _preview(context, queue, selected)
    return await within(OPERATION_S, _counted(operations.purge(context.broker, queue, selected)))


async def move(context: Context, request: Request) -> Row:
    queue, selected, name = queue_of(context.broker, queue_name(request)), _selected(request), _target(request)
    if name == queue.name:
        raise invalid('"to" is the same queue: its messages are there already')
    if truth(request, "dry_run"):
        return await _preview(context, queue, selected)
    _check_target(name, context.broker.access)
    return await within(OPERATION_S, _counted(operations.move(context.broker, queue, selected, lambda _: name)))


async def copy(context: Context, request: Request) -> Row:
    queue, selected, name = queue_of(context.broker, queue_name(request)), _selected(request), _target(request)
    if truth(request, "dry_run"):
        return await _preview(context, queue, selected)
    _check_target(name, context.broker.access)
    return await within(OPERATION_S, _counted(operations.copy(context.broker, queue, selected, name)))


async def retry(context: Context, request: Request) -> Row:
    """Dead letters go back to where they were meant, as far as the caller may send there."""
    queue, selected, broker = queue_of(context.broker, queue_name(request)), _selected(request), context.broker
    if truth(request, "dry_run"):
        return await _preview(context, queue, selected)

    def target(message: Message) -> str:
        name = operations.retried(message)
        if flaw(name):
            return ""
        may = context.caller.is_operator or broker.access.may(context.caller.user, Action.SEND, name)
        lives_here = broker.homes is None or not broker.homes.home_of(name)
        return name if name and name != queue.name and may and lives_here else ""

    return await within(OPERATION_S, _counted(operations.move(broker, queue, selected, target)))


def _check_target(name: str, access: Access | None = None) -> None:
    """Raises CommandError where nobody can send there, or, by `access`, where the destination is another store's."""
    try:
        check_made(name)
        if access is not None:
            access.check_home(name)
    except AccessError as error:
        raise invalid(error.description) from error


async def pause(context: Context, request: Request) -> Row:
    queue_of(context.broker, queue_name(request))
    context.broker.pause(queue_name(request), True)
    return {"paused": True}


async def resume(context: Context, request: Request) -> Row:
    context.broker.pause(queue_name(request), False)
    return {"paused": False}


async def delete_queue(context: Context, request: Request) -> Row:
    broker, queue = context.broker, queue_of(context.broker, queue_name(request))
    if any(not each.is_guest for each in queue.subscriptions):
        raise CommandError(f"{wire_name(queue.name)[:200]} has consumers: close them first", code="DESTINATION_IN_USE")
    count = await operations.purge(broker, queue, Selected())
    done = Done()
    broker.delete(queue.name, done)
    await done.wait()
    broker.pause(queue.name, False)
    return {"count": count}


async def delete_topic(context: Context, request: Request) -> Row:
    done = Done()
    context.broker.delete(topic_name(request), done)
    await done.wait()
    return {}


async def delete_message(context: Context, request: Request) -> Row:
    broker, queue = context.broker, queue_of(context.broker, queue_name(request))
    count = await operations.purge(broker, queue, Selected(ids=(request.names["id"],)))
    if not count:
        raise CommandError("a consumer has this message: close it, or wait for its answer", code="MESSAGE_IN_USE")
    return {"count": count}


async def send_to_queue(context: Context, request: Request) -> Row:
    return await _send(context, request, queue_name(request))


async def send_to_topic(context: Context, request: Request) -> Row:
    return await _send(context, request, topic_name(request))


async def _send(context: Context, request: Request, name: str) -> Row:
    _check_target(name, context.broker.access)
    encoded, plain = text(request, "body_base64", ""), text(request, "body", "")
    try:
        body = base64.b64decode(encoded, validate=True) if encoded else plain.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise invalid(f"the body is not valid: {error}") from error
    if len(body) > SENT_BYTES_MAX:
        raise invalid(f"the body has {len(body)} bytes, at most {SENT_BYTES_MAX}: use `amq producer`")
    properties = request.body.get("properties", {})
    good = isinstance(properties, dict) and len(properties) <= PROPERTIES_MAX
    if not good or not all(key and isinstance(value, str) for key, value in properties.items()):
        raise invalid(f'"properties" must be an object of at most {PROPERTIES_MAX} texts')
    now_ms, ttl_ms = context.broker.clock.wall_ms(), whole(request, "ttl_ms", 0, 10**12)
    message = Message(
        name,
        body,
        dict(properties) or None,
        text(request, "content_type", ""),
        whole(request, "priority", 4, 9),
        truth(request, "persistent", True),
        expires_ms=now_ms + ttl_ms if ttl_ms else 0,
        content=BYTES if encoded else TEXT,
    )
    check(message)
    await operations.send(context.broker, message)
    return {"count": 1}


async def delete_subscription(context: Context, request: Request) -> Row:
    broker, done = context.broker, Done()
    client = "" if request.names["client"] == NO_CLIENT else request.names["client"]
    record = broker.durables.to_delete(request.names["name"], client, request.query.get("user"))
    broker.durables.end(record, done)
    broker.wake()
    await done.wait()
    return {}


async def close_connection(context: Context, request: Request) -> Row:
    wanted = request.names["id"]
    for each in list(context.serving.connections.values()):
        if views.connection_id(each) == wanted:
            if each.client is not None:
                each.client.steal(AccessError("an operator closed this connection", code="CLOSED_BY_OPERATOR"))
            else:
                each.abort()
            return {}
    raise unknown(f"there is no connection {wanted[:100]}: `amq connections list` shows them")


async def merge(context: Context, request: Request) -> Row:
    into, urls = text(request, "into"), texts(request, "urls", MERGE_URLS_MAX)
    if not into or not urls:
        raise invalid('"into" must be the place of a store, and "urls" a list of the addresses of its brokers')
    for url in urls:
        parse_transport_url(url)
    secret_file = text(request, "secret_file", "") or context.member.config.link_secret_file
    order, done = MergeOrder(into, urls, secret_file, whole(request, "rate_bytes", 0, 1 << 40)), Done()
    context.serving.merge(order, done)
    context.broker.wake()
    await done.wait()
    return {}


async def elsewhere(context: Context, request: Request) -> Row:  # noqa: ARG001
    """`Resources` answers, also on a slave."""
    raise AssertionError(request)


MERGE_URLS_MAX: Final = 100
NO_CLIENT: Final = "-"  # is in a path for a subscription that belongs to no client id


def _get(path: str, summary: str, handler: Handler, demands: Any = nothing, query: tuple[str, ...] = ()) -> Route:
    return Route("GET", path, summary, handler, demands, query)


def _post(path: str, summary: str, handler: Handler, demands: Any, body: tuple[str, ...] = ()) -> Route:
    return Route("POST", path, summary, handler, demands, (), body)


def _delete(path: str, summary: str, handler: Handler, demands: Any, query: tuple[str, ...] = ()) -> Route:
    return Route("DELETE", path, summary, handler, demands, query)


def topic_admin(request: Request) -> Iterable[Demand]:
    return [(Action.ADMINISTER, topic_name(request))]


SENT = ("body", "body_base64", "properties", "content_type", "priority", "persistent", "ttl_ms")
ROUTES: Final = [
    _get(DESCRIPTION, "This description.", elsewhere),
    _get(STORES, "The stores of which this process has a broker: its role and its health.", elsewhere),
    _get(STATUS, "Name, role and group of this broker; also on a slave.", elsewhere),
    _post(LOGIN, "Check a login, for a console.", elsewhere, nothing, ("login", "passcode", "loopback", "address")),
    _post(CONSOLE, "Say where the console of this broker serves; a console does.", elsewhere, nothing, ("url",)),
    _get(
        "/configuration",
        "Every option, its value and whether it can be changed live; also on a slave.",
        elsewhere,
        manage,
        LIST,
    ),
    _get("/users", "Users of the users file, and their roles; also on a slave.", elsewhere, manage, LIST),
    _get("/rights", "The entries of the permissions file; also on a slave.", elsewhere, manage, LIST),
    _get("/history", "The events of this broker lately, from its start; also on a slave.", elsewhere, manage, LIST),
    _get(
        RATES,
        "Messages in and out a second, and messages that wait: of the last hour, or day; also on a slave.",
        elsewhere,
        nothing,
        ("queue", "topic", "span"),
    ),
    _get(
        "/search",
        "Queues, topics, subscriptions, connections and users whose name has the text.",
        search,
        nothing,
        ("text", "limit"),
    ),
    _get("/totals", "Figures of the whole broker.", totals),
    _get("/queues", "Queues.", queues, query=LIST),
    _get("/queues/{name}", "One queue.", queue, view),
    _get("/queues/{name}/hints", "Why a queue does not drain, as far as can be seen.", queue_hints, browse),
    _delete("/queues/{name}", "Delete a queue without consumers, with its messages.", delete_queue, administer),
    _post("/queues/{name}/purge", "Delete messages that no consumer has.", purge, administer, SELECTED),
    _post("/queues/{name}/move", "Move messages to another queue.", move, move_demands, ("to", *SELECTED)),
    _post("/queues/{name}/copy", "Copy messages to another queue.", copy, copy_demands, ("to", *SELECTED)),
    _post("/queues/{name}/retry", "Send dead letters back to where they were meant.", retry, administer, SELECTED),
    _post("/queues/{name}/pause", "Deliver nothing to consumers.", pause, administer),
    _post("/queues/{name}/resume", "Deliver again.", resume, administer),
    _get(
        "/queues/{name}/messages",
        "Messages, in the order of delivery.",
        messages,
        browse,
        ("selector", "after", "limit", "body"),
    ),
    _post(
        "/queues/{name}/messages",
        "Send a message.",
        send_to_queue,
        lambda request: [(Action.SEND, queue_name(request))],
        SENT,
    ),
    _get("/queues/{name}/messages/{id}", "One message.", message, browse, ("body",)),
    _delete("/queues/{name}/messages/{id}", "Delete one message.", delete_message, administer),
    _get("/messages/{id}", "The queue that has a message.", find),
    _get("/dead-letters", "Dead letters, grouped by cause.", dead_letters, manage, ("name",)),
    _get("/topics", "Topics in use.", topics, query=LIST),
    _get("/topics/{name}", "One topic.", topic, lambda request: [(Action.VIEW, topic_name(request))]),
    _delete("/topics/{name}", "Forget a topic without subscribers.", delete_topic, topic_admin),
    _post(
        "/topics/{name}/messages",
        "Send a message.",
        send_to_topic,
        lambda request: [(Action.SEND, topic_name(request))],
        SENT,
    ),
    _get("/subscriptions", "Durable subscriptions.", subscriptions, manage, LIST),
    _delete(
        "/subscriptions/{client}/{name}",
        "Delete a durable subscription that no consumer uses.",
        delete_subscription,
        manage,
        ("user",),
    ),
    _get(
        "/consumers",
        "Consumers; with `destination` those of one queue or topic.",
        consumers,
        manage,
        (*LIST, "destination"),
    ),
    _get("/connections", "Connections.", connections, manage, LIST),
    _delete("/connections/{id}", "Close a connection.", close_connection, manage),
    _get("/scheduled", "Scheduled messages.", scheduled, manage, ("name",)),
    _get("/prepared", "Prepared transactions.", prepared, manage, LIST),
    _post("/merge", "Merge the store into another one.", merge, manage, ("into", "urls", "secret_file", "rate_bytes")),
    _get("/outboxes", "Messages that wait for destinations of other stores of the cluster.", outboxes, manage, LIST),
    _get("/segments", "Segments of the journal.", segments, manage, LIST),
]
