"""A client's connection over several homes: what goes where, and what the client hears."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.core.destination import ANY_REST, ANY_WORD, Pattern
from amq.core.errors import CommandError
from amq.core.message import Envelope, Message
from amq.core.xid import Xid
from amq.gateway import router, works
from amq.gateway.homes import RoutedHome
from amq.protocols.commands import (
    OLDEST,
    Abort,
    Begin,
    CloseSession,
    Command,
    Commit,
    CommitBatch,
    Credit,
    Extend,
    Failure,
    Finish,
    GoOn,
    InSession,
    LeaseMessages,
    ListPrepared,
    Locate,
    MakeSure,
    MakeTemporary,
    Nothing,
    OpenProducer,
    OpenSession,
    Prepare,
    Scope,
    Send,
    SendRun,
    SendToMany,
    Settle,
    SettleRun,
    Unsubscribe,
)
from tests.gateway.routed import Cluster, PeerWays, RoutedClient, Woken
from tests.subscribing import subscribe

NAMES = tuple(f"queue://{letter}" for letter in "abcdefghij")
ALL = Pattern("queue://", (ANY_REST,))


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make(stores: int = 3, **config: Any) -> Cluster:
        made.append(Cluster(tmp_path, stores, **config))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster()


def name_in(cluster: Cluster, store: int, scheme: str = "queue") -> str:
    """A destination whose home is that store."""
    found = (f"{scheme}://n{number}" for number in range(100))
    return next(name for name in found if cluster.placement.home_of(name) == f"s{store}")


def says(cluster: Cluster, client: RoutedClient, *commands: Any) -> None:
    client.session.handle([*commands])
    for world in cluster.worlds:
        world.wake()
    cluster.settle()


def sent(cluster: Cluster, client: RoutedClient, *names: str) -> None:
    """A message to each of these, whose body is its number."""
    client.confirmed.clear()
    says(cluster, client, *(Send(Message(name, b"%d" % n), f"s{n}") for n, name in enumerate(names)))
    assert sorted(client.confirmed) == sorted(f"s{n}" for n in range(len(names)))
    client.confirmed.clear()


# -- sends, consumers, settlements -------------------------------------------------------------------------------------


def test_each_destination_is_in_its_home_and_a_home_is_opened_when_it_is_needed(cluster: Cluster) -> None:
    client = cluster.connect()
    assert cluster.opened == []
    first, second = name_in(cluster, 0), name_in(cluster, 2)
    sent(cluster, client, first, first)
    assert cluster.opened == ["s0"]
    says(cluster, client, Send(Message(second, b"x"), "r"))
    assert cluster.opened == ["s0", "s2"]
    assert client.confirmed == ["r"]
    assert cluster.stored(first[8:]) == [b"0", b"1"]
    assert cluster.stored(second[8:]) == [b"x"]


def test_deliveries_are_numbered_by_their_homes_and_settled_there(cluster: Cluster) -> None:
    client = cluster.connect()
    names = [name_in(cluster, store) for store in range(3)]
    sent(cluster, client, *names)
    for name in names:
        says(cluster, client, subscribe(name, name, acknowledges=True))
    seqs = [delivery.seq for delivery in client.deliveries]
    assert [seq & 1023 for seq in seqs] == [0, 1, 2]
    says(cluster, client, *(Settle(seq, name, f"a{n}") for n, (seq, name) in enumerate(zip(seqs, names, strict=True))))
    assert sorted(client.confirmed) == ["a0", "a1", "a2"]
    assert all(cluster.stored(name[8:]) == [] for name in names)
    says(cluster, client, Settle(seqs[0] | 1, names[0], "wrong"))
    assert client.codes == ["UNKNOWN_DELIVERY"]


def test_runs_stay_runs(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 1)
    says(cluster, client, subscribe("c", name, acknowledges=True))
    bodies = [b"%d" % n for n in range(10)]
    says(cluster, client, SendRun(Message(name, b""), bodies, [f"r{n}" for n in range(10)]))
    assert client.confirmed == [f"r{n}" for n in range(10)]
    assert client.bodies == bodies
    says(cluster, client, SettleRun([delivery.seq for delivery in client.deliveries], "c"))
    assert cluster.stored(name[8:]) == []


def test_a_range_over_several_homes_is_settled_in_each(cluster: Cluster) -> None:
    client = cluster.connect()
    names = [name_in(cluster, store) for store in (0, 1, 2, 0, 1, 2)]
    says(cluster, client, subscribe("c", ALL, acknowledges=True, prefetch=100))
    sent(cluster, client, *names)
    seqs = [delivery.seq for delivery in client.deliveries]
    assert len(seqs) == 6
    says(cluster, client, Settle(seqs[3], "c", "range", first=OLDEST))
    assert client.confirmed == ["range"]
    left = sorted(body for name in set(names) for body in cluster.stored(name[8:]))
    assert left == sorted(delivery.body for delivery in client.deliveries[4:])
    says(cluster, client, Settle(seqs[5], "c", "again", first=seqs[4]))
    assert client.confirmed == ["range", "again"]
    assert all(cluster.stored(name[8:]) == [] for name in names)
    [consumer] = client.session.sessions[0].consumers.values()  # type: ignore[attr-defined]
    assert not consumer.held


def test_a_composite_is_answered_when_each_home_has_it(cluster: Cluster) -> None:
    client = cluster.connect()
    names = tuple(name_in(cluster, store) for store in range(3))
    client.session.handle([SendToMany(Message(names[0], b"m"), names, "r")])
    for world in cluster.worlds[:2]:
        world.settle()
    assert client.confirmed == [], "one home has not answered"
    cluster.settle()
    assert client.confirmed == ["r"]
    assert [cluster.stored(name[8:]) for name in names] == [[b"m"]] * 3
    says(cluster, client, SendToMany(Message(names[0], b"n"), (*names, "nonsense://x"), "bad"))
    assert client.codes == ["DESTINATION_REFUSED"]
    assert [cluster.stored(name[8:]) for name in names] == [[b"m"]] * 3


def test_what_a_client_sends_again_comes_to_the_store_that_remembers_it(cluster: Cluster) -> None:
    cluster.placement.rules["queue://spread"] = ""
    for n in range(20):
        for _ in range(3):
            again = cluster.connect(client_id=f"c{n}")
            says(cluster, again, Send(Message("queue://spread", b"x", duplicate_id=f"{n}"), "r"))
    counts = [len(world.stored("spread")) for world in cluster.worlds]
    assert sum(counts) == 20, "a message was stored twice"
    assert all(counts)


def test_a_destination_of_each_store_gets_what_one_connection_sends_in_one_home_and_is_read_from_all(
    cluster: Cluster,
) -> None:
    cluster.placement.rules["queue://spread"] = ""
    senders = [cluster.connect() for _ in range(3)]
    for n, sender in enumerate(senders):
        for m in range(3):
            says(cluster, sender, Send(Message("queue://spread", b"%d%d" % (n, m)), "r"))
    assert all(len(world.stored("spread")) == 3 for world in cluster.worlds)
    reader = cluster.connect()
    says(cluster, reader, subscribe("c", "queue://spread"))
    for n in range(3):
        assert [body for body in reader.bodies if body[:1] == b"%d" % n] == [b"%d%d" % (n, m) for m in range(3)]


def test_a_consumer_that_one_home_refuses_is_in_none(cluster: Cluster) -> None:
    client = cluster.connect()
    client.may_meet_mistakes = True
    says(cluster, client, subscribe("c", ALL, "r", selector="a ="))
    assert client.codes == ["INVALID_SELECTOR"]
    assert client.confirmed == []
    assert not any(world.broker.connections for world in cluster.worlds)


# -- room --------------------------------------------------------------------------------------------------------------


def test_room_is_divided_and_goes_where_messages_are(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 1)
    says(cluster, client, subscribe("c", ALL, acknowledges=True, prefetch=12))
    sent(cluster, client, *[name] * 40)
    got = len(client.deliveries)
    assert got == 10, "all but one for each of the others"
    for n in range(40):
        says(cluster, client, Settle(client.deliveries[n].seq, "c"))
    assert client.bodies == [b"%d" % n for n in range(40)]
    other = name_in(cluster, 2)
    sent(cluster, client, *[other] * 40)
    assert 40 < len(client.deliveries) <= 40 + 12
    for n in range(40, 80):
        says(cluster, client, Settle(client.deliveries[n].seq, "c"))
    assert cluster.stored(other[8:]) == []


def test_credit_is_divided_and_used_up(cluster: Cluster) -> None:
    cluster.placement.rules["queue://spread"] = ""
    client, sender = cluster.connect(), cluster.connect()
    for n in range(20):
        says(cluster, sender, Send(Message("queue://spread", b"%d" % n), "r"))
    says(cluster, client, subscribe("c", "queue://spread", acknowledges=True, credit=10))
    assert 10 <= len(client.deliveries) <= 12
    says(cluster, client, Credit("c", 2, "more"))
    assert 12 <= len(client.deliveries) <= 16
    before = len(client.deliveries)
    says(cluster, client, Credit("c", 3, "drain", drain=True))
    assert client.confirmed == ["more", "drain"]
    assert len(client.deliveries) == before + 3, "one home after the other: no more than that"
    says(cluster, client, Credit("c", 100, "all", drain=True))
    assert len(client.deliveries) == 20
    assert client.confirmed[-1] == "all"


def test_more_room_and_less(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 0)
    says(cluster, client, subscribe("c", ALL, acknowledges=True, prefetch=3))
    sent(cluster, client, *[name] * 10)
    assert len(client.deliveries) == 1
    says(cluster, client, Extend("c", 4, "more"))
    assert len(client.deliveries) == 5
    says(cluster, client, Extend("c", -4, "less"))
    assert client.confirmed == ["more", "less"]
    for n in range(5):
        says(cluster, client, Settle(client.deliveries[n].seq, "c"))
    assert 6 <= len(client.deliveries) <= 8


def test_a_browse_of_several_homes_ends_once(cluster: Cluster) -> None:
    client = cluster.connect()
    names = [name_in(cluster, store) for store in range(3)]
    sent(cluster, client, *names)
    says(cluster, client, subscribe("b", ALL, browser=True))
    assert sorted(client.bodies) == [b"0", b"1", b"2"]
    assert client.browsed_ids == ["b"]


def test_scheduled_messages_are_browsed_at_the_home_of_their_destination(cluster: Cluster) -> None:
    for name in NAMES:
        client, others = cluster.connect(), len(cluster.opened)
        says(cluster, client, Send(Message(name, b"later", {"AMQ_SCHEDULED_DELAY": "3600000"}), "sent"))
        says(cluster, client, subscribe("b", name.replace("queue://", "schedule://queue."), browser=True))
        assert len(cluster.opened) == others + 1


# -- sessions and transactions -----------------------------------------------------------------------------------------


def test_sessions_begin_in_a_home_when_they_are_needed(cluster: Cluster) -> None:
    client = cluster.connect()
    says(cluster, client, OpenSession(1, "o"), InSession(1), Send(Message(NAMES[0], b"m"), "r"))
    assert client.confirmed == ["o", "r"]
    says(cluster, client, InSession(1), subscribe("c", ALL))
    says(cluster, client, CloseSession(1, "c"))
    assert client.confirmed == ["o", "r", "c"]
    assert client.bodies == [b"m"]
    assert client.session.sessions.keys() == {0}  # type: ignore[attr-defined]


def test_a_session_begins_in_a_home_right_behind_the_end_of_another_one(cluster: Cluster) -> None:
    client = cluster.connect()
    says(cluster, client, OpenSession(1), OpenSession(2), InSession(1), Send(Message(NAMES[0], b"m"), "r"))
    says(cluster, client, InSession(1), CloseSession(1), InSession(2), subscribe("c", NAMES[0], "s"))
    assert client.errors == []
    assert client.confirmed == ["r", "s"]
    assert client.bodies == [b"m"]


def test_a_transaction_lives_where_its_work_is(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 1)
    says(cluster, client, Begin("t", "b"))
    assert cluster.opened == []
    says(cluster, client, Send(Message(name, b"m"), "s", "t"), Commit("t", "c"), Begin("t"))
    assert client.confirmed == ["b", "s", "c"]
    assert cluster.stored(name[8:]) == [b"m"]
    says(cluster, client, Send(Message(name, b"no"), None, "t"), Abort("t", "a"))
    assert cluster.stored(name[8:]) == [b"m"]
    says(cluster, client, Begin("e"), Commit("e", "empty"))
    assert client.confirmed == ["b", "s", "c", "a", "empty"]


def test_the_question_how_a_commit_ended_is_asked_everywhere(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 1)
    says(cluster, client, Begin("t"), Send(Message(name, b"m"), None, "t"), Commit("t", "c", "outcome"))
    other = cluster.connect()
    says(cluster, other, Commit("t", "known", "outcome"))
    assert other.confirmed == ["known"]
    says(cluster, other, Commit("t", "unknown", "another"))
    assert other.errors == [("TRANSACTION_ROLLED_BACK", "unknown")]


def test_prepared_transactions_are_found_in_any_home(cluster: Cluster) -> None:
    client = cluster.connect()
    for store in range(3):
        name = name_in(cluster, store)
        xid = Xid(1, b"g%d" % store, b"b")
        says(cluster, client, Begin("t"), Send(Message(name, b"m"), None, "t"), Prepare("t", xid, receipt=f"p{store}"))
    assert client.confirmed == ["p0", "p1", "p2"]
    other = cluster.connect()
    says(cluster, other, ListPrepared("l"))
    assert len(other.outcomes[0].split("\n")) == 3
    says(cluster, other, Finish(Xid(1, b"g1", b"b"), True, "f"), Finish(Xid(1, b"g2", b"b"), False, "r"))
    assert sorted(other.confirmed) == ["f", "l", "r"]
    assert [cluster.stored(name_in(cluster, store)[8:]) for store in range(3)] == [[], [b"m"], []]
    says(cluster, other, Finish(Xid(1, b"none", b"b"), True, "n"))
    assert other.errors == [("UNKNOWN_TRANSACTION", "n")]


def test_messages_without_receipt_are_asked_for_in_their_sessions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may wait for room in its session, while others go on."""
    put, asked = RoutedHome.put, list[int]()

    def noted(home: RoutedHome, session: int, command: Command) -> None:
        if isinstance(command, MakeSure):
            asked.append(session)
        put(home, session, command)

    monkeypatch.setattr(RoutedHome, "put", noted)
    client, name = cluster.connect(), NAMES[0]
    says(cluster, client, OpenSession(1), OpenSession(2))
    says(cluster, client, InSession(1), Send(Message(name, b"1")), InSession(2), Send(Message(name, b"2"), "r"))
    assert asked == [1]
    client.session.handle([InSession(2), Send(Message(name, b"3")), InSession(1), Send(Message(name, b"4"))])
    says(cluster, client, InSession(2), Send(Message(name, b"5")), InSession(0))
    assert asked == [1, 1, 2, 2], "the last one when the answers to the others are there"
    assert cluster.stored(name[8:]) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_batch_is_committed_once(cluster: Cluster) -> None:
    client, name, ways = cluster.connect(), name_in(cluster, 2), PeerWays(cluster)
    for world in cluster.worlds:
        world.broker.peers = ways
    says(cluster, client, Begin("t"), Send(Message(name, b"m"), None, "t"))
    says(cluster, client, Prepare("t", "x1", owner="job", batch=1))
    for _ in range(2):
        says(cluster, client, CommitBatch("job", 1, ["x1"], "b"))
    assert client.outcomes == ["committed", "duplicate"]
    assert cluster.stored(name[8:]) == [b"m"]


