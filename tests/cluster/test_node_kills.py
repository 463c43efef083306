"""The killer of a cluster: some kinds of kill once, and what judges the clients finds each broken promise."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

from amq.cli.demo_brokers import free_port
from bench.history import Log, Observation
from tests.cluster import kills
from tests.cluster.cables import HOME, HOST, Cables
from tests.cluster.kills import Flow, Hurt, Outcome, gaps, judge
from tests.patience import DEADLINE_S

SLOW = ("link half open", "upgrade of links", "upgrade", "node stopped", "gateway stopped", "member stopped")
KINDS_OF_A_RUN = 4
GENTLE = {"lockKeepAlivePeriod": "10s", "heartBeatSend": "10s"}  # no busy machine takes a master for a dead one


@pytest.mark.deep
def test_nothing_is_lost_undone_doubled_or_disordered_whatever_ends_or_hangs(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    kinds = random.Random(seed).sample([kind for kind in kills.KINDS if kind not in SLOW], KINDS_OF_A_RUN)
    print(f"seed {seed}: {kinds}")
    found = kills.run(tmp_path, kinds, seed, print, stores=3, per_round=len(kinds), longest_s=1.0, options=GENTLE)
    assert found.is_good, f"seed {seed}: {found.verdict()}"
    assert found.kills == Counter(kinds)
    assert found.judged == len(kinds)


def test_kills_at_the_same_time_are_of_different_kinds() -> None:
    kinds = ["member -9", "member -9", kills.ALONE, "place", "node -9"]
    groups = [["member -9", "place"], ["member -9", "node -9"], [kills.ALONE]]
    assert list(kills.together(kinds, 2)) == groups
    assert list(kills.together(kinds, 1)) == [[kind] for kind in kinds]


def log(worker: str, role: str, *events: tuple[int, str, str, str]) -> Log:
    return Log(
        worker, role, "/queue/q", [Observation(at, kind, 1, message, detail) for at, kind, message, detail in events]
    )


SENT = log(
    "p",
    "producer",
    (0, "open", "", "1/0"),
    *((n, "send", f"p-{n}", "") for n in (1, 2)),
    *((9 + n, "sent", f"p-{n}", "") for n in (1, 2)),
)
CAME = [(20, "open", "", "1/0"), (21, "recv", "p-1", "a"), (22, "recv", "p-2", "b")]


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("", CAME),
        ("lost", CAME[:2]),
        ("reordered", [CAME[0], CAME[2], CAME[1]]),
        ("doubled", [*CAME, (23, "recv", "p-2", "c")]),
        ("", [*CAME, (23, "ack", "p-2", ""), (24, "recv", "p-2", "b"), (25, "acked", "p-2", "")]),
        ("invented", [*CAME, (23, "recv", "p-3", "c")]),
        ("undone", [*CAME, (23, "ack", "p-2", ""), (24, "acked", "p-2", ""), (25, "recv", "p-2", "b")]),
    ],
)
def test_each_broken_promise_is_found(rule: str, events: list[tuple[int, str, str, str]]) -> None:
    found = {violation.rule for violation in judge([SENT, log("c", "consumer", *events)])}
    assert found - ({"doubled"} if rule == "undone" else set()) == ({rule} if rule else set())


def test_the_longest_wait_is_told_apart_by_whose_store_was_hurt() -> None:
    sent = [Observation(at, "sent", 1, "m", "") for at in (0, 1_000_000, 4_000_000, 5_000_000)]
    logs = [Log(name, "producer", f"/queue/{name}", sent[: 4 - cut]) for name, cut in (("a", 0), ("b", 2))]
    flows = [Flow(f"/queue/{name}", store, ()) for name, store in (("a", "s1"), ("b", "s2"))]
    hurt = Hurt("member -9", "", frozenset(["s1"]), 500_000, 4_500_000)
    assert sorted(gaps(flows, logs, [hurt])) == [("member -9", False, 1.0), ("member -9", True, 3.0)]
    other = hurt._replace(stores=frozenset(["s2"]))
    assert sorted(gaps(flows, logs, [hurt, other])) == [("member -9", True, 1.0), ("member -9", True, 3.0)]


def test_the_verdict_has_figures() -> None:
    found = Outcome(7, Counter({"member -9": 2}), judged=2, rounds=1, confirmed=10, acknowledged=10)
    found.waits["member -9"][True] += [0.1, 0.3]
    assert found.is_good
    assert "at most 0.3" in found.verdict()
    assert found.report()["longest_waits_s"]["member -9"]["of its stores"] == {"median": 0.2, "max": 0.3, "count": 2}
    found.ended = kills.INTERRUPTED
    assert found.is_good, "what was judged is good"
    found.violations.append("lost: m")
    assert not found.is_good
    assert "lost: 1" in found.verdict()
    assert not Outcome(7).is_good, "nothing was judged"


def test_cables() -> None:
    home = socket.create_server((HOME, free_port()))
    port = home.getsockname()[1]
    cables = Cables([port])
    ends: list[socket.socket] = [home]

    def connect() -> tuple[socket.socket, socket.socket]:
        gateway = socket.create_connection((HOST, port), DEADLINE_S)
        ends.append(gateway)
        master = home.accept()[0]
        ends.append(master)
        master.settimeout(DEADLINE_S)
        return gateway, master

    try:
        gateway, master = connect()
        cables.slow_down(port, 0.01)
        gateway.sendall(b"slow")
        assert master.recv(10) == b"slow"
        cables.cut(port)
        cut = socket.create_connection((HOST, port), DEADLINE_S)
        ends.append(cut)
        for end in (gateway, master, cut):
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(10) == b""
        cables.mend(port)
        gateway, master = connect()
        master.sendall(b"again")
        assert gateway.recv(10) == b"again"
        cables.half_open(port)
        gateway.sendall(b"lost")
        gateway.close()
        other_gateway, other_master = connect()
        other_gateway.sendall(b"passes")
        assert other_master.recv(10) == b"passes"
        master.setblocking(False)
        with pytest.raises(BlockingIOError):
            master.recv(10)
    finally:
        cables.close()
        for end in ends:
            end.close()
    assert not any(thread.name == "cables" for thread in threading.enumerate())
