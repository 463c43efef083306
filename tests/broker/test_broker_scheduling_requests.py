"""What clients may ask of the scheduler: to look, to take back; and what is refused."""

from __future__ import annotations

import pytest

from amq.broker.scheduling.timing import TIME_MAX_MS
from amq.core.message import Message
from amq.protocols.commands import Send
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.test_broker_scheduling import DELAY, SCHEDULED, later, schedule, scheduled
from tests.broker.world import Client, World


def management(world: World, **headers: str) -> Client:
    return world.send(b"", queue="topic://ActiveMQ.Scheduler.Management", properties=headers)


def test_it_can_be_looked_at(world: World) -> None:
    schedule(world, b"1", DELAY="1000")
    schedule(world, b"2", DELAY="1000", persistent=False, queue="b.c")
    for name, bodies in ((SCHEDULED, [b"1"]), ("schedule://>", [b"1", b"2"]), ("schedule://queue.b.>", [b"2"])):
        client = world.consumer(name, ACK_AUTO, browser=True)
        assert client.bodies == bodies
        assert client.browsed_ids == [name]
        assert client.deliveries[0].message.expires_ms == world.clock.wall_ms() + 1000


@pytest.mark.parametrize("name", [SCHEDULED, "schedule://>"])
def test_nobody_consumes_it_or_sends_to_it(world: World, name: str) -> None:
    schedule(world, b"x", DELAY="1000")
    client = world.consumer(name)
    assert client.codes == ["DESTINATION_REFUSED"]
    client = world.send(b"y", queue=name)
    assert client.codes == ["DESTINATION_REFUSED"]
    assert scheduled(world) == [b"x"]


def test_a_pattern_of_queues_does_not_mean_it(world: World) -> None:
    client = world.consumer(">", ACK_AUTO)
    schedule(world, b"x", DELAY="1000")
    other = world.consumer(">", ACK_AUTO)
    browser = world.consumer(">", ACK_AUTO, browser=True)
    assert client.bodies == other.bodies == browser.bodies == []
    later(world, 1.0)
    assert client.bodies + other.bodies == [b"x"]


@pytest.mark.parametrize("persistent", [True, False])
def test_it_is_removed_by_its_id(world: World, persistent: bool) -> None:
    schedule(world, b"stays", b"goes", DELAY="1000", persistent=persistent)
    seq = max(world.everything(world.broker.state.queues[SCHEDULED]))
    for id in (f"ID:host-{seq}", str(seq)):  # again = nothing
        client = management(world, AMQ_SCHEDULER_ACTION="REMOVE", scheduledJobId=id)
        assert (len(client.confirmed), client.errors) == (1, [])
        assert scheduled(world) == [b"stays"]
        world.check_at_rest()
    later(world, 5.0)
    assert world.consumer().bodies == [b"stays"]


def test_what_is_being_removed_does_not_fall_due(world: World) -> None:
    schedule(world, b"x", DELAY="1000")
    client = world.connect()
    world.clock.advance(1.0)
    client.do(Send(_removal(world), "r"))
    world.settle()
    assert client.confirmed == ["r"]
    later(world, 5.0)
    assert (world.consumer().bodies, scheduled(world)) == ([], [])
    world.check_at_rest()
    assert not world.broker.scheduler.leaving


def _removal(world: World) -> Message:
    seq = next(iter(world.everything(world.broker.state.queues[SCHEDULED])))
    headers = {"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": str(seq)}
    return Message("topic://ActiveMQ.Scheduler.Management", b"", headers)


def test_what_is_being_delivered_is_delivered_for_the_last_time(world: World) -> None:
    """The removal comes while the word of the delivery is on its way to the disk."""
    schedule(world, b"x", DELAY="1000", PERIOD="1000", REPEAT="-1")
    removal = _removal(world)
    world.clock.advance(1.0)
    while not world.broker.scheduler.on_their_way:
        world.turn()
        assert world.broker.scheduler.on_their_way or world.runner.step()
    client = world.connect()
    client.do(Send(removal, "r"))
    world.settle()
    assert client.confirmed == ["r"]
    assert (world.stored(), scheduled(world)) == ([b"x"], [])
    later(world, 10.0)
    assert world.stored() == [b"x"]
    world.check_at_rest()


def test_all_are_removed(world: World) -> None:
    schedule(world, b"1", b"2", DELAY="1000")
    schedule(world, b"3", CRON="* * * * *", queue="topic://t")
    schedule(world, b"4", DELAY="1000", persistent=False)
    management(world, AMQ_SCHEDULER_ACTION="REMOVEALL")
    assert scheduled(world) == scheduled(world, "schedule://topic.t") == []
    later(world, 100.0)
    assert world.stored() == []
    world.check_at_rest()
    world.crash_and_recover()
    assert world.broker.state.stored == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"AMQ_SCHEDULED_DELAY": "soon"},
        {"AMQ_SCHEDULED_DELAY": "-1"},
        {"AMQ_SCHEDULED_DELAY": ""},
        {"AMQ_SCHEDULED_DELAY": "1.5"},
        {"AMQ_SCHEDULED_DELAY": str(TIME_MAX_MS + 1)},
        {"AMQ_SCHEDULED_DELAY": "٣"},
        {"AMQ_SCHEDULED_PERIOD": "x"},
        {"AMQ_SCHEDULED_REPEAT": "-2", "AMQ_SCHEDULED_PERIOD": "1"},
        {"AMQ_SCHEDULED_REPEAT": "3"},
        {"AMQ_SCHEDULED_REPEAT": "-1", "AMQ_SCHEDULED_PERIOD": "0"},
        {"AMQ_SCHEDULED_CRON": "daily"},
        {"_AMQ_SCHED_DELIVERY": "tomorrow"},
        {"_AMQ_SCHED_DELIVERY": "1893456000000", "AMQ_SCHEDULED_DELAY": "1"},
    ],
)
def test_bad_values_are_refused(world: World, headers: dict[str, str]) -> None:
    client = world.connect()
    errors: list[Exception] = []
    fail = client.fail
    client.fail = lambda failure: (errors.append(failure.error), fail(failure))[1]  # type: ignore[method-assign]
    receipt = client.send(b"x", properties=headers)
    world.settle()
    assert client.errors == [("SCHEDULE_INVALID", receipt)]
    name, value = next(iter(headers.items()))
    assert name in str(errors[0])
    assert repr(value) in str(errors[0])
    assert any(example in str(errors[0]) for example in ("60000", "8 * *", "1893456000000", "-1 for no end"))
    assert world.broker.state.stored == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"AMQ_SCHEDULER_ACTION": "BROWSE"},
        {"AMQ_SCHEDULER_ACTION": "REMOVE"},
        {"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": "ID:x-"},
    ],
)
def test_what_cannot_be_asked_of_the_scheduler(world: World, headers: dict[str, str]) -> None:
    assert management(world, **headers).codes == ["SCHEDULE_INVALID"]


def test_destinations_that_nobody_can_send_to(world: World) -> None:
    client = world.send(b"x", queue="queue://a.>", properties=dict(DELAY))
    assert client.codes == ["DESTINATION_REFUSED"]
