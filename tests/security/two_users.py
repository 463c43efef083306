"""Two users of one broker who give their things the same names, over every protocol: who sees what.

A `Step` is one action of one user over one protocol, on a connection made for it. `play` carries out a script against a
real broker core through the real codecs, and returns what each user was told and what of each is stored. Invariant
that tests assert: what a user is told, gets and keeps is the same with and without the steps of the other.

To add an action put it into the `ACTIONS` of each protocol that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from amq.destination import QUEUE_SCHEME
from amq.errors import AmqError
from amq.message import Message
from amq.protocols.base import ServerProtocol
from amq.protocols.commands import (
    Begin,
    Command,
    Commit,
    Connect,
    Failure,
    Finish,
    ForgetOutcome,
    ListPrepared,
    Prepare,
    Send,
    Subscribe,
    Unsubscribe,
)
from amq.protocols.openwire import table
from amq.protocols.openwire.server import OpenWireServer
from amq.protocols.openwire.table import Structure, frame, structure
from amq.protocols.openwire.transactions import BEGIN, COMMIT_ONE, COMMIT_TWO, FORGET, PREPARE, RECOVER, ROLLBACK
from amq.protocols.stomp.server import StompServer
from amq.security.permissions import Permissions
from tests.broker.world import Client, World
from tests.protocols.openwire.conversation import greeting, said

USERS = ("alice", "eve")
NAMES = ("1", "2")  # that both use
QUEUE = "a"  # to which both may write
TOPIC = "t"  # which both may read
RULES = {"queues": {QUEUE: {"write": ["*"]}}, "topics": {TOPIC: {"read": ["*"]}}}
Seen = tuple[tuple[str, str], ...]  # ("done", how) or ("failed", code)


class Step(NamedTuple):
    """`user` does `action` with something called `name`. A step of user "" is the broker's: its master dies, and
    another one takes over."""

    user: str
    protocol: str = ""
    action: str = ""
    name: str = ""


TAKEOVER = Step("")


class Connected(Client):
    """A connection of one user. `seen` = what it was told, whatever tokens its protocol has."""

    def __init__(self, world: World, user: str) -> None:
        super().__init__(world, "the client", user=user)
        world.clients.append(self)
        self.seen: list[tuple[str, str]] = []

    def confirm(self, receipt: object, outcome: str = "") -> None:  # noqa: ARG002
        self._out.append(lambda: self.seen.append(("done", outcome)))

    def fail(self, failure: Failure) -> None:
        assert isinstance(failure.error, AmqError), failure.error
        code = failure.error.code
        self._out.append(lambda: self.seen.append(("failed", code)))

    def say(self, protocol: ServerProtocol, data: bytes) -> None:
        """The bytes of a client, but for its login."""
        commands: list[Command] = [each for each in protocol.receive(data) if not isinstance(each, Connect)]
        self.session.handle(commands)


Action = Callable[[Connected, str, bytes], None]


# -- the contract ------------------------------------------------------------------------------------------------------


def _send(client: Connected, name: str, body: bytes) -> None:
    client.session.handle([Send(Message(QUEUE_SCHEME + QUEUE, body, duplicate_id=name), "r")])


def _commit(client: Connected, name: str, body: bytes) -> None:
    sent = Send(Message(QUEUE_SCHEME + QUEUE, body, duplicate_id=name), "s", "t")
    client.session.handle([Begin("t", "b"), sent, Commit("t", "c", f"outcome {name}")])


def _commit_nothing(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    client.session.handle([Begin("t", "b"), Commit("t", "c", f"outcome {name}")])


def _ask(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    client.session.handle([Commit("t", "c", f"outcome {name}")])


def _prepare(client: Connected, name: str, body: bytes) -> None:
    sent = [Send(Message(QUEUE_SCHEME + QUEUE, body), "s", "t")] * (name == NAMES[0])  # the other one does nothing
    client.session.handle([Begin("t", "b"), *sent, Prepare("t", f"xid {name}", receipt="p")])


def _does(*make: Callable[[str], Command]) -> Action:
    return lambda client, name, _: client.session.handle([each(name) for each in make])


# -- STOMP -------------------------------------------------------------------------------------------------------------


def _stomp(client: Connected, *frames: str) -> None:
    server = StompServer()
    client.say(server, "".join(f"{each}\0" for each in ("CONNECT\naccept-version:1.2\nhost:/\n\n", *frames)).encode())


def _stomp_send(name: str, body: bytes, more: str = "") -> str:
    return f"SEND\ndestination:/queue/{QUEUE}\n_AMQ_DUPL_ID:{name}\nreceipt:s\npersistent:true\n{more}\n{body.decode()}"


def _stomp_commit(name: str) -> str:
    return f"COMMIT\ntransaction:t\namq-outcome-id:outcome {name}\nreceipt:c\n\n"


def _stomp_prepare(client: Connected, name: str, body: bytes) -> None:
    send = _stomp_send(f"p{name}", body, "transaction:t\n").replace(f"_AMQ_DUPL_ID:p{name}\n", "")
    _stomp(client, _STOMP_BEGIN, send, f"COMMIT\ntransaction:t\nphase:prepare\nxid:xid {name}\nreceipt:p\n\n")


def _stomp_end(command: str) -> Action:
    return lambda client, name, _: _stomp(client, f"{command}\nxid:xid {name}\nreceipt:f\n\n")


_STOMP_DURABLE = f"SUBSCRIBE\nid:1\ndestination:/topic/{TOPIC}\nreceipt:u\nactivemq.subscriptionName:"
_STOMP_BEGIN = "BEGIN\ntransaction:t\nreceipt:b\n\n"


# -- OpenWire ----------------------------------------------------------------------------------------------------------


def _openwire(client: Connected, name: str, *frames: bytes) -> None:
    server = OpenWireServer()
    info = said(table.CONNECTION_INFO, 1, id=_connection(name), client_id="c", fault_tolerant=True)
    client.say(server, b"".join((greeting(), info, *frames)))


def _connection(name: str) -> Structure:
    return structure(table.CONNECTION_ID, value=f"ID:host-{name}:1")


def _openwire_message(name: str, body: bytes, **more: object) -> bytes:
    producer = structure(table.PRODUCER_ID, connection=f"ID:host-{name}:1", session=1, value=1)
    fields = {
        "producer": producer, "destination": structure(table.QUEUE, name=QUEUE), "persistent": True, "content": body,
        "id": structure(table.MESSAGE_ID, producer=producer, producer_sequence=7), "priority": 4, "command_id": 9,
        "response_required": True, **more,
    }  # fmt: skip
    return frame(Structure(table.BYTES_MESSAGE, fields), 12)


def _transaction(name: str) -> Structure:
    return structure(table.LOCAL_TRANSACTION_ID, connection=_connection(name), value=1)


def _openwire_commits(name: str, *messages: bytes) -> tuple[bytes, ...]:
    fields = {"connection": _connection(name), "transaction": _transaction(name)}
    begin = said(table.TRANSACTION_INFO, 2, True, kind=BEGIN, **fields)
    return begin, *messages, said(table.TRANSACTION_INFO, 3, True, kind=COMMIT_ONE, **fields)


def _xa(name: str) -> Structure:
    return structure(table.XA_TRANSACTION_ID, format=1, global_id=f"xid {name}".encode(), branch=b"b")


def _openwire_xa(*kinds: int) -> Action:
    def act(client: Connected, name: str, body: bytes) -> None:
        """A prepare has a message between begin and end."""
        steps = [
            said(table.TRANSACTION_INFO, 2 + number, True, kind=kind, connection=_connection(name),
                 transaction=_xa(name) if kind != RECOVER else None)
            for number, kind in enumerate(kinds)
        ]  # fmt: skip
        sends = [_openwire_message(name, body, transaction=_xa(name))] if BEGIN in kinds else []
        _openwire(client, name, *steps[:1], *sends, *steps[1:])

    return act


def _openwire_unsubscribe(client: Connected, name: str, body: bytes) -> None:  # noqa: ARG001
    fields = {"connection": _connection(name), "name": f"durable {name}", "client_id": "c"}
    _openwire(client, name, said(table.REMOVE_SUBSCRIPTION_INFO, 2, True, **fields))


ACTIONS: Mapping[str, Mapping[str, Action]] = {
    "contract": {"send": _send, "commit": _commit, "commit nothing": _commit_nothing, "ask": _ask,
        "prepare": _prepare,
        "ask for a prepare": _does(lambda name: Prepare("t", f"xid {name}", receipt="p")),
        "end": _does(lambda name: Finish(f"xid {name}", True, "f")),
        "roll back": _does(lambda name: Finish(f"xid {name}", False, "f")),
        "forget": _does(lambda name: ForgetOutcome(f"xid {name}", "f")),
        "list": _does(lambda _: ListPrepared("l")),
        "subscribe": _does(lambda name: Subscribe("1", f"topic://{TOPIC}", subscription_name=name, receipt="u")),
        "unsubscribe": _does(lambda name: Unsubscribe("", "u", name)),
    },
    "stomp": {
        "send": lambda client, name, body: _stomp(client, _stomp_send(name, body)),
        "commit": lambda client, name, body: _stomp(
            client, _STOMP_BEGIN, _stomp_send(name, body, "transaction:t\n"), _stomp_commit(name)
        ),
        "commit nothing": lambda client, name, _: _stomp(client, _STOMP_BEGIN, _stomp_commit(name)),
        "ask": lambda client, name, _: _stomp(client, _stomp_commit(name)),
        "prepare": _stomp_prepare, "end": _stomp_end("COMMIT"), "roll back": _stomp_end("ABORT"),
        "subscribe": lambda client, name, _: _stomp(client, f"{_STOMP_DURABLE}{name}\n\n"),
        "unsubscribe": lambda client, name, _: _stomp(
            client, f"UNSUBSCRIBE\nid:1\nreceipt:u\nactivemq.subscriptionName:{name}\n\n"
        ),
    },
    "openwire": {
        "send": lambda client, name, body: _openwire(client, name, _openwire_message(name, body)),
        "commit": lambda client, name, body: _openwire(
            client, name, *_openwire_commits(name, _openwire_message(name, body, transaction=_transaction(name)))
        ),
        "ask": lambda client, name, _: _openwire(client, name, _openwire_commits(name)[-1]),
        "prepare": _openwire_xa(BEGIN, PREPARE), "ask for a prepare": _openwire_xa(PREPARE),
        "end": _openwire_xa(COMMIT_TWO), "end at once": _openwire_xa(BEGIN, COMMIT_ONE),
        "roll back": _openwire_xa(ROLLBACK), "forget": _openwire_xa(FORGET), "list": _openwire_xa(RECOVER),
        "unsubscribe": _openwire_unsubscribe,
    },
}
STEPS = [(protocol, action) for protocol, actions in ACTIONS.items() for action in actions]


class Witness(NamedTuple):
    """Everything that one user saw: answers to each step, and what of this user is stored after it."""

    answers: tuple[Seen, ...]
    stored: tuple[tuple[bytes, ...], ...]


def play(world: World, script: Iterable[Step]) -> dict[str, Witness]:
    """What each user saw."""
    answers: dict[str, list[Seen]] = {user: [] for user in USERS}
    kept: dict[str, list[tuple[bytes, ...]]] = {user: [] for user in USERS}
    rules = Permissions.of(RULES, "permissions.toml")
    world.broker.permit(rules)
    for step in script:
        if step == TAKEOVER:
            world.crash_and_recover()
            world.broker.permit(rules)
            continue
        client = Connected(world, step.user)
        own = len(answers[step.user])
        ACTIONS[step.protocol][step.action](client, step.name, f"{step.user} {own}".encode())
        world.settle()
        answers[step.user].append(tuple(client.seen))
        kept[step.user].append(tuple(b for b in world.stored(QUEUE) if b.startswith(step.user.encode())))
        client.lose()
        world.settle()
    world.check_at_rest()
    return {user: Witness(tuple(answers[user]), tuple(kept[user])) for user in USERS}


def alone(script: Iterable[Step], user: str) -> list[Step]:
    """The script without the steps of the other user."""
    return [step for step in script if step.user in ("", user)]
