"""A home that is lost: what a client had there goes on at the next master, and nothing is carried out twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amq.core.message import Message
from amq.core.xid import Xid
from amq.gateway import reopening
from amq.protocols.commands import (
    OLDEST,
    Abort,
    Begin,
    Commit,
    Credit,
    Disconnect,
    Extend,
    Failure,
    Finish,
    MakeTemporary,
    Nothing,
    OpenSession,
    Outcome,
    Prepare,
    Scope,
    Send,
    SendRun,
    SendToMany,
    Settle,
    SettleRun,
    SettleSet,
    Unsubscribe,
)
from tests.gateway.routed import Cluster, RoutedClient
from tests.subscribing import subscribe

NAME = "queue://n1"
TEMPORARY = "temp-queue://mine"


class Story:
    """One client of a cluster whose destinations all live in store s1, which is lost."""

    def __init__(self, path: Path) -> None:
        self.cluster = Cluster(path, 2)
        rules = self.cluster.placement.rules
        rules |= dict.fromkeys((NAME, TEMPORARY, "queue://n2", "topic://t"), "s1")
        self.client = self.cluster.connect(client_id="me")
        self.client.fail = self._failed  # type: ignore[method-assign]

    def _failed(self, failure: Failure) -> None:
        """It survives what OpenWire survives."""
        if failure.scope is Scope.CONNECTION:
            RoutedClient.fail(self.client, failure)
        else:
            error: Any = failure.error
            self.client.errors.append((error.code, str(failure.receipt or "")))

    def says(self, *commands: Any, client: RoutedClient | None = None) -> None:
        (client or self.client).session.handle([*commands])
        self.rest()

    def leaves(self, *commands: Any) -> None:
        """The home carries them out, and is lost before its answers are here."""
        connection: Any = self.client.session.homes[1].connection  # type: ignore[attr-defined]
        connection.peer.is_cut = True
        self.says(*commands)

    def sent(self, *bodies: bytes, name: str = NAME) -> None:
        self.says(*(Send(Message(name, body), f"s{body!r}") for body in bodies), client=self.cluster.connect())

    def lose(self, **how: bool) -> None:
        self.cluster.cut(self.client.session, "s1", **how)  # type: ignore[arg-type]
        self.rest()

    def rest(self) -> None:
        for world in self.cluster.worlds:
            world.wake()
        self.cluster.settle()

    @property
    def stored(self) -> list[bytes]:
        return self.cluster.worlds[1].stored(NAME[8:])


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    found = Story(tmp_path)
    yield found
    found.cluster.close()


def message(body: bytes, id: str = "", name: str = NAME) -> Message:
    return Message(name, body, duplicate_id=id)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carried_out", [False, True])
def test_messages_with_ids_are_sent_again_in_order_and_stored_once(story: Story, carried_out: bool) -> None:
    story.says(Send(message(b"0", "id0"), "r0"))
    first = [Send(message(b"%d" % n, f"id{n}"), f"r{n}") for n in (1, 2)]
    if carried_out:
        story.leaves(*first)
        assert story.stored == [b"0", b"1", b"2"]
    else:
        story.client.session.handle([*first])
    story.client.session.handle([])
    story.lose()
    story.says(Send(message(b"3", "id3"), "r3"))
    assert story.client.confirmed == ["r0", "r1", "r2", "r3"]
    assert story.stored == [b"0", b"1", b"2", b"3"]
    assert story.client.errors == []
    home = story.client.session.homes[1]  # type: ignore[attr-defined]
    assert (home.unanswered, home.kept_bytes) == (0, 0)


def test_a_message_without_an_id_costs_the_connection_where_it_may_be_stored(story: Story) -> None:
    story.says(Send(message(b"0"), "r0"))
    story.leaves(Send(message(b"1"), "r1"))
    story.lose()
    assert story.client.codes == ["STORE_LOST"]
    assert story.stored == [b"0", b"1"]


@pytest.mark.parametrize("run", [False, True])
def test_all_messages_are_sent_again_to_the_successor_of_an_orderly_home(story: Story, run: bool) -> None:
    story.says(Send(message(b"0"), "r0"))
    if run:
        story.client.session.handle([SendRun(message(b""), [b"1", b"2"], ["r1", "r2"])])
    else:
        story.client.session.handle([Send(message(b"%d" % n), f"r{n}") for n in (1, 2)])
    cut: Any = story.client.session.homes[1].connection  # type: ignore[attr-defined]
    cut.close()  # the home has not carried them out
    story.lose(is_orderly=True)
    assert story.client.confirmed == ["r0", "r1", "r2"]
    assert story.client.errors == []


def test_a_message_that_asks_for_no_answer_is_known_to_be_there_soon(story: Story) -> None:
    story.says(Send(message(b"0")), Send(message(b"1")))
    story.lose()
    assert story.client.errors == []
    story.client.session.handle([Send(message(b"2"))])
    story.lose()
    assert story.client.codes == ["STORE_LOST"]


def test_a_message_to_several_destinations_is_sent_again(story: Story) -> None:
    story.says(Send(message(b"0"), "r0"))
    story.leaves(SendToMany(message(b"1", "id"), (NAME, "queue://n2"), "r1"))
    story.lose()
    assert story.client.confirmed == ["r0", "r1"]
    assert (story.stored, story.cluster.worlds[1].stored("n2")) == ([b"0", b"1"], [b"1"])


def test_a_home_that_is_lost_again_and_again_ends_the_connection(story: Story) -> None:
    story.says(Send(message(b"0", "id0"), "r0"))
    for _ in range(reopening.LOSSES_MAX):
        story.client.session.handle([Send(message(b"1", "id1"), "r1")])
        handed: Any = story.client.session.homes[1].connection.peer  # type: ignore[attr-defined]
        handed.is_cut = True
        story.cluster.cut(story.client.session, "s1")  # type: ignore[arg-type]
        assert story.client.errors == []
    story.lose()
    assert story.client.codes == ["STORE_LOST"]


def test_where_no_master_comes_those_who_wait_are_disconnected_and_others_are_not(story: Story) -> None:
    story.says(subscribe("c", NAME, "s"))
    story.lose(was_linked=False)
    assert story.client.errors == []
    story.client.session.handle([Send(message(b"0", "id"), "r")])
    story.lose(was_linked=False)
    assert story.client.codes == ["STORE_LOST"]


def test_a_store_that_cannot_be_reached_ends_the_connection(story: Story) -> None:
    story.says(Send(message(b"0"), "r0"))
    story.cluster.refuses = True
    story.lose()
    assert story.client.codes == ["STORE_LOST"]


# -- deliveries --------------------------------------------------------------------------------------------------------


def held(story: Story, *bodies: bytes, **how: Any) -> list[int]:
    story.says(subscribe("c", NAME, "s", acknowledges=True, **how))
    story.sent(*bodies)
    assert story.client.bodies == [*bodies]
    return [each.seq for each in story.client.deliveries]


def test_what_was_not_settled_comes_again_and_both_deliveries_may_be_settled(story: Story) -> None:
    first, second = held(story, b"0", b"1")
    story.lose()
    assert story.client.bodies == [b"0", b"1"] * 2
    story.says(Settle(first, "c"), Settle(first, "c"), Settle(second, "c", "a"), Settle(second, "c", "b"))
    assert story.client.errors == []
    assert story.client.confirmed == ["s", "a", "b"], "it has left for good"
    assert story.stored == []


def test_a_settlement_of_what_somebody_else_has_now_is_no_confirmation(story: Story) -> None:
    other = story.cluster.connect()
    [first] = held(story, b"0")
    story.says(Unsubscribe("c", "u"))
    story.says(subscribe("d", NAME, acknowledges=True), client=other)
    assert other.bodies == [b"0"]
    story.says(subscribe("c", NAME, "s2", acknowledges=True))
    story.lose()
    story.says(Settle(first, "c"), Nothing("n"))
    assert story.client.confirmed[-1] == "n"
    assert story.client.errors == []
    story.says(Settle(first, "c", "a"))
    assert story.client.errors == [("UNKNOWN_DELIVERY", "a")]
    assert story.stored == [b"0"]


def gets_lost(story: Story, command: Settle) -> None:
    """The way to the home breaks before `command` is there."""
    story.client.session.handle([command])
    home: Any = story.client.session.homes[1]  # type: ignore[attr-defined]
    home.connection.peer.is_cut = True
    home.connection.sessions[0]._broker.state.queue(NAME)


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.RELEASED, Outcome.REJECTED])
@pytest.mark.parametrize("losses", [0, 1])
def test_a_settlement_without_an_answer_is_answered_by_what_happened(
    story: Story, carried_out: bool, outcome: Outcome, losses: int
) -> None:
    """`losses` = how often the store was lost before it."""
    [first] = held(story, b"0")
    for _ in range(losses):
        story.lose()
    settle = Settle(first, "c", "a", "", outcome)
    (story.leaves if carried_out else partial(gets_lost, story))(settle)
    story.lose()
    if outcome is Outcome.ACCEPTED or (outcome is Outcome.RELEASED and not losses):
        assert story.client.confirmed == ["s", "a"]
    else:
        assert story.client.errors == [("UNKNOWN_DELIVERY", "a")]
    if outcome is Outcome.ACCEPTED:
        assert story.stored == []


def test_ranges_sets_and_runs_of_old_deliveries_are_settled_as_far_as_they_came_again(story: Story) -> None:
    seqs = held(story, b"0", b"1", b"2", b"3", prefetch=10)
    story.lose()
    story.says(Settle(seqs[0], "c", first=OLDEST), Settle(seqs[0], "c", first=OLDEST))
    story.says(SettleSet(seqs[:2], "c"), SettleRun([seqs[1], seqs[2]], "c"))
    assert story.client.errors == []
    assert story.stored == [b"3"]
    story.says(SettleSet(seqs[:2], "c", "set"))
    assert story.client.errors == [("UNKNOWN_DELIVERY", "set")]


def test_new_deliveries_behind_a_loss_are_settled_as_ever(story: Story) -> None:
    held(story, b"0")
    story.lose()
    story.sent(b"1")
    [seq] = [each.seq for each in story.client.deliveries if each.body == b"1"]
    story.says(Settle(seq, "c", "a"), Settle(seq, "c", "again"))
    assert story.client.confirmed[-1] == "a"
    assert story.client.errors == [("UNKNOWN_DELIVERY", "again")]


def test_consumers_begin_with_the_room_that_they_have(story: Story) -> None:
    story.says(subscribe("c", NAME, acknowledges=True, prefetch=2), Extend("c", 1))
    story.says(subscribe("p", "queue://n2", credit=3), Credit("p", 2))
    story.lose()
    for n in range(4):
        story.sent(b"%d" % n)
        story.sent(b"p%d" % n, name="queue://n2")
    assert sorted(story.client.bodies) == [b"0", b"1", b"2", b"p0", b"p1"]


def test_a_subscription_without_an_answer_is_answered_by_the_next_master(story: Story) -> None:
    story.says(Send(message(b"0"), "r"))
    story.leaves(subscribe("c", NAME, "s", acknowledges=True))
    story.lose()
    assert story.client.confirmed == ["r", "s"]
    assert story.client.bodies == [b"0"]
    story.leaves(Unsubscribe("c", "u"))
    story.lose()
    assert story.client.confirmed == ["r", "s", "u"]


def test_a_durable_subscription_that_ended_without_an_answer_has_ended(story: Story) -> None:
    story.says(subscribe("c", "topic://t", "s", subscription_name="d"), Unsubscribe("c", "u"))
    story.leaves(Unsubscribe("", "gone", "d"))
    story.lose()
    assert story.client.confirmed == ["s", "u", "gone"]
    assert not story.cluster.worlds[1].broker.state.subscriptions


def test_a_browse_that_has_not_shown_everything_ends_and_a_finished_one_does_not(story: Story) -> None:
    story.sent(b"0", b"1")
    story.says(subscribe("b", NAME, "s", browser=True))
    story.lose()
    story.says(Unsubscribe("b", "u"))
    assert (story.client.confirmed, story.client.errors) == (["s", "u"], [])
    story.says(subscribe("b", NAME, "s2", browser=True, acknowledges=True, prefetch=1))
    story.lose()
    assert story.client.codes == ["STORE_LOST"]


def test_temporary_destinations_and_sessions_are_there_again(story: Story) -> None:
    story.says(OpenSession(1), MakeTemporary(TEMPORARY, "m"), subscribe("c", TEMPORARY, "s"))
    story.lose()
    story.sent(b"!", name=TEMPORARY)
    assert story.client.errors == []
    assert story.client.bodies == [b"!"]


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Commit("t", "end"), Abort("t", "end"), Commit("t", "end", "outcome")])
def test_a_transaction_that_was_open_is_rolled_back_and_its_end_says_so(story: Story, end: Commit | Abort) -> None:
    story.says(Begin("t"), Send(message(b"0"), None, "t"))
    story.lose()
    assert story.client.errors == []
    story.says(Send(message(b"1"), "part", "t"))
    assert story.client.errors == [("TRANSACTION_ROLLED_BACK", "part")]
    story.says(end, Nothing("n"))
    if isinstance(end, Abort):
        assert story.client.confirmed == ["end", "n"]
    else:
        assert story.client.errors[1:] == [("TRANSACTION_ROLLED_BACK", "end")]
    story.says(Begin("t"), Send(message(b"2"), None, "t"), Commit("t", "c"))
    assert story.client.confirmed[-1] == "c"
    assert story.stored == [b"2"]


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_commit_with_an_outcome_id_has_its_true_answer(story: Story, carried_out: bool) -> None:
    story.says(Begin("t"), Send(message(b"0"), None, "t"))
    if carried_out:
        story.leaves(Commit("t", "c", "outcome"))
        story.lose()
        assert story.client.confirmed == ["c"]
    else:
        story.client.session.handle([Commit("t", "c", "outcome")])
        connection: Any = story.client.session.homes[1].connection  # type: ignore[attr-defined]
        asked = dict(connection.peer.asked)
        story.cluster.worlds[1].crash_and_recover()
        connection.peer.asked = asked
        story.lose()
        assert story.client.errors == [("TRANSACTION_ROLLED_BACK", "c")]
    assert len(story.stored) == carried_out


def test_a_commit_without_one_costs_the_connection(story: Story) -> None:
    story.says(Begin("t"), Send(message(b"0"), None, "t"))
    story.leaves(Commit("t", "c"))
    story.lose()
    assert story.client.codes == ["STORE_LOST"]


def test_both_phases_of_a_prepared_transaction_are_repeated(story: Story) -> None:
    xid = Xid(1, b"x", b"y")
    story.says(Begin("t"), Send(message(b"0"), None, "t"))
    story.leaves(Prepare("t", xid, receipt="p"))
    story.lose()
    assert story.client.confirmed == ["p"]
    story.leaves(Finish(xid, True, "f"))
    story.lose()
    assert story.client.confirmed == ["p", "f"]
    assert story.stored == [b"0"]


def test_a_client_that_leaves_while_its_home_is_lost_has_left(story: Story) -> None:
    story.says(Send(message(b"0"), "r"))
    story.client.session.handle([Disconnect("bye")])
    story.lose()
    assert story.client.confirmed == ["r", "bye"]
    assert not story.client.connected
