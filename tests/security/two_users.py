"""Two users of one broker who give their things the same names, over every protocol: what each of them sees.

A `Step` is one action of one user over one protocol. Most actions have a connection for themselves; "open" leaves its
connection open, and "settle" and "leave" go on with it. `play` carries out a script against a real broker core through
the real codecs, and returns what each user saw and what of each is stored. Invariant that tests assert: a user sees,
gets and keeps the same with and without the steps of the other.

To add an action put it into the `ACTIONS` of each protocol that has it: see `contract_actions`, `stomp_actions` and
`openwire_actions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from amq.core.destination import TOPIC_SCHEME
from amq.core.errors import AmqError
from amq.core.message import Message
from amq.protocols.codec import Codec
from amq.protocols.commands import Command, Connect, Send
from amq.security.permissions import Permissions
from tests.broker.world import World
from tests.security import contract_actions, openwire_actions, stomp_actions
from tests.security.user_client import QUEUE, RULES, TOPIC, USERS, Action, Connected

OPEN, GOES_ON, LEAVE = "open", ("settle", "leave"), "leave"
ACTIONS: Mapping[str, Mapping[str, Action]] = {
    "contract": contract_actions.ACTIONS,
    "stomp": stomp_actions.ACTIONS,
    "openwire": openwire_actions.ACTIONS,
}
CONNECT: Mapping[str, Callable[[str, str], tuple[Codec | None, list[Command]]]] = {
    "contract": contract_actions.connect,
    "stomp": stomp_actions.connect,
    "openwire": openwire_actions.connect,
}
STEPS = [(protocol, action) for protocol, actions in ACTIONS.items() for action in actions]
Seen = tuple[tuple[str, str], ...]  # ("done", how), ("failed", code), ("got", what) or ("browsed", consumer)
Hear = Callable[[str, Command], None]


class Step(NamedTuple):
    """`user` does `action` with something called `name`. A step of user "" belongs to both."""

    user: str
    protocol: str = ""
    action: str = ""
    name: str = ""


TAKEOVER = Step("")  # the master dies, and another one takes over
PUBLISH = Step("", action="publish")  # somebody else publishes to the topic


class Witness(NamedTuple):
    """Everything that one user saw: on all connections up to the end of each step, and what of this user is stored
    after it, in the shared queue and in all."""

    answers: tuple[tuple[Seen, ...], ...]
    stored: tuple[tuple[tuple[bytes, ...], tuple[bytes, ...]], ...]


class _Stage:
    """One broker, and all connections that the users have made."""

    def __init__(self, world: World, hear: Hear) -> None:
        self.world = world
        self.hear = hear
        self.published = 0
        self.connections: dict[str, list[Connected]] = {user: [] for user in USERS}
        self.left_open: dict[tuple[str, str, str], Connected] = {}  # by user, protocol, name
        # By user: epochs and leases by cursor.
        self.of_cursors: dict[str, tuple[dict[str, int], dict[str, int]]] = {user: ({}, {}) for user in USERS}
        self.refused: dict[str, list[tuple[str, str]]] = {user: [] for user in USERS}
        self.permit()

    def permit(self) -> None:
        self.world.broker.permit(Permissions.of(RULES, "permissions.toml"))

    def take_over(self) -> None:
        self.world.crash_and_recover()
        self.permit()
        self.left_open.clear()

    def publish(self) -> None:
        self.published += 1
        client = Connected(self.world, "root", None, Connect(), partial(self.hear, ""), {}, {})
        client.tell(Send(Message(TOPIC_SCHEME + TOPIC, b"published %d" % self.published)))
        self.world.settle()
        self.world.lose(client)

    def act(self, step: Step, body: bytes) -> None:
        key = step.user, step.protocol, step.name
        client = self.left_open.get(key) if step.action in GOES_ON else self.login(step)
        if client is None or client.refused:
            return
        ACTIONS[step.protocol][step.action](client, step.name, body)
        self.world.settle()
        if step.action == OPEN:
            self.left_open[key] = client
        elif step.action == LEAVE or step.action not in GOES_ON:
            self.world.lose(client)

    def login(self, step: Step) -> Connected | None:
        """A connection of that user, None = the broker refuses it."""
        number = self.world.next_receipt()
        protocol, (connect, *_) = CONNECT[step.protocol](step.name, number)
        assert isinstance(connect, Connect)
        self.hear(step.protocol, connect)
        try:
            hear, of_cursors = partial(self.hear, step.protocol), self.of_cursors[step.user]
            client = Connected(self.world, step.user, protocol, connect, hear, *of_cursors, number)
        except AmqError as error:
            self.refused[step.user].append(("failed", error.code))
            return None
        if protocol is not None:
            protocol.connected("1")
        self.connections[step.user].append(client)
        return client

    def take_seen(self, user: str) -> tuple[Seen, ...]:
        """All that `user` saw since it was asked for last."""
        found = [tuple(self.refused[user]), *(tuple(each.seen) for each in self.connections[user])]
        for each in self.connections[user]:
            each.seen.clear()
        self.refused[user].clear()
        return tuple(filter(None, found))

    def kept(self, user: str) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        own = user.encode()
        queues = self.world.broker.state.queues.values()
        everything = sorted(each.body for queue in queues for each in self.world.everything(queue).values())
        shared = self.world.stored(QUEUE)
        return tuple(b for b in shared if b.startswith(own)), tuple(b for b in everything if b.startswith(own))


def play(world: World, script: Iterable[Step], hear: Hear = lambda *_: None) -> dict[str, Witness]:
    """What each user saw. `hear` gets the protocol and each command."""
    stage = _Stage(world, hear)
    answers: dict[str, list[tuple[Seen, ...]]] = {user: [] for user in USERS}
    kept: dict[str, list[tuple[tuple[bytes, ...], tuple[bytes, ...]]]] = {user: [] for user in USERS}
    for step in script:
        if step == TAKEOVER:
            stage.take_over()
        elif step == PUBLISH:
            stage.publish()
        else:
            stage.act(step, f"{step.user} {len(kept[step.user])}".encode())
            answers[step.user].append(stage.take_seen(step.user))
            kept[step.user].append(stage.kept(step.user))
    world.check_at_rest()
    for user in USERS:
        answers[user].append(stage.take_seen(user))
    return {user: Witness(tuple(answers[user]), tuple(kept[user])) for user in USERS}


def alone(script: Iterable[Step], user: str) -> list[Step]:
    """The script without the steps of the other user."""
    return [step for step in script if step.user in ("", user)]
