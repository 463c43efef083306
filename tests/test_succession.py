"""Handing over to a certain slave: by order of an operator, and to a slave of higher priority."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from brokers import ROOT, SERVING, Broker, Brokers

import amq
from amq.config.schema import BrokerConfig
from amq.doors.threads import SystemThreads
from amq.node.candidacy import (
    Candidacy,
    Decision,
    HandOver,
    Input,
    Mark,
    State,
    Stop,
    View,
)
from amq.node.group import Group
from amq.node.succession import ANSWER_S, OTHERS_S, Succession
from amq.store.files.board import FileBoard
from amq.store.files.election import FileElection
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner
from amq.store.orders import FAILBACK, HAND_OVER, OPERATOR, STOP, TAKE_OVER, WITHDRAWN, Order, OrderAnswer, Orders, give
from amq.store.presence import Presence, read_presence
from tests.fakes import FakeClock, FakeHost
from tests.patience import DEADLINE_S

PERIOD_S = 2.0


class Member:
    """A broker of the group as far as succession goes: its presence, its orders, its decisions."""

    def __init__(self, store: Path, name: str, clock: FakeClock, starts: int = 1, **options: Any) -> None:
        self.store, self.name, self.clock = str(store), name, clock
        vfs, host = SystemVfs(), FakeHost(name)
        self.owner = Owner.make(
            host,
            name=name,
            uuid=f"uuid-{name}-{starts}",
            transport_urls=(f"stomp://{name}:1",),
            lock_keep_alive_period_s=PERIOD_S,
        )
        self.config = BrokerConfig(name=name, store=self.store, **options)
        board = FileBoard(vfs, self.store)
        election = FileElection(vfs, self.config.store)
        self.group = Group(board, election, clock, host, SystemThreads(), self.config, name, None)
        self.candidacy = Candidacy(name, self.config)
        self.succession = Succession(board, clock, Random(name), self.owner, self.group, self.candidacy)
        self.not_ready = ""
        self.presence = Presence.open(FileBoard(vfs, self.store), self.owner, facts=self.facts())
        self.succession.open()

    def facts(self) -> dict[str, Any]:
        return self.group.facts(not_ready=self.not_ready, answer=self.succession.answer.to_json())

    def heed(self) -> bool:
        """One round as a slave; True = it stops."""
        decision = self.succession.heed(self.not_ready)
        self.presence.state(self.facts())
        return decision == Stop()

    def begin(self) -> None:
        """It becomes master."""
        if self.candidacy.state is State.LEAVING:
            self.step(Input.ENDED)
        self.step(Input.LOOK)
        self.step(Input.LOCKED)
        self.succession.begins()

    def decide(self) -> HandOver | Stop | None:
        """One round as a master; None = it goes on."""
        decision = self.succession.decide()
        self.presence.state(self.facts())
        return decision if isinstance(decision, HandOver | Stop) else None

    def step(self, given: Input, mark: Mark | None = None) -> Decision:
        return self.candidacy.step(given, View(self.clock.monotonic(), mark=mark))

    @property
    def called(self) -> bool:
        return self.candidacy.called(self.clock.monotonic())

    def order(self, action: str, to: str = "", number: int = 1) -> Order:
        order = Order(f"order {number}", self.owner.uuid, action, to, "me@here", OPERATOR)
        give(FileBoard(SystemVfs(), self.store), self.name, order)
        return order

    @property
    def answer(self) -> OrderAnswer:
        (found,) = (each for each in read_presence(FileBoard(SystemVfs(), self.store)) if each.name == self.name)
        return OrderAnswer.from_json(found.facts.get("answer"))

    def close(self) -> None:
        self.presence.close()


class Circle:
    """A master `a` and its slaves, one turn after the other."""

    def __init__(self, store: Path) -> None:
        self.store = store
        store.mkdir()
        self.clock = FakeClock()
        self.members: dict[str, Member] = {}

    def add(self, name: str, **options: Any) -> Member:
        made = self.members[name] = Member(self.store, name, self.clock, **options)
        return made

    def rounds(self, seconds: float, *deaf: Member, step_s: float = 0.25) -> HandOver | Stop | None:
        """Until the master ends its mastership, at most `seconds`. The `deaf` do nothing."""
        master, *slaves = self.members.values()
        if master.candidacy.state is not State.MASTER:
            master.begin()
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            departure = master.decide()
            if departure is not None:
                return departure
            for slave in slaves:
                if slave not in deaf:
                    slave.heed()
            self.clock.advance(step_s)
        return None


@pytest.fixture
def circle(tmp_path: Path) -> Any:
    made = Circle(tmp_path / "store")
    yield made
    for member in made.members.values():
        member.close()


# -- by order ---------------------------------------------------------------------------------------------------------


def test_an_order_goes_to_the_best_slave_that_is_ready(circle: Circle) -> None:
    master = circle.add("a")
    circle.add("b")
    best, late = (
        circle.add(
            "c",
            priority=3,
        ),
        circle.add("d", priority=9),
    )
    late.not_ready = "has not caught up with the journal"
    late.heed()
    best.heed()
    master.candidacy.config = BrokerConfig(store=master.store, allow_failback=False)
    order = master.order(HAND_OVER)
    assert circle.rounds(3) == HandOver("c")
    assert master.answer == OrderAnswer(order.id, "handing over", "c")
    assert best.called
    assert best.answer.state == "ready"


def test_an_order_names_the_slave(circle: Circle) -> None:
    master = circle.add("a")
    circle.add("b"), circle.add("c")
    master.order(HAND_OVER, "b")
    assert circle.rounds(3) == HandOver("b")


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("", "b has not caught up with the journal"),
        ("b", "b has not caught up with the journal"),
        ("a", "a is the master already"),
        ("x", "no broker 'x' runs on this store besides this one; others: b"),
    ],
)
def test_an_order_is_refused_with_the_reason(circle: Circle, to: str, reason: str) -> None:
    master, slave = circle.add("a"), circle.add("b")
    slave.not_ready = "has not caught up with the journal"
    slave.heed()
    order = master.order(HAND_OVER, to)
    assert circle.rounds(10) is None
    assert master.answer == OrderAnswer(order.id, "refused", reason)


def test_a_lonely_master_refuses(circle: Circle) -> None:
    master = circle.add("a")
    master.order(HAND_OVER)
    assert circle.rounds(2) is None
    assert master.answer.reason == "no other broker runs on this store"


def test_a_slave_that_does_not_answer_is_passed_over(circle: Circle) -> None:
    master, dumb = circle.add("a"), circle.add("b", priority=2)
    circle.add("c", priority=1)
    master.candidacy.config = BrokerConfig(store=master.store, allow_failback=False)
    master.order(HAND_OVER)
    began = circle.clock.monotonic()
    assert circle.rounds(20, dumb) == HandOver("c")
    assert circle.clock.monotonic() - began >= ANSWER_S + PERIOD_S
    assert not dumb.heed()
    assert not dumb.called, "what it was asked was withdrawn"


def test_a_withdrawn_order_is_none(circle: Circle) -> None:
    master, dumb = circle.add("a"), circle.add("b")
    master.order(HAND_OVER)
    assert circle.rounds(1, dumb) is None
    master.order(WITHDRAWN, number=2)
    assert circle.rounds(20) is None


def test_each_order_counts_once_and_for_one_start(circle: Circle) -> None:
    master, slave = circle.add("a"), circle.add("b")
    order = slave.order(STOP)
    assert slave.heed()
    circle.clock.advance(PERIOD_S)
    assert not slave.heed(), "seen already"
    slave.close()
    again = Member(circle.store, "b", circle.clock, starts=2)
    assert not again.heed(), "it was for the start before"
    again.close()
    del circle.members["b"]
    assert master.order(STOP).action == order.action
    master.begin()
    assert master.decide() == Stop()


def test_orders_that_fit_no_role_are_refused(circle: Circle) -> None:
    master, slave = circle.add("a"), circle.add("b")
    master.begin()
    master.order(TAKE_OVER)
    assert master.decide() is None
    assert master.answer.reason == "is the master"
    slave.order(HAND_OVER)
    assert not slave.heed()
    assert slave.answer.reason == "is not the master"


@pytest.mark.parametrize("content", [b"{", b"x" * 5000, b"", b'{"amq":"order"}', b"\0" * 4096])
def test_what_is_no_order_is_ignored(tmp_path: Path, content: bytes) -> None:
    orders = Orders(FileBoard(SystemVfs(), str(tmp_path)), "a", "u")
    orders.open()
    Path(FileBoard(SystemVfs(), str(tmp_path)).place_of_slot("a")).write_bytes(content)
    assert orders.look() is None
    give(FileBoard(SystemVfs(), str(tmp_path)), "a", Order("1", "u", STOP, by="ü" * 9000))
    assert orders.look() == Order("1", "u", STOP, by="ü" * 200)
    assert os.path.getsize(FileBoard(SystemVfs(), str(tmp_path)).place_of_slot("a")) <= 5000


# -- failback ---------------------------------------------------------------------------------------------------------


def test_a_slave_of_higher_priority_gets_the_store_when_it_was_ready_for_long_enough(circle: Circle) -> None:
    circle.add("a", priority=1, failback_delay_s=8.0)
    slave = circle.add("b", priority=2)
    circle.add("c", priority=1)
    slave.not_ready = "has not caught up with the journal"
    slave.heed()
    assert circle.rounds(30) is None
    slave.not_ready = ""
    slave.heed()
    began = circle.clock.monotonic()
    assert circle.rounds(30) == HandOver("b")
    assert 8.0 <= circle.clock.monotonic() - began <= 8.0 + OTHERS_S + PERIOD_S


def test_a_slave_that_wavers_gets_nothing(circle: Circle) -> None:
    circle.add("a", failback_delay_s=8.0)
    slave = circle.add("b", priority=2)
    for _ in range(6):
        assert circle.rounds(6) is None
        slave.not_ready = "cannot listen"
        slave.heed()
        assert circle.rounds(3) is None
        slave.not_ready = ""
        slave.heed()


def test_an_operator_s_choice_lasts_until_the_preferred_broker_is_started_again(circle: Circle) -> None:
    chosen = circle.add("a", failback_delay_s=1.0)
    preferred = circle.add("b", priority=2)
    chosen.order(TAKE_OVER)
    assert not chosen.heed()
    chosen.begin()
    assert circle.rounds(60) is None
    preferred.close()
    circle.members["b"] = Member(circle.store, "b", circle.clock, starts=2, priority=2)
    assert circle.rounds(60) == HandOver("b")


def test_a_failback_is_no_operator_s_choice(circle: Circle) -> None:
    chosen = circle.add("a", failback_delay_s=1.0)
    circle.add("b", priority=2)
    give(
        FileBoard(SystemVfs(), chosen.store),
        "a",
        Order("1", chosen.owner.uuid, TAKE_OVER, by="c, master", why=FAILBACK),
    )
    assert not chosen.heed()
    chosen.begin()
    assert circle.rounds(60) == HandOver("b")


# -- real brokers -----------------------------------------------------------------------------------------------------


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "amq.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False)


def url(*members: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{member.port}' for member in members)})?randomize=false"


@pytest.mark.deep
def test_amq_handover_under_traffic(brokers: Brokers) -> None:
    a, b, c = brokers.master("a"), brokers.slave("b"), brokers.slave("c")
    b.wait_ready()
    c.wait_ready()
    with amq.connect(url(a, b, c)) as connection:
        producer = connection.session().producer("/queue/q")
        producer.send(b"0")
        done = run("handover", "--store", brokers.store, "--to", "c", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) | {"seconds": 0} == {"before": "a", "master": "c", "epoch": 2, "seconds": 0}
        c.wait_serving()
        producer.send(b"1")
        a.wait_ready()
        b.wait_ready()
        again = run("handover", "--store", brokers.store, "--to", "c")
        assert (again.returncode, again.stdout) == (0, "c is the master already\n")
        assert run("handover", "--store", brokers.store).returncode == 0
        producer.send(b"2")
        consumer = connection.session().consumer("/queue/q")
        assert [consumer.receive(DEADLINE_S).body for _ in range(3)] == [b"0", b"1", b"2"]  # type: ignore[union-attr]
    assert not b.said(SERVING) or not a.log[-1].get("exit_code")
    refused = run("handover", "--store", brokers.store, "--to", "nobody")
    assert refused.returncode == 7
    assert "no broker 'nobody'" in refused.stderr


@pytest.mark.deep
def test_amq_stop_ends_slave_and_master_from_elsewhere(brokers: Brokers) -> None:
    a, b, c = brokers.master("a"), brokers.slave("b"), brokers.slave("c")
    assert run("stop", "--store", brokers.store, "--name", "c").returncode == 0
    assert c.wait_exit() == 0
    done = run("stop", "--store", brokers.store, "--name", "a", "--json")
    assert json.loads(done.stdout)["stopped"] is True
    assert a.wait_exit() == 0
    b.wait_serving()
    gone = run("stop", "--store", brokers.store, "--name", "a")
    assert (gone.returncode, gone.stdout) == (0, "a does not run\n")
    unknown = run("stop", "--store", brokers.store, "--name", "zoe")
    assert unknown.returncode == 1
    assert "running: b" in unknown.stderr


@pytest.mark.deep
def test_a_master_that_stands_still_does_not_read_the_order(brokers: Brokers) -> None:
    a = brokers.master("a", hungMasterTimeout=0)
    brokers.slave("b", hungMasterTimeout=0)
    a.freeze()
    done = run("handover", "--store", brokers.store, "--wait", "0.5")
    assert done.returncode == 1
    assert "has not read the order" in done.stderr
    a.thaw()
    assert run("status", "--store", brokers.store).returncode == 0, "the withdrawn order does nothing later"


@pytest.mark.deep
def test_slaves_stay_passive_after_a_stop_that_forbids_it(brokers: Brokers) -> None:
    a, b = brokers.master("a", failoverOnShutdown="false"), brokers.slave("b", failoverOnShutdown="false")
    b.wait_ready()
    with a.connect() as raw:
        raw.send("SEND", {"destination": "/queue/q", "receipt": "1"}, b"x")
        raw.receipt("1", DEADLINE_S)
    assert a.stop() == 0
    b.wait_event("the last master forbade a failover")
    text = run("status", "--store", brokers.store)
    assert text.returncode == 1
    assert "passive" in text.stdout
    assert not b.said(SERVING)
    done = run("handover", "--store", brokers.store, "--to", "b")
    assert done.returncode == 0, done.stderr
    assert "b is master now" in done.stdout


@pytest.mark.deep
def test_the_preferred_broker_becomes_master_after_its_start(brokers: Brokers) -> None:
    a = brokers.master("a", failbackDelay="300ms")
    b = brokers.add("b", priority=10, failbackDelay="300ms").start()
    b.wait_serving()
    a.wait_event("store released")
    released = len(a.log)
    b.kill()
    a.wait_serving(after=released)
    b.start().wait_serving()
    a.wait_event("failback waits longer")
