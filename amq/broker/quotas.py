"""Quotas: how many queues and subscriptions a user may have, and how large the selectors of these may be.

A queue belongs to the user whose send or consumer made it, a subscription to the user of its connection, a durable one
to the user who made or used it; who made a queue is not stored, so a new master counts from its start on. Invariant:
with a limit of n no user has more than n that this master has seen the user make. Without limits nothing is kept. It
remembers at most twice as many durable subscriptions as there are, and a few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from amq.broker.access import Access
from amq.broker.core import Core
from amq.broker.topics.durables import Durables
from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import AccessError
from amq.protocols.commands import Command, Send, SendMany, SendToMany, Subscribe
from amq.security.login import User
from amq.selectors import Selector

CODE = "QUOTA_EXCEEDED"
FEW = 16  # durable subscriptions of a user, of which some may have ended


class QuotaOwner(Protocol):
    """The client of a connection."""

    @property
    def user(self) -> User: ...


class Busy(Protocol):
    """A connection of a client."""

    @property
    def client(self) -> QuotaOwner: ...
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
        self.terms: Counter[str] = Counter()  # of the selectors of these
        self.makers: dict[str, str] = {}  # full name of a queue → the user who has made it
        self.queues: Counter[str] = Counter()  # by user: how many of these
        self.durable: dict[str, dict[tuple[str, str], int]] = {}  # user → (client id, name) → terms of its selector

    def made_by(self, user: str, command: Command) -> None:
        """`user` may do `command`, which may make queues. Raises AccessError where the user has as many as it may."""
        self.made(user, _names(command))

    def made(self, user: str, names: Sequence[str]) -> None:
        """The queues `names` are about to be made for `user`. Raises AccessError where it has as many as it may."""
        limit = self._core.config.max_queues_per_user
        if not limit:
            self.makers.clear()
            self.queues.clear()
            return
        there = self._core.state.queues
        new = [
            name
            for name in dict.fromkeys(names)
            if name not in there and name not in self.makers and name.startswith(QUEUE_SCHEME)
        ]
        if not new:
            return
        if self.queues[user] + len(new) > limit:
            self._forget_aborted(user)
        if self.queues[user] + len(new) > limit:
            raise AccessError(
                f"user {user!r} may have made {limit} queues (maxQueuesPerUser), and has: empty some, and they go; or "
                "use one queue with selectors",
                code=CODE,
            )
        self.makers |= dict.fromkeys(new, user)
        self.queues[user] += len(new)

    def forgotten(self, name: str) -> None:
        """That queue is gone."""
        user = self.makers.pop(name, None)
        if user is not None:
            self.queues[user] -= 1
            if self.queues[user] <= 0:
                del self.queues[user]
            self._access.forget(user)  # a send that makes it again is asked about

    def _forget_aborted(self, user: str) -> None:
        """Queues that a transaction would have made, or a send that was rejected."""
        if not any(each.transactions for each in self._clients() if each.client.user.name == user):
            for name in [name for name, maker in self.makers.items() if maker == user]:
                if name not in self._core.state.queues:
                    self.forgotten(name)

    def check_subscription(self, user: str, client_id: str, command: Subscribe) -> Selector | None:
        """`user` wants another one; returns its selector, compiled. Raises AccessError where the user has as many as it
        may, SelectorError."""
        limit = self._core.config.max_subscriptions_per_user
        if limit and self.consumers[user] >= limit:
            raise AccessError(
                f"user {user!r} has {limit} subscriptions already (maxSubscriptionsPerUser): end some", code=CODE
            )
        selector = self._selector(user, client_id, command) if command.filter.selector else None
        terms = selector.terms if selector is not None else 0
        if command.subscription_name and command.browse is None:
            self._check_durable(user, (client_id, command.subscription_name), terms)
        elif terms:
            self._check_terms(user, terms)
        return selector

    def _selector(self, user: str, client_id: str, command: Subscribe) -> Selector:
        """The selector of `command`. A durable subscription that is stored may have any, of an earlier version."""
        config, text = self._core.config, command.filter.selector
        stored = self._durables.selector_text(command.subscription_name, client_id, user)
        terms_max = config.max_selector_terms if text != stored else 0
        return Selector(text, command.filter.ids or self._core.message_id_prefix, terms_max)

    def _check_durable(self, user: str, key: tuple[str, str], terms: int) -> None:
        limit = self._core.config.max_subscriptions_per_user
        if not (limit or self._core.config.max_selector_terms_per_user):
            self.durable.clear()
            return
        mine = self.durable.setdefault(user, {})
        if key in mine:
            mine[key] = terms
            return
        if len(mine) >= limit > 0 or (len(mine) >= FEW and len(mine).bit_count() == 1):
            for each in [each for each in mine if not self._durables.has(each[1], each[0], user)]:
                del mine[each]
        if len(mine) >= limit > 0:
            why = f"user {user!r} has {limit} durable subscriptions already (maxSubscriptionsPerUser): end some"
            raise AccessError(why, code=CODE)
        if terms:
            self._check_terms(user, terms)
        mine[key] = terms

    def _check_terms(self, user: str, terms: int) -> None:
        """Raises AccessError where the selectors of `user` would have too many with these."""
        limit = self._core.config.max_selector_terms_per_user
        if limit and self.terms[user] + sum(self.durable.get(user, {}).values()) + terms > limit:
            raise AccessError(
                f"the selectors of user {user!r} have {limit} terms already (maxSelectorTermsPerUser): end some "
                "subscriptions, or write several values of one property as a single IN",
                code=CODE,
            )

    def began(self, user: str, selector: Selector | None) -> None:
        """A consumer of that user is there. `selector` = its own; a durable subscription has it, not its consumers."""
        self.consumers[user] += 1
        if selector is not None:
            self.terms[user] += selector.terms

    def ended(self, user: str, selector: Selector | None) -> None:
        """A consumer of that user has ended, as `began`."""
        _reduce(self.consumers, user, 1)
        if selector is not None:
            _reduce(self.terms, user, selector.terms)


def _reduce(counts: Counter[str], user: str, by: int) -> None:
    counts[user] -= by
    if counts[user] <= 0:
        del counts[user]


def _names(command: Command) -> tuple[str, ...]:
    """Full names of the queues that `command` makes where they are not there."""
    if isinstance(command, SendToMany):
        return command.destinations
    if isinstance(command, Send):
        return (command.message.destination,)
    if isinstance(command, SendMany):
        return (command.like.destination,)
    if isinstance(command, Subscribe) and command.browse is None:
        return tuple(each for each in command.sources if isinstance(each, str))
    return ()
