"""Prepared transactions have an owner: no user occupies, learns, hides or ends those of another, or has too many."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from amq.broker.broker import Broker
from amq.broker.transactions import two_phase
from amq.core.xid import OwnedXid, Xid
from amq.journal.records import LEASE, Prepared
from amq.protocols.commands import (
    Begin,
    Browse,
    Command,
    Finish,
    ForgetOutcome,
    LeaseMessages,
    LeaseReading,
    ListPrepared,
    Prepare,
    SettleLeases,
    Subscribe,
)
from amq.security.permissions import Permissions
from tests.broker.world import Client, World

RULES = """
[roles]
shop = ["alice"]
eves = ["eve"]
operators = ["root"]
[queues."a"]
write = ["shop"]
read = ["shop"]
[queues."both"]
write = ["*"]
read = ["*"]
[queues."AMQ.Scheduler.>"]
write = ["*"]
[queues."e"]
write = ["eves"]
[broker]
manage = ["operators"]
"""
XID = Xid(1, b"global", b"branch")


@pytest.fixture
def ruled(make_world: Callable[..., World], tmp_path: Path) -> World:
    world = make_world()
    permit(world.broker, tmp_path)
    return world


def permit(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(RULES)
    broker.permit(Permissions.read(str(path), 1))


def ask(world: World, user: str, *commands: Command) -> Client:
    client = world.connect("c", user=user)
    client.do(*commands)
    world.settle()
    client.lose()
    return client


def prepare(world: World, user: str, xid: str | Xid, *queues: str, timeout_ms: int | None = None) -> Client:
    client = world.connect("c", user=user)
    client.begin("t")
    for queue in queues:
        client.send(f"{user} {xid}".encode(), queue, transaction="t", persistent=True)
    client.do(Prepare("t", xid, timeout_ms, receipt="p"))
    world.settle()
    world.lose(client)
    return client


def listed(world: World, user: str) -> list[str]:
    (text,) = ask(world, user, ListPrepared("l")).outcomes or [""]
    return text.split("\n") if text else []


@pytest.mark.parametrize("xid", ["x1", XID])
@pytest.mark.parametrize("crash", [False, True])
def test_each_user_has_the_ids_alone(ruled: World, tmp_path: Path, xid: str | Xid, crash: bool) -> None:
    """Eve prepares, asks, ends and repeats with the same id, before and after alice: alice is told the same, and what
    she sent is stored as she says."""
    assert not prepare(ruled, "eve", xid, "e").codes
    assert not prepare(ruled, "alice", xid, "both").codes
    if crash:
        ruled.crash_and_recover()
        permit(ruled.broker, tmp_path)
    assert listed(ruled, "eve") == listed(ruled, "alice") == [str(xid)]
    assert ask(ruled, "eve", Finish(xid, False, "f")).confirmed == ["f"]
    assert listed(ruled, "alice") == [str(xid)]
    assert ask(ruled, "eve", Finish(xid, False, "f")).confirmed == ["f"], "it is repeated to her alone"
    assert ask(ruled, "eve", Finish(xid, True)).codes == ["TRANSACTION_ROLLED_BACK"]
    assert ask(ruled, "alice", Finish(xid, True, "f")).confirmed == ["f"]
    if crash:
        ruled.crash_and_recover()
        permit(ruled.broker, tmp_path)
    assert ask(ruled, "alice", ForgetOutcome(xid, "f")).confirmed == ["f"]
    assert ask(ruled, "alice", Finish(xid, False)).codes == ["XID_COMMITTED"]
    assert ask(ruled, "eve", Finish(xid, True)).codes == ["TRANSACTION_ROLLED_BACK"]
    assert (ruled.stored("both"), ruled.stored("e")) == ([f"alice {xid}".encode()], [])
    ruled.check_at_rest()


def test_a_question_of_eve_binds_eve_alone(ruled: World) -> None:
    assert ask(ruled, "eve", Prepare("t", "x1", receipt="p")).codes == ["TRANSACTION_ROLLED_BACK"]
    assert prepare(ruled, "alice", "x1", "a").confirmed[-1:] == ["p"]
    assert ask(ruled, "eve", Prepare("t", "x1", receipt="p")).codes == ["TRANSACTION_ROLLED_BACK"]
    assert ask(ruled, "alice", Prepare("t", "x1", receipt="p")).confirmed == ["p"]


@pytest.mark.parametrize("queues", [(), ("both",)])
def test_nobody_else_ends_or_sees_what_is_prepared(ruled: World, queues: tuple[str, ...]) -> None:
    """Neither what does nothing, nor what eve could have made."""
    prepare(ruled, "alice", "x1", *queues)
    assert listed(ruled, "eve") == []
    for command in (Finish("x1", True), Finish("x1", False), ForgetOutcome("x1")):
        codes = ask(ruled, "eve", command).codes
        assert codes == ask(ruled, "eve", command.__class__("never there", *[True] * isinstance(command, Finish))).codes
    assert listed(ruled, "alice") == listed(ruled, "root") == ["x1"]
    assert ask(ruled, "root", Finish("x1", True, "f")).confirmed == ["f"]
    assert ask(ruled, "root", Finish("x1", True, "f")).confirmed == ["f"], "who manages may ask again"
    assert ask(ruled, "alice", Finish("x1", True, "f")).confirmed == ["f"], "it was committed for her"


def test_what_a_user_may_not_do_any_more_is_not_committed(ruled: World, tmp_path: Path) -> None:
    prepare(ruled, "alice", "x1", "a")
    path = tmp_path / "permissions.toml"
    path.write_text(RULES.replace('shop = ["alice"]', "shop = []"))
    ruled.broker.permit(Permissions.read(str(path), 2))
    assert ask(ruled, "alice", Finish("x1", True)).codes == ["NOT_PERMITTED"]
    assert listed(ruled, "alice") == []


@pytest.mark.parametrize(
    ("sends", "enders"),
    [({}, ["root"]), ({"queue://a": [7]}, ["alice", "root"]), ({"schedule://queue.a": [7]}, ["alice", "root"])],
)
def test_those_of_an_earlier_version_are_judged_by_what_they_do(
    ruled: World, sends: dict[str, list[int]], enders: list[str]
) -> None:
    """They have no user. Where they do nothing, only those who manage end them."""
    ruled.journal.append_record(Prepared("old", ruled.broker.next_seq(), ruled.clock.wall_ms(), 0, sends=sends))
    ruled.settle()
    users = ["alice", "eve", "root"]
    assert [user for user in users if listed(ruled, user)] == enders
    for user in users:
        if user not in enders:
            assert ask(ruled, user, Finish("old", False)).codes == ["UNKNOWN_TRANSACTION"]


def test_one_of_several_users_must_be_meant(ruled: World) -> None:
    for user in ("alice", "eve"):
        prepare(ruled, user, "x1", "both")
    assert ask(ruled, "root", Finish("x1", True)).codes == ["XID_AMBIGUOUS"]
    assert listed(ruled, "root") == ["x1"]
    assert ask(ruled, "eve", Finish("x1", False, "f")).confirmed == ["f"]
    assert ask(ruled, "root", Finish("x1", True, "f")).confirmed == ["f"]
    assert ruled.stored("both") == [b"alice x1"]


def test_the_transactions_of_another_user_hide_none(ruled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_phase, "LISTED_MAX", 20)
    monkeypatch.setattr(two_phase, "LOOKED_AT_MAX", 7)
    for number in range(50):
        prepare(ruled, "eve", f"e{number}")
    prepare(ruled, "alice", "x1", "a")
    assert listed(ruled, "alice") == ["x1"]
    assert len(listed(ruled, "eve")) == len(listed(ruled, "root")) == 20
    assert not ruled.broker.two_phase.has_work


def test_a_list_takes_a_slice_of_a_turn(ruled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn looks at so many, whatever there is."""
    monkeypatch.setattr(two_phase, "LOOKED_AT_MAX", 7)
    for number in range(30):
        prepare(ruled, "eve", f"e{number}")
    looked: list[int] = []
    step = ruled.broker.two_phase.step

    def counted() -> None:
        listing = ruled.broker.two_phase._listings[0]
        before = len(listing.found)
        step()
        looked.append(len(listing.found) - before)

    monkeypatch.setattr(ruled.broker.two_phase, "step", counted)
    assert len(listed(ruled, "eve")) == 30
    assert looked == [7, 7, 7, 7, 2]


