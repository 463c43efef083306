"""The network between the members of a replicated store is cut, and they stop and start in every order: see
partitions.py and orders.py, which also run for as long as one likes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.patience import DEADLINE_S
from tests.preloaded import ROOT
from tests.quorum.orders import three_members
from tests.quorum.partitions import (
    NAMES,
    SHAPES,
    Client,
    Sent,
    Violation,
    check_kept,
    check_turns,
    command,
    missing,
)

SHORT = ("the master alone", "nothing leaves a slave")


def clients(**confirmed: list[Sent]) -> list[Client]:
    found = [Client(number) for number in range(len(NAMES))]
    for name, sent in confirmed.items():
        found[NAMES.index(name)].confirmed = sent
    return found


def test_two_that_confirm_in_turns_are_seen() -> None:
    first, second = [Sent(0, 1, 1.0, 1.5), Sent(1, 1, 2.0, 6.0)], [Sent(0, 1, 3.0, 4.0), Sent(1, 1, 5.0, 5.5)]
    assert check_turns(clients(a=first, b=second)) == 2  # a late confirmation of what was sent in time
    with pytest.raises(Violation, match="a and b confirm at once"):
        check_turns(clients(a=[*first, Sent(2, 1, 4.5, 6.5)], b=second))


def test_what_is_lost_or_doubled_or_out_of_order_is_seen() -> None:
    sent = clients(a=[Sent(0, 1, 0.0, 0.0), Sent(1, 1, 0.0, 0.0)], b=[Sent(0, 1, 0.0, 0.0)])
    assert check_kept(sent, [b"a 0", b"b 0", b"a 1", b"b 1"]) == 3
    for bodies in ([b"a 0", b"b 0"], [b"a 1", b"a 0", b"b 0"], [b"a 0", b"b 0", b"b 0", b"a 1"]):
        with pytest.raises(Violation):
            check_kept(sent, bodies)


def test_each_member_that_a_cut_silences_misses_the_others() -> None:
    """Otherwise a violation would be none."""
    for shape in SHAPES.values():
        ways = set(shape.ways.split())
        for letter in set(shape.mute) - set(shape.unplugged):
            leaving, coming = {way for way in ways if way[0] == letter}, {way for way in ways if way[1] == letter}
            assert max(len(leaving), len(coming)) == 2


@pytest.mark.deep
def test_the_network_between_members_is_cut(tmp_path: Path) -> None:
    if os.environ.get("CI") != "true" and missing():
        pytest.skip(f"not installed: {', '.join(missing())}")
    words = command(tmp_path, f"--turns={len(SHORT)}", "--seed=1", f"--shapes={','.join(SHORT)}", "--longest=0")
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=4 * DEADLINE_S, check=False)
    if done.stderr.startswith("unshare:") and os.environ.get("CI") != "true":
        pytest.skip(f"this host lets nobody make a network namespace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["takeovers"] >= 1
    assert figures["confirmed"] > 0


@pytest.mark.deep
def test_all_members_stop_and_those_without_the_newest_copy_wait_for_it(tmp_path: Path) -> None:
    """The master goes on alone; the other two start first, say whose copy they need, and confirm nothing without it."""
    (tmp_path / "small").mkdir()
    with three_members(tmp_path, f"file://{tmp_path}/small", 1, Random(1)) as world:
        last = world.master()
        others = [name for name in NAMES if name != last]
        told = world.turn(f"{others[0]}{others[1]}{last}", f"{others[0]}{others[1]}{last}")
        both = f"{others[0]}{others[1]}"
        after_stops, after_starts = told["steps"].split(" - ")
        assert after_stops.split()[1] == last
        assert after_starts == f"({others[0]}) ({both}) {NAMES}"
        world.check()