def test_batches_are_decided_by_the_first_store_that_is_left(cluster: Cluster) -> None:
    table: Any = cluster.placement
    table.stores, table.places = table.stores[1:], ("", *table.stores[1:])
    client = cluster.connect()
    says(cluster, client, Begin("t"), Prepare("t", "x1", owner="job", batch=1))
    says(cluster, client, CommitBatch("job", 1, ["x1"], "b"))
    assert client.outcomes == ["committed"]
    assert ["job" in world.broker.state.prepared.markers for world in cluster.worlds] == [False, True, False]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_lease_has_one_home(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 2)
    sent(cluster, client, name)
    says(cluster, client, LeaseMessages((name,), "cursor", 0, 10, receipt="l"))
    assert (client.errors, client.confirmed) == ([], ["l"])
    says(cluster, client, LeaseMessages((ALL,), "cursor", 0, 10, receipt="m"))
    assert client.errors == [("SOURCES_OVER_STORES", "m")]


def test_temporary_destinations_are_there_before_an_answer_is_sent(cluster: Cluster) -> None:
    asks, answers = cluster.connect(), cluster.connect()
    name = f"temp-queue://{asks.number}.replies"
    says(cluster, asks, Send(Message(NAMES[0], b"?", envelope=Envelope(reply_to=name)), "r"))
    says(cluster, answers, Send(Message(name, b"!"), "r"))
    says(cluster, asks, subscribe("c", name))
    assert asks.bodies == [b"!"]
    says(cluster, asks, MakeTemporary("temp-queue://chosen", "m"))
    says(cluster, answers, Send(Message("temp-queue://chosen", b"2"), "r"))
    says(cluster, asks, subscribe("d", "temp-queue://chosen"))
    assert asks.bodies == [b"!", b"2"]


