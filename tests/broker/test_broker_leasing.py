"""Leases: messages set apart for a cursor, read again and again, and settled by anybody, on whatever master."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.names import PREPARED_NAME
from amq.broker.transactions import leasing
from amq.core.message import LARGE_BODY_BYTES
from amq.protocols.commands import CommitBatch, LeaseMessages, Prepare, SettleLeases
from amq.protocols.stomp.subscribing import ACK_AUTO, RUNS, RUNS_VERSION
from tests.broker.notation import sources
from tests.broker.test_broker_two_phase import drain, finish
from tests.broker.world import Client, World, full_name

MakeWorld = Callable[..., World]


def ask(world: World, after: int = 0, messages: int = 100, *, queue: str = "a", **fields: Any) -> Client:
    """Somebody asks for a lease, and nothing happens yet."""
    client = world.connect()
    named, cursor = sources(full_name(queue)), fields.pop("cursor", "c")
    client.do(LeaseMessages(named, cursor, after, messages, receipt=world.next_receipt(), **fields))
    return client


def answer(client: Client) -> dict[str, Any]:
    assert (client.errors, len(client.outcomes)) == ([], 1)
    found: dict[str, Any] = json.loads(client.outcomes[0])
    return found


def lease(world: World, after: int = 0, messages: int = 100, **fields: Any) -> tuple[int, int, int]:
    """(number of the lease, messages in it, messages that wait)"""
    client = ask(world, after, messages, **fields)
    world.settle()
    found = answer(client)
    client.lose()
    return found["lease"], found["messages"], found["waiting"]


def settle(world: World, through: int = 1 << 62, *, commit: bool = True, queue: str = "a", cursor: str = "c") -> int:
    """Returns how many messages count as acknowledged."""
    client = world.connect()
    receipt = world.next_receipt()
    client.do(SettleLeases(sources(full_name(queue)), cursor, through, commit, receipt))
    world.settle()
    assert (client.errors, client.confirmed) == ([], [receipt])
    acknowledged = client.session.traffic.acknowledged
    client.lose()
    return acknowledged


@pytest.fixture(autouse=True, params=[False, True], ids=["single", "runs"])
def in_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do readers take many messages in one frame? They get the same."""
    if request.param:
        monkeypatch.setitem(READS, RUNS, RUNS_VERSION)
    return bool(request.param)


READS = {"cursor": "c"}  # options of a reader


def reader(world: World, number: int, positions: str = "", *, queue: str = "a", **fields: Any) -> Client:
    client = world.connect()
    options = {"lease": str(number), **READS, **({"positions": positions} if positions else {})}
    client.subscribe(queue, fields.pop("ack", ACK_AUTO), browser=True, options=options, **fields)
    return client


def read(world: World, number: int, positions: str = "", *, queue: str = "a") -> list[bytes]:
    client = reader(world, number, positions, queue=queue)
    world.settle()
    assert (client.errors, client.browsed_ids) == ([], [queue])
    bodies = client.bodies
    client.lose()
    return bodies


def sent(world: World, *bodies: bytes, queue: str = "a", **fields: Any) -> None:
    client = world.connect()
    for body in bodies:
        client.send(body, queue, **fields)
    world.settle()
    assert client.errors == []
    client.lose()


BODIES = [b"%d" % number for number in range(10)]


def test_messages_of_settled_leases_count_as_acknowledged(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *BODIES)
    first, *_ = lease(world, messages=6)
    second, *_ = lease(world, after=first, messages=3)
    queue = world.broker.state.queues["queue://a"]
    assert queue.acknowledged == 0, "leased, and not acknowledged"
    assert settle(world, first) == 6
    assert queue.acknowledged == 6
    assert settle(world, second, commit=False) == 0, "they went back"
    assert settle(world) == 0, "nothing is leased"
    assert (queue.enqueued, queue.acknowledged) == (10, 6)


