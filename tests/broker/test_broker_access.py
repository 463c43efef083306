"""Access: every command passes the door, and one that is denied changes nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from amq.broker import access
from amq.broker.access import DEMANDS, FREE, REMEMBERED_MAX, Action
from amq.broker.queues.rooms import MemoryRoom
from amq.broker.scheduling.scheduler import MANAGEMENT
from amq.broker.sessions.session import Session
from amq.core.destination import ANY_WORD, Pattern
from amq.core.errors import AccessError
from amq.core.message import Message
from amq.protocols import commands
from amq.protocols.commands import (
    AbortBatch,
    Begin,
    Browse,
    Command,
    CommitBatch,
    DeleteDestination,
    Finish,
    ForgetOutcome,
    LeaseMessages,
    ListPrepared,
    MakeTemporary,
    OpenProducer,
    Prepare,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    SettleLeases,
    Subscribe,
    Unsubscribe,
)
from amq.security.login import User
from tests.broker.world import Client, World
from tests.stored import stored_state

A, B = "queue://a", "queue://b"
# The demands of each command. The test below fails for a command that stands neither here nor in FREE.
CASES: list[tuple[Command, list[tuple[Action, str]]]] = [
    (Send(Message(A, b"x")), [(Action.SEND, A)]),
    (SendToMany(Message(f"{A},{B}", b"x"), (A, B)), [(Action.SEND, A), (Action.SEND, B)]),
    (Send(Message("topic://t", b"x")), [(Action.SEND, "topic://t")]),
    (Send(Message(A, b"x", {"AMQ_SCHEDULED_DELAY": "9"})), [(Action.SEND, A)]),
    (
        Send(Message(MANAGEMENT, b"", {"AMQ_SCHEDULER_ACTION": "REMOVEALL"})),
        [(Action.MANAGE_SCHEDULE, MANAGEMENT)],
    ),
    (SendMany(Message(A, b""), [b"x", b"y"], "t"), [(Action.SEND, A)]),
    (SendRun(Message(A, b""), [b"x", b"y"], ["r", "s"]), [(Action.SEND, A)]),
    (Subscribe("1", A), [(Action.CONSUME, A)]),
    (Subscribe("1", (A, Pattern("queue://", ("b", ANY_WORD)))), [(Action.CONSUME, A), (Action.CONSUME, "queue://b.*")]),
    (Subscribe("1", A, browse=Browse()), [(Action.BROWSE, A)]),
    (Subscribe("1", "temp-queue://r"), [(Action.CREATE_TEMPORARY, "temp-queue://r")]),
    (
        Subscribe("1", "topic://t", subscription_name="d"),
        [(Action.CONSUME, "topic://t"), (Action.CREATE_DURABLE, "topic://t")],
    ),
    (Unsubscribe("", subscription_name="d"), [(Action.DELETE_DURABLE, "d")]),
    (Prepare("t", "x1"), [(Action.PREPARE, "x1")]),
    (Prepare("t", "x1", owner="o", batch=1), [(Action.PREPARE, "x1"), (Action.PREPARE_BATCH, "o")]),
    (Finish("x1", True), [(Action.FINISH, "x1")]),
    (ForgetOutcome("x1"), [(Action.FINISH, "x1")]),
    (ListPrepared(), [(Action.LIST_PREPARED, "")]),
    (MakeTemporary("temp-queue://t"), [(Action.CREATE_TEMPORARY, "temp-queue://t")]),
    (DeleteDestination(A), [(Action.DELETE, A)]),
    (OpenProducer("p", f"{A},{B}"), [(Action.SEND, A), (Action.SEND, B)]),
    (DeleteDestination("topic://t"), [(Action.DELETE, "topic://t")]),
    (CommitBatch("o", 1, ["x1"]), [(Action.FINISH_BATCH, "o")]),
    (AbortBatch("o"), [(Action.FINISH_BATCH, "o")]),
    (LeaseMessages((A,), "c", 0, 1), [(Action.LEASE, A)]),
    (SettleLeases((A,), "c", 1, True), [(Action.LEASE, A)]),
]


def command_types() -> Iterator[type[Command]]:
    """All that a session may be given; `LoginStep` and `Connect` come before there is one."""
    for each in vars(commands).values():
        outside = (
            Command,
            commands.LoginStep,
            commands.Connect,
            commands.InSession,
        )  # the last one only says which session is meant
        if isinstance(each, type) and issubclass(each, Command) and each not in outside:
            yield each


def test_no_command_forgets_the_door() -> None:
    tried = {type(command) for command, _ in CASES}
    handled = set(Session.HANDLERS)
    for each in command_types():
        assert each in handled, f"{each.__name__}: no session carries it out"
        assert (each in DEMANDS) != (each in FREE), f"{each.__name__}: say in amq/broker/access.py what it demands"
        assert each in tried or each in FREE, f"{each.__name__}: add a case here"
    assert handled == set(command_types())


def denied(world: World, *allowed: Action) -> tuple[Client, list[tuple[str, Action, str]]]:
    """A client that may do what is `allowed`, and what was asked."""
    asked: list[tuple[str, Action, str]] = []

    def rules(user: User, action: Action, destination: str) -> bool:
        asked.append((user, action, destination))
        return action in allowed

    world.broker.access.use(rules)
    return world.connect("c", user="eve"), asked


def everything(world: World) -> object:
    """What a command can change."""
    broker = world.broker
    return (
        stored_state(broker.state, world.vfs, world.store),
        list(broker.state.queues),
        broker.topics.queues(),
        broker.memory.taken_bytes,
        list(broker.topics.arrived),
        dict(broker.dirty),
        broker.journal.idle(),
    )


@pytest.mark.parametrize(("command", "demands"), CASES, ids=lambda each: type(each).__name__)
def test_a_command_that_is_denied_changes_nothing(
    world: World, command: Command, demands: list[tuple[Action, str]]
) -> None:
    world.connect().send(b"order", "a")
    world.settle()
    client, asked = denied(world)
    client.session.handle([Begin("t")])
    before = everything(world)
    command.receipt = "r"
    client.session.handle([command])
    assert asked == [(User("eve"), *demands[0])]
    assert everything(world) == before
    world.settle()
    assert client.errors == [("NOT_PERMITTED", "r")]
    assert not client.confirmed
    world.check_at_rest()


@pytest.mark.parametrize(("command", "demands"), CASES, ids=lambda each: type(each).__name__)
def test_all_that_a_command_is_is_asked(world: World, command: Command, demands: list[tuple[Action, str]]) -> None:
    _, asked = denied(world, *Action)
    world.broker.access.let_in(User("eve"), command)
    assert asked == [(User("eve"), *demand) for demand in demands]


def test_the_error_says_what_to_do(world: World) -> None:
    denied(world)
    with pytest.raises(AccessError) as raised:
        world.broker.access.check(User("eve"), Action.CREATE_DURABLE, "topic://t")
    assert str(raised.value) == (
        "user 'eve' may not create a durable subscription to /topic/t: log in as a user who may, or ask an "
        "administrator of the broker for this right"
    )
    assert raised.value.code == "NOT_PERMITTED"


def test_a_send_is_asked_once_for_each_destination_until_the_rules_change(world: World) -> None:
    client, asked = denied(world, Action.SEND)
    other = world.connect("d", user="eve")
    for _ in range(3):
        client.send(b"x", "a")
        other.send(b"x", "a")
    client.send(b"x", "b")
    assert [destination for _, _, destination in asked] == [A, B]
    world.settle()
    assert not client.errors
    world.broker.access.use(lambda *_: False)
    client.send(b"x", "a")
    world.settle()
    assert [code for code, _ in client.errors] == ["NOT_PERMITTED"]


def test_what_is_remembered_is_bounded_and_goes_with_the_last_session(world: World) -> None:
    client, _ = denied(world, Action.SEND)
    door = world.broker.access
    for number in range(3 * REMEMBERED_MAX):
        door.let_in(User("eve"), Send(Message(f"queue://{number}", b"")))
        assert len(client.session.sendable) <= REMEMBERED_MAX
    door.let_in(User("eve"), Send(Message("queue://" + "n" * access.REMEMBERED_CHARS_MAX, b"")))
    assert all(len(name) <= access.REMEMBERED_CHARS_MAX for name in client.session.sendable)
    assert len(door._remembered) == 1
    world.lose(client)
    world.clients.clear()
    del client
    gc.collect()  # the tests' clients and their sessions refer to each other
    assert not door._remembered


def test_one_user_learns_nothing_of_another(world: World) -> None:
    def rules(user: User, action: Action, destination: str) -> bool:  # noqa: ARG001
        return user.name == "alice"

    world.broker.access.use(rules)
    alice, bob = world.connect(user="alice"), world.connect(user="bob")
    alice.send(b"x", "a")
    bob.send(b"x", "a")
    world.settle()
    assert not alice.errors
    assert [code for code, _ in bob.errors] == ["NOT_PERMITTED"]


@pytest.mark.deep
def test_what_waits_for_room_is_asked_again_when_its_turn_comes(world: World) -> None:
    """Nobody sends after the right was taken away, also not what waited in the session."""
    client, asked = denied(world, Action.SEND)
    session = client.session.sessions[0]
    session.stall(Send(Message(B, b"x")), MemoryRoom(world.broker))
    world.broker.access.use(lambda *_: False)
    session.unstall()
    world.settle()
    assert not asked
    assert [code for code, _ in client.errors] == ["NOT_PERMITTED"]
    assert B not in world.broker.state.queues