def test_a_durable_subscription_of_a_pattern_is_in_each_home(cluster: Cluster) -> None:
    client = cluster.connect(client_id="me")
    pattern = Pattern("topic://", (ANY_REST,))
    says(cluster, client, subscribe("c", pattern, "s", subscription_name="all"))
    assert client.confirmed == ["s"]
    says(cluster, client, Unsubscribe("c", "u"))
    sender = cluster.connect()
    sent(cluster, sender, *(name_in(cluster, store, "topic") for store in range(3)))
    says(cluster, client, subscribe("c", pattern, "s", subscription_name="all"))
    assert sorted(client.bodies) == [b"0", b"1", b"2"]
    says(cluster, client, Unsubscribe("c"), Unsubscribe("", "gone", "all"))
    assert client.confirmed[-1] == "gone"
    assert not any(world.broker.state.subscriptions for world in cluster.worlds)


def test_what_concerns_no_home_is_answered_at_once_and_the_end_when_all_have(cluster: Cluster) -> None:
    client = cluster.connect()
    says(cluster, client, Nothing("n"))
    assert client.confirmed == ["n"]
    for store in range(2):
        says(cluster, client, Send(Message(name_in(cluster, store), b"m")))
    client.disconnect()
    cluster.worlds[0].settle()
    assert client.confirmed == ["n"]
    assert client.connected
    cluster.settle()
    assert len(client.confirmed) == 2
    assert not client.connected


