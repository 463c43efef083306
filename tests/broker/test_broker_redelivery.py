"""What failed comes again later, or at once where it is asked for; what expired goes to a separate queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amq.broker.queues.queue import Subscription
from amq.broker.queues.redelivery import DELAY, delay_s, shown
from amq.config.destination_options import DestinationOptions
from amq.config.loader import load
from amq.config.schema import BrokerConfig
from amq.core.errors import ConfigError
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.protocols.commands import Mode, Outcome, Settle, Subscribe
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT
from tests.broker.test_broker_dead_letters import send
from tests.broker.world import Client, World
from tests.large import large_from
from tests.sampling import sampled

LARGE = 3000
DELAYED: dict[str, Any] = {"redelivery_delay_s": 5.0}


def later(world: World, seconds: float) -> None:
    world.clock.advance(seconds)
    world.settle()


@pytest.mark.parametrize(
    ("multiplier", "delays"),
    [
        (1, [2.0, 2.0, 2.0, 2.0]),
        (3, [2.0, 6.0, 18.0, 20.0]),
        (1000, [2.0, 20.0, 20.0, 20.0]),
        (1.5, [2.0, 3.0, 4.5, 20.0]),
    ],
)
def test_how_long_a_message_waits(multiplier: float, delays: list[float]) -> None:
    config = BrokerConfig(
        redelivery_delay_s=2.0, redelivery_back_off_multiplier=multiplier, maximum_redelivery_delay_s=20.0
    )
    assert [delay_s(config, failures) for failures in (1, 2, 3, 1_000_000)] == delays


@pytest.mark.parametrize("persistent", [True, False])
def test_a_message_that_failed_waits_and_holds_nobody_up(make_world: Callable[..., World], persistent: bool) -> None:
    world = make_world(**DELAYED)
    send(world, b"1", b"2", b"3", persistent=persistent)
    client = world.consumer(prefetch=1)
    receipt = client.nack(b"1", requeue=True)
    world.settle()
    assert receipt in client.confirmed
    assert client.bodies == [b"1", b"2"]
    assert world.stored() == [b"1", b"2", b"3"]
    assert world.broker.state.queues["queue://a"].waiting == 2
    world.check_at_rest()
    later(world, 4.999)
    client.ack(b"2")
    world.settle()
    assert client.bodies == [b"1", b"2", b"3"]
    assert world.broker.redelivery.due_s == pytest.approx(world.clock.monotonic() + 0.001)
    later(world, 0.001)
    client.ack(b"3")
    world.settle()
    assert [(each.body, each.redelivered) for each in client.deliveries[3:]] == [(b"1", 1)]
    assert world.broker.redelivery.due_s is None
    client.ack(b"1")
    world.settle()
    assert world.stored() == []
    world.check_at_rest()


REDELIVERS = {"rejected_messages": "redeliver", "maximum_redeliveries": 2, "redelivery_delay_s": 5.0}


def rejecting(world: World, name: str, redelivers: bool, transaction: bool) -> tuple[Client, Callable[[], None]]:
    """A consumer that rejects each message that it has, and says why."""
    client = world.connect()
    client.do(Subscribe(name, f"{name}://a", Mode(True, redelivers=redelivers)))
    world.settle()

    def reject() -> None:
        seq = client.deliveries[-1].message.seq
        if transaction:
            client.begin()
        why = "" if transaction else "no"
        client.do(Settle(seq, name, None, "t" if transaction else "", Outcome.REJECTED, reason=why))
        if transaction:
            client.commit()
        world.settle()

    return client, reject


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("redelivers", [False, True], ids=["broker", "client"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_rejected_message_comes_again_where_the_option_says_so(
    make_world: Callable[..., World], kind: str, redelivers: bool, transaction: bool, persistent: bool
) -> None:
    """Whatever the protocol: also of a client that delivers again by itself, and then gives up."""
    world = make_world(destinations=(DestinationOptions("a", REDELIVERS),), dead_letter_strategy="shared")
    client, reject = rejecting(world, kind, redelivers, transaction)
    world.send(b"x", queue=f"{kind}://a", persistent=persistent)
    for attempt in range(2):
        assert len(client.deliveries) == attempt + 1
        reject()
        if kind == "queue":
            assert len(client.deliveries) == attempt + 1, "it waits"
            later(world, 5.0)
        world.check_at_rest()
    assert (len(client.deliveries), client.deliveries[-1].redelivered) == (3, 2)
    assert world.stored("ActiveMQ.DLQ") == []
    if kind == "queue":  # else a JMS client gives it up unseen, having counted for itself
        again = shown(world.broker.state.queues["queue://a"], client.deliveries[-1].message)
        assert (again.properties or {})[DELAY] == "5000"
    reject()
    later(world, 5.0)
    assert (len(client.deliveries), world.stored("ActiveMQ.DLQ")) == (3, [b"x"])
    world.check_at_rest()


def test_only_where_the_option_says_so(make_world: Callable[..., World]) -> None:
    world = make_world(destinations=(DestinationOptions("b", REDELIVERS),))
    client, reject = rejecting(world, "queue", redelivers=False, transaction=False)
    send(world, b"x")
    reject()
    assert (client.bodies, world.stored("ActiveMQ.DLQ")) == ([b"x"], [b"x"]), "it said why, as JMS clients do"


def test_it_takes_its_old_place_when_its_time_has_come(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"1", b"2", b"3")
    first = world.consumer(prefetch=1)
    first.nack(b"1", requeue=True)
    world.lose(first)
    later(world, 5.0)
    assert world.consumer().bodies == [b"1", b"2", b"3"]


def test_only_what_failed_waits(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"1", b"2")
    world.lose(world.consumer())
    client = world.consumer()
    assert client.bodies == [b"2"]
    later(world, 5.0)
    assert client.bodies == [b"2", b"1"]


def test_a_transaction_that_rolls_back_is_a_failure(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"1", b"2")
    client = world.consumer()
    client.begin()
    client.ack(b"1", "t")
    client.nack(b"2", "t", requeue=True)
    client.abort()
    world.settle_and_check()
    assert len(client.deliveries) == 2
    later(world, 5.0)
    assert client.bodies[2:] == [b"1", b"2"]


def test_requeue_in_a_transaction_happens_with_the_commit(world: World) -> None:
    send(world, b"1", b"2")
    client = world.consumer()
    client.begin()
    client.nack(b"1", "t", requeue=True)
    client.nack(b"2", "t")
    world.settle_and_check()
    assert len(client.deliveries) == 2
    client.commit()
    world.settle()
    assert [(each.body, each.redelivered) for each in client.deliveries[2:]] == [(b"1", 1)]
    assert (world.stored(), world.stored("DLQ.a")) == ([b"1"], [b"2"])
    world.check_at_rest()


def test_requeue_of_what_came_through_a_pattern(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"1", queue="x.1")
    client = world.consumer("x.*", ACK_CLIENT)
    client.nack(b"1", requeue=True)
    world.settle()
    later(world, 5.0)
    assert [(each.body, each.redelivered) for each in client.deliveries] == [(b"1", 0), (b"1", 1)]
    client.begin()
    client.nack(b"1", "t", requeue=True)
    client.commit()
    world.settle()
    later(world, 5.0)
    assert client.deliveries[-1].redelivered == 2
    world.check_at_rest()


def test_each_failure_waits_longer_until_the_message_is_given_up(make_world: Callable[..., World]) -> None:
    world = make_world(
        maximum_redeliveries=3, redelivery_delay_s=1.0, redelivery_back_off_multiplier=2, maximum_redelivery_delay_s=3.0
    )
    send(world, b"x")
    client = world.consumer()
    for wait_s in (1.0, 2.0, 3.0):
        count = len(client.deliveries)
        client.nack(b"x", requeue=True)
        world.settle()
        later(world, wait_s - 0.01)
        assert len(client.deliveries) == count
        later(world, 0.01)
        assert len(client.deliveries) == count + 1
    client.nack(b"x", requeue=True)
    world.settle()
    assert (world.stored(), world.stored("DLQ.a")) == ([], [b"x"])
    assert not world.broker.state.queues["queue://a"].delayed
    world.check_at_rest()


def test_destinations_have_their_own_delays(make_world: Callable[..., World]) -> None:
    world = make_world(destinations=(DestinationOptions("slow.>", {"redelivery_delay_s": 9.0}),))
    send(world, b"f", queue="fast")
    send(world, b"s", queue="slow.one")
    clients = [world.consumer("fast"), world.consumer("slow.one")]
    for client, body in zip(clients, (b"f", b"s"), strict=True):
        client.nack(body, requeue=True)
    world.settle()
    assert [client.bodies for client in clients] == [[b"f", b"f"], [b"s"]]
    later(world, 9.0)
    assert clients[1].bodies == [b"s", b"s"]


def test_after_a_takeover_it_comes_at_once_with_its_count(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"x")
    world.consumer().nack(b"x", requeue=True)
    world.settle()
    world.crash_and_recover()
    client = world.consumer()
    assert [each.redelivered for each in client.deliveries] == [1]
    client.ack(b"x")
    world.settle_and_check()


@pytest.mark.parametrize("persistent", [True, False])
def test_it_expires_while_it_waits(make_world: Callable[..., World], persistent: bool) -> None:
    world = make_world(**DELAYED)
    send(world, b"x", expires_ms=world.clock.wall_ms() + 2000, persistent=persistent)
    client = world.consumer()
    client.nack(b"x", requeue=True)
    world.settle()
    world.sweep(2.0)
    assert world.stored() == []
    world.check_at_rest()
    later(world, 3.0)
    assert len(client.deliveries) == 1
    assert world.broker.redelivery.due_s is None


def test_it_is_browsed_while_it_waits(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"x")
    world.consumer().nack(b"x", requeue=True)
    world.settle()
    browser = world.consumer("a", ACK_AUTO, browser=True)
    assert [(each.body, each.redelivered) for each in browser.deliveries] == [(b"x", 1)]


def test_it_is_dropped_first_where_the_oldest_are(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED, queue_limit_bytes=10_000, queue_limit_policy="drop-oldest")
    send(world, *(b"%d" % i + bytes(1000) for i in range(4)))
    client = world.consumer(prefetch=2)
    for i in range(2):
        client.nack(b"%d" % i + bytes(1000), requeue=True)
    world.lose(client)
    send(world, *(b"%d" % i + bytes(1000) for i in range(4, 10)))
    assert [body[:1] for body in world.stored("DLQ.a")] == [b"0"]
    assert list(world.broker.state.queues["queue://a"].delayed)  # 1 waits on
    world.check_at_rest()
    later(world, 5.0)
    assert [body[:1] for body in world.consumer().bodies][:2] == [b"1", b"2"]


def test_what_was_hurried_and_failed_again_waits_its_whole_time(make_world: Callable[..., World]) -> None:
    """The timer that was set first finds it waiting for another one."""
    world = make_world(**DELAYED)
    send(world, b"x")
    client = world.consumer()
    client.nack(b"x", requeue=True)
    world.settle()
    later(world, 2.0)
    world.broker.redelivery.hurry(world.broker.state.queues["queue://a"], 1)
    world.settle()
    client.nack(b"x", requeue=True)
    world.settle()
    later(world, 3.0)
    assert len(client.deliveries) == 2
    later(world, 2.0)
    assert len(client.deliveries) == 3


def test_a_large_message_waits_without_its_body(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    body = bytes(LARGE_BODY_BYTES + 1)
    send(world, body)
    client = world.consumer()
    client.nack(body, requeue=True)
    world.settle()
    assert world.broker.state.queues["queue://a"].resident_bytes < LARGE_BODY_BYTES
    world.check_at_rest()
    later(world, 5.0)
    assert client.bodies == [body, body]
    client.ack(body)
    world.settle_and_check()


def test_messages_that_wait_take_no_more_memory_than_there_is(make_world: Callable[..., World]) -> None:
    """Those behind them stay on the disk then, and all come in the end."""
    world = make_world(**DELAYED, memory_limit_bytes=60_000)
    bodies = {b"%d " % i + bytes(1000) for i in range(100)}
    for body in sorted(bodies):
        send(world, body)
    client = world.consumer(prefetch=1)
    done: set[bytes] = set()
    for _ in range(len(bodies)):
        before = len(client.deliveries)
        client.nack(client.bodies[-1], requeue=True)
        world.settle()
        assert world.broker.memory.taken_bytes <= 60_000
        if len(client.deliveries) == before:
            break
    assert 20 <= len(world.broker.state.queues["queue://a"].delayed) < 100
    later(world, 5.0)
    while (body := client.bodies[-1]) not in done:
        client.ack(body)
        done.add(body)
        world.settle()
    assert done == bodies
    world.check_at_rest()


def test_a_host_that_was_suspended_goes_on_with_the_next_upkeep(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    send(world, b"x")
    client = world.consumer()
    client.nack(b"x", requeue=True)
    world.settle()
    world.clock.advance(3600.0)
    world.broker.sweep()
    assert world.woken
    world.settle()
    assert client.bodies == [b"x", b"x"]


def test_what_a_subscriber_of_a_topic_requeues_comes_at_once(make_world: Callable[..., World]) -> None:
    world = make_world(**DELAYED)
    client = world.consumer("topic://t", id="t")
    send(world, b"x", queue="topic://t")
    client.nack(b"x", requeue=True)
    world.settle()
    assert client.bodies == [b"x", b"x"]
    world.check_at_rest()


# -- the expiry queue --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_what_expired_goes_to_a_queue_of_its_own(make_world: Callable[..., World], persistent: bool) -> None:
    world = make_world(expiry_queue="late", expired_messages="dead-letter")
    expires_ms = world.clock.wall_ms() + 1000
    send(world, b"refused", persistent=persistent)
    client = world.consumer()
    client.nack(b"refused")
    client.lose()
    send(world, b"x", expires_ms=expires_ms, persistent=persistent)
    world.sweep(1.0)
    assert [world.stored(queue) for queue in ("a", "DLQ.a")] == [[], [b"refused"]]
    if persistent:
        world.crash_and_recover()
    message = world.consumer("late").deliveries[0].message
    assert (message.body, message.expires_ms) == (b"x", 0)
    assert message.properties == {
        "original-destination": "/queue/a",
        "dead-letter-reason": "expired",
        "dead-letter-deliveries": "0",
        "original-expires": str(expires_ms),
    }
    world.check_at_rest()


def test_what_expires_in_the_expiry_queue_is_gone(make_world: Callable[..., World]) -> None:
    world = make_world(expiry_queue="late")
    for queue in ("late", "DLQ.a"):
        send(world, b"x", queue=queue, expires_ms=world.clock.wall_ms() + 1000)
    world.sweep(1.0)
    assert [world.stored(queue) for queue in ("late", "DLQ.a", "DLQ.late")] == [[], [], []]
    world.check_at_rest()


def test_a_large_message_that_a_selector_selected_comes_again_whole(world: World) -> None:
    """What was read to be looked at is not what is delivered the second time: its body went with the first."""
    with large_from(LARGE):
        body = bytes(LARGE + 1)
        send(world, body, b"behind", properties={"kind": "odd"})
        client = world.consumer("a", prefetch=1, selector="kind = 'odd'")
        client.nack(body, requeue=True)
        world.settle()
        assert client.bodies == [body, body]
        client.ack(body)
        world.settle()
        assert client.bodies == [body, body, b"behind"]
        world.check_at_rest()


@pytest.mark.parametrize("name", ["late.>", "late,other", "/queue/late"])
def test_the_expiry_queue_is_one_queue(tmp_path: Path, name: str) -> None:
    file = tmp_path / "amq.toml"
    for text in (f'[queues]\nexpiryQueue = "{name}"\n', f'[destinations."a.>"]\nexpiryQueue = "{name}"\n'):
        file.write_text(f'[broker]\nstore = "/mnt/x"\n{text}')
        with pytest.raises(ConfigError, match=f'expiryQueue = "{name}"'):
            load(str(file), {})


# -- all together ------------------------------------------------------------------------------------------------------


class Walk:
    """Sends, fails, acknowledges, waits, crashes. Nothing comes before its time, nothing is lost, all comes at last."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.not_before: dict[bytes, float] = {}
        self.sent: set[bytes] = set()
        self.done: set[bytes] = set()
        self.clients = [self.join() for _ in range(3)]
        world.on_deliver = self.delivered

    def join(self) -> Client:
        client = self.world.connect()
        options = {"selector": "kind = 'odd'"} if self.rng.random() < 0.2 else {}
        client.subscribe("a", prefetch=self.rng.choice((1, 3)), **options)
        return client

    def delivered(self, _client: Client, _subscription: Subscription, message: Message, _redelivered: int) -> None:
        assert message.body in self.sent - self.done
        assert self.world.clock.monotonic() >= self.not_before.get(message.body, 0.0), "it comes before its time"

    def send(self) -> None:
        number = len(self.sent)
        body = b"%d " % number + bytes(self.rng.choice((0, 100, LARGE)))
        properties = {"kind": "odd" if number % 2 else "even"}
        if self.rng.random() < 0.3:
            properties["JMSXGroupID"] = str(self.rng.randrange(3))
        self.sent.add(body)
        self.world.connect().send(body, priority=self.rng.choice((4, 4, 7)), properties=properties)

    def settle_one(self) -> None:
        client = self.rng.choice(self.clients)
        held = [m for each in client.consumers.values() for m in each.unacked]
        delivery = next((each for each in client.deliveries if each.seq in held and each.body not in self.done), None)
        if delivery is None:
            return
        if self.rng.random() < 0.5:
            client.ack(delivery.body)
            self.done.add(delivery.body)
        else:
            client.nack(delivery.body, requeue=True)
            self.not_before[delivery.body] = self.world.clock.monotonic() + 1.0

    def lose(self) -> None:
        self.clients[self.rng.randrange(3)].lose()
        self.clients = [client if client.connected else self.join() for client in self.clients]

    def crash(self) -> None:
        self.world.settle()
        self.world.crash_and_recover()
        self.not_before.clear()
        self.clients = [self.join() for _ in range(3)]

    def wait(self) -> None:
        self.world.clock.advance(self.rng.choice((0.3, 1.0, 5.0)))
        self.world.settle_and_check()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            acts = (self.send, self.settle_one, self.settle_one, self.world.turn, self.wait, self.lose, self.crash)
            self.rng.choices(acts, (6, 4, 4, 4, 2, 1, 0.3))[0]()
            self.world.check()
        for client in self.clients:
            client.lose()
        self.world.settle()
        self.world.clock.advance(60.0)
        self.world.settle_and_check()
        last = self.world.consumer("a", ACK_AUTO)
        assert set(last.bodies) == self.sent - self.done
        assert not self.world.broker.state.queues["queue://a"].delayed


@pytest.mark.parametrize("seed", sampled(range(8)))
def test_walks(make_world: Callable[..., World], seed: int) -> None:
    with large_from(LARGE):
        world = make_world(
            redelivery_delay_s=1.0,
            redelivery_back_off_multiplier=2,
            maximum_redelivery_delay_s=4.0,
            maximum_redeliveries=-1,
            memory_limit_bytes=60_000,
        )
        Walk(world, seed).run(250)