@pytest.mark.parametrize("crash", [False, True])
def test_a_lease_is_read_again_and_again_and_then_settled(make_world: MakeWorld, crash: bool) -> None:
    world = make_world()
    sent(world, *BODIES)
    first, count, waiting = lease(world, messages=6)
    assert (first > 0, count, waiting) == (True, 6, 4)
    assert lease(world, first, messages=0) == (0, 0, 4), "only asked"
    second, count, waiting = lease(world, first)
    assert (second > first, count, waiting) == (True, 4, 0)
    assert lease(world, second) == (0, 0, 0)
    world.check_at_rest()
    if crash:
        world.crash_and_recover()
    for _ in range(2):
        assert lease(world)[:2] == (first, 6)
        assert lease(world, first)[:2] == (second, 4)
        assert read(world, first) == BODIES[:6]
        assert read(world, first, "2-4") == BODIES[2:4]
        assert read(world, second, "3-99") == BODIES[9:]
        assert read(world, second, "4-5") == []
    assert drain(world) == []
    settle(world, first)
    settle(world, first)
    world.check_at_rest()
    if crash:
        world.crash_and_recover()
    assert lease(world)[:2] == (second, 4)
    client = reader(world, first)
    world.settle()
    assert client.codes == ["UNKNOWN_LEASE"]
    settle(world, second, commit=False)
    assert drain(world) == [(body, 1) for body in BODIES[6:]]
    world.check_at_rest()


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_request_whose_answer_was_lost_leases_once(make_world: MakeWorld, jobs: int) -> None:
    world = make_world()
    sent(world, *BODIES)
    ask(world, messages=5)
    world.turn()
    world.crash_and_recover(jobs=jobs)
    number, count, waiting = lease(world, messages=5)
    assert (count, waiting) == (5, 5)
    assert read(world, number) == BODIES[:5]
    both = [ask(world, number, 3), ask(world, number, 3)]
    world.settle()
    answers = [answer(client) for client in both]
    assert [each["messages"] for each in answers] == [3, 3]
    assert answers[0]["lease"] == answers[1]["lease"]
    assert [delivery for delivery, _ in drain(world)] == BODIES[8:]


def test_what_is_on_its_way_is_nobody_elses(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *BODIES)
    world.crash_and_recover()  # so they wait on disk alone
    asked = ask(world, messages=7)
    browser, consumer = world.connect(), world.connect()
    browser.subscribe(browser=True, ack=ACK_AUTO, id="b")
    consumer.subscribe()
    other = ask(world, messages=7, cursor="other")
    world.settle()
    assert (answer(asked)["messages"], consumer.bodies) == (7, [])
    assert (answer(other)["messages"], answer(other)["waiting"]) == (3, 0)
    assert all(browser.bodies), "shown without its body"
    world.check_at_rest()


def test_in_the_order_of_delivery(make_world: MakeWorld) -> None:
    world = make_world()
    for priority in (4, 9, 4, 0, 9):
        sent(world, b"%d" % priority, priority=priority)
    world.crash_and_recover()
    sent(world, b"new", priority=9)
    number, count, _ = lease(world, messages=5)
    assert (count, read(world, number)) == (5, [b"9", b"9", b"new", b"4", b"4"])
    assert [body for body, _ in drain(world)] == [b"0"]
    settle(world, commit=False)
    assert [body for body, _ in drain(world)] == [b"9", b"9", b"new", b"4", b"4", b"0"]


def test_what_is_not_leased(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, b"in memory", persistent=False)
    sent(world, b"over", expires_ms=world.clock.wall_ms() + 1000)
    sent(world, b"held")
    world.consumer(prefetch=3)
    sent(world, b"soon over", expires_ms=world.clock.wall_ms() + 5000)
    sent(world, b"in memory too", persistent=False)
    sent(world, b"1")
    world.clock.advance(2)
    number, count, _ = lease(world)
    assert (count, read(world, number)) == (2, [b"soon over", b"1"])
    world.sweep(10)
    assert read(world, number) == [b"soon over", b"1"], "what is leased stays, whatever its time"
    settle(world, commit=False)
    world.sweep()
    assert lease(world)[1] == 1
    assert lease(world, queue="never seen") == (0, 0, 0)
    assert "queue://never seen" not in world.broker.state.queues


