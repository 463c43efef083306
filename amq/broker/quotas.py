"""Quotas: how many queues and subscriptions a user may have.

A queue belongs to the user whose send or consumer made it, a subscription to the user of its connection, a durable one
to the user who made or used it; who made a queue is not stored, so a new master counts from its start on. Invariant:
with a limit of n no user has more than n that this master has seen the user make. Without limits nothing is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from amq.broker.access import Access
from amq.broker.core import Core
from amq.broker.topics.durables import Durables
from amq.destination import QUEUE_SCHEME
from amq.errors import AccessError
from amq.protocols.commands import Command, Send, SendMany, SendToMany, Subscribe
from amq.security.login import User

CODE = "QUOTA_EXCEEDED"


class Owner(Protocol):
    """The client of a connection."""

    @property
    def user(self) -> User: ...


class Busy(Protocol):
    """A connection of a client."""

    @property
    def client(self) -> Owner: ...
    @property
    def transactions(self) -> Mapping[str, object]: ...


class Quotas:
    """Asked before a command is carried out that may make something, and told of consumers."""

    def __init__(self, core: Core, durables: Durables, access: Access, clients: Callable[[], Iterable[Busy]]) -> None:
        """`clients` = those that are there."""
        self._core = core
        self._access = access
        self._clients = clients
        self._durables = durables
        self.consumers: Counter[str] = Counter()  # by user
        self._makers: dict[str, str] = {}  # full name of a queue → the user who has made it
        self._queues: Counter[str] = Counter()  # by user: how many of these
        self._durable: dict[str, set[tuple[str, str]]] = {}  # user → (client id, name)

    def made_by(self, user: str, command: Command) -> None:
        """`user` may do `command`, which may make queues. Raises AccessError where the user has as many as it may."""
        limit = self._core.config.max_queues_per_user
        if not limit:
            self._makers.clear()
            self._queues.clear()
            return
        there = self._core.state.queues
        new = [
            name for name in dict.fromkeys(_names(command))
            if name not in there and name not in self._makers and name.startswith(QUEUE_SCHEME)
        ]  # fmt: skip
        if not new:
            return
        if self._queues[user] + len(new) > limit:
            self._forget_aborted(user)
        if self._queues[user] + len(new) > limit:
            raise AccessError(
                f"user {user!r} may have made {limit} queues (maxQueuesPerUser), and has: empty some, and they go; or "
                "use one queue with selectors",
                code=CODE,
            )
        self._makers |= dict.fromkeys(new, user)
        self._queues[user] += len(new)

    def forgotten(self, name: str) -> None:
        """That queue is gone."""
        user = self._makers.pop(name, None)
        if user is not None:
            self._queues[user] -= 1
            if self._queues[user] <= 0:
                del self._queues[user]
            self._access.forget(user)  # a send that makes it again is asked about

    def _forget_aborted(self, user: str) -> None:
        """Queues that a transaction would have made, or a send that was rejected."""
        if not any(each.transactions for each in self._clients() if each.client.user.name == user):
            for name in [name for name, maker in self._makers.items() if maker == user]:
                if name not in self._core.state.queues:
                    self.forgotten(name)

    def check_subscription(self, user: str, client_id: str, command: Subscribe) -> None:
        """`user` wants another one. Raises AccessError where the user has as many as it may."""
        limit = self._core.config.max_subscriptions_per_user
        if not limit:
            self._durable.clear()
            return
        if self.consumers[user] >= limit:
            raise AccessError(
                f"user {user!r} has {limit} subscriptions already (maxSubscriptionsPerUser): end some", code=CODE
            )
        if not command.subscription_name or command.browser:
            return
        mine = self._durable.setdefault(user, set())
        key = client_id, command.subscription_name
        if key in mine:
            return
        if len(mine) >= limit:
            mine -= {(client, name) for client, name in mine if not self._durables.has(name, client, user)}
        if len(mine) >= limit:
            why = f"user {user!r} has {limit} durable subscriptions already (maxSubscriptionsPerUser): end some"
            raise AccessError(why, code=CODE)
        mine.add(key)

    def ended(self, user: str) -> None:
        """A consumer of that user has ended."""
        self.consumers[user] -= 1
        if self.consumers[user] <= 0:
            del self.consumers[user]


def _names(command: Command) -> tuple[str, ...]:
    """Full names of the queues that `command` makes where they are not there."""
    if isinstance(command, SendToMany):
        return command.destinations
    if isinstance(command, Send):
        return (command.message.destination,)
    if isinstance(command, SendMany):
        return (command.like.destination,)
    if isinstance(command, Subscribe) and not command.browser:
        return tuple(each for each in command.sources if isinstance(each, str))
    return ()
