"""Browsing shows everything that is there, once, in the order of delivery, and disturbs nothing."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence

import pytest

from amq.broker.queues import browser, paging
from amq.broker.queues.viewing import ROWS_MIN
from amq.core.message import Message
from amq.protocols.commands import Finish, Prepare, Send
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.notation import Ack, Nack
from tests.broker.world import Client, World
from tests.large import large_from
from tests.stored import stored_state

SMALL_BYTES = 16_000


def browse(world: World, queue: str = "a", ack: str = ACK_AUTO, prefetch: int = 0) -> Client:
    return world.consumer(queue, ack, prefetch, browser=True)


def fill(world: World, count: int, queue: str = "a", size: int = 1000, **fields: object) -> list[bytes]:
    bodies = [b"%d" % number + bytes(size) for number in range(count)]
    producer = world.connect()
    for body in bodies:
        producer.do(Send(Message("queue://" + queue, body, **fields), "r"))  # type: ignore[arg-type]
        world.settle()
    return bodies


@pytest.fixture(params=["in memory", "on disk", "both", "after a takeover"])
def filled(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> tuple[World, list[bytes]]:
    """Messages of several priorities, some not persistent, and their bodies in the order of delivery."""
    limit = {"on disk": 3 * SMALL_BYTES, "both": 8 * SMALL_BYTES}.get(request.param, 1 << 20)
    world = make_world(memory_limit_bytes=limit)
    rng = random.Random(1)
    producer = world.connect()
    sent = []
    for number in range(60):
        persistent = rng.random() < 0.9 or request.param == "after a takeover"
        body, priority = b"%d" % number + bytes(900), rng.choice((0, 4, 9))
        message = Message("queue://a", body, priority=priority, persistent=persistent)
        sent.append((-message.priority, number, message.body))
        producer.do(Send(message, "r"))
        world.settle()
    if request.param == "after a takeover":
        world.crash_and_recover()
    assert bool(world.broker.state.queues["queue://a"].backlogs) is (request.param != "in memory")
    return world, [body for *_, body in sorted(sent)]


def test_everything_in_the_order_of_delivery(filled: tuple[World, list[bytes]]) -> None:
    world, expected = filled
    before = stored_state(world.broker.state, world.vfs, world.store), world.broker.memory.taken_bytes
    client = browse(world)
    assert client.bodies == expected
    assert client.browsed_ids == ["a"]
    assert all(delivery.redelivered == 0 for delivery in client.deliveries)
    assert (stored_state(world.broker.state, world.vfs, world.store), world.broker.memory.taken_bytes) == before
    world.check_at_rest()


def test_what_consumers_hold_is_shown_and_stays_theirs(filled: tuple[World, list[bytes]]) -> None:
    world, expected = filled
    consumer = world.consumer("a", ACK_INDIVIDUAL, 5)
    assert browse(world).bodies == expected
    assert consumer.bodies == expected[:5]
    world.check_at_rest()


@pytest.mark.parametrize("ack", [ACK_INDIVIDUAL, ACK_CLIENT])
def test_acknowledgements_make_room_and_take_nothing(filled: tuple[World, list[bytes]], ack: str) -> None:
    world, expected = filled
    client = browse(world, ack=ack, prefetch=7)
    assert client.bodies == expected[:7]
    while not client.browsed_ids:
        before = len(client.bodies)
        client.ack(client.bodies[-1])
        world.settle()
        assert len(client.bodies) > before or client.browsed_ids
    if ack == ACK_CLIENT:
        assert client.bodies == expected
    assert world.broker.state.queues["queue://a"].stored == 60
    assert not client.codes


def test_the_browse_ends_in_an_empty_queue(world: World) -> None:
    assert browse(world).browsed_ids == ["a"]
    world.broker.sweep()
    assert "queue://a" not in world.broker.state.queues


def test_it_goes_as_far_as_the_socket(filled: tuple[World, list[bytes]]) -> None:
    world, expected = filled
    client = world.connect()
    world.on_deliver = lambda *_: client.session.set_writable(False)
    client.subscribe("a", ACK_AUTO, browser=True)
    for shown in range(1, 61):
        world.settle()
        assert client.bodies == expected[:shown]
        assert not client.browsed_ids
        client.session.set_writable(True)
    world.settle()
    assert client.browsed_ids
    world.check_at_rest()


def test_a_consumer_goes_on_meanwhile(filled: tuple[World, list[bytes]]) -> None:
    """What leaves is left out or shown; what is paged in or comes back is shown once; nothing comes out of order."""
    world, expected = filled
    client = browse(world, ack=ACK_INDIVIDUAL, prefetch=4)
    consumer = world.consumer("a", ACK_INDIVIDUAL, 3)
    rng = random.Random(2)
    shown = taken = 0
    while not client.browsed_ids:
        if rng.random() < 0.6:
            for delivery in client.deliveries[shown:]:
                client.do(Ack(delivery.seq, "a"))
            shown = len(client.deliveries)
        elif taken < len(consumer.deliveries) and taken < 40:
            consumer.do(Ack(consumer.deliveries[taken].seq, "a"))
            taken += 1
        else:
            consumer.unsubscribe()
            consumer.subscribe("a", ACK_INDIVIDUAL, 3)
            consumer.deliveries = consumer.deliveries[:taken]
        world.turn() if rng.random() < 0.5 else world.settle()
    assert len(client.bodies) == len(set(client.bodies))
    places = [expected.index(body) for body in client.bodies]
    assert places == sorted(places)
    left = world.stored()
    assert set(left) <= set(client.bodies), "something that never left was not shown"
    world.settle_and_check()


def test_what_comes_later_is_not_shown(world: World) -> None:
    bodies = fill(world, 3)
    client = browse(world, ack=ACK_INDIVIDUAL, prefetch=1)
    world.connect().send(b"later", priority=9, receipt=False)
    world.settle()
    for body in bodies:
        client.ack(body)
        world.settle()
    assert client.bodies == bodies
    assert client.browsed_ids


def test_what_has_expired_is_not_shown(world: World) -> None:
    fill(world, 2, expires_ms=world.clock.wall_ms() + 1000)
    kept = fill(world, 1, size=1)
    world.clock.advance(2.0)
    assert browse(world).bodies == kept


def test_counts_are_shown_and_stay(world: World) -> None:
    fill(world, 1)
    for _ in range(2):
        consumer = world.consumer()
        world.lose(consumer)
    for _ in range(2):
        assert [delivery.redelivered for delivery in browse(world).deliveries] == [2]


def test_who_goes_in_the_middle_leaves_nothing_behind(filled: tuple[World, list[bytes]]) -> None:
    world, _ = filled
    before = world.broker.memory.taken_bytes
    for how in ("lose", "unsubscribe"):
        client = world.connect()
        client.subscribe("a", ACK_INDIVIDUAL, 1, browser=True)
        world.turn()
        getattr(client, how)()
        world.settle()
        assert world.broker.memory.taken_bytes == before
        world.check_at_rest()
    assert world.broker.state.queues["queue://a"].browsers == ()


def test_large_messages_are_read_one_by_one(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=SMALL_BYTES)
    with large_from(500):
        bodies = fill(world, 10)
        consumer = world.consumer("a", ACK_INDIVIDUAL, 2)
        assert consumer.bodies == bodies[:2]
        for _ in range(2):
            assert browse(world).bodies == bodies
        consumer.ack(bodies[0])
        world.settle()
        assert consumer.bodies == bodies[:3]
        assert world.broker.memory.lent_bytes == 0
        world.check_at_rest()


def check_shown(world: World, client: Client, bodies: list[bytes]) -> None:
    """The browse of `client`, one message at a time, goes on to its end and shows all."""
    for body in bodies[:-1]:
        client.ack(body)
        world.settle()
    assert client.bodies == bodies
    world.check_at_rest()


def test_what_goes_back_to_the_disk_meanwhile_is_shown(make_world: Callable[..., World]) -> None:
    """A consumer that holds large messages goes while somebody looks at them."""
    with large_from(SMALL_BYTES):
        world = make_world()
        bodies = fill(world, 4, size=SMALL_BYTES)
        consumer = world.consumer()
        assert consumer.bodies == bodies
        client = browse(world, ack=ACK_INDIVIDUAL, prefetch=1)
        world.lose(consumer)
        check_shown(world, client, bodies)


def test_what_was_prepared_and_is_rolled_back_meanwhile_is_shown(world: World) -> None:
    bodies = fill(world, 3)
    consumer = world.consumer()
    consumer.begin()
    for body in bodies:
        consumer.ack(body, "t")
    client = browse(world, ack=ACK_INDIVIDUAL, prefetch=1)
    consumer.do(Prepare("t", "x"))
    world.settle()
    consumer.lose()
    world.connect().do(Finish("x", False))
    world.settle()
    check_shown(world, client, bodies)


def test_a_pattern_shows_all_queues_that_match(world: World) -> None:
    for name in ("DLQ.a", "DLQ.b", "c"):
        world.connect().send(name.encode(), name, receipt=False)
    world.settle()
    client = browse(world, "DLQ.>")
    assert client.bodies == [b"DLQ.a", b"DLQ.b"]
    assert client.browsed_ids == ["DLQ.>"]
    assert browse(world, "*").bodies == [b"c"]


def test_what_is_browsed_cannot_be_refused(world: World) -> None:
    bodies = fill(world, 1)
    client = browse(world, ack=ACK_INDIVIDUAL)
    client.ack(bodies[0], command=Nack)
    world.settle()
    assert client.codes == ["NOT_SUPPORTED"]
    assert world.stored() == bodies


def test_an_acknowledgement_of_what_was_not_shown_is_an_error(world: World) -> None:
    fill(world, 1)
    client = browse(world)
    client.do(Ack(1, "a", "r"))
    world.settle()
    assert client.codes == ["UNKNOWN_DELIVERY"]


def test_segments_may_go_while_a_read_is_under_way(make_world: Callable[..., World]) -> None:
    """Copied forward, and their file deleted: the browse looks again."""
    world = make_world(memory_limit_bytes=3 * SMALL_BYTES, journal_segment_size_bytes=8 << 10)
    bodies = fill(world, 60)
    client = world.connect()
    client.subscribe("a", ACK_AUTO, browser=True)
    world.turn()
    consumer = world.connect()
    consumer.subscribe("a", ACK_INDIVIDUAL, 2)
    for number in range(50):
        world.settle() if number % 2 else world.turn()
        if number < len(consumer.deliveries):
            consumer.do(Ack(consumer.deliveries[number].seq, "a"))
    world.settle()
    assert client.browsed_ids
    assert set(world.stored()) <= set(client.bodies) <= set(bodies)


def test_what_was_copied_forward_in_the_moment_of_a_read_is_read_again(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(memory_limit_bytes=3 * SMALL_BYTES)
    bodies = fill(world, 60)
    real, calls = world.journal.reader.read, []

    def read(places: object, done: Callable[..., None]) -> None:
        calls.append(places)
        if len(calls) == 1:
            with monkeypatch.context() as moved:
                moved.setattr(paging, "_where", lambda *_: None)
                done(None, FileNotFoundError())
        else:
            real(places, done)  # type: ignore[arg-type]

    monkeypatch.setattr(world.journal.reader, "read", read)
    assert browse(world).bodies == bodies
    assert len(calls) > 1
    assert not world.failures


def test_a_file_that_is_gone_without_a_reason_ends_the_mastership(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(memory_limit_bytes=3 * SMALL_BYTES)
    fill(world, 60)
    monkeypatch.setattr(world.journal.reader, "read", lambda _, done: done(None, FileNotFoundError("gone")))
    browse(world)
    assert "gone" in world.failures[0]


@pytest.mark.parametrize("crash", [False, True])
def test_what_waits_for_a_durable_subscription(world: World, crash: bool) -> None:
    """Also while its consumer holds it; nothing is taken, and it is of that client and name alone."""
    owner, other = world.connect("c"), world.connect("d")
    for client in (owner, other):
        client.subscribe("topic://t", id="d", subscription_name="s", prefetch=1)
    world.settle()
    world.connect().send(b"1", "topic://t", properties={"k": "v"})
    world.connect().send(b"2", "topic://t", priority=9)
    world.settle()
    other.ack(other.deliveries[0].body)
    world.settle()
    if crash:
        world.crash_and_recover()
    before = stored_state(world.broker.state, world.vfs, world.store)

    def seen(client_id: str, name: str) -> Client:
        return world.consumer("topic://t", ACK_AUTO, id="b", subscription_name=name, browser=True, client_id=client_id)

    client = seen("c", "s")
    assert client.bodies == [b"2", b"1"]
    assert client.browsed_ids == ["b"]
    assert client.deliveries[1].message.destination == "topic://t"
    assert len(seen("d", "s").bodies) == 1
    assert seen("c", "none").codes == ["UNKNOWN_SUBSCRIPTION"]
    assert seen("c", "").codes == ["DESTINATION_REFUSED"]
    assert stored_state(world.broker.state, world.vfs, world.store) == before
    world.check_at_rest()


def test_a_durable_subscription_that_ends_while_it_is_browsed(world: World) -> None:
    owner = world.consumer("topic://t", id="d", subscription_name="s", client_id="c")
    for number in range(3):
        world.connect().send(b"%d" % number, "topic://t")
    world.settle()
    browser = world.consumer("topic://t", ACK_CLIENT, 1, id="b", subscription_name="s", browser=True, client_id="c")
    assert browser.bodies == [b"0"]
    world.lose(owner)
    world.connect("c").unsubscribe("", "s")
    world.settle()
    browser.ack(b"0")
    world.settle()
    assert browser.bodies == [b"0"]
    assert browser.browsed_ids == ["b"], "what is gone is left out"
    world.check_at_rest()


@pytest.mark.parametrize("pattern", ["my orders.>", "eu/orders.*", "a..>", "*.b-", ">", "none there.*", "..*"])
def test_a_pattern_is_browsed_as_a_consumer_would_read_it(world: World, pattern: str) -> None:
    names = ["my orders.1", "my orders", "eu/orders.x", "eu/orders.x.y", "a..b", "a.b-", "a", "..c"]
    for name in names:
        world.connect().send(name.encode(), name)
    world.settle()
    looks = browse(world, pattern)
    assert (looks.errors, looks.browsed_ids) == ([], [pattern])
    reads = world.consumer(pattern)
    assert sorted(looks.bodies) == sorted(reads.bodies)
    assert bool(looks.bodies) is (pattern != "none there.*")
    world.check_at_rest()


@pytest.mark.parametrize("pattern", ["a.>.b", ">.b"])
def test_a_pattern_that_is_none_is_an_error(world: World, pattern: str) -> None:
    assert browse(world, pattern).codes == ["DESTINATION_REFUSED"]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_message_acknowledged_before_is_not_shown(world: World, persistent: bool) -> None:
    """Also where the acknowledgement is not on the disk yet when the browse begins."""
    bodies = fill(world, 3, persistent=persistent)
    consumer = world.consumer("a", ACK_INDIVIDUAL, 1)
    consumer.do(Ack(consumer.deliveries[0].seq, "a"))
    consumer.subscribe("a", ACK_AUTO, id="b", browser=True)
    world.settle()
    assert [delivery.body for delivery in consumer.deliveries if delivery.subscription == "b"] == bodies[1:]
    assert consumer.browsed_ids == ["b"]
    world.check_at_rest()


@pytest.mark.parametrize("seed", range(5))
def test_to_begin_sorts_a_bounded_part_in_a_turn(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A browse of many messages in memory begins over several turns; what comes, goes or is paged meanwhile is as it is
    for any browse. Work is counted, not timed."""
    monkeypatch.setattr(browser, "SORT_ROWS", 7)
    rng, sorted_rows = random.Random(seed), list[int]()
    insert = browser._insert

    def counted(here: array[int], seqs: Sequence[int]) -> None:
        if seqs:
            sorted_rows.append(len(seqs))
        insert(here, seqs)

    monkeypatch.setattr(browser, "_insert", counted)
    world = make_world(memory_limit_bytes=1 << 20)
    producer, sent = world.connect(), list[tuple[int, int, bytes]]()
    for number in range(50):
        priority, persistent = rng.choice((0, 4, 9)), rng.random() < 0.8
        message = Message("queue://a", b"%d" % number, priority=priority, persistent=persistent)
        sent.append((-priority, number, message.body))
        producer.do(Send(message, "r"))
        world.settle()
    sorted_rows.clear()
    client = world.connect()
    client.subscribe("a", ACK_AUTO, 0, browser=True)
    assert 0 < sum(sorted_rows) <= 7, "the others wait for the next turns"
    producer.do(Send(Message("queue://a", b"late"), "r"))
    world.consumer("a", ACK_INDIVIDUAL, 50)
    assert client.bodies == [body for *_, body in sorted(sent)]
    assert client.browsed_ids == ["a"]
    assert sum(sorted_rows) == 50
    assert max(sorted_rows) <= 7