def test_how_much_is_leased(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    sent(world, *(bytes(1000) for _ in range(8)))
    assert lease(world, size=1)[1] == 1
    number = lease(world)[0]
    assert lease(world, number, size=2500)[1:] == (2, 5)
    monkeypatch.setattr(leasing, "MESSAGES_MAX", 3)
    number = lease(world, number)[0]
    assert lease(world, number, 100)[1:] == (3, 2)


def test_cursors_are_apart(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *BODIES)
    sent(world, b"other", queue="b")
    one, two = lease(world, messages=1)[0], lease(world, messages=1, cursor="d")[0]
    other = lease(world, queue="b")[0]
    assert lease(world)[0] == one
    assert lease(world, cursor="d")[0] == two
    settle(world)
    assert lease(world, cursor="d")[0] == two
    assert lease(world, queue="b")[0] == other
    settle(world, cursor="d", commit=False)
    settle(world, queue="b")
    assert drain(world) == [(b"1", 1), *((body, 0) for body in BODIES[2:])]
    assert drain(world, "b") == []


def test_a_durable_subscription(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.consumer("topic://t", subscription_name="c", options={"credit": "0"}, id="s")
    client.lose()
    sent(world, *BODIES, queue="topic://t")
    number, count, waiting = lease(world, queue="topic://t", messages=4)
    assert (count, waiting) == (4, 6)
    world.crash_and_recover()
    assert read(world, number, queue="topic://t") == BODIES[:4]
    shown = reader(world, number, queue="topic://t")
    world.settle()
    assert {delivery.message.destination for delivery in shown.deliveries} == {"topic://t"}
    client = world.connect()
    client.unsubscribe("s", "c")
    world.settle()
    assert client.codes == ["SUBSCRIPTION_IN_USE"]
    settle(world, queue="topic://t")
    assert lease(world, queue="topic://t")[1] == 6
    client = ask(world, queue="topic://t", cursor="nobody")
    world.settle()
    assert client.codes == ["UNKNOWN_SUBSCRIPTION"]
    world.check_at_rest()


def test_a_durable_subscription_to_another_topic(make_world: MakeWorld) -> None:
    """What waits for it was leased, and acknowledged, as if it had been sent to the topic that was named."""
    world = make_world()
    client = world.consumer("topic://t", subscription_name="c", options={"credit": "0"}, id="s")
    sent(world, *BODIES, queue="topic://t")
    number, _, _ = lease(world, queue="topic://t", messages=4)
    for asked in (
        lambda: ask(world, queue="topic://other"),
        lambda: ask(world, queue="topic://other", after=number),
    ):
        client = asked()
        world.settle()
        assert client.codes == ["SUBSCRIPTION_DIFFERS"]
    client = world.connect()
    client.do(SettleLeases(("topic://other",), "c", number, True, "r"))
    world.settle()
    assert client.codes == ["SUBSCRIPTION_DIFFERS"]
    client = world.consumer("topic://other", ACK_AUTO, subscription_name="c", browser=True, id="b")
    assert (client.codes, client.bodies) == (["SUBSCRIPTION_DIFFERS"], [])
    assert lease(world, queue="topic://t", after=number)[1] == len(BODIES) - 4


def test_a_lease_outlives_compaction_and_checkpoints(make_world: MakeWorld) -> None:
    world = make_world()
    bodies = [b"%03d" % number + bytes(900) for number in range(60)]
    sent(world, *bodies)
    number, count, _ = lease(world, messages=40)
    assert count == 40
    before = world.segments()[0]
    settle(world, lease(world, number)[0] and number - 1)  # nothing
    consumer = world.connect()
    consumer.subscribe("b", ACK_AUTO)
    for _ in range(300):
        sent(world, bytes(900), queue="b")
        if before not in world.segments():
            break
    assert before not in world.segments(), "nothing was compacted"
    assert read(world, number) == bodies[:40]
    world.check_at_rest()
    world.crash_and_recover()
    assert read(world, number) == bodies[:40]
    settle(world, number)
    assert lease(world)[1] == 20
    world.check_at_rest()


def test_a_reader_learns_that_its_lease_is_over(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *BODIES)
    number = lease(world)[0]
    client = reader(world, number, ack="client-individual", prefetch=2)
    world.settle()
    assert client.bodies == BODIES[:2]
    settle(world, commit=False)
    client.ack(BODIES[1])  # of a run its last message
    world.settle()
    assert (client.codes, client.browsed_ids) == (["UNKNOWN_LEASE"], [])


def test_as_any_prepared_transaction(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *BODIES)
    number = lease(world, messages=2, timeout_ms=5000)[0]
    second = lease(world, number, 2)[0]
    client = world.consumer(PREPARED_NAME, ACK_AUTO, browser=True)
    facts = json.loads(client.bodies[0])
    assert (facts["xid"], facts["acks"]) == (f"lease:c:{number}", {"/queue/a": 2})
    assert finish(world, f"lease:c:{second}", commit=True).errors == []
    world.sweep(6)
    assert drain(world)[:3] == [(b"0", 1), (b"1", 1), (b"4", 0)]
    for command in (
        Prepare("t", "lease:c:1", receipt="r"),
        Prepare("t", "x", owner="lease:c", batch=1, receipt="r"),
        CommitBatch("lease:c", 1, [], "r"),
    ):
        client = world.connect()
        client.begin()
        client.do(command)
        world.settle()
        assert client.codes == ["XID_INVALID"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cursor": ""}, "CURSOR_INVALID"),
        ({"cursor": "a,b"}, "CURSOR_INVALID"),
        ({"cursor": "x" * 257}, "CURSOR_INVALID"),
        ({"queue": "queue://a,queue://b"}, "DESTINATION_REFUSED"),
        ({"queue": "queue://a.>"}, "DESTINATION_REFUSED"),
        ({"after": 1 << 62}, "UNKNOWN_LEASE"),
    ],
)
def test_refused(make_world: MakeWorld, fields: dict[str, Any], code: str) -> None:
    world = make_world()
    client = ask(world, **fields)
    world.settle()
    assert client.codes == [code]


def test_refused_queues(make_world: MakeWorld) -> None:
    world = make_world()
    world.consumer(options={"exclusive": "true"})
    client = ask(world)
    world.settle()
    assert client.codes == ["QUEUE_IN_USE"]
    ring = make_world(ring_size=3)
    sent(ring, *BODIES)
    client = ask(ring)
    ring.settle()
    assert client.codes == ["NOT_SUPPORTED"]
    for positions in ("1", "-1", "a-b", "1-" + "9" * 10):
        sent(world, b"1", queue="b")
        number = lease(world, queue="b")[0]
        client = reader(world, number, positions, queue="b")
        world.settle()
        assert client.codes == ["HEADER_INVALID"]


def test_large_messages(make_world: MakeWorld) -> None:
    world = make_world(journal_segment_size_bytes=4 << 20)
    bodies = [bytes([number]) * (LARGE_BODY_BYTES + 10) for number in range(3)]
    sent(world, *bodies)
    number, count, _ = lease(world)
    assert (count, read(world, number)) == (3, bodies)
    settle(world, commit=False)
    assert [body for body, _ in drain(world)] == bodies
    world.check_at_rest()


@pytest.mark.parametrize("seed", range(4))
def test_walk(make_world: MakeWorld, seed: int) -> None:
    """Whatever happens, each message is acknowledged once: by a consumer, or by a lease that was read whole."""
    rng = random.Random(seed)
    world = make_world(memory_limit_bytes=32 << 10, maximum_redeliveries=-1)
    sends, done, at = 0, [], 0
    for _ in range(60):
        step = rng.choice(["send", "send", "lease", "lease", "lease", "settle", "settle", "back", "crash", "consume"])
        if step == "send":
            count = rng.randint(1, 8)
            sent(world, *(b"%d" % number for number in range(sends, sends + count)), priority=rng.randint(3, 5))
            sends += count
        elif step == "lease":
            client = ask(world, at, rng.randint(1, 6))
            if rng.random() < 0.5:
                world.crash_and_recover(jobs=rng.randint(0, 2))
            else:
                world.settle()
                client.lose()
        elif step == "settle":
            number, count, _ = lease(world, at, 0)
            if number:
                bodies = read(world, number)
                assert len(bodies) == count
                done += bodies
                at = number
                settle(world, at)
        elif step == "back":
            settle(world, commit=False)
        elif step == "crash":
            world.crash_and_recover()
        else:
            consumer = world.consumer(prefetch=3)
            for body in consumer.bodies[:2]:
                consumer.ack(body)
                done.append(body)
            world.settle()
            consumer.lose()
        world.settle_and_check()
    settle(world, commit=False)
    consumer = world.consumer(ack=ACK_AUTO)
    done += consumer.bodies
    assert sorted(done) == sorted(b"%d" % number for number in range(sends))


def test_several_leases_are_asked_for_at_once(make_world: MakeWorld) -> None:
    """Each question names how many leases are before its own, also those that are on their way. Again = the same."""
    world = make_world()
    sent(world, *[b"%d" % number for number in range(25)])
    for _ in range(2):
        clients = [ask(world, 0, 10, skip=skip) for skip in range(4)]
        world.settle()
        found = [answer(client) for client in clients]
        assert [each["messages"] for each in found] == [10, 10, 5, 0]
        numbers = [each["lease"] for each in found]
        assert numbers[:3] == sorted(set(numbers[:3]))
        assert (numbers[3], found[3]["waiting"]) == (0, 0)
    assert lease(world, numbers[0])[:2] == (numbers[1], 10)
    client = ask(world, numbers[0], 10, skip=1)
    world.settle()
    assert answer(client)["lease"] == numbers[2]
    sent(world, *[b"%d" % number for number in range(5)])
    client = ask(world, 0, 10, skip=4)
    world.settle()
    assert answer(client)["lease"] == 0, "the fourth was not asked for"


def test_a_lease_by_bytes_says_its_size(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, *[b"%d" % number for number in range(20)])
    for _ in range(2):
        client = ask(world, 0, 100, size=500)
        world.settle()
        found = answer(client)
        assert 0 < found["messages"] < 20
        assert 0 < found["size"] <= 500 + found["size"] // found["messages"]
    client = ask(world, 0, 100)
    world.settle()
    assert "size" not in answer(client)


def test_how_messages_were_read_is_counted(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each cursor, for not too many of them, and by one master."""
    monkeypatch.setattr(leasing, "CURSORS_MAX", 2)
    world = make_world()

    def reads(cursor: str, more: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        client = ask(world, 0, 0, cursor=cursor, reads=more)
        world.settle()
        found = answer(client)
        return found.get("direct", 0), found.get("fallback", 0)

    assert reads("x") == (0, 0)
    assert reads("x", (10, 2)) == (10, 2)
    assert reads("x", (5, 0)) == (15, 2)
    assert reads("y", (1, 0)) == (1, 0)
    assert reads("z", (0, 1)) == (0, 1)
    assert (reads("x"), reads("y"), reads("z")) == ((0, 0), (1, 0), (0, 1))
