"""Two-phase transactions: what is prepared belongs to no connection and no master, and ends as somebody says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.names import PREPARED_NAME
from amq.config.destination_options import DestinationOptions
from amq.core.xid import AnyXid, Xid
from amq.protocols.commands import CommitBatch, Finish, Prepare
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import Client, World
from tests.sampling import sampled

MakeWorld = Callable[..., World]
BINARY = Xid(1, b"global", b"branch")  # tests/broker/test_broker_binary_xids.py has what differs
XIDS = pytest.mark.parametrize(("xid", "other"), [("x", "y"), (BINARY, Xid(1, b"global", b"other"))])


def prepare(client: Client, xid: AnyXid = "x", transaction: str = "t", **fields: Any) -> str:
    token = client.world.next_receipt()
    client.do(Prepare(transaction, xid, receipt=token, **fields))
    client.world.settle()
    return token


def finish(world: World, xid: AnyXid = "x", *, commit: bool = True) -> Client:
    """Somebody else says how it ends."""
    client = world.connect()
    client.do(Finish(xid, commit, world.next_receipt()))
    world.settle()
    return client


def commit_batch(
    world: World, batch: int, *xids: AnyXid, owner: str = "job", content: tuple[int, int] | None = None
) -> Client:
    client = world.connect()
    client.do(CommitBatch(owner, batch, list(xids), world.next_receipt(), content))
    world.settle()
    return client


def prepared(world: World, xid: AnyXid = "x", *bodies: bytes, **fields: Any) -> Client:
    """A transaction that sends `bodies` to /queue/a is prepared."""
    client = world.connect()
    client.begin()
    for body in bodies or (b"1",):
        client.send(body, transaction="t")
    token = prepare(client, xid, **fields)
    assert (client.errors, token in client.confirmed) == ([], True)
    return client


def drain(world: World, queue: str = "a") -> list[tuple[bytes, int]]:
    """(body, deliveries before) of all that a consumer gets."""
    client = world.consumer(queue)
    found = [(delivery.body, delivery.redelivered) for delivery in client.deliveries]
    world.lose(client)
    return found


def listed(world: World) -> list[dict[str, Any]]:
    client = world.consumer(PREPARED_NAME, ACK_AUTO, browser=True)
    assert client.browsed_ids == [PREPARED_NAME]
    return [json.loads(delivery.body) for delivery in client.deliveries]


def with_order(world: World) -> Client:
    """Somebody works on an order: an acknowledgement, and a send to another queue, are prepared."""
    world.connect().send(b"order")
    worker = world.consumer()
    worker.begin()
    worker.ack(b"order", "t")
    worker.send(b"done", "b", transaction="t")
    prepare(worker)
    return worker


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_prepared_and_finished_by_somebody_else(make_world: MakeWorld, commit: bool, crash: bool) -> None:
    world = make_world()
    worker = with_order(world)
    world.lose(worker)
    if crash:
        world.crash_and_recover()
    assert (drain(world), drain(world, "b")) == ([], [])
    (facts,) = listed(world)
    assert (facts["xid"], facts["sends"], facts["acks"]) == ("x", {"/queue/b": 1}, {"/queue/a": 1})
    client = finish(world, commit=commit)
    assert (client.errors, len(client.confirmed), listed(world)) == ([], 1, [])
    world.check_at_rest()
    if crash:
        world.crash_and_recover()
    assert drain(world, "b") == ([(b"done", 0)] if commit else [])
    assert drain(world) == ([] if commit else [(b"order", 1)])
    for again in (True, False):
        client = finish(world, commit=again)
        codes = [] if again is commit else ["XID_COMMITTED" if commit else "TRANSACTION_ROLLED_BACK"]
        assert client.codes == codes
        assert len(client.confirmed) == (not codes)


@pytest.mark.parametrize("commit", [False, True])
def test_how_it_ends_is_told_to_nobody_before_it_is_durable(make_world: MakeWorld, commit: bool) -> None:
    """Two want different ends: who came second was refused at once, and what the first wanted went with the master."""
    code = "XID_COMMITTED" if commit else "TRANSACTION_ROLLED_BACK"
    world = make_world()
    prepared(world)
    first, second = world.connect(), world.connect()
    first.do(Finish("x", commit, "1"))
    second.do(Finish("x", not commit, "2"))
    world.turn()
    assert (first.confirmed, second.errors) == ([], [])
    world.crash_and_recover()
    assert [each["xid"] for each in listed(world)] == ["x"]
    third, fourth = world.connect(), world.connect()
    third.do(Finish("x", commit, "3"))
    fourth.do(Finish("x", not commit))
    world.settle()
    assert (third.confirmed, fourth.errors, listed(world)) == (["3"], [(code, "")], [])


def test_nothing_is_sent_to_the_list(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.send(b"1", queue=PREPARED_NAME)
    assert client.codes == ["DESTINATION_REFUSED"]
    prepared(world, "x1")
    prepared(world, "x2")
    browser = world.consumer(PREPARED_NAME, prefetch=1, browser=True)
    assert len(browser.deliveries) == 1
    browser.ack(browser.bodies[0])
    world.settle()
    assert ([json.loads(body)["xid"] for body in browser.bodies], browser.browsed_ids) == (["x1", "x2"], [])
    browser.ack(browser.bodies[1])
    world.settle()
    assert browser.browsed_ids == [PREPARED_NAME]


def test_what_was_held_comes_back_in_its_place(make_world: MakeWorld) -> None:
    world = make_world()
    producer = world.connect()
    for body in (b"1", b"2", b"3", b"4"):
        producer.send(body)
    worker = world.consumer(prefetch=3)
    worker.begin()
    for body in (b"3", b"1"):
        worker.ack(body, "t")
    prepare(worker)
    world.lose(worker)
    assert [body for body, _ in drain(world)] == [b"2", b"4"]
    finish(world, commit=False)
    assert [body for body, _ in drain(world)] == [b"1", b"2", b"3", b"4"]
    world.check_at_rest()


@pytest.mark.parametrize("commit", [False, True])
def test_a_message_for_several_queues(make_world: MakeWorld, commit: bool) -> None:
    """One record of the journal, also in a transaction, and through compaction."""
    world = make_world(journal_segment_size_bytes=4096)
    client = world.connect()
    client.begin()
    client.send(b"both", "queue://a,queue://b", transaction="t", duplicate_id="m")
    prepare(client)
    world.check_at_rest()
    pump, producer = world.connect(), world.connect()
    pump.subscribe("pump", ACK_AUTO)
    for _ in range(40):
        producer.send(bytes(500), "pump")
        world.settle()
    world.check_at_rest()
    world.crash_and_recover()
    finish(world, commit=commit)
    world.check_at_rest()
    world.crash_and_recover()
    assert drain(world) == drain(world, "b") == ([(b"both", 0)] if commit else [])


def test_an_unknown_one_is_an_error(make_world: MakeWorld) -> None:
    world = make_world()
    for commit in (True, False):
        assert finish(world, commit=commit).codes == ["UNKNOWN_TRANSACTION"]


@pytest.mark.parametrize("xid", ["x", BINARY])
def test_an_xid_is_used_once(make_world: MakeWorld, xid: AnyXid) -> None:
    world = make_world()
    prepared(world, xid)
    for end in (None, True):
        if end is not None:
            finish(world, xid)
        client = world.connect()
        client.begin()
        client.send(b"2", transaction="t")
        prepare(client, xid)
        assert client.codes == ["XID_IN_USE"]
    assert world.stored() == [b"1"]
    world.check_at_rest()


@XIDS
def test_the_question_of_a_client_that_lost_the_connection(make_world: MakeWorld, xid: AnyXid, other: AnyXid) -> None:
    """Prepared, or never: what was told stays true."""
    world = make_world()
    prepared(world, xid)
    world.crash_and_recover()
    client, asker = world.connect(), world.connect()
    token = prepare(client, xid, transaction="gone")
    assert client.confirmed == [token]
    prepare(asker, other, transaction="gone")
    assert asker.codes == ["TRANSACTION_ROLLED_BACK"]
    late = world.connect()
    late.begin()
    prepare(late, other)
    assert late.codes == ["TRANSACTION_ROLLED_BACK"]


@pytest.mark.parametrize("takeover", [False, True])
def test_a_message_to_a_topic_that_queues_take_is_prepared(make_world: MakeWorld, takeover: bool) -> None:
    """docs/openwire.md gives this divert to transaction managers whose programs publish in prepared transactions."""
    divert = {"divert": "from topic to news.a; from topic to news.b", "divert_exclusive": True}
    world = make_world(destinations=(DestinationOptions("news", divert),))
    client = world.connect()
    client.begin()
    client.send(b"1", "topic://news", transaction="t")
    token = prepare(client)
    assert (client.errors, token in client.confirmed) == ([], True)
    assert world.stored("news.a") == world.stored("news.b") == []
    if takeover:
        world.crash_and_recover()
    finish(world)
    assert world.stored("news.a") == world.stored("news.b") == [b"1"]


@pytest.mark.parametrize("what", ["not persistent", "topic", "nack", "bad xid"])
def test_what_cannot_be_prepared_is_rolled_back(make_world: MakeWorld, what: str) -> None:
    world = make_world()
    world.connect().send(b"order")
    client = world.consumer()
    client.begin()
    client.ack(b"order", "t") if what != "nack" else client.nack(b"order", "t")
    if what != "nack":
        client.send(b"1", "topic://t" if what == "topic" else "b", transaction="t", persistent=what == "bad xid")
    prepare(client, "a,b" if what == "bad xid" else "x")
    assert client.codes == ["XID_INVALID" if what == "bad xid" else "NOT_SUPPORTED"]
    assert drain(world) == [(b"order", 1)]
    assert listed(world) == []
    world.check_at_rest()


def test_a_topic_that_is_diverted_to_queues_alone_can_be_sent_to(make_world: MakeWorld) -> None:
    """A way where a transaction manager has several resources: the broker knows at the prepare who gets the message."""
    options = {"divert": "from topic to a; from topic to b", "divert_exclusive": True}
    world = make_world(destinations=(DestinationOptions("news", options),))
    client = world.connect()
    client.begin()
    client.send(b"1", "topic://news", transaction="t")
    prepare(client)
    assert client.errors == []
    world.crash_and_recover()
    assert (world.stored("a"), world.stored("b")) == ([], [])
    finish(world)
    assert (world.stored("a"), world.stored("b")) == ([b"1"], [b"1"])
    world.check_at_rest()


def test_ids_are_taken_until_it_ends(make_world: MakeWorld) -> None:
    """Who sends the same id meanwhile hears what became of it: stored once, or not at all."""
    for commit in (True, False):
        world = make_world()
        client = world.connect()
        client.begin()
        client.send(b"1", transaction="t", duplicate_id="m")
        prepare(client)
        if not commit:
            world.crash_and_recover()
        other = world.connect()
        token = other.send(b"again", duplicate_id="m")
        world.settle()
        assert token not in other.confirmed
        finish(world, commit=commit)
        assert (token in other.confirmed, other.codes) == (commit, [] if commit else ["TRANSACTION_ROLLED_BACK"])
        world.send(b"third", duplicate_id="m")
        assert world.stored() == ([b"1"] if commit else [b"third"])
        world.check_at_rest()
        world.crash_and_recover()
        assert world.stored() == ([b"1"] if commit else [b"third"])


def test_a_duplicate_rolls_the_whole_back(make_world: MakeWorld) -> None:
    world = make_world()
    world.connect().send(b"1", duplicate_id="m")
    world.settle()
    client = world.connect()
    client.begin()
    client.send(b"2", transaction="t")
    client.send(b"3", transaction="t", duplicate_id="m")
    prepare(client)
    assert (client.codes, world.stored(), listed(world)) == (["DUPLICATE_ID"], [b"1"], [])
    world.check_at_rest()


def test_a_full_disk_refuses_the_prepare_and_not_the_end(make_world: MakeWorld) -> None:
    world = make_world()
    prepared(world)
    world.journal._set_full(exhausted=False)
    client = world.connect()
    client.begin()
    client.send(b"2", transaction="t", duplicate_id="m")
    prepare(client, "y")
    assert client.codes == ["STORE_FULL"]
    assert finish(world).errors == []
    assert world.stored() == [b"1"]
    world.check_at_rest()


def test_a_prepare_that_meets_a_full_disk_never_took_place(make_world: MakeWorld) -> None:
    world = make_world()
    world.connect().send(b"order")
    client = world.consumer()
    client.begin()
    client.ack(b"order", "t")
    client.send(b"2", "b", transaction="t", duplicate_id="m")
    world.journal._exhausted = True
    prepare(client)
    assert client.codes == ["STORE_FULL"]
    world.journal._exhausted = False
    assert (listed(world), drain(world)) == ([], [(b"order", 1)])
    world.check_at_rest()


@pytest.mark.parametrize("asked", [None, 5000, 0])
def test_orphans_time_out_by_the_wall_clock(make_world: MakeWorld, asked: int | None) -> None:
    """Also over a takeover."""
    world = make_world(prepared_transaction_timeout_s=20)
    worker = world.connect()
    world.connect().send(b"order")
    worker.subscribe()
    world.settle()
    worker.begin()
    worker.ack(b"order", "t")
    prepare(worker, timeout_ms=asked)
    worker.lose()
    left = {None: 20.0, 5000: 5.0, 0: 1e6}[asked]
    world.clock.advance(left / 2)
    world.crash_and_recover()
    world.sweep()
    assert len(listed(world)) == 1
    world.sweep(left / 2 + 1)
    assert (len(listed(world)), len(drain(world))) == ((1, 0) if asked == 0 else (0, 1))
    assert finish(world).codes == ([] if asked == 0 else ["TRANSACTION_ROLLED_BACK"])
    world.check_at_rest()


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["xid committed: ", "xid rolled back: "])
def test_no_commit_is_named_as_the_end_of_a_prepared_transaction(make_world: MakeWorld, how: str) -> None:
    """Else a client could make the broker confirm that an xid ended which nobody has prepared."""
    world = make_world()
    client, asker = world.connect(), world.connect()
    client.begin()
    client.send(b"x", transaction="t")
    client.commit(outcome_id=how + "job.7")
    asker.commit("t", how + "job.7")
    world.settle()
    assert (client.codes, asker.codes) == (["OUTCOME_ID_INVALID"], ["OUTCOME_ID_INVALID"])
    for commit in (True, False):
        assert finish(world, "job.7", commit=commit).codes == ["UNKNOWN_TRANSACTION"]
    world.crash_and_recover()
    assert finish(world, "job.7").codes == ["UNKNOWN_TRANSACTION"]
    assert (world.stored(), dict(world.broker.state.outcomes)) == ([], {})
    prepared(world, "job.7")
    assert finish(world, "job.7").errors == []
    world.check_at_rest()


@XIDS
def test_a_batch_is_committed_once(make_world: MakeWorld, xid: AnyXid, other: AnyXid) -> None:
    world = make_world()
    parts = [xid, other]
    for i, part in enumerate(parts, 1):
        prepared(world, part, b"%d" % i, owner="job", batch=7)
    prepared(world, "speculative", b"3", owner="job", batch=7)
    prepared(world, "other", b"4", owner="other", batch=7)
    world.crash_and_recover()
    client = commit_batch(world, 7, *parts)
    assert (client.outcomes, client.errors) == (["committed"], [])
    assert world.stored() == [b"1", b"2"]
    assert [each["xid"] for each in listed(world)] == ["other"]
    for _ in range(2):
        assert commit_batch(world, 7, *parts).outcomes == ["duplicate"]
        world.check_at_rest()
        world.crash_and_recover()
    assert commit_batch(world, 6, xid).codes == ["BATCH_TOO_OLD"]
    zombie = world.connect()
    zombie.begin()
    zombie.send(b"5", transaction="t")
    prepare(zombie, "zombie", owner="job", batch=7)
    assert zombie.codes == ["BATCH_COMMITTED"]
    assert world.stored() == [b"1", b"2"]
    prepared(world, "x3", b"6", owner="job", batch=8)
    assert commit_batch(world, 8, "x3").outcomes == ["committed"]
    assert commit_batch(world, 9).outcomes == ["committed"]


def test_a_batch_is_committed_whole_or_not_at_all(make_world: MakeWorld) -> None:
    world = make_world()
    prepared(world, "x1", b"1", owner="job", batch=1)
    prepared(world, "x2", b"2", owner="job", batch=2)
    prepared(world, "x3", b"3", owner="job", batch=1)
    finish(world, "x3", commit=False)
    assert commit_batch(world, 1, "x1", "nobody").codes == ["UNKNOWN_TRANSACTION"]
    assert commit_batch(world, 1, "x1", "x2").codes == ["BATCH_MISMATCH"]
    assert commit_batch(world, 1, "x1", "x3").codes == ["TRANSACTION_ROLLED_BACK"]
    assert (world.stored(), len(listed(world))) == ([], 2)
    assert commit_batch(world, 1, "x1").outcomes == ["committed"]
    world.check_at_rest()


def test_a_prepare_that_comes_beside_the_commit_of_its_batch_is_rolled_back(make_world: MakeWorld) -> None:
    world = make_world()
    prepared(world, "x1", b"1", owner="job", batch=1)
    zombie, driver = world.connect(), world.connect()
    zombie.begin()
    zombie.send(b"2", transaction="t")
    zombie.do(Prepare("t", "zombie", None, "job", 1, world.next_receipt()))
    driver.do(CommitBatch("job", 1, ["x1"], world.next_receipt()))
    world.settle()
    world.sweep()
    assert (driver.outcomes, world.stored(), listed(world)) == (["committed"], [b"1"], [])


def test_an_answer_that_was_lost(make_world: MakeWorld) -> None:
    """The driver asks twice at once, and once more on the next master."""
    world = make_world()
    prepared(world, "x1", owner="job", batch=1)
    driver = world.connect()
    for _ in range(2):
        driver.do(CommitBatch("job", 1, ["x1"], world.next_receipt()))
    world.settle()
    assert driver.outcomes == ["committed", "duplicate"]
    assert [commit_batch(world, 2).outcomes for _ in "12"] == [["committed"], ["duplicate"]], "a batch without parts"


# -- the journal -------------------------------------------------------------------------------------------------------


def test_what_is_prepared_keeps_no_segment(make_world: MakeWorld) -> None:
    world = make_world(journal_segment_size_bytes=4096)
    with_order(world).lose()
    prepared(world, "m", b"2", owner="job", batch=3)
    commit_batch(world, 3, "m")
    finish(world, "nobody")
    first = world.segments()[0]
    pump, producer = world.connect(), world.connect()
    pump.subscribe("pump", ACK_AUTO)
    for _ in range(80):
        producer.send(bytes(500), "pump")
        world.settle()
    assert first not in world.segments()
    world.check_at_rest()
    world.crash_and_recover()
    assert [each["xid"] for each in listed(world)] == ["x"]
    assert commit_batch(world, 3, "m").outcomes == ["duplicate"]
    assert finish(world).errors == []
    assert drain(world, "b") == [(b"done", 0)]
    world.check_at_rest()


@pytest.mark.parametrize("seed", sampled(range(10)))
def test_a_walk(make_world: MakeWorld, seed: int) -> None:
    """Transactions are prepared and end, beside traffic that makes compaction copy, through crashes at any moment.
    Nothing is lost, nothing comes twice, no part without the other."""
    dice = random.Random(seed)
    world = make_world(
        journal_segment_size_bytes=4096,
        checkpoint_distance_bytes=dice.choice([2048, 1 << 40]),
        maximum_redeliveries=1000,
    )
    committed: set[bytes] = set()
    orders, xid, open_xids = 0, 0, []
    for step in range(160):
        if step % 40 == 0:
            world.crash_and_recover()
            pump = world.connect()
            pump.subscribe("pump", ACK_AUTO)
            producer = world.connect()
        world.follow(dice.choice([500, 1 << 30]))
        what = dice.random()
        if what < 0.3:
            orders += 1
            producer.send(b"%d" % orders, duplicate_id=f"o{orders}")
        elif what < 0.6:
            worker = world.consumer(prefetch=dice.randint(1, 4))
            if bodies := worker.bodies:
                xid += 1
                worker.begin()
                for body in bodies:
                    worker.ack(body, "t")
                    worker.send(body, "b", transaction="t", duplicate_id=f"b{xid}-{body.decode()}")
                prepare(worker, f"x{xid}")
                open_xids.append((f"x{xid}", bodies))
            worker.lose()
        elif what < 0.8 and open_xids:
            name, bodies = open_xids.pop(dice.randrange(len(open_xids)))
            commit = dice.random() < 0.5
            client = world.connect()
            client.do(Finish(name, commit, "f"))
            if dice.random() < 0.3:
                world.turn()
                world.crash_and_recover(jobs=dice.randint(0, 2), torn=dice.choice([None, 0.5]))
                pump, producer = world.connect(), world.connect()
                pump.subscribe("pump", ACK_AUTO)
                again = finish(world, name, commit=commit)
                assert again.errors == []
            if commit:
                committed.update(bodies)
        else:
            for _ in range(5):
                producer.send(bytes(500), "pump")
        world.settle()
        world.check()
        assert sorted(each["xid"] for each in listed(world)) == sorted(name for name, _ in open_xids)
    world.check_at_rest()
    for name, _ in open_xids:
        finish(world, name, commit=False)
    world.check_at_rest()
    world.crash_and_recover()
    assert sorted(world.stored("b")) == sorted(committed)
    assert sorted(world.stored()) == sorted({b"%d" % i for i in range(1, orders + 1)} - committed)


@pytest.mark.parametrize("commit", [True, False])
def test_what_a_prepared_transaction_does_counts_when_it_is_committed(make_world: MakeWorld, commit: bool) -> None:
    world = make_world()
    client = world.connect()
    client.send(b"before")
    client.subscribe("a")
    world.settle()
    client.begin()
    client.ack(b"before", "t")
    client.send(b"1", "b", transaction="t")
    client.send(b"2", "b", transaction="t")
    prepare(client)
    queues = world.broker.state.queues

    def counts(name: str) -> tuple[int, int]:
        queue = queues.get(f"queue://{name}")
        return (queue.enqueued, queue.acknowledged) if queue is not None else (0, 0)

    assert (counts("a"), counts("b")) == ((1, 0), (0, 0))
    client.lose()
    finish(world, commit=commit)
    assert (counts("a"), counts("b")) == (((1, 1), (2, 0)) if commit else ((1, 0), (0, 0)))
