"""Resources: the views and operations of a broker by method and path, as every surface has them.

`ROUTES` is the one table: what a path does, what it demands of the permissions, whether it changes something. A request
passes the door (`amq.broker.access`) before anything is done, and a change leaves a line in the audit log. The operator
of the broker's own account, who comes over the Unix socket, may do everything; the console says for which user it asks.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

import structlog

from amq.broker.actions import Action
from amq.broker.broker import Broker
from amq.broker.sessions.traffic import Traffic
from amq.broker.transfer.merging import MergeOrder
from amq.config.schema import BrokerConfig
from amq.core.destination import QUEUE_SCHEME, TOPIC_SCHEME
from amq.core.errors import AccessError, AmqError, CommandError
from amq.journal.batch import Waiter
from amq.management import own
from amq.management.consoles import ANNOUNCE_S, Announced, web_url
from amq.management.history import History
from amq.management.listing import Query, Row, invalid
from amq.management.openapi import PREFIX, STORE_AMBIGUOUS, STORES, described
from amq.management.rates import SPANS, Rates
from amq.management.slices import Slices
from amq.security.login import Claim, Login, User
from amq.security.permissions import Permissions

NAME_CHARS_MAX: Final = 1000
TOLD_CHARS_MAX: Final = 200  # of a name in the audit log
_log = structlog.get_logger("amq.audit")
Demand = tuple[Action, str]


class Caller(NamedTuple):
    """The one for whom a request is. `is_operator`: the account of the broker itself, which may do everything."""

    user: User
    is_operator: bool = False


class Serving(Protocol):
    """A mastership, as `amq.node.mastership.Mastership` has it."""

    broker: Broker
    connections: Any  # number → Connected, see `amq.management.views`

    def merge(self, order: MergeOrder, waiter: Waiter) -> None:
        """All that the store has goes to another one. Raises AmqError."""

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """The traffic of each protocol."""
        ...


class ManagedMember(own.Knows, Protocol):
    """One member of the process: the broker of one store."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def users(self) -> Sequence[str]: ...

    @property
    def permissions(self) -> Permissions | None: ...

    @property
    def history(self) -> History: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def serving(self) -> Serving | None:
        """The serving broker; None = it is not the master."""

    def status(self) -> Row:
        """Name, role, group: also of a slave."""
        ...

    def health(self) -> Row:
        """Store, broker, role, whether it does its duty, and why not."""
        ...

    def facts(self) -> Row:
        """Counters of the process: see `amq.management.counting`."""
        ...

    @property
    def announced(self) -> Announced: ...

    async def login(self, claim: Claim, address: str) -> Login:
        """Of the one whom `claim` shows, who speaks to the console from `address`. Raises AccessError."""
        ...

    @property
    def audits(self) -> bool: ...


class Request(NamedTuple):
    """`names` = the variable parts of the path; `body` = the JSON object that came with it, {} = none; `store` = that
    which the path names."""

    caller: Caller
    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    store: str | None = None


class Context(NamedTuple):
    """The things that a handler works on. Its `broker` is that of the mastership in which the request came."""

    member: ManagedMember
    serving: Serving
    slices: Slices
    caller: Caller

    @property
    def broker(self) -> Broker:
        return self.serving.broker

    def sees(self, name: str) -> bool:
        """May the caller see the destination of that full name?"""
        return self.caller.is_operator or self.broker.access.may(self.caller.user, Action.VIEW, name)