def test_a_user_has_so_many_at_most(make_world: Callable[..., World]) -> None:
    world = make_world(max_prepared_per_user=3)
    client = world.connect("c", user="eve")
    for number in range(3):  # one turn: none is durable yet
        client.do(Begin(f"t{number}"), Prepare(f"t{number}", f"x{number}"))
    client.do(Begin("t"), Prepare("t", "more"))
    world.settle()
    assert client.codes == ["QUOTA_EXCEEDED"]
    assert prepare(world, "eve", "more", "a").codes == ["QUOTA_EXCEEDED"]
    assert world.stored("a") == []
    assert not prepare(world, "alice", "x0", "a").codes
    assert ask(world, "eve", Finish("x1", True, "f")).confirmed == ["f"]
    assert not prepare(world, "eve", "more").codes
    world.crash_and_recover()
    assert prepare(world, "eve", "again").codes == ["QUOTA_EXCEEDED"], "the next master counts what is there"


@pytest.mark.parametrize(
    ("asked", "due_s"), [({"timeout_ms": 0}, 20), ({"timeout_ms": 50_000}, 20), ({}, 10), ({"timeout_ms": 5000}, 5)]
)
def test_a_timeout_has_a_maximum(make_world: Callable[..., World], asked: dict[str, int], due_s: int) -> None:
    world = make_world(prepared_transaction_timeout_s=10, prepared_transaction_timeout_max_s=20)
    prepare(world, "eve", "x1", **asked)
    world.clock.advance(due_s - 1)
    world.broker.sweep()
    assert listed(world, "eve") == ["x1"]
    world.sweep(1)
    assert ask(world, "eve", Finish("x1", True)).codes == ["TRANSACTION_ROLLED_BACK"]