def test_a_connection_that_ends_leaves_nothing_in_its_homes(cluster: Cluster) -> None:
    client = cluster.connect()
    sent(cluster, client, *NAMES)
    says(cluster, client, subscribe("c", ALL, acknowledges=True))
    client.lose()
    cluster.settle()
    assert not any(world.broker.connections for world in cluster.worlds)
    assert sorted(body for name in NAMES for body in cluster.stored(name[8:])) == [b"%d" % n for n in range(len(NAMES))]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_client_is_not_read_while_too_much_of_it_is_on_its_way(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "UNANSWERED_MAX", 10)
    client = cluster.connect()
    client.session.handle([Send(Message(NAMES[0], b"m"), f"r{n}") for n in range(11)])
    assert not client.reading
    cluster.settle()
    assert client.reading
    assert len(client.confirmed) == 11
    monkeypatch.setattr(router, "KEPT_BYTES_MAX", 1000)
    client.session.handle([Send(Message(NAMES[0], bytes(2000)), "large")])
    assert not client.reading
    cluster.settle()
    assert client.reading
    [home] = client.session.homes.values()  # type: ignore[attr-defined]
    assert home.kept_bytes == 0


def test_tables_are_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRODUCERS_MAX", "NAMES_MAX", "SESSIONS_MAX"):
        monkeypatch.setattr(router, name, 3)
    monkeypatch.setattr(works, "TRANSACTIONS_MAX", 3)
    client = cluster.connect()
    session: Any = client.session
    says(cluster, client, *(OpenProducer(f"p{n}", name, f"r{n}") for n, name in enumerate(NAMES)))
    assert len(client.confirmed) == len(NAMES)
    assert len(session.producers) == 3
    assert len(session._by_name) <= 3
    says(cluster, client, OpenSession(1), OpenSession(2))
    client.fail = lambda failure: client.errors.append((failure.error.code, ""))  # type: ignore[method-assign, attr-defined]
    says(cluster, client, OpenSession(3))
    says(cluster, client, *(Begin(f"t{n}") for n in range(4)))
    assert client.codes == ["SESSIONS_TOO_MANY", "TRANSACTIONS_TOO_MANY"]


