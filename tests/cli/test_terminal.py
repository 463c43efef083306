"""`amq top` and `amq queues --watch` in a real terminal, tmux, at 80 and 200 columns, as people see them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import Broker, Brokers

import amq as client
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
ROOT = Path(__file__).resolve().parent.parent.parent
LINES = 40
LONG = "a.very.long.name.of.a.queue.that.does.not.fit.into.eighty.columns.whatever.is.done"


class Terminal:
    """One window of a separate tmux server."""

    def __init__(self, tmux: str, socket: Path) -> None:
        self._words = [tmux, "-S", str(socket), "-f", "/dev/null"]

    def do(self, *words: str) -> str:
        done = subprocess.run([*self._words, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return done.stdout

    def shows(self, wanted: Callable[[str], bool]) -> str:
        """The screen, when it is `wanted`."""
        until, screen = time.monotonic() + DEADLINE_S, ""
        while time.monotonic() < until:
            screen = self.do("capture-pane", "-p")
            if wanted(screen):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"not within {DEADLINE_S:g} s; the screen is:\n{screen}")


@contextmanager
def terminal(folder: Path, columns: int, *words: object) -> Iterator[Terminal]:
    """`amq WORDS` in a terminal that is so wide."""
    tmux = shutil.which("tmux")
    if tmux is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tmux is missing: apt-get install tmux")
        pytest.skip("no tmux here: apt-get install tmux")
    made = Terminal(tmux, folder / "tmux")
    command = "env -u COLUMNS -u LINES " + shlex.join([sys.executable, "-m", "amq.cli.main", *map(str, words)])
    made.do("new-session", "-d", "-x", str(columns), "-y", str(LINES), "-c", str(ROOT), command)
    try:
        yield made
    finally:
        made.do("kill-server")


def fill(broker: Broker, name: str, count: int) -> None:
    with client.connect(f"failover:(stomp://127.0.0.1:{broker.port})") as connection, connection.session() as session:
        producer = session.producer(f"/queue/{name}")
        for number in range(count):
            producer.send(str(number), wait=False)
        producer.flush(timeout=DEADLINE_S)


@pytest.mark.parametrize("columns", [80, 200])
def test_top_goes_on_through_a_takeover(brokers: Brokers, tmp_path: Path, columns: int) -> None:
    first = brokers.master("a")
    brokers.slave("b")
    fill(first, LONG, 7)
    fill(first, "orders", 2_345)
    with terminal(tmp_path, columns, "top", "--every", 0.5, "--store", first.store) as shown:
        screen = shown.shows(lambda screen: "2,345" in screen and "no consumer" in screen)
        lines = screen.splitlines()
        assert any(line.split()[:2] == ["a", "master"] for line in lines), screen
        assert any(line.split()[:2] == ["b", "slave"] for line in lines), screen
        assert max(map(len, lines)) <= columns
        row = next(line for line in lines if line.startswith("a.very"))
        assert row.split()[0] == LONG if columns == 200 else row.split()[0].endswith("…"), "whole, or visibly cut"
        assert row.split()[1] == "7", "a row is a line"
        first.kill()
        screen = shown.shows(lambda screen: "b: epoch 2" in screen and "2,345" in screen)
        assert any(line.split()[:2] == ["b", "master"] for line in screen.splitlines()), screen


@pytest.mark.parametrize("columns", [80, 200])
def test_queues_are_watched_with_a_line_for_each(brokers: Brokers, tmp_path: Path, columns: int) -> None:
    broker = brokers.master("a")
    fill(broker, LONG, 7)
    words = ("queues", "--sort", "backlog", "--watch", "--store", broker.store)
    name = LONG if columns == 200 else LONG[:8]
    with terminal(tmp_path, columns, *words) as shown:
        shown.shows(lambda screen: any(line.startswith(name) and " 7 " in line for line in screen.splitlines()))
        fill(broker, LONG, 5)
        screen = shown.shows(lambda screen: any(" 12 " in line for line in screen.splitlines()))
        assert screen.count(name) == 1, "it is drawn anew, not below"
        assert ("…" in screen) == (columns == 80), "the name gives way where the table does not fit"
