"""A rolling upgrade of the nodes of a simulated cluster: their links are of two versions, and one node after the other
gets the newer one, or goes back.

Links of the older version write the ids of messages in another way, as any change of the format would. So where two
ends of different versions work together, what is sent again after the loss of a home is stored twice. Beside the
promises of every cluster: ends of different versions do not talk, and all goes on once the nodes are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from amq.link import commands, hello
from amq.link.framing import LinkError
from amq.link.hello import LinkHello
from amq.protocols.commands import Send, SendRun
from tests.simulation.faults import Fault
from tests.simulation.scheduler import Machine

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

ROLLING = "rolling"
OLDER, NEWER = 1, hello.VERSION


class Versions:
    """Of the links of each node. A node that changes ends all its processes first."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        dice = Random(f"upgrade of the nodes of {world.seed}")
        self._versions = {node.name: dice.choice((OLDER, OLDER, NEWER)) for node in world.nodes}
        self._versions[world.nodes[0].name] = OLDER

    def change(self, node: Machine, version: int = 0) -> None:
        """To `version`, 0 = to the other one."""
        version = version or OLDER + NEWER - self._versions[node.name]
        if self._versions[node.name] == version:
            return
        self._versions[node.name] = version
        self._world.oracle.log(f"the links of {node.name} get version {version}")
        self._world.oracle.counts["upgraded" if version == NEWER else "taken back"] += 1
        for process in list(node.processes):
            self._world.end_process(process)

    def finish(self) -> None:
        for node in self._world.nodes:
            self.change(node, NEWER)

    def mine(self) -> int:
        """That of the node whose process runs now."""
        task = self._world.scheduler.current
        assert task is not None
        return self._versions.get(task.process.host.name, NEWER)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        receive, begin, written, read = LinkHello.receive, LinkHello.begin, commands.written, commands.read

        @wraps(begin)
        def of_mine(*args: Any) -> Any:
            with patch.object(hello, "VERSION", self.mine()):
                return begin(*args)

        @wraps(receive)
        def heard(*args: Any) -> Any:
            with patch.object(hello, "VERSION", self.mine()):
                try:
                    return receive(*args)
                except LinkError as error:
                    self._world.oracle.counts["versions refused"] += error.code == "LINK_VERSION"
                    raise

        @wraps(written)
        def as_mine_writes(number: int, command: Any, *args: Any) -> Any:
            with self._turned(command):
                return written(number, command, *args)

        @wraps(read)
        def as_mine_reads(frame: Any) -> Any:
            command = read(frame)
            if self.mine() == OLDER and (message := _message_of(command)) is not None:
                message.duplicate_id = message.duplicate_id[::-1]
            return command

        with (
            patch.object(LinkHello, "begin", of_mine),
            patch.object(LinkHello, "receive", heard),
            patch.object(commands, "written", as_mine_writes),
            patch.object(commands, "read", as_mine_reads),
        ):
            yield

    @contextmanager
    def _turned(self, command: Any) -> Iterator[None]:
        message = _message_of(command) if self.mine() == OLDER else None
        if message is None:
            yield
            return
        id = message.duplicate_id
        message.duplicate_id = id[::-1]
        try:
            yield
        finally:
            message.duplicate_id = id


def _message_of(command: Any) -> Any:
    if isinstance(command, Send):
        return command.message
    return command.like if isinstance(command, SendRun) else None


def rolling_schedule(found: list[Fault], world: ClusterWorld) -> list[Fault]:
    """`found`, and upgrades: one node after the other, and sometimes one goes back in between."""
    dice, more, at = Random(f"when the nodes of {world.seed} are upgraded"), [], 1.0
    while at < world.faults_s:
        more.append(Fault(at, "upgrade_node", dice.randrange(12), 0.0))
        at += dice.uniform(1.5, 8.0)
    return sorted([*found, *more], key=lambda fault: fault.at)


def upgrade_node(world: ClusterWorld, fault: Fault) -> None:
    assert world.versions is not None
    world.versions.change(world.nodes[fault.target % len(world.nodes)])