# -- destinations that move, and homes that are lost -------------------------------------------------------------------


def test_a_home_that_is_lost_is_opened_again_where_nothing_was_left_there(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 1)
    says(cluster, client, subscribe("c", name, acknowledges=True), OpenProducer("p", name))
    sent(cluster, client, name)
    says(cluster, client, Settle(client.deliveries[0].seq, "c", "a"))
    cluster.cut(client.session, "s1")  # type: ignore[arg-type]
    cluster.settle()
    assert client.errors == []
    assert cluster.opened == ["s1", "s1"]
    sent_again = cluster.connect()
    sent(cluster, sent_again, name)
    assert client.bodies == [b"0", b"0"]
    assert len(cluster.worlds[1].broker.connections) == 2


def test_what_has_moved_is_sent_again_in_order_when_the_table_is_there(cluster: Cluster) -> None:
    client, name, other = cluster.connect(), name_in(cluster, 0), name_in(cluster, 2)
    sent(cluster, client, other)
    client.session.handle([Send(Message(other, b"on its way"), "o")])
    cluster.move(name, "s1")
    run = SendRun(Message(name, b""), [b"1", b"2"], ["r1", "r2"])
    client.session.handle([Send(Message(name, b"0"), "r0"), run])
    assert not client.reading
    client.session.handle([Send(Message(name, b"3"), "r3"), Send(Message(other, b"behind"), "b")])
    cluster.settle()
    assert client.confirmed == ["o"]
    cluster.tell()
    cluster.settle()
    assert client.reading
    assert client.errors == []
    assert sorted(client.confirmed) == ["b", "o", "r0", "r1", "r2", "r3"]
    assert cluster.worlds[1].stored(name[8:]) == [b"0", b"1", b"2", b"3"]
    assert cluster.worlds[0].stored(name[8:]) == []
    assert cluster.stored(other[8:]) == [b"0", b"on its way", b"behind"]


