"""A connection of one of two users: it speaks one protocol through the real codec, and notes all that its user sees.

Invariant: `seen` has no number that the broker gives out, because those depend on all that the broker does. Answers
with such numbers are noted without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from amq.broker.queues.queue import Subscription
from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import AmqError
from amq.core.message import Message
from amq.protocols.codec import Codec
from amq.protocols.commands import Command, Connect, Failure, Scope, Subscribe
from tests.broker.world import Client, World

USERS = ("alice", "eve")
NAMES = ("1", "2")  # that both use
QUEUE = "a"  # to which both may write
EMPTY = "empty"  # which both may read, and to which nobody writes
BOTH = "both"  # to which both write, and from where each leases at once what it has sent
TOPIC = "t"  # which both may read
CLIENT_ID = "c"  # of all
RULES = {
    "roles": {**{user: [user] for user in USERS}, "root": ["root"]},
    "queues": {
        QUEUE: {"write": ["*"]},
        EMPTY: {"read": ["*"]},
        BOTH: {"write": ["*"], "read": ["*"]},
        **{f"own.{user}.>": {"read": [user], "write": [user]} for user in USERS},
    },
    "topics": {TOPIC: {"read": ["*"], "write": ["root"]}},
    "batches": {f"owner{name}": {"write": [user]} for name, user in zip(NAMES, USERS, strict=True)},
}
_FACTS = ("messages", "waiting")  # of the answer to a lease


class Connected(Client):
    """A connection of one user. `protocol` None = it speaks the contract itself. `seen` = answers, errors, and
    deliveries; `given` = (consumer, number) of each delivery; `hear` gets each command that it says. `epochs` and
    `leases` = the newest of each cursor of the user."""

    def __init__(
        self,
        world: World,
        user: str,
        protocol: Codec | None,
        connect: Connect,
        hear: Callable[[Command], None],
        epochs: dict[str, int],
        leases: dict[str, int],
        number: str = "",
    ) -> None:
        """Raises AccessError."""
        self.epochs = epochs
        self.leases = leases
        self.user = user
        self.protocol = protocol
        self.seen: list[tuple[str, str]] = []
        self.given: list[tuple[str, int]] = []
        self._hear = hear
        super().__init__(world, connect.client_id, connect.instance, user, connect.exclusive, number)
        world.clients.append(self)

    @property
    def own(self) -> str:
        """A queue of this user alone."""
        return f"own.{self.user}"

    @property
    def own_name(self) -> str:
        return QUEUE_SCHEME + self.own

    def say(self, *frames: bytes | str) -> None:
        """The bytes of a client, in one read."""
        assert self.protocol is not None
        data = b"".join(each if isinstance(each, bytes) else each.encode() for each in frames)
        self.tell(*self.protocol.receive(data))

    def tell(self, *commands: Command) -> None:
        for command in commands:
            self._hear(command)
        self.session.handle(list(commands))

    def numbers(self, consumer: str, count: int) -> list[int]:
        """The last `count` messages that this consumer got; 0 = there is no such message."""
        found = [number for name, number in self.given if name == consumer][-count:]
        return found + [0] * (count - len(found))

    def lease(self) -> int:
        """The number of the lease that was answered last, 0 = none."""
        return self._answered("lease")

    def learn_lease(self, cursor: str) -> int:
        """The answer to what it said last has the newest lease of `cursor`."""
        self.world.settle()
        self.leases[cursor] = self.lease() or self.leases.get(cursor, 0)
        return self.leases[cursor]

    def learn_epoch(self, cursor: str) -> None:
        """The answer to what it said last has the epoch of `cursor`."""
        self.world.settle()
        self.epochs[cursor] = self._answered("epoch") or self.epochs.get(cursor, 0)

    def _answered(self, fact: str) -> int:
        answers = [json.loads(each) for each in self.outcomes if each.startswith("{")]
        return int(answers[-1][fact]) if answers else 0

    # -- Peer ----------------------------------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> object:
        return None if self.protocol is None else self.protocol.subscription(command, session)

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        if self.protocol is not None:
            self.protocol.delivery(subscription.wire, message, redelivered)
        self.given.append((subscription.id, message.seq))
        self._see("got", f"{subscription.id} {message.body.decode()} {redelivered}")

    def browsed(self, subscription: Subscription) -> None:
        self._see("browsed", subscription.id)

    def confirm(self, receipt: object, outcome: str = "") -> None:
        if self.protocol is not None:
            self.protocol.receipt(receipt, outcome)
        self._out.append(partial(self.outcomes.append, outcome))
        self._see("done", _without_numbers(outcome))

    def fail(self, failure: Failure) -> None:
        assert isinstance(failure.error, AmqError), failure.error
        if self._closing:
            return
        self._see("failed", failure.error.code)
        survives = frozenset(Scope) - {Scope.CONNECTION}
        if self.protocol is not None:
            self.protocol.error(failure)
            survives = self.protocol.survives
        if failure.scope not in survives:
            self.session.close()
            self.close()

    def _see(self, what: str, text: str) -> None:
        self._out.append(lambda: self.seen.append((what, text)))


def _without_numbers(outcome: str) -> str:
    if not outcome.startswith("{"):
        return outcome
    facts = json.loads(outcome)
    return json.dumps([bool(facts["lease"]), *(facts.get(name) for name in _FACTS)])


Action = Callable[[Connected, str, bytes], None]