def test_a_look_at_the_deadlines_costs_as_much_as_is_due(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_phase, "OVERDUE_MAX", 5)
    world = make_world()
    client = world.connect("c", user="eve")
    for number in range(200):
        timeout_ms = 1000 if number < 12 else 10**6
        client.do(Begin(f"t{number}"), Prepare(f"t{number}", f"x{number}", timeout_ms))
    world.settle()
    broker = world.broker.two_phase
    ended: list[str] = []
    end = broker._end_overdue

    def counted(prepared: Prepared, reason: str) -> None:
        ended.append(str(prepared.xid))
        end(prepared, reason)

    monkeypatch.setattr(broker, "_end_overdue", counted)
    world.broker.sweep()
    assert (ended, broker.has_work) == ([], False)
    world.clock.advance(2)
    world.broker.sweep()
    assert (len(ended), broker.has_work) == (5, True), "the next turns do the rest"
    world.settle()
    assert sorted(ended) == sorted(f"x{number}" for number in range(12))
    assert not broker.has_work
    assert len(world.broker.state.prepared) == 188


def test_what_has_ended_leaves_nothing_behind(make_world: Callable[..., World]) -> None:
    world = make_world()
    for round_ in range(30):
        client = world.connect("c", user="eve")
        for number in range(100):
            xid = f"x{round_}.{number}"
            client.do(Begin("t"), Prepare("t", xid, 10**9))
            world.settle()
            client.do(Finish(xid, False))
        world.settle()
    prepared, broker = world.broker.state.prepared, world.broker.two_phase
    assert [prepared, prepared._by_user, prepared._by_owner, prepared._by_xid] == [{}, {}, {}, {}]
    assert [broker._preparing_of, broker._late] == [{}, {}]
    assert len(broker._deadlines._heap) <= 1100


