"""Prepared transactions with the binary ids of an XA transaction manager: like those with text, and never the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.actions import Action
from amq.core.xid import Xid
from amq.journal.inspect import inspect
from amq.journal.records import Prepared
from amq.protocols.commands import Command, ForgetOutcome, ListPrepared, Prepare
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.test_broker_two_phase import drain, finish, listed, prepared
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
XID = Xid(-7, b"\x00global,\xff", bytes(64))
TEXT = "-7:00676c6f62616c2cff:" + "00" * 64  # of the same outcome id, if both were remembered alike


@pytest.mark.parametrize("commit", [False, True])
def test_it_survives_all_and_is_finished_by_somebody_else(make_world: MakeWorld, commit: bool) -> None:
    """A crash, a checkpoint that stands for the segment of its record, and compaction, which writes it again."""
    world = make_world(journal_segment_size_bytes=4096, checkpoint_distance_bytes=2048)
    prepared(world, XID, b"binary").lose()
    prepared(world, TEXT, b"text").lose()
    first = world.segments()[0]
    pump = world.connect()
    pump.subscribe("pump", ACK_AUTO)
    for _ in range(60):
        pump.send(bytes(500), "pump")
        world.settle()
    assert first not in world.segments()
    for _ in range(2):
        world.crash_and_recover()
        assert {each["xid"] for each in listed(world)} == {str(XID), TEXT}
        world.check_at_rest()
    inspection, liveness = inspect(world.log, lambda: (world.epoch, world.sealed))
    assert (inspection.problems, {*liveness.prepared}) == ([], {XID, TEXT})
    assert finish(world, XID, commit=commit).errors == []
    world.crash_and_recover()
    assert [each["xid"] for each in listed(world)] == [TEXT]
    assert finish(world, XID, commit=commit).errors == []
    code = "XID_COMMITTED" if commit else "TRANSACTION_ROLLED_BACK"
    assert finish(world, XID, commit=not commit).codes == [code]
    assert finish(world, TEXT, commit=not commit).errors == []
    assert drain(world) == [(b"binary" if commit else b"text", 0)]
    world.check_at_rest()


def test_the_text_that_writes_it_is_no_id(make_world: MakeWorld) -> None:
    """Protocols that know text only could not say which is meant."""
    world = make_world()
    for xid in (str(XID), Xid(1 << 31, b"", b""), Xid(1, bytes(65), b""), Xid(1, b"", bytes(65))):
        client = world.connect()
        client.begin()
        client.do(Prepare("t", xid, receipt="r"))
        world.settle()
        assert (client.codes, "r" in client.confirmed) == (["XID_INVALID"], False)


@pytest.mark.parametrize("how", ["xa committed: ", "xa rolled back: "])
def test_no_commit_has_its_outcome_id(make_world: MakeWorld, how: str) -> None:
    world = make_world()
    client = world.connect()
    client.begin()
    client.send(b"x", transaction="t")
    client.commit(outcome_id=how + TEXT)
    world.settle()
    assert client.codes == ["OUTCOME_ID_INVALID"]
    assert world.stored() == []


def ask(world: World, command: Command, user: str = "") -> Client:
    client = world.connect(user=user)
    client.do(command)
    world.settle()
    return client


def test_to_forget_needs_a_transaction_that_has_ended(world: World) -> None:
    assert ask(world, ForgetOutcome(XID, "f")).codes == ["UNKNOWN_TRANSACTION"]
    prepared(world, XID, b"x").lose()
    assert ask(world, ForgetOutcome(XID, "f")).codes == ["TRANSACTION_PREPARED"]
    assert finish(world, XID, commit=True).errors == []
    for _ in range(2):  # the broker remembers it for others
        assert ask(world, ForgetOutcome(XID, "f")).confirmed == ["f"]
    world.crash_and_recover()
    assert ask(world, ForgetOutcome(XID, "f")).confirmed == ["f"]
    assert drain(world) == [(b"x", 0)]


def test_a_user_is_told_of_the_transactions_that_he_may_finish(world: World) -> None:
    prepared(world, XID, b"x").lose()
    prepared(world, TEXT, b"y").lose()
    assert ask(world, ListPrepared("l")).outcomes == [f"{XID}\n{TEXT}"]
    append = world.journal.append_record
    append(Prepared("nothing", 1, world.clock.wall_ms(), 0))  # as an earlier version has stored it: of nobody
    world.settle()
    world.broker.access.use(lambda user, action, _: user.name == "ann" or action is not Action.FINISH_OTHERS)
    assert ask(world, ListPrepared("l"), "eve").outcomes == [f"{XID}\n{TEXT}"]
    assert ask(world, ListPrepared("l"), "ann").outcomes == [f"{XID}\n{TEXT}\nnothing"]
