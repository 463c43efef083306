"""Places: clients that can read the files of the store learn where leased and browsed messages stand, and the segments
stay a while."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.access import Action
from amq.broker.transactions import direct
from amq.core.errors import ProtocolError
from amq.journal import places
from amq.journal.format import segment_name
from amq.journal.places import MessagePlaces
from amq.journal.reader import read_messages
from amq.protocols.commands import LeaseMessages, SettleLeases
from amq.protocols.stomp.subscribing import ACK_AUTO
from amq.security.login import User
from tests.broker.notation import sources
from tests.broker.test_broker_leasing import ask, lease, sent, settle
from tests.broker.world import World

MakeWorld = Callable[..., World]
ANYBODY = {"direct_reads": "*"}


def answer(world: World, **fields: Any) -> dict[str, Any]:
    """The answer to a question for places."""
    client = ask(world, places=True, **fields)
    world.settle()
    assert (client.errors, len(client.outcomes)) == ([], 1)
    found: dict[str, Any] = json.loads(client.outcomes[0])
    client.lose()
    return found


def unpacked(found: dict[str, Any]) -> MessagePlaces:
    return places.unpack(found["places"], found["messages"])


class _At:
    def __init__(self, found: MessagePlaces, row: int) -> None:
        epoch, number = found.segments[found.where[row]]
        self.seq, self.segment = found.seqs[row], epoch << 32 | number
        self.offset, self.size = found.offsets[row], found.sizes[row]


def bodies_at(world: World, found: MessagePlaces) -> list[bytes]:
    """The messages that are at these places, each proved by its checksum."""
    at = [(_At(found, row), "queue://a") for row in range(len(found))]
    messages = read_messages(world.log, at)
    assert [message.seq for message in messages] == list(found.seqs)
    return [message.body for message in messages]


def browsed(world: World, queue: str = "a", user: str = "", places: str = "true") -> list[dict[str, Any]]:
    """The pages of a browse of places, or of bounds."""
    client = world.consumer(queue, ACK_AUTO, browser=True, options={"places": places}, user=user)
    assert (client.errors, client.browsed_ids) == ([], [queue])
    found = [json.loads(body) for body in client.bodies]
    client.lose()
    return found


@pytest.mark.parametrize("crash", [False, True])
def test_a_lease_says_where_its_messages_stand(make_world: MakeWorld, crash: bool) -> None:
    world = make_world(**ANYBODY)
    bodies = [b"%d" % number * (1 + number % 5) for number in range(50)]
    sent(world, *bodies[:25])
    sent(world, *bodies[25:], priority=7)
    found = answer(world, messages=40)
    wanted = [*bodies[25:], *bodies[:15]]
    assert found["lease"] > 0
    assert bodies_at(world, unpacked(found)) == wanted
    assert found["size"] == sum(unpacked(found).sizes)
    if crash:
        world.crash_and_recover()
    again = answer(world, messages=0, after=found["lease"] - 1)
    assert again["lease"] == found["lease"]
    assert bodies_at(world, unpacked(again)) == wanted
    assert again["newest"] == list(world.journal.newest_segment() or ())
    assert again["uuid"] == world.journal.store_uuid.hex()


def test_what_was_delivered_before_is_told(make_world: MakeWorld) -> None:
    world = make_world(**ANYBODY)
    sent(world, b"0", b"1", b"2")
    consumer = world.consumer("a", prefetch=2)
    world.lose(consumer)
    assert unpacked(answer(world)).redelivered == {0: 1, 1: 1}


def test_only_those_are_told_whom_the_operator_names(make_world: MakeWorld) -> None:
    world = make_world()
    sent(world, b"0")
    found = answer(world)
    assert (found["messages"], found["indirect"], "places" in found) == (1, direct.NOT_PERMITTED, False)
    assert [page["indirect"] for page in browsed(world)] == []
    sent(world, b"1")
    assert [(page["messages"], page["indirect"]) for page in browsed(world)] == [(1, direct.NOT_PERMITTED)]
    world.close()


def test_the_rules_of_access_may_deny_it(make_world: MakeWorld) -> None:
    world = make_world(**ANYBODY)
    sent(world, b"0")
    asked: list[tuple[Action, str]] = []

    def rules(user: User, action: Action, name: str) -> bool:  # noqa: ARG001
        asked.append((action, name))
        return action is not Action.READ_STORE

    world.broker.access.use(rules)
    assert answer(world)["indirect"] == direct.NOT_PERMITTED
    assert (Action.READ_STORE, "queue://a") in asked


def test_bounds_alone_name_no_place_and_keep_no_segment(make_world: MakeWorld) -> None:
    world = make_world(**ANYBODY)
    sent(world, b"0", b"1")
    (page,) = browsed(world, places="bounds")
    assert page.keys() == {"queue", "messages", "others", "first", "last", "size"}
    assert not world.broker.pins.codes
    (full,) = browsed(world)
    assert {name: full[name] for name in page} == page
    assert world.broker.pins.codes


@pytest.mark.parametrize("users", ["etl", "other, etl"])
def test_users_are_named_one_by_one(make_world: MakeWorld, users: str) -> None:
    world = make_world(direct_reads=users)
    sent(world, b"0")
    assert "places" in browsed(world, user="etl")[0]
    assert browsed(world, user="guest")[0]["indirect"] == direct.NOT_PERMITTED


def test_a_browse_pages_through_memory_and_disk(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ROWS_MAX", 7)
    for memory in (64 << 20, 16 << 10):
        world = make_world(**ANYBODY, memory_limit_bytes=memory)
        bodies = [b"%03d" % number + b"x" * 80 for number in range(60)]
        for number, body in enumerate(bodies):
            sent(world, body, priority=4 + number % 2)
        sent(world, b"volatile", persistent=False)
        sent(world, b"late", expires_ms=1)
        pages = browsed(world)
        found = [body for page in pages for body in bodies_at(world, unpacked(page))]
        assert found == [*bodies[1::2], *bodies[::2]]
        assert sum(page["others"] for page in pages) == 1
        ends = [(-page["last"][0], page["last"][1]) for page in pages]
        assert ends == sorted(ends)
        world.close()


def test_a_part_of_a_queue_is_browsed(make_world: MakeWorld) -> None:
    world = make_world()
    bodies = [b"%d" % number for number in range(10)]
    for number, body in enumerate(bodies):
        sent(world, body, priority=4 + number % 2)
    everything = browse(world)
    order = [*bodies[1::2], *bodies[::2]]
    assert [each.body for each in everything] == order
    at = [f"{each.message.priority}-{each.seq}" for each in everything]
    for start, stop in ((0, 10), (3, 8), (4, 5), (9, 10), (2, 2)):
        options = {"browse-until": at[stop - 1]} if stop < 10 else {}
        options |= {"browse-after": at[start - 1]} if start else {}
        assert [each.body for each in browse(world, **options)] == order[start:stop]


def test_a_browse_reads_no_further_than_its_part(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    sent(world, *[b"%d" % number for number in range(10)])
    world.crash()
    world.start()  # they wait on disk
    pager, read = world.broker.pager, list[int]()
    look = pager.look
    monkeypatch.setattr(pager, "look", lambda queue, at, then: (read.append(len(at)), look(queue, at, then)))
    everything = browse(world)
    assert sum(read) == 10
    read.clear()
    first, third = (f"4-{everything[row].seq}" for row in (0, 2))
    assert [each.body for each in browse(world, **{"browse-after": first, "browse-until": third})] == [b"1", b"2"]
    assert sum(read) == 2


def browse(world: World, **options: str) -> list[Any]:
    client = world.consumer("a", ACK_AUTO, browser=True, options=options)
    assert (client.errors, client.browsed_ids) == ([], ["a"])
    found = client.deliveries
    client.lose()
    return found


def test_queues_of_a_pattern_are_told(make_world: MakeWorld) -> None:
    world = make_world()
    for name in ("eu.a", "eu.b", "us.a"):
        sent(world, b"0", b"1", queue=name)
    assert lease(world, queue="eu.b")[1] == 2
    client = world.connect()
    client.do(LeaseMessages(sources("queue://eu.>"), "c", 0, 0, receipt=world.next_receipt()))
    world.settle()
    assert json.loads(client.outcomes[0])["queues"] == {"/queue/eu.a": 2, "/queue/eu.b": 0}


# -- pins --------------------------------------------------------------------------------------------------------------

SMALL = {**ANYBODY, "journal_segment_size_bytes": 64 << 10, "duplicate_window": 0}


def churn(world: World, count: int = 60) -> None:
    """Traffic that fills segments and leaves nothing in them."""
    for _ in range(count):
        sent(world, b"y" * 8000, queue="churn")
        client = world.consumer("churn", ACK_AUTO)
        client.lose()
    world.sweep()


def leased(world: World, count: int = 4) -> tuple[int, MessagePlaces, list[bytes]]:
    """A lease in segments that hold little else: they will be copied from."""
    bodies = [b"%02d" % number * 500 for number in range(count)]
    for body in bodies:
        sent(world, body)
        churn(world, 3)
    found = answer(world)
    return found["lease"], unpacked(found), bodies


def is_there(world: World, found: MessagePlaces) -> bool:
    return {segment_name(*key) for key in found.segments} <= set(world.segments())


def test_the_segments_of_a_lease_stay(make_world: MakeWorld) -> None:
    world = make_world(**SMALL)
    number, found, bodies = leased(world)
    churn(world)
    assert is_there(world, found)
    assert bodies_at(world, found) == bodies
    settle(world, number)
    churn(world)
    assert not is_there(world, found), "the lease is over"


@pytest.mark.parametrize(
    "option", [{"direct_read_time_s": 10.0}, {"direct_read_segments": 0}, {"direct_read_time_s": 0.0}]
)
def test_pins_are_bounded(make_world: MakeWorld, option: dict[str, Any]) -> None:
    world = make_world(**SMALL | option)
    number, found, bodies = leased(world)
    world.clock.advance(11)
    churn(world)
    assert not is_there(world, found), "compaction took what nobody keeps any more"
    again = answer(world, messages=0, after=number - 1)
    assert bodies_at(world, unpacked(again)) == bodies


def test_pins_go_at_the_limit_of_the_store(make_world: MakeWorld) -> None:
    world = make_world(**SMALL)
    _, found, _ = leased(world)
    world.broker.pins.pin("mine", [1 << 62], 1e6, 1000)
    assert world.broker.trimmer._pinned()
    world.journal.at_limit = True
    assert not world.broker.trimmer._pinned()
    assert len(found) == 4


def test_a_new_master_may_take_the_segments(make_world: MakeWorld) -> None:
    world = make_world(**SMALL)
    number, found, bodies = leased(world)
    world.crash_and_recover()
    churn(world)
    assert not is_there(world, found)
    again = answer(world, messages=0, after=number - 1)
    assert bodies_at(world, unpacked(again)) == bodies


def test_what_was_acknowledged_in_a_pinned_segment_stays_acknowledged(make_world: MakeWorld) -> None:
    """Its words of acknowledgement are in later segments, which stay as long as it does."""
    world = make_world(**SMALL)
    sent(world, *[b"gone %02d" % number * 100 for number in range(40)], queue="b")
    number, _, _ = leased(world)
    browsed(world, "b")  # pins the segments of b as well
    client = world.consumer("b", ACK_AUTO)
    assert len(client.bodies) == 40
    client.lose()
    churn(world)
    settle(world, number)
    churn(world)
    world.crash_and_recover()
    assert (world.stored("b"), world.stored("a")) == ([], [])


def test_settled_leases_stay_settled_while_their_segments_are_pinned(make_world: MakeWorld) -> None:
    """A browse keeps the segments of a lease that is over."""
    world = make_world(**SMALL)
    for number in range(6):
        sent(world, b"%d" % number * 3000)
        churn(world, 2)
    browsed(world)
    first = answer(world)
    churn(world)
    settle(world, first["lease"])
    churn(world)
    assert is_there(world, unpacked(first)), "the browse keeps them"
    world.crash_and_recover()
    assert world.stored() == []
    assert lease(world)[:2] == (0, 0)


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_places_are_packed_and_unpacked() -> None:
    rng = random.Random(7)
    for count in (1, 2, 3000):
        for segments in (1, 2, 300):
            codes = array("Q", (5 << 32 | rng.randrange(1, segments + 1) for _ in range(count)))
            seqs = [rng.randrange(1 << 62) for _ in range(count)]
            offsets = array("I", (rng.randrange(1 << 32) for _ in range(count)))
            sizes = array("I", (rng.randrange(1 << 32) for _ in range(count)))
            known = {row: rng.randrange(9) for row in range(0, count, 3)}
            found = places.unpack(places.pack(seqs, codes, offsets, sizes, known), count)
            assert [*found.seqs] == seqs
            keys = map(found.segments.__getitem__, found.where)
            assert [(epoch << 32) + number for epoch, number in keys] == [*codes]
            assert ([*found.offsets], [*found.sizes], found.redelivered) == ([*offsets], [*sizes], known)


def test_what_was_written_in_a_row_takes_little() -> None:
    count = 10_000
    codes, sizes = array("Q", [7]) * count, array("I", [150]) * count
    offsets = array("I", range(64, 64 + 150 * count, 150))
    assert len(places.pack(range(1, count + 1), codes, offsets, sizes, {})) < 2000


def test_damaged_places_are_refused() -> None:
    rng = random.Random(3)
    good = places.pack([1, 2], array("Q", [1, 2]), array("I", [64, 99]), array("I", [35, 35]), {1: 1})
    assert len(places.unpack(good, 2)) == 2
    for _ in range(2000):
        at = rng.randrange(len(good))
        bad = good[:at] + rng.choice("ABCxyz019+/=") + good[at + 1 :]
        try:
            places.unpack(bad, 2)
        except ProtocolError:
            continue
    for text in ("", "x", "AAAA", good[: len(good) // 2]):
        with pytest.raises(ProtocolError):
            places.unpack(text, 2)
    with pytest.raises(ProtocolError):
        places.unpack(good, 1)


def test_the_end_of_a_lease_is_told_of_places_too(make_world: MakeWorld) -> None:
    world = make_world(**ANYBODY)
    sent(world, b"0")
    first = answer(world)
    client = world.connect()
    client.do(
        SettleLeases(sources("queue://a"), "c", first["lease"], True, world.next_receipt()),
        LeaseMessages(sources("queue://a"), "c", first["lease"] - 1, 0, receipt=world.next_receipt(), places=True),
    )
    world.settle()
    assert [json.loads(each)["lease"] for each in client.outcomes] == [0]