def test_a_consumer_is_known_alike_in_each_store_and_as_no_other_one(cluster: Cluster) -> None:
    """By that a queue which moves finds the consumers of its groups again."""
    for client in (cluster.connect(), cluster.connect()):
        for session in (1, 2):
            words = [OpenSession(session), InSession(session)]
            says(cluster, client, *words, subscribe("c", ALL), *words[1:], subscribe("d", ALL))
    name = name_in(cluster, 0)
    found = []
    for world in cluster.worlds:
        world.connect().send(b"x", name[8:])
        world.settle()
        queue = world.broker.state.queues[name]
        found.append({each.known_as for each in queue.subscriptions})
    assert len(found[0]) == 8
    assert found[0] == found[1] == found[2]


def test_settlements_pass_what_waits_for_a_table(cluster: Cluster) -> None:
    client, name, other = cluster.connect(), name_in(cluster, 0), name_in(cluster, 2)
    says(cluster, client, subscribe("c", other, acknowledges=True))
    sent(cluster, client, other)
    cluster.move(name, "s1")
    client.session.handle([Send(Message(name, b"m"), "r")])
    client.session.handle([Settle(client.deliveries[0].seq, "c", "a"), Nothing("n")])
    cluster.settle()
    assert client.confirmed == ["a"]
    cluster.tell()
    cluster.settle()
    assert sorted(client.confirmed) == ["a", "n", "r"]


