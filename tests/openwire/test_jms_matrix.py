"""Every feature of a JMS client × kill -9 of the master before, during and after its use, with a failover URL: nothing
confirmed is lost, nothing is doubled, no message that was processed ends as a dead letter. The stories are told by
java/suite/Matrix.java; all of them go through one death of the master at a time.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from brokers import Brokers
from java_suite import SOURCES, Program
from openwire_frames import has_response

from tests.openwire.conftest import CONFIG
from tests.pair import Pair
from tests.patience import DEADLINE_S
from tests.ports import unread

pytestmark = pytest.mark.deep
STORY_S = 4 * DEADLINE_S


class Moment(Enum):
    """When the master dies."""

    BEFORE = "before it"
    UNREAD = "during it, asked and not read"
    UNTOLD = "during it, carried out and not told"
    AFTER = "after it"


def stories() -> list[str]:
    """Their names, as the source declares them."""
    lines = (SOURCES / "Matrix.java").read_text().splitlines()
    told = [line for line in lines if line.lstrip().startswith("@Story") and "public void" in line]
    return [line.split("public void ")[1].split("(")[0] for line in told]


class Play:
    """All stories, in one Java process. `said` are its lines by story."""

    def __init__(self, java: Program, url: str) -> None:
        self._process = subprocess.Popen(
            java.command("suite.Matrix", url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._changed = threading.Condition()
        self.said: dict[str, list[dict[str, Any]]] = {name: [] for name in stories()}
        self._reader = threading.Thread(target=self._read, name="matrix")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                self.said[told["story"]].append(told)
                self._changed.notify_all()

    def wait(self, done: Callable[[list[dict[str, Any]]], bool], timeout_s: float = STORY_S) -> bool:
        """Until this holds for what each story has said."""
        with self._changed:
            return self._changed.wait_for(lambda: all(done(lines) for lines in self.said.values()), timeout_s)

    def wait_mark(self, mark: str) -> list[str]:
        """Until all stories are there, or have failed; the names of those that do."""
        self.wait(lambda lines: any(line.get("mark") == mark or "ok" in line for line in lines))
        return [name for name, lines in self.said.items() if lines and lines[-1].get("mark") == mark]

    def go(self, names: list[str]) -> None:
        assert self._process.stdin is not None
        for name in names:
            self._process.stdin.write(f"go {name}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class RelayedPair(Pair):
    """A pair for JMS clients."""

    def __init__(self, directory: Path) -> None:
        (directory / "amq.toml").write_text(CONFIG)
        # A killed master is succeeded at once, whatever the period: a long one suits a machine that is busy.
        super().__init__(
            Brokers(
                directory,
                config=directory / "amq.toml",
                scheme="auto",
                lockKeepAlivePeriod="5s",
                updateClusterClients=False,  # a client that learns of the brokers goes past the relay
            )
        )

    @property
    def url(self) -> str:
        members = ",".join(f"tcp://127.0.0.1:{port}" for port in self.relay.ports)
        return f"failover:({members})?maxReconnectDelay=200"

    def kill_noticed(self) -> None:
        """As `kill`; returns when the clients have come back. A client that has not noticed yet would go on with
        messages that it had prefetched, and they come again: the moments during the action are for that."""
        connected = self.relay.clients
        self.kill()
        self.relay.wait_renewed(connected)

    def kill_during(self, moment: Moment, play: Play, names: list[str], answered: int) -> None:
        """Let the stories act, and kill the master before it has read what they ask, or before they hear of it."""
        if moment is Moment.UNREAD:
            self.master.freeze()
        else:
            self.relay.silence()
        play.go(names)
        try:
            if moment is Moment.UNREAD:
                give_up_at = time.monotonic() + DEADLINE_S
                while (asked := unread(self.master.port)) < len(names):
                    assert time.monotonic() < give_up_at, f"only {asked} of {len(names)} stories have asked"
                    time.sleep(0.01)
            else:
                self.relay.wait_answered(answered, has_response)
        finally:
            self.kill()


@pytest.fixture(scope="module")
def pair(java: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedPair]:
    assert java
    pair = RelayedPair(tmp_path_factory.mktemp("jms-matrix"))
    try:
        yield pair
    finally:
        pair.close()


def played(pair: RelayedPair, java: Program, moment: Moment) -> dict[str, dict[str, Any]]:
    """The last line of each story, through one death of the master at that moment."""
    listed = [
        json.loads(line)
        for line in subprocess.run(
            java.command("suite.Matrix", "--list"), capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
    answering = {line["story"] for line in listed if line["answered"]}
    assert [line["story"] for line in listed] == sorted(stories())
    play = Play(java, pair.url)
    try:
        names = play.wait_mark("before")
        if moment is Moment.BEFORE:
            pair.kill_noticed()
        play.go(names)
        names = play.wait_mark("during")
        if moment in (Moment.UNREAD, Moment.UNTOLD):
            pair.kill_during(moment, play, names, len(answering.intersection(names)))
        else:
            play.go(names)
        names = play.wait_mark("after")
        if moment is Moment.AFTER:
            pair.kill_noticed()
        play.go(names)
        play.wait(lambda lines: bool(lines) and "ok" in lines[-1])
        return {name: lines[-1] if lines else {"mark": "none"} for name, lines in play.said.items()}
    finally:
        play.close()


@pytest.fixture(scope="module")
def outcomes() -> dict[Moment, dict[str, dict[str, Any]]]:
    """What was played already: each moment once."""
    return {}


@pytest.mark.parametrize("story", stories())
@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.name.lower())
def test_the_master_is_killed(
    pair: RelayedPair, java: Program, outcomes: dict[Moment, dict[str, dict[str, Any]]], moment: Moment, story: str
) -> None:
    if moment not in outcomes:
        outcomes[moment] = played(pair, java, moment)
    last = outcomes[moment][story]
    assert "ok" in last, f"the story stands still; its last line: {last}"
    assert last["ok"], last["detail"]