@pytest.mark.parametrize("viewers", [1, 5, 40])
@pytest.mark.parametrize("queues", [1, 3])
def test_many_viewers_look_at_as_much_in_a_turn_as_one(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, viewers: int, queues: int
) -> None:
    """But for a few rows of each, so that none waits until another one ends. Work is counted, not timed."""
    messages, step, sort = 300, 50, 100
    monkeypatch.setattr(browser, "STEP_MESSAGES", step)
    monkeypatch.setattr(browser, "SORT_ROWS", sort)
    world = make_world()
    bodies = [fill(world, messages, str(number), 0) for number in range(queues)]
    shown, rows = list[float](), [0.0]
    insert, dispatch = browser._insert, world.broker.dispatch

    def counted(here: array[int], seqs: Sequence[int]) -> None:
        rows[0] += len(seqs) / sort
        insert(here, seqs)

    def turn() -> None:
        rows[0], before = 0.0, sum(len(client.bodies) for client in clients)
        dispatch()
        shown.append(rows[0] + (sum(len(client.bodies) for client in clients) - before) / step)

    monkeypatch.setattr(browser, "_insert", counted)
    monkeypatch.setattr(world.broker, "dispatch", turn)
    clients = [world.connect() for _ in range(viewers)]
    for number, client in enumerate(clients):
        client.subscribe(f"queue://{number % queues}", ACK_AUTO, 0, browser=True)
    world.settle()
    for number, client in enumerate(clients):
        assert client.bodies == bodies[number % queues]
    assert max(shown) <= 2 + viewers * ROWS_MIN / step, shown
    world.check_at_rest()


@pytest.mark.parametrize("seed", range(20))
def test_places_in_order(seed: int) -> None:
    """Whatever comes in whatever order is there once, sorted."""
    rng, here, expected = random.Random(seed), array("Q"), set[int]()
    for _ in range(30):
        some = sorted(rng.sample(range(100), rng.randrange(12)))
        browser._insert(here, some)
        expected.update(some)
        assert list(here) == sorted(expected)