Handler = Callable[[Context, Request], Awaitable[Row]]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has `{name}` for a part that stands for something. `demands(request)` = all that the caller must be
    allowed; none = everybody who has logged in may ask, and sees what he may see."""

    method: str
    path: str
    summary: str
    handler: Handler
    demands: Callable[[Request], Iterable[Demand]]
    query: tuple[str, ...] = ()
    body: tuple[str, ...] = ()

    @property
    def parts(self) -> list[str]:
        return self.path.split("/")

    @property
    def changes(self) -> bool:
        return self.method != "GET"


class Resources:
    """Answers requests. `stores` = the members by the names of their stores; `routes` = the table. A path below
    `/stores/NAME` is about that store, and any other path about the only one."""

    def __init__(self, stores: Mapping[str, ManagedMember], slices: Slices, routes: Iterable[Route]) -> None:
        self._stores = stores
        self._slices = slices
        self._routes = list(routes)

    async def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any], caller: Caller
    ) -> Row:
        """The answer as plain values. Raises AmqError."""
        store, below = split(path)
        route, names = self._find(method, below, path)
        request = Request(caller, names, query, body, store)
        if route.path == DESCRIPTION:
            return described(self._routes)
        if route.path == STORES:
            return {"items": [{"name": name, **each.health()} for name, each in self._stores.items()]}
        member = self._member(store)
        if route.path == STATUS:
            return member.status()
        if route.path == LOGIN:
            return await self._login(member, request)
        if route.path == CONSOLE:
            return self._announce(member, request)
        if route.path in own.LISTS:
            return await self._own(member, route, request)
        if route.path == RATES:
            return self._rates(member, request)
        serving = member.serving
        if serving is None:
            why = "this broker is not the master: ask the master (`amq status` names it)"
            raise CommandError(why, code="NOT_MASTER")
        context = Context(member, serving, self._slices, caller)
        try:
            if not caller.is_operator:
                for action, name in route.demands(request):
                    context.broker.access.check(caller.user, action, name)
            found = await route.handler(context, request)
        except AmqError as error:
            self._audit(member, route, request, error.code)
            raise
        self._audit(member, route, request, "done", found)
        return found

    def _member(self, store: str | None) -> ManagedMember:
        """Raises CommandError."""
        names = ", ".join(self._stores)
        if store is None:
            if len(self._stores) > 1:
                why = f"this process has several stores: ask below {PREFIX}{STORES}/NAME, NAME being one of {names}"
                raise CommandError(why, code=STORE_AMBIGUOUS)
            return next(iter(self._stores.values()))
        if store not in self._stores:
            why = f"this process has no store {store[:TOLD_CHARS_MAX]!r}: it has {names}"
            raise CommandError(why, code="STORE_UNKNOWN")
        return self._stores[store]

    async def _own(self, member: ManagedMember, route: Route, request: Request) -> Row:
        """A list of this process, master or not. A slave has no door, so the permissions are asked themselves."""
        permissions, caller = member.permissions, request.caller
        if not caller.is_operator and permissions is not None and not permissions.may_manage(caller.user):
            self._audit(member, route, request, "NOT_PERMITTED")
            raise AccessError("you may not manage this broker: ask for the right `manage`", code="NOT_PERMITTED")
        table, found = own.LISTS[route.path](member)
        return await table.page(self._slices, found, Query.parse(request.query))

    def _rates(self, member: ManagedMember, request: Request) -> Row:
        """The history of a queue or a topic that the caller may see, or of the whole broker, master or not."""
        span = request.query.get("span", SPANS[0])
        if span not in SPANS:
            raise invalid(f"span={span[:40]!r}: write {' or '.join(SPANS)}")
        kinds = {"queue": QUEUE_SCHEME, "topic": TOPIC_SCHEME}
        name = next((kinds[key] + text for key in kinds if (text := request.query.get(key))), "")
        serving = member.serving
        if name and serving is not None and not request.caller.is_operator:
            serving.broker.access.check(request.caller.user, Action.VIEW, name)
        return member.rates.row(name if serving is not None else "", span)

    async def _login(self, member: ManagedMember, request: Request) -> Row:
        """For the console, which alone may ask. Raises AccessError."""
        if not request.caller.is_operator:
            raise AccessError("a user cannot log another one in: log in at the console", code="NOT_PERMITTED")
        login, passcode = text(request, "login", ""), text(request, "passcode", "")
        found = await member.login(Claim(login, passcode, truth(request, "loopback")), text(request, "address", ""))
        user, left_s = found.user, found.ends_at_s - self._slices.clock.wall_ms() / 1000
        serving = member.serving
        manages = serving is None or serving.broker.access.may(user, Action.MANAGE, "the broker")
        return {
            "user": user.name,
            "roles": sorted(user.roles),
            "manages": manages,
            "valid_s": left_s if math.isfinite(left_s) else None,
        }

    def _announce(self, member: ManagedMember, request: Request) -> Row:
        """The console of this broker says where it serves. It alone may. Raises AccessError, CommandError."""
        if not request.caller.is_operator:
            raise AccessError("a user cannot say where the console of this broker is", code="NOT_PERMITTED")
        url = web_url(text(request, "url"))
        if not url:
            raise invalid('"url" must be the URL of a console, such as https://a.example:8161')
        member.announced.say(url)
        return {"again_s": ANNOUNCE_S}

    def _find(self, method: str, below: str, path: str) -> tuple[Route, dict[str, str]]:
        parts = below.split("/")
        allowed = []
        for route in self._routes:
            if len(route.parts) == len(parts) and (names := _match(route.parts, parts)) is not None:
                if route.method == method:
                    return route, names
                allowed.append(route.method)
        if allowed:
            raise CommandError(f"{method} is not possible here: {', '.join(allowed)}", code="METHOD_UNKNOWN")
        raise CommandError(f"there is no {path[:200]}: see {PREFIX}/openapi.json", code="NOT_FOUND")

    def _audit(
        self, member: ManagedMember, route: Route, request: Request, outcome: str, found: Row | None = None
    ) -> None:
        if member.audits and (route.changes or outcome == "NOT_PERMITTED"):
            of = {name: text[:TOLD_CHARS_MAX] for name, text in request.names.items()}
            to = {"to": str(request.body["to"])[:TOLD_CHARS_MAX]} if "to" in request.body else {}
            count = {"count": found["count"]} if found is not None and "count" in found else {}
            store = {"store": request.store} if request.store is not None else {}
            _log.info(
                "management",
                user=request.caller.user.name,
                action=f"{route.method} {route.path}",
                outcome=outcome,
                of=of,
                **store,
                **to,
                **count,
            )


STATUS: Final = "/broker"
DESCRIPTION: Final = "/openapi.json"
LOGIN: Final = "/login"
CONSOLE: Final = "/console"
RATES: Final = "/rates"


def split(path: str) -> tuple[str | None, str]:
    """(name of the store, None = the path names none; the path below it)"""
    below = path.removeprefix(PREFIX)
    if not below.startswith(f"{STORES}/"):
        return None, below
    name, slash, rest = below.removeprefix(f"{STORES}/").partition("/")
    return unquote(name), slash + rest


def _match(template: list[str], parts: list[str]) -> dict[str, str] | None:
    names = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            text = unquote(part)
            if not text or len(text) > NAME_CHARS_MAX or "\0" in text:
                return None
            names[wanted[1:-1]] = text
        elif wanted != part:
            return None
    return names


# -- the words of requests ---------------------------------------------------------------------------------------------


def queue_name(request: Request) -> str:
    """Full name of the queue that the path names."""
    return QUEUE_SCHEME + request.names["name"]


def topic_name(request: Request) -> str:
    return TOPIC_SCHEME + request.names["name"]


def text(request: Request, name: str, default: str | None = None) -> str:
    """A text of the body. Raises CommandError."""
    found = request.body.get(name, default)
    if not isinstance(found, str):
        raise invalid(f'"{name}" must be a text in the body, which is a JSON object')
    return found


def texts(request: Request, name: str, most: int) -> tuple[str, ...]:
    """Several texts of the body, () = none. Raises CommandError."""
    found = request.body.get(name, [])
    if not isinstance(found, list) or len(found) > most or not all(isinstance(each, str) for each in found):
        raise invalid(f'"{name}" must be a list of at most {most} texts')
    return tuple(found)


def truth(request: Request, name: str, default: bool = False) -> bool:
    found = request.body.get(name, default)
    if not isinstance(found, bool):
        raise invalid(f'"{name}" must be true or false')
    return found


def whole(request: Request, name: str, default: int, most: int) -> int:
    found = request.body.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise invalid(f'"{name}" must be a whole number from 0 to {most}')
    return found


# -- errors ------------------------------------------------------------------------------------------------------------

_STATUS: Final = {
    "NOT_PERMITTED": 403,
    "NOT_FOUND": 404,
    "MESSAGE_UNKNOWN": 404,
    "STORE_UNKNOWN": 404,
    "METHOD_UNKNOWN": 405,
    "REQUEST_INVALID": 400,
    "INVALID_SELECTOR": 400,
    "NOT_MASTER": 503,
    "STORE_FULL": 507,
    "NO_ROOM": 507,
    "TIMED_OUT": 504,
    "DESTINATION_REFUSED": 400,
    "DESTINATION_INVALID": 400,
    "MESSAGE_INVALID": 400,
    "UNKNOWN_SUBSCRIPTION": 404,
}


def status_of(error: AmqError) -> int:
    """The HTTP status of an error."""
    default = 403 if isinstance(error, AccessError) else 409
    return _STATUS.get(error.code, default)


def problem(status: int, code: str, detail: str) -> Row:
    """Problem details (RFC 9457)."""
    return {
        "type": "about:blank",
        "title": code.replace("_", " ").lower(),
        "status": status,
        "code": code,
        "detail": detail,
    }


async def within(seconds: float, work: Awaitable[Row]) -> Row:
    """`work`, or an error after so long. Raises CommandError."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError as error:
        why = f"it was not done within {seconds:g} s: what was done until then is done"
        raise CommandError(why, code="TIMED_OUT") from error
