"""Messages that are delivered later: at their time, once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.queues.backlog import CHUNK_ROWS
from amq.broker.scheduling import scheduler
from amq.config.destination_options import DestinationOptions
from amq.core.message import TEXT
from amq.journal.checkpoint import list_checkpoints
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.test_broker_dead_letters import send
from tests.broker.test_broker_disk import fill_disk, low_on_disk, room_again
from tests.broker.test_broker_durables import leave, subscriber
from tests.broker.test_broker_two_phase import finish, prepare
from tests.broker.world import World

SCHEDULED = "schedule://queue.a"
DELAY = {"AMQ_SCHEDULED_DELAY": "5000"}


def later(world: World, seconds: float) -> None:
    """Time goes on, and the broker is woken when it wants to be."""
    until_s = world.clock.monotonic() + seconds
    while (due_s := world.broker.scheduler.due_s) is not None and due_s <= until_s:
        world.clock.advance(max(0.0, due_s - world.clock.monotonic()))
        world.settle()
    world.clock.advance(max(0.0, until_s - world.clock.monotonic()))
    world.settle()


def scheduled(world: World, name: str = SCHEDULED) -> list[bytes]:
    found = world.broker.state.queues.get(name)
    return [message.body for message in world.everything(found).values()] if found is not None else []


def schedule(world: World, *bodies: bytes, queue: str = "a", persistent: bool = True, **headers: str) -> None:
    """`DELAY="1000"` stands for `AMQ_SCHEDULED_DELAY:1000`."""
    properties = {f"AMQ_SCHEDULED_{name}": value for name, value in headers.items()}
    send(world, *bodies, queue=queue, persistent=persistent, properties=properties)


@pytest.mark.parametrize("persistent", [True, False])
def test_it_comes_at_its_time_and_once(world: World, persistent: bool) -> None:
    client = world.consumer()
    sent_ms = world.clock.wall_ms()
    send(
        world,
        b"x",
        persistent=persistent,
        properties={**DELAY, "colour": "red"},
        priority=7,
        content=TEXT,
        content_type="text/plain",
    )
    assert (scheduled(world), world.stored()) == ([b"x"], [])
    world.check_at_rest()
    later(world, 4.999)
    assert client.deliveries == []
    assert world.broker.scheduler.due_s == pytest.approx(world.clock.monotonic() + 0.001)
    later(world, 0.001)
    assert client.bodies == [b"x"]
    message = client.deliveries[0].message
    assert (message.destination, message.priority, message.content_type, message.content) == (
        "queue://a",
        7,
        "text/plain",
        TEXT,
    )
    assert (message.persistent, message.expires_ms, message.timestamp_ms) == (persistent, 0, sent_ms + 5000)
    assert message.properties is not None
    assert message.properties == {"colour": "red", "scheduledJobId": message.properties["scheduledJobId"]}
    assert 0 < int(message.properties["scheduledJobId"]) < message.seq
    assert scheduled(world) == []
    world.check_at_rest()
    client.ack(b"x")
    later(world, 100.0)
    assert len(client.deliveries) == 1
    world.check_at_rest()
    world.broker.sweep()
    assert SCHEDULED not in world.broker.state.queues


def test_what_is_due_comes_in_the_order_of_its_times(world: World) -> None:
    client = world.consumer()
    for body, delay in ((b"3", "3000"), (b"1", "1000"), (b"2", "2000"), (b"0", "0")):
        schedule(world, body, DELAY=delay)
    world.clock.advance(10.0)
    world.settle()
    assert client.bodies == [b"0", b"1", b"2", b"3"]


def test_an_absolute_time_as_artemis_has_it(world: World) -> None:
    client = world.consumer()
    for body, seconds in ((b"later", 7), (b"before", -7)):
        at_ms = world.clock.wall_ms() + 1000 * seconds
        send(world, body, properties={"_AMQ_SCHED_DELIVERY": str(at_ms)})
    assert client.bodies == [b"before"]
    later(world, 7.0)
    assert client.bodies == [b"before", b"later"]


@pytest.mark.parametrize(("repeat", "count"), [("3", 4), ("0", 1), ("-1", 8)])
def test_repeats(world: World, repeat: str, count: int) -> None:
    client = world.consumer()
    schedule(world, b"x", DELAY="1000", PERIOD="2000", REPEAT=repeat)
    times = []
    for _ in range(160):
        before = len(client.deliveries)
        later(world, 0.1)
        times += [world.clock.wall_ms()] * (len(client.deliveries) - before)
    begun_ms = world.clock.wall_ms() - 16_000
    assert [time - begun_ms for time in times] == pytest.approx([1000 + 2000 * i for i in range(count)], abs=101)
    assert len({(each.message.properties or {})["scheduledJobId"] for each in client.deliveries}) == 1
    world.check_at_rest()


def test_a_period_alone_is_a_delay_as_in_activemq(world: World) -> None:
    client = world.consumer()
    schedule(world, b"x", PERIOD="2000")
    later(world, 1.9)
    assert client.bodies == []
    later(world, 10.0)
    assert client.bodies == [b"x"]


def test_cron(world: World) -> None:
    client = world.consumer(ack=ACK_AUTO)
    schedule(world, b"x", CRON="*/2 * * * *")
    minutes = []
    for _ in range(600):
        before = len(client.deliveries)
        later(world, 1.0)
        minutes += [world.clock.wall_ms() // 60_000] * (len(client.deliveries) - before)
    assert len(minutes) == 5
    assert all(minute % 2 == 0 for minute in minutes)
    assert scheduled(world) == [b"x"]
    world.check_at_rest()


def test_a_cron_entry_begins_a_series_each_time(world: World) -> None:
    client = world.consumer(ack=ACK_AUTO)
    schedule(world, b"x", CRON="* * * * *", DELAY="5000", PERIOD="10000", REPEAT="2")
    seconds = []
    later(world, 60 - world.clock.wall_ms() / 1000 % 60)
    for _ in range(120):
        before = len(client.deliveries)
        later(world, 1.0)
        seconds += [world.clock.wall_ms() // 1000 % 60] * (len(client.deliveries) - before)
    assert seconds == [5, 15, 25, 5, 15, 25]


# -- what is missed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("due", [False, True])
def test_a_takeover_changes_nothing(world: World, due: bool) -> None:
    schedule(world, b"x", DELAY="5000")
    schedule(world, b"lost", DELAY="5000", persistent=False)
    world.crash()
    world.clock.advance(10.0 if due else 1.0)
    world.start()
    world.settle()
    client = world.consumer()
    assert client.bodies == ([b"x"] if due else [])
    later(world, 4.0)
    assert client.bodies == [b"x"]
    client.ack(b"x")
    world.settle_and_check()
    world.crash_and_recover()
    later(world, 100.0)
    assert world.consumer().bodies == []


def test_what_is_missed_is_not_made_up_for(world: World) -> None:
    schedule(world, b"series", DELAY="1000", PERIOD="10000", REPEAT="3")
    schedule(world, b"cron", CRON="* * * * *")
    world.crash()
    world.clock.advance(35.5)
    minute_s = 60 - world.clock.wall_ms() / 1000 % 60
    world.start()
    world.settle()
    client = world.consumer(ack=ACK_AUTO)
    assert client.bodies.count(b"series") == 1
    later(world, 5.4)
    assert client.bodies.count(b"series") == 1
    later(world, 0.2)  # the times are those that they would have been
    assert client.bodies.count(b"series") == 2
    later(world, 100.0)
    assert client.bodies.count(b"series") == 4  # as often as was asked for
    before = client.bodies.count(b"cron")
    world.crash()
    world.clock.advance(60 * 60)
    world.start()
    world.settle()
    client = world.consumer(ack=ACK_AUTO)
    assert before >= 1 + (minute_s < 60)
    assert client.bodies == [b"cron"]


def test_it_falls_due_once_wherever_the_broker_dies(make_world: Callable[..., World]) -> None:
    """Dies after each job of the disk, also in the middle of the last one."""
    for jobs in range(6):
        for torn in (None, 0.0, 0.5):
            world = make_world()
            schedule(world, b"once", DELAY="1000")
            schedule(world, b"twice", DELAY="1000", PERIOD="1000", REPEAT="1")
            world.clock.advance(1.0)
            world.turn()
            world.crash(jobs=jobs, torn=torn)
            world.start()
            world.settle()
            for _ in range(3):
                later(world, 1.0)
            client = world.consumer()
            assert sorted(client.bodies) == [b"once", b"twice", b"twice"], (jobs, torn)
            world.check_at_rest()
            assert scheduled(world) == []


@pytest.mark.parametrize("follow", [False, True])
def test_checkpoints_compaction_and_a_slave_that_follows(make_world: Callable[..., World], follow: bool) -> None:
    world = make_world(checkpoint_distance_bytes=8 << 10)
    schedule(world, b"early", DELAY="2000", queue="keep")
    schedule(world, b"late", DELAY="900000", PERIOD="5000", REPEAT="1", queue="keep")
    place = next(iter(world.broker.state.queues["schedule://queue.keep"].backlogs[4]))
    client = world.consumer("other", ACK_AUTO)
    for number in range(600):
        send(world, b"%d" % number * 100, queue="other")
        if follow:
            world.follow()
        later(world, 0.01)
    assert len(client.deliveries) == 600
    later(world, 10.0)
    world.sweep()
    moved = next(iter(world.broker.state.queues["schedule://queue.keep"].backlogs[4]))
    assert moved.segment != place.segment, "nothing was copied forward"
    world.check_at_rest()
    world.crash_and_recover()
    assert world.standby.checkpoints
    later(world, 1000.0)
    assert world.consumer("keep").bodies == [b"early", b"late", b"late"]
    world.check_at_rest()


def test_a_master_that_began_at_a_checkpoint_knows_what_is_due(make_world: Callable[..., World]) -> None:
    world = make_world(checkpoint_distance_bytes=8 << 10)
    world.crash_and_recover()
    schedule(world, b"x", DELAY="60000")
    client = world.consumer("other", ACK_AUTO)
    for number in range(200):
        send(world, b"%d" % number * 100, queue="other")
    assert len(client.deliveries) == 200
    assert list_checkpoints(world.log.checkpoints)
    world.follow()
    world.crash_and_recover()
    assert world.standby.diverged == 0
    assert world.broker.scheduler.due_s is not None
    later(world, 60.0)
    assert world.consumer().bodies == [b"x"]


# -- where it is sent --------------------------------------------------------------------------------------------------


def test_a_transaction_schedules_when_it_commits(world: World) -> None:
    client = world.consumer()
    producer = world.connect()
    for body, end in ((b"no", producer.abort), (b"yes", producer.commit)):
        producer.begin()
        producer.send(body, transaction="t", properties=dict(DELAY))
        world.settle()
        assert scheduled(world) == []
        world.clock.advance(1.0)
        end()
        world.settle()
    assert scheduled(world) == [b"yes"]
    later(world, 3.99)
    assert client.bodies == []
    later(world, 0.01)  # the delay counts from the send
    assert client.bodies == [b"yes"]
    world.check_at_rest()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crash", [False, True])
def test_a_prepared_transaction_schedules_when_it_is_committed(world: World, commit: bool, crash: bool) -> None:
    producer = world.connect()
    producer.begin()
    for body, delay in ((b"soon", "1000"), (b"later", "60000")):
        producer.send(body, transaction="t", properties={"AMQ_SCHEDULED_DELAY": delay})
    prepare(producer)
    later(world, 5.0)
    assert (scheduled(world), world.stored()) == ([], [])
    if crash:
        world.crash_and_recover()
        later(world, 5.0)
    finish(world, commit=commit)
    later(world, 0.1)
    assert (scheduled(world), world.stored()) == (([b"later"], [b"soon"]) if commit else ([], []))
    world.check_at_rest()
    later(world, 60.0)
    assert world.consumer().bodies == ([b"soon", b"later"] if commit else [])
    world.check_at_rest()


def test_topics_get_it_too_and_the_journal_keeps_it_until_then(world: World) -> None:
    schedule(world, b"x", DELAY="5000", queue="topic://t")
    world.crash_and_recover()
    clients = [world.consumer("topic://t", ACK_AUTO) for _ in range(2)]
    later(world, 5.0)
    assert [client.bodies for client in clients] == [[b"x"], [b"x"]]
    world.check_at_rest()


@pytest.mark.parametrize("crash", [False, True])
def test_durable_subscriptions_get_it_once(world: World, crash: bool) -> None:
    for name in ("one", "two"):
        leave(world, subscriber(world, name=name))
    schedule(world, b"x", DELAY="1000", PERIOD="1000", REPEAT="1", queue="topic://t")
    later(world, 1.0)
    world.check_at_rest()
    if crash:
        world.crash_and_recover()
    later(world, 1.0)
    for name in ("one", "two"):
        client = subscriber(world, name=name)
        assert client.bodies == [b"x", b"x"]
        assert len({delivery.seq for delivery in client.deliveries}) == 2
        leave(world, client)
    world.check_at_rest()


def test_a_composite_destination_a_divert_and_a_virtual_topic(make_world: Callable[..., World]) -> None:
    world = make_world(destinations=(DestinationOptions("a", {"divert": "audit"}),))
    schedule(world, b"x", DELAY="5000", queue="queue://a,queue://b,topic://VirtualTopic.v")
    clients = [world.consumer(name) for name in ("a", "b", "audit", "Consumer.one.VirtualTopic.v")]
    later(world, 5.0)
    assert [client.bodies for client in clients] == [[b"x"]] * 4
    world.check_at_rest()


def test_temporary_destinations_and_who_answers_later(world: World) -> None:
    client = world.connect()
    name = f"temp-queue://{client.number}.reply"
    client.subscribe(name, ACK_AUTO)
    schedule(world, b"x", DELAY="5000", queue=name)
    later(world, 5.0)
    assert client.bodies == [b"x"]
    schedule(world, b"y", DELAY="5000", queue=name)
    world.lose(client)
    later(world, 5.0)
    world.check_at_rest()


def test_a_resent_message_is_scheduled_once_also_when_it_was_delivered(world: World) -> None:
    client = world.consumer()
    for _ in range(2):
        send(world, b"x", properties=dict(DELAY), duplicate_id="d")
        assert scheduled(world) == [b"x"]
    later(world, 5.0)
    world.crash_and_recover()
    send(world, b"x", properties=dict(DELAY), duplicate_id="d")
    client = world.consumer()
    later(world, 10.0)
    assert client.bodies == [b"x"]
    assert client.deliveries[0].message.duplicate_id == ""
    world.check_at_rest()


def test_the_time_of_expiry_is_kept(make_world: Callable[..., World]) -> None:
    world = make_world(expired_messages="dead-letter")
    client = world.consumer()
    now_ms = world.clock.wall_ms()
    send(world, b"in time", properties=dict(DELAY), expires_ms=now_ms + 6000)
    send(world, b"too late", properties=dict(DELAY), expires_ms=now_ms + 4000)
    send(
        world,
        b"series",
        properties={**DELAY, "AMQ_SCHEDULED_PERIOD": "5000", "AMQ_SCHEDULED_REPEAT": "-1"},
        expires_ms=now_ms + 12_000,
    )
    later(world, 100.0)
    assert client.bodies == [b"in time", b"series", b"series"]
    assert client.deliveries[0].message.expires_ms == now_ms + 6000
    assert scheduled(world) == []
    world.sweep()
    assert set(world.stored("DLQ.a")) == {b"too late", b"series"}
    world.check_at_rest()


def test_limits_of_the_queue_hold_nothing_up(make_world: Callable[..., World]) -> None:
    limits = {"queue_limit_bytes": 1000, "queue_limit_policy": "drop-oldest"}
    world = make_world(destinations=(DestinationOptions("a", limits), DestinationOptions("queue.>", limits)))
    schedule(world, *[b"%d" % number * 300 for number in range(9)], DELAY="1000")
    world.sweep()
    assert len(scheduled(world)) == 9
    later(world, 1.0)
    world.sweep()
    assert scheduled(world) == []
    assert 0 < len(world.stored()) < 9
    assert len(world.stored()) + len(world.stored("DLQ.a")) == 9
    world.check_at_rest()


@pytest.mark.parametrize("support", [True, False])
def test_schedulersupport(make_world: Callable[..., World], support: bool) -> None:
    world = make_world(scheduler_support=support)
    client = world.consumer()
    send(world, b"x", properties=dict(DELAY))
    assert client.bodies == ([] if support else [b"x"])
    if not support:
        assert client.deliveries[0].message.properties == DELAY


def test_it_is_delivered_like_any_other(world: World) -> None:
    """Redelivered, dead-lettered, in a group."""
    schedule(world, b"x", DELAY="1000")
    later(world, 1.0)
    client = world.consumer(ack=ACK_INDIVIDUAL)
    client.nack(b"x")
    world.settle()
    assert world.stored("DLQ.a") == [b"x"]
    world.check_at_rest()


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [True, False], ids=["known", "met"])
def test_a_full_disk_puts_it_off(world: World, seen: bool) -> None:
    schedule(world, b"x", DELAY="1000")
    schedule(world, b"y", DELAY="1000", PERIOD="1000", REPEAT="1")
    client = world.consumer()
    (low_on_disk if seen else fill_disk)(world)
    later(world, 3.5)
    assert client.bodies == []
    assert sorted(scheduled(world)) == [b"x", b"y"]
    world.check()
    room_again(world)
    later(world, 1.1)
    assert sorted(client.bodies) == [b"x", b"y"]
    later(world, 1.0)
    assert sorted(client.bodies) == [b"x", b"y", b"y"]
    world.check_at_rest()


def test_a_full_disk_refuses_what_is_to_be_scheduled(world: World) -> None:
    low_on_disk(world)
    client = world.connect()
    receipt = client.send(b"x", properties=dict(DELAY))
    world.settle()
    assert client.errors == [("STORE_FULL", receipt)]
    assert scheduled(world) == []


# -- many --------------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_many_take_little_memory_and_leave_in_bounded_steps(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(journal_segment_size_bytes=1 << 20)
    count = 3 * CHUNK_ROWS
    producer = world.connect()
    for number in range(count):
        producer.send(b"%d" % number, properties={"AMQ_SCHEDULED_DELAY": str(1000 + number % 977)}, receipt=False)
    world.settle()
    assert len(scheduled(world)) == count
    assert world.broker.memory.taken_bytes == 0
    monkeypatch.setattr(scheduler, "GROUP_BYTES", 1000)
    client = world.consumer(ack=ACK_AUTO)
    later(world, 3.0)
    assert sorted(map(int, client.bodies)) == list(range(count))
    assert scheduled(world) == []
    world.check_at_rest()


def test_a_timer_that_waits_for_long_leaves_nothing_behind_for_those_before(world: World) -> None:
    schedule(world, b"far", DELAY=str(10**9))
    for _ in range(300):
        schedule(world, b"near", DELAY="1")
        later(world, 0.01)
    assert len(world.broker.scheduler.timers) < 100
    assert world.broker.scheduler.due_s is not None
