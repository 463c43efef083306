"""Links: which connections are those of one client, so that a client need not wait for its own ghost.

A connection whose client is gone without a word (a pulled cable, a host that stopped) lives until its heart-beat fails,
and holds what its consumers had: messages, groups, durable subscriptions. Invariant: of the connections that give the
same instance, user and client id, which only connections of one client object do, at most one has ever said something
and is open: the latest. With `allowLinkStealing` that goes for all connections of the same user and client id, from
their login on. A connection that has lost its socket, and is kept for its client, goes as soon as the same user logs in
with the same client id: a program that was killed and is started again must not find its subscription in use.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from amq.broker.core import Core
from amq.errors import AccessError, AmqError
from amq.security.login import NO_USER, User


class Client(NamedTuple):
    """The client of a connection. `user` has logged in; `id` = its client id, `instance` = what its
    library gives all connections of one client object and no other; "" = it does not say. `exclusive` = nobody else may
    have its client id."""

    user: User = NO_USER
    id: str = ""
    instance: str = ""
    exclusive: bool = False


NOBODY = Client()


class Held(Protocol):
    """A connection, which a newer one of the same client may replace. `is_lost` = it has no socket now."""

    is_lost: bool

    def steal(self, error: AmqError) -> None: ...


class Links:
    """Told of every connection: `open` when it has logged in, `claim` when it first says something, `close`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._instances: dict[Client, Held] = {}
        self._clients: dict[Client, dict[Held, None]] = {}  # without instances: those with a client id
        self._exclusive: dict[str, tuple[Held, Client]] = {}  # by client id

    def open(self, session: Held, client: Client) -> None:
        """A connection of `client` has logged in. Raises AccessError where somebody else has its client id."""
        if not client.id:
            return
        if client.exclusive:
            self._take(session, client)
        key = _name(client)._replace(instance="", exclusive=False)
        for other in list(self._clients.get(key, ())):
            if self._core.config.allow_link_stealing:
                other.steal(_stolen(client, "allowLinkStealing"))
            elif other.is_lost:
                other.steal(_stolen(client, "that one is kept for a client which has broken down, or is restarted"))
        self._clients.setdefault(key, {})[session] = None

    def _take(self, session: Held, client: Client) -> None:
        """The client id of `client` is its alone. Its own older connection, of which it has lost the socket, goes."""
        held = self._exclusive.get(client.id)
        if held is not None:
            other, owner = held
            anew = bool(client.instance) and owner.instance == client.instance
            may_steal = anew or self._core.config.allow_link_stealing or other.is_lost
            if owner.user.name != client.user.name or not may_steal:
                raise AccessError(
                    f"client id {client.id!r} is in use by another connection: give each client an id of its own, or "
                    "close that one (or set allowLinkStealing, and the newer one wins)",
                    code="CLIENT_ID_IN_USE",
                )
            other.steal(_stolen(client, "the same client object connected anew"))
        self._exclusive[client.id] = session, client

    def claim(self, session: Held, client: Client) -> None:
        """It says something for the first time: the client has given up its older connection, if there is one."""
        name = _name(client)
        older = self._instances.get(name)
        self._instances[name] = session
        if older is not None:
            older.steal(_stolen(client, "the same client object connected anew"))

    def close(self, session: Held, client: Client) -> None:
        """The connection has ended."""
        name = _name(client)
        if self._instances.get(name) is session:
            del self._instances[name]
        if self._exclusive.get(client.id, (None,))[0] is session:
            del self._exclusive[client.id]
        key = name._replace(instance="", exclusive=False)
        sessions = self._clients.get(key, {})
        sessions.pop(session, None)
        if not sessions:
            self._clients.pop(key, None)


def _name(client: Client) -> Client:
    """The client, whatever roles its present login brings: a newer token may have others."""
    return client._replace(user=User(client.user.name))


def _stolen(client: Client, why: str) -> AccessError:
    return AccessError(
        f"a newer connection of client {client.id!r} took the place of this one ({why}): give each client an id of "
        "its own",
        code="LINK_STOLEN",
    )
