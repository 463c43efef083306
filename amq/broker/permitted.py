"""Permitted: the rights of a permissions file as the door asks for them, action by action.

Invariants: the answer says nothing of what the broker has; whoever may read a queue may not thereby read another one,
whatever pattern, durable subscription or lease names it. A subscription to a pattern is let in where some destination
could be read, and gets those that may be read. A durable subscription, for which messages wait while nobody looks,
needs the right on the whole pattern. `amq.broker.transactions.rights` says who may end a prepared transaction.
The batches of an owner, for which a marker stays when all its transactions have ended, need a separate right.
"""

from __future__ import annotations

from typing import Final

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.names import (
    ADVISORY_PREFIX,
    PREPARED_NAME,
    SCHEDULE_SCHEME,
    SUBSCRIPTION_SCHEME,
    is_temporary,
)
from amq.broker.transactions.rights import demands
from amq.core.destination import Pattern, source
from amq.security.login import User
from amq.security.permissions import BATCHES_SCHEME, Permissions, Right

# JMS clients cannot do without these. They tell of temporary destinations only.
FREE_ADVISORIES: Final = {ADVISORY_PREFIX + "TempQueue", ADVISORY_PREFIX + "TempTopic"}
_SEES: Final = (Right.READ, Right.BROWSE, Right.ADMIN)
_FREE: Final = {Action.CREATE_TEMPORARY, Action.DELETE_DURABLE, Action.PREPARE, Action.LIST_PREPARED, Action.FINISH}
_MANAGES: Final = {Action.MANAGE_SCHEDULE, Action.MANAGE, Action.FINISH_OTHERS}


class FileRules:
    """The rules as far as the file alone decides: on all but what ends batches, and on destinations and owners of
    batches, but not on the queues of durable subscriptions."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions

    def __call__(self, user: User, action: Action, name: str) -> bool:
        """May `user`?"""
        if action in _FREE:  # what they are about is asked where it is known
            return True
        if action in _MANAGES:
            return self._permissions.may_manage(user)
        if action is Action.PREPARE_BATCH:
            return self._may_batch(user, name)
        if action is Action.SEND:
            return is_temporary(name) or self._permissions.may(user, Right.WRITE, name)
        if action is Action.DELETE or action is Action.ADMINISTER:
            return self._permissions.may(user, Right.ADMIN, name)
        if action is Action.VIEW:
            seen = any(self._permissions.may(user, right, name) for right in _SEES)
            return seen or self._permissions.may_manage(user)
        if action is Action.BROWSE:
            return self._may_browse(user, name)
        return self._may_read(user, action, name)

    def _may_browse(self, user: User, name: str) -> bool:
        if name == PREPARED_NAME or name.startswith(SCHEDULE_SCHEME):
            return self._permissions.may_manage(user)
        if is_temporary(name):  # only its own connection browses it
            return True
        found = source(name)
        if isinstance(found, Pattern):
            return any(self._permissions.may_some(user, right, *found) for right in (Right.BROWSE, Right.READ))
        return any(self._permissions.may(user, right, name) for right in (Right.BROWSE, Right.READ))

    def _may_read(self, user: User, action: Action, name: str) -> bool:
        if name in FREE_ADVISORIES or is_temporary(name):
            return True
        found = source(name)
        if not isinstance(found, Pattern):
            return self._permissions.may(user, Right.READ, name)
        if action is Action.CONSUME:
            return self._permissions.may_some(user, Right.READ, *found)
        return self._permissions.may_all(user, Right.READ, *found)

    def _may_batch(self, user: User, owner: str) -> bool:
        """A batch that somebody else commits for an owner makes the broker take the owner's own for a repetition."""
        return self._permissions.may(user, Right.WRITE, BATCHES_SCHEME + owner)


class PermittedRules(FileRules):
    """The rules for the door: see `Access.use`."""

    def __init__(self, permissions: Permissions, core: Core) -> None:
        super().__init__(permissions)
        self._core = core

    def __call__(self, user: User, action: Action, name: str) -> bool:
        """May `user`?"""
        if action is Action.FINISH_BATCH:
            may_end = self._may_batch(user, name) and self._may_end_all(user, name)
            return may_end or self._permissions.may_manage(user)
        return super().__call__(user, action, name)

    def _may_read(self, user: User, action: Action, name: str) -> bool:
        if name.startswith(SUBSCRIPTION_SCHEME):
            return self._may_read_all_of(user, name)
        return super()._may_read(user, action, name)

    def _may_read_all_of(self, user: User, queue: str) -> bool:
        """Whatever waits in that queue of a durable subscription?"""
        record = self._core.state.subscriptions.get(queue) or self._core.state.subscriptions.coming.get(queue)
        if record is None:
            return False
        return all(self._may_read(user, Action.CREATE_DURABLE, str(each)) for each in record.sources)

    def _may_end_all(self, user: User, owner: str) -> bool:
        """All that the prepared transactions of these batches do?"""
        wanted = {demand for each in self._core.state.prepared.of_owner(owner) for demand in demands(each)}
        return all(self(user, *demand) for demand in wanted)
