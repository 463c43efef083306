"""Turn: who waits for a moment of the clock is served at that moment, though nothing comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.transports.turn import UNASKED_DELAY_S, Turn
from tests.broker.test_broker_dead_letters import send
from tests.broker.world import Client, World


class Timer:
    def __init__(self, loop: Loop, at_s: float, act: Callable[[], None]) -> None:
        self.at_s, self.act = at_s, act
        self._loop = loop
        loop.timers.append(self)

    def cancel(self) -> None:
        self._loop.timers.remove(self)


class Loop:
    """Timers go off by the world's clock, and when the test says so."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def call_soon(self, act: Callable[[], None]) -> None:
        self.soon.append(act)

    def call_later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        return Timer(self, self.world.clock.monotonic() + delay_s, act)

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def sleep(self) -> float:
        """Until the first timer goes off; returns how long that was."""
        timer = min(self.timers, key=lambda timer: timer.at_s)
        slept_s = timer.at_s - self.world.clock.monotonic()
        self.world.clock.advance(slept_s)
        self.timers.remove(timer)
        timer.act()
        self.run()
        return slept_s


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, redelivery_delay_s=5.0)
    yield world
    world.close()


def test_one_alarm_for_what_is_due_first(world: World) -> None:
    loop: Any = Loop(world)
    turn = Turn(loop)
    send(world, b"1", b"2")
    client = world.consumer()
    turn.serve(world.broker, world.journal, lambda: world.valid)
    loop.run()
    assert not loop.timers
    client.nack(b"1", requeue=True)
    world.settle()
    for _ in range(3):
        turn.wake()
        loop.run()
    assert len(loop.timers) == 1
    world.clock.advance(2.0)
    client.nack(b"2", requeue=True)
    world.settle()
    turn.wake()
    loop.run()
    assert len(loop.timers) == 1
    assert loop.sleep() == pytest.approx(3.0)
    client.send_out()
    assert client.bodies == [b"1", b"2", b"1"]
    assert loop.sleep() == pytest.approx(2.0)
    client.send_out()
    assert client.bodies == [b"1", b"2", b"1", b"2"]
    assert not loop.timers


def test_an_earlier_one_takes_the_place_of_the_alarm(world: World) -> None:
    loop: Any = Loop(world)
    turn = Turn(loop)
    turn.serve(world.broker, world.journal, lambda: world.valid)
    send(world, b"late", b"early")
    client = world.consumer()
    for body, delay_s in ((b"late", 9.0), (b"early", 1.0)):
        world.broker.reconfigure(type(world.config)(store=world.store, redelivery_delay_s=delay_s))
        client.nack(body, requeue=True)
        world.settle()
        turn.wake()
        loop.run()
    assert [loop.sleep() for _ in range(2)] == [pytest.approx(1.0), pytest.approx(8.0)]
    client.send_out()
    assert client.bodies == [b"late", b"early", b"early", b"late"]


def test_nothing_rings_when_the_mastership_is_over(world: World) -> None:
    loop: Any = Loop(world)
    turn = Turn(loop)
    send(world, b"1")
    client = world.consumer()
    client.nack(b"1", requeue=True)
    world.settle()
    turn.serve(world.broker, world.journal, lambda: world.valid)
    loop.run()
    assert loop.timers
    turn.stop()
    assert not loop.timers


def test_an_alarm_in_doubt_waits_for_the_lease(world: World) -> None:
    loop: Any = Loop(world)
    turn = Turn(loop)
    send(world, b"1")
    client = world.consumer()
    client.nack(b"1", requeue=True)
    world.settle()
    turn.serve(world.broker, world.journal, lambda: world.valid)
    loop.run()
    world.valid = False
    loop.sleep()
    client.send_out()
    assert client.bodies == [b"1"]
    assert not loop.timers
    world.valid = True
    turn.wake()  # as Mastership.lease_renewed does
    loop.run()
    client.send_out()
    assert client.bodies == [b"1", b"1"]


def test_a_turn_that_fails_is_not_the_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = Loop(world)
    turn = Turn(loop)
    turn.serve(world.broker, world.journal, lambda: world.valid)
    loop.run()
    with monkeypatch.context() as patch:
        patch.setattr(world.journal, "flush", lambda *_: 1 // 0)
        turn.wake()
        with pytest.raises(ZeroDivisionError):
            loop.run()
    turn.wake()
    assert loop.soon
    loop.run()


def lone_consumer(world: World) -> tuple[Any, Client]:
    """A loop whose turns serve the world, and a consumer that has the first of its messages."""
    loop: Any = Loop(world)
    turn = Turn(loop)
    world.broker.wake = turn.wake
    turn.serve(world.broker, world.journal, lambda: world.valid)
    send(world, b"0")
    client = world.consumer()
    loop.run()
    client.send_out()
    return loop, client


def test_an_acknowledgement_goes_with_the_next_message(world: World) -> None:
    """A lone producer and consumer need one sync a message, also where the timer of an earlier one goes off between."""
    loop, client = lone_consumer(world)
    batches = world.journal.batches
    for number in range(1, 20):
        client.ack(client.bodies[-1], receipt=False)
        loop.run()
        while loop.timers[0].at_s < world.clock.monotonic() + UNASKED_DELAY_S / 3:
            loop.sleep()
        world.clock.advance(UNASKED_DELAY_S / 3)
        client.send(b"%d" % number)
        loop.run()
        client.send_out()
        assert client.bodies[-1] == b"%d" % number
        assert world.journal.batches == batches + number


def test_an_acknowledgement_waits_for_company_no_longer_than_twice_the_delay(world: World) -> None:
    loop, client = lone_consumer(world)
    client.ack(b"0", receipt=False)
    loop.run()
    world.clock.advance(UNASKED_DELAY_S / 2)
    client.send(b"1")
    loop.run()
    client.send_out()
    client.ack(b"1", receipt=False)
    loop.run()
    came_s, batches = world.clock.monotonic(), world.journal.batches
    while world.journal.batches == batches:
        loop.sleep()
    assert UNASKED_DELAY_S <= world.clock.monotonic() - came_s <= 2 * UNASKED_DELAY_S
    assert not world.journal.open


class Output:
    """A connection whose output is noted when it leaves."""

    def __init__(self, left: list[str], name: str) -> None:
        self._left = left
        self._name = name

    def send_out(self, now: bool = False) -> None:
        assert now == (self._name == "receipt" and not self._left)
        self._left.append(self._name)


@pytest.mark.parametrize(
    ("talkers", "order"), [(2, ["receipt", "work", "delivery"]), (3, ["work", "delivery", "receipt"])]
)
def test_a_lone_producer_has_its_receipt_before_others_get_messages(
    world: World, monkeypatch: pytest.MonkeyPatch, talkers: int, order: list[str]
) -> None:
    loop: Any = Loop(world)
    turn = Turn(loop)
    turn.serve(world.broker, world.journal, lambda: world.valid)
    loop.run()
    left: list[str] = []
    turn.talkers.extend(range(talkers))
    turn.unsent[Output(left, "receipt")] = None

    def dispatch() -> None:
        left.append("work")
        turn.unsent[Output(left, "delivery")] = None

    monkeypatch.setattr(world.broker, "dispatch", dispatch)
    world.valid = False
    turn.wake()
    loop.run()
    assert left == []
    world.valid = True
    turn.wake()
    loop.run()
    assert left == order
