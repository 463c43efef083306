"""Whole: the management interface of a whole cluster. A request goes to the masters that can answer it.

    /stores                    the stores themselves, also those without a master
    /stores/NAME/...           that store
    /queues/NAME..., /topics/NAME...
                               the home of the destination; every store where it is a `spread` one
    a list                     all stores: their rows are merged in the order that is asked for
    /totals, /rates            the sums of all stores
    /broker                    the cluster: nodes and alarms

Rows say in `store` and `node` where they come from. Where some stores do not answer, an answer of all stores has them
in `missing`, with the reasons; it is an error only where none answers. Each master decides itself what the user may do.

Invariant: a merged page needs at most `ROWS_MAX` rows; each store is asked for pages, and never for all that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode

from amq.cluster.alarms import alarms
from amq.cluster.directory import ClusterNode
from amq.cluster.masters import ASK_S, Masters, StoreAnswer, StoreNow
from amq.cluster.placement import SPREAD
from amq.core.destination import QUEUE_SCHEME, TOPIC_SCHEME
from amq.core.errors import AccessError, AmqError, CommandError
from amq.management.listing import LIMIT_MAX, Row, invalid, number
from amq.management.openapi import STORES
from amq.management.resources import DESCRIPTION
from amq.security.login import User

ROWS_MAX: Final = 10_000  # of a merged list, up to the last row of a page
PAGE_MIN: Final = 20  # rows that are asked of a store at a time
LISTS: Final = (
    *("/queues", "/topics", "/subscriptions", "/consumers", "/connections", "/prepared", "/outboxes"),
    *("/segments", "/configuration", "/users", "/rights", "/history"),
)
GROUPS: Final = ("/dead-letters", "/scheduled")  # lists without pages
KINDS: Final = {"queues": QUEUE_SCHEME, "topics": TOPIC_SCHEME}
STATUS: Final = "/broker"
CLUSTER: Final = "cluster"  # in place of a role
NOT_FOUND: Final = "NOT_FOUND"  # the code of what a store does not have


class WholeCluster:
    """Answers requests about all stores of `masters`. May be used by many threads."""

    def __init__(self, masters: Masters) -> None:
        self.masters = masters

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        user: User | None = None,
        timeout_s: float = ASK_S,
    ) -> Row:
        """The answer to a request for `path`, percent-encoded and with its query. Raises AmqError."""
        plain, _, text = path.partition("?")
        words = plain.removeprefix("/").split("/")
        if plain == STORES and method == "GET":
            return self.stores()
        if words[0] == "stores" and len(words) > 2:
            below = path.removeprefix(f"/stores/{words[1]}")
            return self._one(unquote(words[1]), method, below, body, user, timeout_s)
        if words[0] in KINDS and len(words) > 1:
            homes = self.homes(KINDS[words[0]] + unquote(words[1]))
            if len(homes) == 1:
                return self._one(homes[0], method, path, body, user, timeout_s)
            return _Spread(self, homes, method, words, path, body, user, timeout_s).answer()
        if method == "DELETE" and words[0] in ("subscriptions", "connections"):
            return self._wherever(method, path, user, timeout_s)
        query = dict(parse_qsl(text, keep_blank_values=True))
        if method == "GET" and plain in LISTS:
            offset, limit = number(query, "offset", 0, 1 << 40), number(query, "limit", LIMIT_MAX, LIMIT_MAX)
            if offset + limit > ROWS_MAX:
                raise invalid(
                    f"a list of all stores ends at row {ROWS_MAX}: narrow it with name or filter, or ask one store, "
                    "below /stores/NAME"
                )
            stores = [query.pop("store")] if query.get("store") else None
            return Merged(self.masters, plain, query, user, timeout_s, offset + limit, stores).page(offset, limit)
        if method == "GET" and words[0] == "messages":
            return self._wherever(method, path, user, timeout_s)
        if method == "GET" and plain in (*GROUPS, "/search", "/totals", "/rates"):
            return self._together(plain, path, query, user, timeout_s)
        if method == "GET" and plain == STATUS:
            return self._status()
        if method == "GET" and plain == DESCRIPTION:
            return self.masters.ask_near(method, path, None, user, timeout_s)
        raise CommandError(
            f"{method} {plain[:100]} is not about the whole cluster: ask one store, below {STORES}/NAME",
            code=NOT_FOUND,
        )

    def homes(self, name: str) -> list[str]:
        """The stores in which the destination of that full name lives. Raises StoreError."""
        placement = self.masters.table().placement
        return [*placement.stores_of(name)]

    def stores(self) -> Row:
        """A row for each store."""
        return {"items": [store_row(each) for each in self.masters.look()]}

    def _status(self) -> Row:
        """Figures, and what an operator should do something about."""
        cluster, table = self.masters.cluster, self.masters.table()
        stores, nodes = self.masters.look(table), cluster.nodes()
        told = alarms(table, stores, nodes, cluster.preferences(table, nodes), self.masters.wall_ms())
        return {
            "name": cluster.id,
            "role": CLUSTER,
            "store": cluster.directory,
            "stores": len(stores),
            "stores_without_master": sum(each.master is None for each in stores),
            "table": table.number,
            "nodes": [_node_row(each, stores) for each in nodes],
            "alarms": [each._asdict() for each in told],
        }

    def _one(
        self, store: str, method: str, path: str, body: Mapping[str, Any] | None, user: User | None, timeout_s: float
    ) -> Row:
        answer = self.masters.ask(store, method, path, body, user, timeout_s)
        return _marked(answer)

    def _wherever(self, method: str, path: str, user: User | None, timeout_s: float) -> Row:
        """Of a thing that only its own store knows."""
        if method == "GET":
            answers = self.masters.ask_all(path, user, timeout_s)
        else:
            table = self.masters.table()
            answers = [self.masters.ask(store, method, path, None, user, timeout_s) for store in table.stores]
        return _marked(_best(answers))

    def _together(self, plain: str, path: str, query: Mapping[str, str], user: User | None, timeout_s: float) -> Row:
        of = next((KINDS[f"{kind}s"] + query[kind] for kind in ("queue", "topic") if query.get(kind)), "")
        stores = self.homes(of) if plain == "/rates" and of else None
        answers = self.masters.ask_all(path, user, timeout_s, stores)
        found = [each for each in answers if each.row is not None]
        if not found:
            raise _worst(answers)
        if plain == "/totals":
            row: Row = {**_sum([each.found for each in found]), "stores": [_marked(each) for each in found]}
        elif plain == "/rates":
            row = {**_rates([each.found for each in found]), "stores": [_latest(each) for each in found]}
        else:
            row = {**_sum([each.found for each in found]), "items": [row for each in found for row in _rows(each)]}
            if plain == "/search":
                row["totals"] = dict(sum((Counter(each.found["totals"]) for each in found), Counter[str]()))
                row["limit"] = found[0].found["limit"]
            else:
                row["complete"] = all(each.found["complete"] for each in found)
        return {**row, "missing": missing(answers)}


def _node_row(node: ClusterNode, stores: Iterable[StoreNow]) -> Row:
    gateways = node.gateways if node.running else ()
    return {
        "name": node.name,
        "running": node.running,
        "drained": node.drained,
        "stores": [each.name for each in stores if each.node == node.name],
        "gateways": sum(each.pid > 0 for each in gateways),
        "connections": sum(each.connections for each in gateways),
        "restarts": node.restarts,
        "addresses": [*node.addresses],
    }


class Merged:
    """A list of all stores, or of `stores`. It asks each for a page, and for the next one when that is used up. The
    first `wanted` rows are probably all that is needed."""

    def __init__(
        self,
        masters: Masters,
        path: str,
        query: Mapping[str, str],
        user: User | None = None,
        timeout_s: float = ASK_S,
        wanted: int = LIMIT_MAX,
        stores: Sequence[str] | None = None,
    ) -> None:
        self._masters, self._path, self._user, self._timeout_s = masters, path, user, timeout_s
        self._query = {key: value for key, value in query.items() if key not in ("offset", "limit")}
        self._key = _key(query.get("sort", "name"))
        count = len(masters.table().stores if stores is None else stores)
        self._size = min(LIMIT_MAX, wanted, max(PAGE_MIN, 2 * wanted // count))
        self.answers = {each.store: each for each in masters.ask_all(self._page_of(0), user, timeout_s, stores)}
        self.total = sum(each.row["total"] for each in self.answers.values() if each.row is not None)

    def __iter__(self) -> Iterator[Row]:
        """The rows in order. Raises AmqError where no store answers."""
        if all(each.row is None for each in self.answers.values()):
            raise _worst(list(self.answers.values()))
        streams = {store: self._of(store) for store in self.answers}
        heap: list[tuple[Any, str, str, Row]] = []

        def push(store: str) -> None:
            row = next(streams[store], None)
            if row is not None:
                heap.append((self._key(row), str(row.get("name", "")), store, row))

        for store in streams:
            push(store)
        heapify(heap)
        while heap:
            *_, store, row = heappop(heap)
            yield row
            following = next(streams[store], None)
            if following is not None:
                heappush(heap, (self._key(following), str(following.get("name", "")), store, following))

    def page(self, offset: int, limit: int) -> Row:
        """As one store answers, with `missing`. Raises AmqError."""
        rows = list(islice(self, offset, offset + limit))
        return {"items": rows, "total": self.total, "offset": offset, "limit": limit, "missing": self.missing}

    @property
    def missing(self) -> list[Row]:
        """The stores of which not all rows are there."""
        return missing(self.answers.values())

    def _of(self, store: str) -> Iterator[Row]:
        answer, given = self.answers[store], 0
        while answer.row is not None:
            yield from _rows(answer)
            given += len(answer.row["items"])
            if len(answer.row["items"]) < self._size:
                return
            (answer,) = self._masters.ask_all(self._page_of(given), self._user, self._timeout_s, [store])
        self.answers[store] = answer

    def _page_of(self, offset: int) -> str:
        return f"{self._path}?{urlencode({**self._query, 'offset': offset, 'limit': self._size})}"


class _Spread:
    """A request for a destination that lives in several stores."""

    def __init__(
        self,
        whole: WholeCluster,
        stores: Sequence[str],
        method: str,
        words: Sequence[str],
        path: str,
        body: Mapping[str, Any] | None,
        user: User | None,
        timeout_s: float,
    ) -> None:
        self._masters, self._stores, self._method, self._path = whole.masters, stores, method, path
        self._body, self._user, self._timeout_s = body, user, timeout_s
        self._what = words[2] if len(words) > 2 else ""
        self._has_id = len(words) > 3

    def answer(self) -> Row:
        """Raises AmqError."""
        if self._method == "GET" and self._what == "messages" and not self._has_id:
            return self._messages()
        if self._method == "GET":
            answers = self._masters.ask_all(self._path, self._user, self._timeout_s, self._stores)
            if self._has_id:
                return _marked(_best(answers))
            found = [each for each in answers if each.row is not None]
            if not found:
                raise _worst(answers)
            row = {**found[0].found, **_sum([each.found for each in found])}
            more = {"items": [row for each in found for row in _rows(each)]} if "items" in row else {}
            stores = {"store": SPREAD, "node": "", "stores": [_marked(each) for each in found]}
            return {**row, **more, **stores, "missing": missing(answers)}
        if self._what == "messages" and not self._has_id:  # a send: the first store that has a master takes it
            serving = [each.name for each in self._masters.look() if each.master is not None]
            store = next((each for each in self._stores if each in serving), self._stores[0])
            return _marked(self._ask(store, self._body))
        if self._has_id:
            return _marked(_best([self._ask(store, None) for store in self._stores]))
        return self._change()

    def _change(self) -> Row:
        """In one store after the other, so that a limit holds for all together."""
        left: Any = (self._body or {}).get("limit")
        answers: list[StoreAnswer] = []
        for store in self._stores:
            body = self._body if left is None else {**(self._body or {}), "limit": left}
            if left != 0:
                answers.append(self._ask(store, body))
                if isinstance(left, int) and (row := answers[-1].row) is not None:
                    left -= row.get("count", 0)
        done = [each for each in answers if each.row is not None]
        failed = [each for each in answers if each.error is not None and each.error.code != NOT_FOUND]
        if not done or failed:
            error = (failed or answers)[0].error
            assert error is not None
            where = "; ".join(f"store {each.store}: {each.error}" for each in failed)
            if not done:
                raise error
            names = ", ".join(each.store for each in done)
            raise CommandError(f"it was done in {names}, and not everywhere: {where}", code=error.code)
        first = done[0].found
        return {**first, **_sum([each.found for each in done]), "stores": [_marked(each) for each in done]}

    def _messages(self) -> Row:
        """One store after the other. `after` says in which to go on, and where."""
        plain, _, text = self._path.partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        store, _, place = query.get("after", "").partition(":")
        if store and store not in self._stores:
            raise invalid(f"after={store[:80]!r}: take it from the page before")
        store = store or self._stores[0]
        asked = f"{plain}?{urlencode({**query, 'after': place})}"
        (answer,) = self._masters.ask_all(asked, self._user, self._timeout_s, [store])
        if answer.error is not None and answer.error.code == NOT_FOUND:
            page: Row = {"items": [], "after": None}
        else:
            page = {**answer.found, "items": _rows(answer)}
        later = self._stores[self._stores.index(store) + 1 :]
        if page["after"] is not None:
            page["after"] = f"{store}:{page['after']}"
        elif later:
            page["after"] = f"{later[0]}:"
        return page

    def _ask(self, store: str, body: Mapping[str, Any] | None) -> StoreAnswer:
        return self._masters.ask(store, self._method, self._path, body, self._user, self._timeout_s)


# -- answers of several stores -----------------------------------------------------------------------------------------


def store_row(store: StoreNow) -> Row:
    """A store for people and programs."""
    why = store.trouble or ("" if store.master is not None else "no node serves it")
    slaves = [] if store.status is None else [each.name for each in store.status.slaves if not each.not_ready]
    epoch = store.status.epoch if store.status is not None else None
    return {
        "name": store.name,
        "store": store.location,
        "node": store.node,
        "broker": store.node,
        "role": "master" if store.master is not None else "none",
        "healthy": not why,
        "reason": why,
        "slaves_ready": slaves,
        "epoch": epoch.number if epoch is not None else 0,
        "obeys_table": store.obeys,
    }


def missing(answers: Iterable[StoreAnswer]) -> list[Row]:
    """The stores that did not answer, and why."""
    return [
        {
            "store": each.store,
            "node": each.node,
            "code": each.error.code,
            "detail": str(each.error).removeprefix(f"store {each.store}: "),
        }
        for each in answers
        if each.error is not None
    ]


def _marked(answer: StoreAnswer) -> Row:
    """Raises AmqError."""
    return {**answer.found, "store": answer.store, "node": answer.node}


def _rows(answer: StoreAnswer) -> list[Row]:
    return [{**row, "store": answer.store, "node": answer.node} for row in answer.found["items"]]


def _best(answers: Sequence[StoreAnswer]) -> StoreAnswer:
    """That of the store which knows what is asked for."""
    return next((each for each in answers if each.row is not None), None) or StoreAnswer("", "", None, _worst(answers))


def _worst(answers: Sequence[StoreAnswer]) -> AmqError:
    """The error to show where no store has a good answer: what a user may not do, then what is out of reach; and only
    where all know nothing of it, that."""
    errors = [each.error for each in answers if each.error is not None]

    def rank(error: AmqError) -> int:
        return 0 if isinstance(error, AccessError) else 2 if isinstance(error, CommandError) else 1

    return min(errors, key=rank)


def _sum(rows: Sequence[Row]) -> Row:
    """The numbers that the rows have, added up; what is true in one of them."""
    names = [name for name, value in rows[0].items() if isinstance(value, int | float)]
    found: Row = {}
    for name in names:
        values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
        found[name] = any(values) if isinstance(values[0], bool) else sum(values)
    return found


def _rates(rows: Sequence[Row]) -> Row:
    """The sums of figures that are a few seconds apart at most: the newest ones belong together."""
    found = dict(rows[0])
    for name, value in rows[0].items():
        if isinstance(value, list):
            columns = [row[name][::-1] for row in rows]
            length = max(map(len, columns))
            found[name] = [_known([each[at] if at < len(each) else None for each in columns]) for at in range(length)]
            found[name].reverse()
    return found


def _latest(answer: StoreAnswer) -> Row:
    """The rates of a store in its last seconds."""
    row = answer.found
    now = {f"{name}_per_s": row[name][-1] if row[name] else None for name in ("in", "out")}
    return {"store": answer.store, "node": answer.node, **now}


def _known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _key(sort: str) -> Callable[[Row], Any]:
    """Rows are in order by this, as `amq.management.listing` has it."""
    field = sort.removeprefix("-")
    if sort == "-name":
        return lambda row: (*(-ord(char) for char in row["name"]), 1)
    if field == "name":
        return lambda row: row.get("name", "")
    return (lambda row: -row[field]) if sort.startswith("-") else (lambda row: row[field])
