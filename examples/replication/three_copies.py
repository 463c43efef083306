"""Runs shop.py on three members of a replicated store: the master is killed, its disk is destroyed and filled again.

    python examples/replication/three_copies.py

Each member has a directory of its own; they share only a small directory as their coordinator, which sees no message.
At the end the last orders are looked for in the copy on the new disk alone. Exit code 0 if they are there, and if the
program found its numbers right. No process and no file is left behind.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shop import LAST, STEP

from amq.cli.demo_brokers import MASTER, DemoBroker, leashed
from amq.core.errors import AmqError

SHOP = Path(__file__).resolve().parent / "shop.py"
LIMIT_S = 120.0  # whatever takes longer has failed


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one write: several threads talk


def amq_command(*words: str) -> str:
    """The output of `amq …`."""
    command = [sys.executable, "-P", "-m", "amq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AmqError(f"amq {' '.join(words)}: {done.stderr}", code="DEMO_FAILED")
    return done.stdout


class Member(DemoBroker):
    """One member. `counting` = the copies that count, as it last said while it was master; an id begins with the
    name."""

    counting: frozenset[str] = frozenset()

    def _hear(self, event: str, line: dict[str, Any]) -> None:
        super()._hear(event, line)
        if event == "members of the store":
            self.counting = frozenset(line["members"])
            say(f"members: the copies that count are now {', '.join(sorted(self.counting))}")


class Group:
    """Three members, whose copies are in directories below `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "coordinator").mkdir()
        self.members = [Member(name, self.url(name), str(directory / f"{name}.log"), _changed) for name in "abc"]

    @property
    def failover_url(self) -> str:
        return f"failover:({','.join(each.url for each in self.members)})?randomize=false"

    def copy(self, name: str) -> Path:
        return self._directory / name

    def url(self, name: str) -> str:
        """The store, as the member of that name sees it."""
        return f"replica://{self.copy(name)}?group=orders&coordinator=file://{self._directory}/coordinator"

    def master(self) -> Member | None:
        return next((each for each in self.members if each.role == MASTER), None)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            for each in self.members:
                each.check()
            if time.monotonic() > deadline:
                state = "; ".join(f"{each.name} is {each.role}, last said {each.last_words()}" for each in self.members)
                raise AmqError(f"no {what} within {LIMIT_S:g} s: {state}", code="DEMO_FAILED")
            time.sleep(0.02)

    def until_counting(self, *names: str) -> None:
        """Until the master says that the copies of these members count; the copy of a lost disk has another id."""

        def count() -> bool:
            master = self.master()
            return master is not None and {each.rpartition("-")[0] for each in master.counting} == set(names)

        self.until(count, f"group in which the copies of {', '.join(names)} count")


def _changed(member: DemoBroker, reason: str) -> None:
    if member.role == MASTER:
        say(f"members: {member.name} is the master, epoch {member.epoch}: {reason}")


class Program:
    """shop.py, as a process."""

    def __init__(self, url: str) -> None:
        command = leashed([sys.executable, str(SHOP), url])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.confirmed = 0
        self._reader = threading.Thread(target=self._read, name="output of shop.py")
        self._reader.start()

    def end(self) -> bool:
        """Let it count. Did it find its numbers right?"""
        assert self._process.stdin is not None
        self._process.stdin.close()
        right = self._process.wait(LIMIT_S) == 0
        self._reader.join()
        return right

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                say(f"  shop.py: {line.rstrip()}")
                if " orders confirmed" in line:
                    self.confirmed = int(line.split()[0])


def level(group: Group) -> bool:
    """Does each copy that counts have what the master has? `amq status` also tells of the lost one for a while."""
    seen = json.loads(amq_command("status", "--json", "--store", group.url("b")))["copies"]["seen"] or []
    counting = [each for each in seen if each["counts"]]
    if len(counting) < len(group.members) or any(each["lag_bytes"] for each in counting):
        return False
    states = [f"{each['id']} is {each['state']}" for each in counting]
    say(f"amq status: {', '.join(states)}")
    return True


def orders_in(copy: Path) -> list[str]:
    """The orders in one copy, read without the others and without the coordinator."""
    lines = amq_command("journal", "export", "--store", str(copy)).splitlines()
    return [body for line in lines if (body := json.loads(line).get("body")) is not None]


def play(group: Group, program: Program) -> bool:
    def more() -> None:
        """The program has gone on."""
        before = program.confirmed
        group.until(lambda: program.confirmed >= before + 2 * STEP, "order that is confirmed")

    more()
    a, *others = group.members
    say("members: kill -9 a, the master")
    a.kill()
    group.until(lambda: group.master() in others, "other master")
    more()
    say("members: the disk of a is destroyed; a starts with an empty one")
    shutil.rmtree(group.copy("a"))
    a.start()
    group.until_counting(*"abc")
    more()
    return program.end()


def run(directory: Path) -> int:
    group = Group(directory)
    a = group.members[0]
    program: Program | None = None
    try:
        for each in group.members:
            each.start()
            group.until(lambda: group.master() is a, "master")  # the first member makes the group
        group.until_counting(*"abc")
        program = Program(group.failover_url)
        right = play(group, program)
        group.until(lambda: level(group), "group in which each copy has everything")
    finally:
        if program is not None:
            program.kill()
        for each in group.members:
            each.end()
    found = len(orders_in(group.copy("a")))
    say(f"the new disk of a, read alone, has {found} of the last {LAST} orders")
    say("proved: a member and a disk were lost, no order was" if right and found == LAST else "FAILED")
    return 0 if right and found == LAST else 1


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="amq-examples-") as directory:
            return run(Path(directory))
    except AmqError as error:
        say(f"the group failed: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