def test_a_consumer_follows_to_another_home(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 0)
    cluster.move(name, "s1")
    says(cluster, client, subscribe("c", name, "s"))
    cluster.tell()
    cluster.settle()
    assert client.confirmed == ["s"]
    assert cluster.opened == ["s0", "s1"]
    sent(cluster, client, name)
    assert client.bodies == [b"0"]


@pytest.mark.parametrize("is_newer", [False, True])
def test_what_has_moved_is_repeated_once(cluster: Cluster, is_newer: bool) -> None:
    """The table that comes does not say what the home says."""
    client, name = cluster.connect(), name_in(cluster, 0)
    cluster.move(name, "s1")
    client.session.handle([Send(Message(name, b"m"), "r")])
    asked, cluster.asked = cluster.asked, []
    for done in asked:
        done(is_newer)  # and the table is the older one
    cluster.settle()
    assert client.errors == [("MOVED", "r")]
    assert cluster.asked == []


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_home_that_refused_something_hears_when_the_client_goes_on(cluster: Cluster, refusals: int) -> None:
    client, name = cluster.connect(), name_in(cluster, 0)
    sent(cluster, client, name)
    cluster.move(name, "s1")
    heard: list[type[Command]] = []
    connection = client.session.homes[0].connection  # type: ignore[attr-defined]
    handle = connection.handle

    def see(commands: list[Command], **options: object) -> list[Command]:
        heard.extend(map(type, commands))
        return handle(commands, **options)  # type: ignore[no-any-return]

    connection.handle = see
    failures: list[Failure] = []
    client.fail = failures.append  # type: ignore[method-assign]  # it survives them
    says(cluster, client, Send(Message(name, b"m"), "r"))
    if refusals == 2:
        cluster.asked.pop()(True)  # and the table is the older one
    else:
        cluster.tell()
    cluster.settle()
    assert [kind for kind in heard if kind is not InSession] == [Send, GoOn] * refusals
    assert len(failures) == refusals - 1
    assert client.session.move is None  # type: ignore[attr-defined]


def test_a_message_that_moved_and_asks_for_no_answer_is_an_error(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 0)
    cluster.move(name, "s1")
    says(cluster, client, Send(Message(name, b"m")))
    assert client.codes == ["MOVED"]


