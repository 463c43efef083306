"""How much one turn does with selectors: by counts, not by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker import selecting
from amq.broker.queues.browser import STEP_MESSAGES
from amq.core.message import Message
from amq.protocols.commands import Browse, Filter, Send, Subscribe
from amq.protocols.stomp.subscribing import ACK_AUTO
from amq.selectors import compiler
from tests.broker.world import Client, World

asked = [0]
TURN = 400


@pytest.fixture
def counted(make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> World:
    """Each question to a selector is counted, and a turn has few steps."""
    real = compiler.compiled

    def counting(*of: object) -> Callable[[Message], bool]:
        matches = real(*of)  # type: ignore[arg-type]

        def count(message: Message) -> bool:
            asked[0] += 1
            return matches(message)

        return count

    monkeypatch.setattr("amq.selectors.selector.compiled", counting)
    monkeypatch.setattr(selecting, "TURN_STEPS", TURN)
    monkeypatch.setattr("amq.broker.broker.TURN_STEPS", TURN)
    asked[0] = 0
    return make_world()


def turns(world: World, done: Callable[[], bool]) -> list[int]:
    """Questions in each turn until `done`."""
    found = []
    while not done():
        before = asked[0]
        world.turn()
        world.runner.step()
        found.append(asked[0] - before)
        assert len(found) < 2000
    return found


def unplaced(number: int) -> str:
    """No index helps with it."""
    return f"p LIKE '%_a{number}%'"


def subscribe(world: World, destination: str, count: int, start: int = 0) -> Client:
    client = world.connect()
    for number in range(start, start + count):
        client.do(Subscribe(f"s{number}", destination, filter=Filter(unplaced(number))))
    world.settle()
    return client


def test_messages_for_very_many_selectors_go_out_over_several_turns(counted: World) -> None:
    subscribers = subscribe(counted, "topic://t", 300)
    plain = counted.connect()
    plain.subscribe("topic://u", ACK_AUTO)
    counted.settle()
    sender = counted.connect()
    for number in range(20):
        sender.do(Send(Message("topic://t", b"%d" % number, {"p": f"xxa{number}"})))
    sender.do(Send(Message("topic://u", b"other")))
    per_turn = turns(counted, lambda: len(plain.deliveries) == 1)
    assert max(per_turn) <= TURN, "a turn asks no more than it has steps for"
    assert asked[0] == 20 * 300, "each selector once for each message"
    counted.settle()
    assert sorted(delivery.body for delivery in subscribers.deliveries) == sorted(
        b"%d" % number for number in range(20) for other in range(300) if f"xxa{number}".find(f"a{other}", 1) >= 0
    )
    counted.check_at_rest()


def test_one_message_for_more_selectors_than_a_turn_has_steps_for_goes_out_at_once(counted: World) -> None:
    subscribers = subscribe(counted, "topic://t", TURN + 100)
    counted.connect().do(Send(Message("topic://t", b"x", {"p": "xxa7"})))
    assert turns(counted, lambda: bool(subscribers.deliveries))
    assert asked[0] == TURN + 100


def test_equal_selectors_share_one_answer(counted: World) -> None:
    clients = [counted.connect() for _ in range(50)]
    for client in clients:
        client.do(
            Subscribe("s", "topic://t", filter=Filter(unplaced(1))),
            Subscribe("q", "queue://q", filter=Filter(unplaced(1))),
        )
    counted.settle()
    asked[0] = 0
    sender = counted.connect()
    sender.do(Send(Message("topic://t", b"x", {"p": "zza1"})), Send(Message("queue://q", b"x", {"p": "none"})))
    counted.settle()
    assert asked[0] == 2
    assert all(len(client.deliveries) == 1 for client in clients)


def test_all_queues_share_the_steps_of_a_turn(counted: World) -> None:
    sender = counted.connect()
    for queue in range(5):
        for number in range(200):
            sender.do(Send(Message(f"queue://q{queue}", b"x", {"p": f"b{number}"})))
    counted.settle()
    client = counted.connect()
    last = counted.connect()
    for queue in range(5):
        client.do(Subscribe(f"c{queue}", f"queue://q{queue}", filter=Filter(unplaced(1))))
    last.do(Subscribe("l", "queue://q4", filter=Filter("p = 'b199'")))
    per_turn = turns(counted, lambda: len(last.deliveries) == 1)
    assert max(per_turn) <= TURN + 6 * selecting.STEPS_MIN
    counted.settle()
    counted.check_at_rest()


def test_a_dear_selector_costs_more_steps(counted: World) -> None:
    sender = counted.connect()
    for _ in range(300):
        sender.do(Send(Message("queue://q", b"x", {"p": "b"})))
    counted.settle()
    client = counted.connect()
    dear = " OR ".join(f"p LIKE '%x{number}'" for number in range(80))
    client.do(Subscribe("c", "queue://q", filter=Filter(dear), browse=Browse()))
    per_turn = turns(counted, lambda: bool(client.browsed_ids))
    assert max(per_turn) <= STEP_MESSAGES // 20
    assert len(per_turn) >= 300 * 21 // STEP_MESSAGES