def test_what_does_nothing_is_read_only_where_the_client_knows_that(make_world: Callable[..., World]) -> None:
    world = make_world()
    client = ask(world, "alice", Begin("t"), Prepare("t", XID, receipt="p", may_be_read_only=True))
    assert (client.confirmed[-1:], client.outcomes) == (["p"], ["read-only"])
    assert not world.broker.state.prepared
    client = ask(world, "alice", Begin("t"), Prepare("t", XID, receipt="p"))
    assert list(world.broker.state.prepared) == [OwnedXid("alice", XID)]
    assert ask(world, "alice", Finish(XID, True, "f")).confirmed == ["f"]


# -- cursors and leases ------------------------------------------------------------------------------------------------


def test_a_cursor_belongs_to_a_user(ruled: World) -> None:
    """Eve may lease from the same queue, and names the same cursor."""
    for body in (b"1", b"2"):
        ruled.connect(user="alice").send(body, "both", persistent=True)
    ruled.settle()
    alice = ask(ruled, "alice", LeaseMessages(("queue://both",), "cur", 0, 1, take=True, receipt="l"))
    ((key, _),) = [(each.key, each) for each, _ in ruled.broker.state.prepared.values()]
    number = ruled.broker.state.prepared[key][0].seq
    assert f'"lease": {number}' in alice.outcomes[0]
    eve = ask(ruled, "eve", LeaseMessages(("queue://both",), "cur", 0, 1, take=True, receipt="l"))
    assert '"messages": 1' in eve.outcomes[0], "the next message, in a lease of her own"
    assert f'"lease": {number}' not in eve.outcomes[0]
    reader = ask(ruled, "eve", Subscribe("1", "queue://both", browse=Browse(reading=LeaseReading(number, "cur"))))
    assert (reader.codes, reader.bodies) == (["UNKNOWN_LEASE"], [])
    ask(ruled, "eve", SettleLeases(("queue://both",), "cur", 2**62, True, receipt="s"))
    assert ask(ruled, "eve", Finish(f"{LEASE}cur:{number}", False)).codes == ["UNKNOWN_TRANSACTION"]
    assert list(ruled.broker.state.prepared) == [key]
    reader = ask(ruled, "alice", Subscribe("1", "queue://both", browse=Browse(reading=LeaseReading(number, "cur", 0))))
    assert (reader.codes, reader.bodies) == ([], [b"1"])
    again = ask(ruled, "alice", LeaseMessages(("queue://both",), "cur", 0, 1, receipt="l"))
    assert f'"lease": {number}' in again.outcomes[0]


def test_an_epoch_of_eve_does_not_stop_alice(ruled: World) -> None:
    first = ask(ruled, "alice", LeaseMessages(("queue://both",), "cur", 0, 0, take=True, receipt="l"))
    epoch = json.loads(first.outcomes[0])["epoch"]
    for _ in range(2):
        assert not ask(ruled, "eve", LeaseMessages(("queue://both",), "cur", 0, 0, take=True, receipt="l")).codes
    assert not ask(ruled, "alice", LeaseMessages(("queue://both",), "cur", 0, 0, epoch=epoch, receipt="l")).codes
    ask(ruled, "alice", LeaseMessages(("queue://both",), "cur", 0, 0, take=True, receipt="l"))
    assert ask(ruled, "alice", LeaseMessages(("queue://both",), "cur", 0, 0, epoch=epoch)).codes == ["CURSOR_TAKEN"]
