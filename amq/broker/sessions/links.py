"""Links: which connections are those of one client, so that a client need not wait for its own ghost.

A connection whose client is gone without a word (a pulled cable, a host that stopped) lives until its heart-beat fails,
and holds what its consumers had: messages, groups, durable subscriptions. Invariant: of the connections that give the
same instance, user and client id, which only connections of one client object do, at most one has ever said something
and is open: the latest. The connections of one user never end, refuse or rename those of another. With
`allowLinkStealing` the first goes for all connections of the same user and client id, from their login on. A connection
that has lost its socket, and is kept for its client, goes as soon as the same user logs in with the same client id: a
program that was killed and is started again must not find its subscription in use.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

from amq.broker.core import Core
from amq.core.errors import AccessError, AmqError
from amq.security.login import NO_USER, User


class Client(NamedTuple):
    """The client of a connection. `user` has logged in; `id` = its client id, `instance` = what its
    library gives all connections of one client object and no other; "" = it does not say. `exclusive` = no other client
    of this user may have its client id. `since_ms` = wall clock of its login at a gateway, 0 = it meets no gateway."""

    user: User = NO_USER
    id: str = ""
    instance: str = ""
    exclusive: bool = False
    since_ms: int = 0

    @property
    def has_chosen_id(self) -> bool:
        """May another client have its exclusive client id already? Libraries make one for each connection, like its
        own id but for the end, where their program gives none."""
        made, dash, _ = self.instance.rpartition("-")
        return self.exclusive and bool(self.id) and not (dash and self.id.startswith(made + dash))


NOBODY = Client()
ANEW: Final = "the same client object connected anew"
OWN_NAME: Final = re.compile(r"\d+-\d+")  # of the names that the broker itself gives to connections


class HeldClient(Protocol):
    """A connection, which a newer one of the same client may replace. `is_lost` = it has no socket now."""

    client: Client
    is_lost: bool

    @property
    def whereabouts(self) -> str:
        """Of its client, as a part of a sentence."""
        ...

    def steal(self, error: AmqError) -> None: ...


class Links:
    """Told of every connection: `open` when it has logged in, `claim` when it first says something, `close`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.instances: dict[Client, HeldClient] = {}
        self.clients: dict[Client, dict[HeldClient, None]] = {}  # without instances: those with a client id
        self.exclusive: dict[tuple[str, str], tuple[HeldClient, Client]] = {}  # by user and client id
        self.names: dict[str, tuple[str, int]] = {}  # name of a connection that it chose → user, how many have it

    def name(self, client: Client, own: str) -> str:
        """The name by which people and advisories know a new connection of `client`: the one that its client chose, or
        `own`, which no other connection ever has. A name that is another user's, or that looks like the broker's own,
        is not given."""
        chosen = client.instance if client.exclusive else ""
        user, count = self.names.get(chosen, (client.user.name, 0))
        if not chosen or user != client.user.name or OWN_NAME.fullmatch(chosen):
            return own
        self.names[chosen] = user, count + 1
        return chosen

    def user_of(self, name: str) -> str | None:
        """The user whose connection has chosen that name, None = there is none."""
        found = self.names.get(name)
        return None if found is None else found[0]

    def open(self, session: HeldClient, client: Client) -> None:
        """A connection of `client` has logged in. Raises AccessError where another client of the user has its client
        id alone."""
        if not client.id:
            return
        if client.exclusive:
            self._take(session, client)
        key = _name(client)._replace(instance="", exclusive=False)
        for other in list(self.clients.get(key, ())):
            if self._core.config.allow_link_stealing:
                other.steal(_stolen(client, "allowLinkStealing"))
            elif other.is_lost:
                other.steal(_stolen(client, "that one is kept for a client which has broken down, or is restarted"))
        self.clients.setdefault(key, {})[session] = None

    def _take(self, session: HeldClient, client: Client) -> None:
        """The client id of `client` is its alone. Its own older connection, of which it has lost the socket, goes."""
        key = client.user.name, client.id
        held = self.exclusive.get(key)
        if held is not None:
            other, owner = held
            anew = bool(client.instance) and owner.instance == client.instance
            may_steal = anew or self._core.config.allow_link_stealing or other.is_lost
            if not may_steal:
                raise AccessError(
                    f"client id {client.id!r} is in use by another connection{other.whereabouts}: give each client "
                    "another id, or close that one (or set allowLinkStealing, and the newer one wins)",
                    code="CLIENT_ID_IN_USE",
                )
            if _is_newer(owner, client):
                raise _stolen(client, ANEW)
            other.steal(_stolen(client, ANEW))
        self.exclusive[key] = session, client

    def claim(self, session: HeldClient, client: Client) -> bool:
        """It says something for the first time: the client has given up its older connection, if there is one. False =
        this is the older one: it has ended."""
        name = _object(client)
        other = self.instances.get(name)
        if other is not None and _is_newer(other.client, client):
            session.steal(_stolen(client, ANEW))
            return False
        self.instances[name] = session
        if other is not None:
            other.steal(_stolen(client, ANEW))
        return True

    def leave(self, session: HeldClient, client: Client) -> None:
        """The connection is about to end: another one may have its client id alone from now on."""
        if self.exclusive.get((client.user.name, client.id), (None,))[0] is session:
            del self.exclusive[client.user.name, client.id]

    def close(self, session: HeldClient, client: Client, known_as: str) -> None:
        """The connection has ended. `known_as` = its `name`."""
        if known_as == client.instance and known_as in self.names:
            user, count = self.names.pop(known_as)
            if count > 1:
                self.names[known_as] = user, count - 1
        name = _object(client)
        if self.instances.get(name) is session:
            del self.instances[name]
        self.leave(session, client)
        key = _name(client)._replace(instance="", exclusive=False)
        sessions = self.clients.get(key, {})
        sessions.pop(session, None)
        if not sessions:
            self.clients.pop(key, None)


def _name(client: Client) -> Client:
    """The client, whatever roles its present login brings: a newer token may have others."""
    return client._replace(user=User(client.user.name), since_ms=0)


def _object(client: Client) -> Client:
    """The client object. A connection id stands for one whatever client id it gives: the last connection of it wins."""
    id = "" if client.exclusive and client.instance else client.id
    return _name(client)._replace(id=id)


def _is_newer(one: Client, other: Client) -> bool:
    """Has the client come to a gateway later as `one` than as `other`? A gateway may open a connection at a home long
    after its client has failed over to another gateway: it was stopped, or the home has another master."""
    return one.since_ms > other.since_ms > 0


def _stolen(client: Client, why: str) -> AccessError:
    return AccessError(
        f"a newer connection of client {client.id!r} took the place of this one ({why}): give each client an id of "
        "its own",
        code="LINK_STOLEN",
    )
