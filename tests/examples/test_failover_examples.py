"""The programs of examples/failover, each as a process against real brokers: killed masters, pulled cables.

A program says when the master is to be killed, and ends with 0 when its numbers are right.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import ROOT, SERVING, Broker, Brokers

from tests.patience import DEADLINE_S
from tests.processes import naming, with_descendants
from tests.sampling import sampled

FOLDER = ROOT / "examples" / "failover"
CUE = "kill the master now"
WINDOW = "?reconnectWindow=10000"
FACES = ("", pytest.param("_aio", marks=pytest.mark.deep))
CASES = ("transaction", "without_transaction", "application")
# What a reader is told to watch for, in this order.
LINES = {
    "transaction": (
        "connected to ",
        "20 orders are in ",
        "transaction 1: committed",
        CUE,
        "transaction 2: rolled back",
        "transaction 2: committed",
        "transaction 4: committed",
        "20 bills of 20 orders, 0 orders left, rolled back: 1",
        "right:",
    ),
    "without_transaction": (
        "connected to ",
        "40 orders sent, 10 of them handled",
        CUE,
        "20 more orders sent",
        "the last 20 orders sent",
        "order 10 was delivered before the failover",
        "order 10 comes again",
        "60 orders handled, 1 came again, 0 left",
        "right:",
    ),
    "application": (
        "no master at ",
        "connected to ",
        CUE,
        "event DISCONNECT",
        "the work stopped after 10 confirmed orders",
        "no master at ",
        "connected to ",
        "20 orders received over 2 connections",
        "right:",
    ),
    "reattach": (
        "connected to ",
        "20 orders sent, order 0 is in hand",
        "a transaction with a bill is open",
        "the cable is pulled",
        "order 0 is acknowledged late",
        "the transaction is committed",
        "the temporary queue still has the answer",
        "20 orders acknowledged, 1 bill written, 0 orders left",
        "right:",
    ),
}


Fault = Callable[[Broker], None]


def hand_over(master: Broker) -> None:
    command = [sys.executable, "-m", "amq", "handover", "--store", str(master.store)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)


@contextmanager
def running(program: str, *words: str, temporary: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """The program as a process, which is gone at the end. `temporary`: where its temporary files go."""
    command = [sys.executable, str(FOLDER / f"{program}.py"), *words]
    env = os.environ | ({"TMPDIR": str(temporary)} if temporary is not None else {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def pair(brokers: Brokers, **options: object) -> tuple[Broker, Broker]:
    """Master and slave, started at once: which is which is chance."""
    both = [brokers.add(name, **options).start() for name in ("a", "b")]
    deadline = time.monotonic() + DEADLINE_S
    while not any(broker.said(SERVING) for broker in both):
        assert time.monotonic() < deadline, "\n".join(broker.log_text() for broker in both)
        time.sleep(0.01)
    master, slave = sorted(both, key=lambda broker: not broker.said(SERVING))
    slave.wait_slave()
    return master, slave


def play(program: str, brokers: list[Broker], cue: str = CUE, fault: Fault = Broker.kill) -> tuple[int, list[str]]:
    """Exit code and lines of the program. When it prints `cue`, the master, which is the first, meets `fault`."""
    urls = [f"stomp://127.0.0.1:{broker.port}" for broker in brokers]
    options = WINDOW if program.startswith("reattach") else ""
    words = urls[::-1] if program.startswith("application") else [f"failover:({','.join(urls)}){options}"]
    lines = []
    with running(program, *words) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(cue):
                fault(brokers[0])
        return process.wait(DEADLINE_S), lines


def check_order(lines: list[str], wanted: tuple[str, ...]) -> None:
    """Each of `wanted` begins a line, in this order; other lines may stand between them."""
    rest = iter(lines)
    for words in wanted:
        assert any(line.startswith(words) for line in rest), f"no line {words!r} at its place in\n" + "\n".join(lines)


def check_events(lines: list[str], old: Broker, new: Broker) -> None:
    """The listener hears both events, on a separate thread beside the other lines."""
    found = [line for line in lines if line.startswith("event ")]
    assert len(found) == 2, found
    assert found[0].startswith("event INTERRUPTED: ")
    assert f"127.0.0.1:{old.port} broke" in found[0]
    assert found[1].startswith(f"event FAILOVER: stomp://127.0.0.1:{new.port} serves after ")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("case", sampled(CASES))
def test_the_master_is_killed(brokers: Brokers, case: str, face: str) -> None:
    master, slave = pair(brokers)
    code, lines = play(case + face, [master, slave])
    check_order(lines, LINES[case])
    assert code == 0
    if case != "application":
        check_events(lines, master, slave)
    slave.wait_serving()
    assert not master.alive


@pytest.mark.deep
def test_the_master_hands_over(brokers: Brokers) -> None:
    """A program sees no difference between the death of the master and a change in good order."""
    master, slave = pair(brokers)
    slave.wait_ready()
    code, lines = play("transaction", [master, slave], fault=hand_over)
    check_order(lines, LINES["transaction"])
    assert code == 0
    slave.wait_serving()
    assert master.alive


@pytest.mark.parametrize("face", FACES)
def test_the_cable_is_pulled(brokers: Brokers, face: str) -> None:
    master, slave = pair(brokers)
    code, lines = play(f"reattach{face}", [master, slave])
    check_order(lines, LINES["reattach"])
    check_order(lines, ("event INTERRUPTED: the connection broke", "event REATTACHED: the session is back after "))
    assert not any(line.startswith("event FAILOVER") for line in lines)
    assert code == 0
    assert master.alive
    assert not slave.said("lock acquired")


@pytest.mark.parametrize("face", FACES)
def test_a_session_that_is_not_kept_is_found(brokers: Brokers, face: str) -> None:
    """A broker that grants reattachment to nobody is found out."""
    code, lines = play(f"reattach{face}", [brokers.master("a", reconnectWindow=0)])
    assert code == 1, lines
    check_order(lines, ("event INTERRUPTED: ", "event FAILOVER: the session was made anew after ", "WRONG: "))
    assert lines[-1].startswith("WRONG: the session was not kept: "), lines


@pytest.mark.parametrize("face", FACES)
def test_a_url_that_does_not_ask_for_the_session_is_refused(face: str) -> None:
    with running(f"reattach{face}", "failover:(stomp://127.0.0.1:1)") as process:
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "add reconnectWindow=10000 to its options" in said


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES)
def test_the_master_is_killed_too_early(brokers: Brokers, case: str) -> None:
    """A reader who is quick with the kill breaks nothing, and is not asked again."""
    master, slave = pair(brokers)
    code, lines = play(case, [master, slave], cue="connected to ")
    assert code == 0, lines
    assert lines[-1].startswith("right:"), lines
    slave.wait_serving()


@pytest.mark.parametrize("face", FACES)
def test_orders_that_are_stored_twice_are_found(brokers: Brokers, face: str) -> None:
    """A broker that remembers no ids is found out."""
    master, slave = pair(brokers, duplicateWindow=0)
    code, lines = play(f"without_transaction{face}", [master, slave])
    assert code == 1, lines
    assert lines[-1].startswith("WRONG: "), lines


@pytest.mark.deep
def test_all_at_once(tmp_path: Path) -> None:
    with running("demo", temporary=tmp_path) as process:
        said, _ = process.communicate(timeout=4 * DEADLINE_S)
    programs = [f"{case}{face}" for case in LINES for face in ("", "_aio")]
    assert {path.stem for path in FOLDER.glob("*.py")} == {*programs, "cable", "demo"}
    for program in programs:
        assert f"== {program}.py: ok, " in said, said
    assert said.endswith("8 of 8 programs found their numbers right\n"), said
    assert process.returncode == 0
    assert naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_the_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also when it is interrupted while a program waits for the kill."""
    with running("demo", "transaction.py", temporary=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if CUE in line:
                break
        family = with_descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert len(family) >= 3, family  # itself, the program, a broker, and the other one unless it is killed already
    assert naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []


def test_unknown_programs_are_refused() -> None:
    with running("demo", "transactions") as process:
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "there is no transactions; the programs are reattach, " in said