def test_a_consumer_whose_destination_moves_away_begins_anew(cluster: Cluster) -> None:
    client, name = cluster.connect(), name_in(cluster, 0)
    says(cluster, client, subscribe("c", name, "s", acknowledges=True))
    cluster.move(name, "s1")
    home = client.session.homes[0]  # type: ignore[attr-defined]
    home.connection.sessions[0].end_with(  # as a member does that has read the table
        next(home.connection.sessions[0].consumers()), CommandError("it has another home", code="MOVED")
    )
    cluster.tell()
    cluster.settle()
    assert client.errors == []
    assert client.confirmed == ["s"], "the client has its answer"
    sent(cluster, client, name)
    assert client.bodies == [b"0"]
    assert cluster.opened == ["s0", "s1"]


# -- shares of the event loop, and reading -----------------------------------------------------------------------------


def test_what_is_left_at_the_end_of_a_share_is_for_another_call(cluster: Cluster) -> None:
    client = cluster.connect()
    commands = [InSession(1), *(Send(Message(NAMES[n % 3], b"%d" % n), f"r{n}") for n in range(100))]
    says(cluster, client, OpenSession(1))
    rounds = 0
    while commands:
        before = len(commands)
        commands = client.session.handle(commands, until_s=cluster.clock.monotonic())
        rounds += 1
        assert len(commands) < before
    cluster.settle()
    assert rounds > 10
    assert len(client.confirmed) == 100
    assert [body for n in range(3) for body in cluster.stored(NAMES[n][8:])] == [
        b"%d" % each for n in range(3) for each in range(n, 100, 3)
    ]


def test_the_client_is_read_when_no_home_lacks_room(cluster: Cluster) -> None:
    client = cluster.connect()
    sent(cluster, client, name_in(cluster, 0), name_in(cluster, 1))
    first, second = client.session.homes.values()  # type: ignore[attr-defined]
    first.pause_reading()
    second.pause_reading()
    first.resume_reading()
    assert not client.reading
    second.resume_reading()
    assert client.reading
    first.pause_reading()
    cluster.cut(client.session, "s0")  # type: ignore[arg-type]
    assert client.reading, "a home that is lost holds nothing back"


def test_a_slow_client_gets_nothing_from_any_home(cluster: Cluster) -> None:
    client, sender = cluster.connect(), cluster.connect()
    says(cluster, client, subscribe("c", ALL))
    client.session.set_writable(False)
    sent(cluster, sender, *NAMES)
    assert client.bodies == []
    client.session.lose()
    client.session.is_lost = False
    client.session.set_writable(True)
    cluster.settle()
    assert len(client.bodies) == len(NAMES)


def test_a_client_may_ask_where_destinations_live(cluster: Cluster) -> None:
    client, one, everywhere = cluster.connect(), name_in(cluster, 1), "topic://ActiveMQ.Advisory.Connection"
    every = Locate((one, everywhere, Pattern("queue://", ("a", ANY_WORD))), "x")
    client.session.handle([Locate((one,), "w"), every])
    assert not client.reading, "one read asks for a bounded number of answers"
    says(cluster, client, Nothing("n"))
    assert client.reading
    first, second = map(json.loads, client.outcomes)
    assert first == {"table": 1, "homes": ["s1"], "stores": {"s1": ["auto://s1:1"]}}
    assert second["homes"] == ["s1", "", ""]
    assert [*second["stores"]] == ["s0", "s1", "s2"]


def test_a_home_that_ends_the_connection_for_an_error_is_heard_before_the_others(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A protocol that survives no error: the home ends the connection for it, and another one has not answered yet."""
    cluster = make_cluster()
    client = cluster.connect()
    asked: list[Any] = []
    monkeypatch.setattr(Woken, "handle", lambda _, commands, **__: asked.extend(commands) or [])
    client.session.handle([SendToMany(Message("", b"x"), NAMES, "r")])
    receipt = asked[0].receipt
    first, other = [*client.session.homes.values()][:2]
    first.fail(Failure(CommandError("the queue is full", code="QUEUE_FULL"), Scope.COMMAND, receipt))
    assert not client.errors
    first.close()
    cluster.settle()
    assert client.errors == [("QUEUE_FULL", "r")]
    assert other.unanswered
