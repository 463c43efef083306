"""Permitted: what other rules mean for the consumers of a session that are there already.

Invariant: after `check_again` no consumer gets another message that the rules deny. A consumer that may have nothing at
all ends, and its client is told. So does a consumer for which forbidden messages wait already. A consumer of a pattern
goes on with the destinations that are allowed now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amq.broker.access import Access, Demand
from amq.broker.actions import Action
from amq.broker.names import SUBSCRIPTION_SCHEME, is_temporary
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import ConsumerOwner, Subscription
from amq.broker.topics.topics import TopicQueue
from amq.broker.topics.wildcards import TOPICS, WildcardSubscription, WildcardSubscriptions
from amq.broker.transactions.leasing import LeaseBrowser
from amq.core.destination import Pattern
from amq.core.errors import AmqError
from amq.security.login import User


def check_again(
    owner: ConsumerOwner,
    access: Access,
    wildcards: WildcardSubscriptions,
    user: User,
    subscriptions: Sequence[Subscription],
) -> None:
    """The rules of `access` are others than when these subscriptions of `user` began."""
    for subscription in subscriptions:
        try:
            for action, name in _demands(subscription):
                access.check(user, action, name)
            for source in subscription.sources:
                access.check_home(source)
            _check_waiting(access, user, subscription)
        except AmqError as error:
            owner.end_with(subscription, error)
            continue
        if isinstance(subscription, WildcardSubscription):
            wildcards.look_again(subscription)


def _demands(subscription: Subscription) -> Iterable[Demand]:
    is_durable = subscription.queue.name.startswith(SUBSCRIPTION_SCHEME)
    if isinstance(subscription, LeaseBrowser):
        yield Action.CONSUME, subscription.leased
        return
    for source in subscription.sources:
        name = str(source)
        if is_temporary(name):
            continue
        yield (Action.BROWSE if isinstance(subscription, Browser) else Action.CONSUME), name
        if is_durable:
            yield Action.CREATE_DURABLE, name


def _check_waiting(access: Access, user: User, subscription: Subscription) -> None:
    """Raises AccessError where it has, or is about to get, messages of a destination that is denied."""
    names: set[str] = set()
    if isinstance(subscription, WildcardSubscription):
        names = {name for name in subscription.branches if name != TOPICS}
        topics = subscription.branches.get(TOPICS)
        if topics is not None:
            names |= _waiting(topics.queue)
    elif isinstance(subscription, Browser):
        shows_several = any(isinstance(source, Pattern) for source in subscription.sources)
        if shows_several and subscription.queue.name not in map(str, subscription.sources):
            access.check(user, Action.BROWSE, subscription.queue.name)
        return
    else:
        names = _waiting(subscription.queue)
    for name in names:
        access.check(user, Action.CONSUME, name)


def _waiting(queue: object) -> set[str]:
    """The topics of the messages that wait for a subscription of several."""
    if not isinstance(queue, TopicQueue) or not any(isinstance(source, Pattern) for source in queue.sources):
        return set()
    return {message.destination for level in queue.levels for message in level}
