"""A cluster of real processes that can be hurt in every way, for `tests.cluster.kills`.

Each node is what a user starts, but for a module that Python imports first (`faulty/sitecustomize.py`): by it a store
hangs for a node, and gateways reach masters by relays. Invariant: whatever was started is gone when the block is left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from amq.cli.demo_brokers import DemoNode, descendants, free_port
from amq.cluster.directory import Cluster
from amq.core.destination import QUEUE_SCHEME, TOPIC_SCHEME
from amq.gateway.lookout import LINK
from amq.store.open import open_store
from amq.store.status import StoreStatus, store_status
from bench.wire import WireConnection, WireError
from tests.cluster import cables
from tests.cluster.cables import Cables
from tests.patience import DEADLINE_S
from tests.processes import naming

ROOT = Path(__file__).resolve().parents[2]
FAULTY = Path(__file__).with_name("faulty")
LOOK_S = 0.1
CONNECT_S = 30.0


class ServiceError(Exception):
    """The cluster does not come back to what it should be."""


class GroundNode(DemoNode):
    """`code` = the directory of the package that its next start runs. `link_port` + 1, + 2 and so on are those of the
    links to its members."""

    code = ROOT

    def __init__(self, name: str, port: int, link_port: int, ground: Ground, options: Iterable[str]) -> None:
        self.link_port = link_port
        self._ground = ground
        log = str(ground.directory / f"{name}.log")
        super().__init__(name, port, str(ground.cluster.directory), log, lambda *_: None)
        links = (f"linkListen=tcp://{cables.HOME}:{link_port}", f"linkSecretFile={ground.cluster.directory}/secret")
        self._command += [word for option in (*links, *options) for word in ("-o", option)]

    def start(self) -> None:
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(FAULTY)] if self.code == ROOT else [str(FAULTY), str(self.code)]
        )
        os.environ |= {"TEST_AMQ_HANGS": str(self._ground.hangs), "TEST_AMQ_CABLES": cables.HOST}
        try:
            super().start()
        finally:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before

    def stop(self) -> None:
        """SIGTERM, and wait for the end. A process of it that a starved machine ends too slowly is killed by the node,
        whose exit code that is then: no promise depends on it."""
        assert self._process is not None
        self._wanted = False
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DEADLINE_S)
        self._reap()

    def gateway(self) -> int | None:
        """The process id of its gateway, None = it has none at the moment."""
        return self._running(lambda words: "--gateway" in words)

    def member(self, store: str) -> int | None:
        return self._running(lambda words: words[-3:-1] == ["--member", store])

    def freeze(self) -> list[int]:
        """Stop all its processes: the node first, which starts others. Their ids, for `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)
        found = [self.pid, *descendants(self.pid)]
        for pid in found[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return found

    def answers(self) -> bool:
        """Do clients get in?"""
        with suppress(OSError, WireError):
            WireConnection(self.port, timeout_s=CONNECT_S).close()
            return True
        return False

    def _running(self, is_it: Callable[[list[str]], bool]) -> int | None:
        words_of = ((pid, words) for pid, words in naming(self._ground.cluster.directory) if self.name in words)
        return next((pid for pid, words in words_of if "-m" in words and is_it(words)), None)


class Ground:
    """`nodes` nodes and `stores` stores in `directory`. `look` is called while it waits: it raises what ends all."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        stores: int,
        options: Mapping[str, object],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self.look = look
        self.stores = [f"s{number}" for number in range(1, stores + 1)]
        self.cluster = Cluster.create(str(directory / "cluster"), dict.fromkeys(self.stores, ""))
        self.hangs = directory / "hangs"  # exists only while a store hangs
        pairs = [f"{key}={value}" for key, value in options.items()]
        each = stores + 1  # of a node: that of its gateways and one for each store, and as many for links
        first = free_port(2 * each * nodes)
        self.nodes = [
            GroundNode(f"node-{number}", port, port + each, self, pairs)
            for number, port in enumerate(range(first, first + 2 * each * nodes, 2 * each), start=1)
        ]
        self.cables = Cables(self.link_port(node, store) for node in self.nodes for store in self.stores)

    def __enter__(self) -> Ground:
        try:
            for node in self.nodes:
                node.start()
            self.until(self.is_whole, "a cluster that is whole")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.end()
        for pid, _ in naming(self.cluster.directory):  # members that outlived a node that was killed alone
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.cables.close()

    def stop(self) -> None:
        """Stop all nodes in good order. Raises AmqError where one does not."""
        for node in self.nodes:
            node.stop()

    # -- how it is ----------------------------------------------------------------------------------------------------

    def link_port(self, node: GroundNode, store: str) -> int:
        return node.link_port + self.stores.index(store) + 1

    def status(self, store: str) -> StoreStatus:
        return store_status(open_store(self.cluster.location(store)))

    def master(self, store: str) -> GroundNode | None:
        """The node that serves it, and says where its link is."""
        found = self.status(store).master
        if found is None or not found.facts.get(LINK):
            return None
        return next(node for node in self.nodes if node.name == found.name)

    def served(self) -> dict[str, GroundNode]:
        """Store → the node that serves it."""
        found = {store: self.master(store) for store in self.stores}
        return {store: node for store, node in found.items() if node is not None}

    def is_whole(self) -> bool:
        """Does each node serve clients, and is each master or slave of each store?"""
        for node in self.nodes:
            node.check()
        for store in self.stores:
            found = self.status(store)
            if len(found.brokers) < len(self.nodes) or found.master is None or not found.master.facts.get(LINK):
                return False
        return all(node.answers() for node in self.nodes)

    def until(self, done: Callable[[], Any], what: str) -> None:
        """Raises ServiceError."""
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            self.look()
            if time.monotonic() > deadline:
                state = "; ".join(f"{node.name}: {node.last_words()}" for node in self.nodes)
                served = {store: node.name for store, node in self.served().items()}
                raise ServiceError(f"no {what} within {DEADLINE_S:g} s; served: {served}; {state}")
            time.sleep(LOOK_S)

    def names_in(self, store: str, like: str) -> Iterable[str]:
        """Names of destinations that begin so and live in `store`."""
        home_of = self.cluster.table().placement.home_of
        number = 0
        while True:
            number += 1
            name = f"{like}.{number}"
            if home_of(QUEUE_SCHEME + name) == home_of(TOPIC_SCHEME + name) == store:
                yield name

    def amq(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`amq cluster …` of the newest code."""
        command = [sys.executable, "-P", "-m", "amq", "cluster", *words, "--cluster", str(self.cluster.directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)

    # -- other versions -----------------------------------------------------------------------------------------------

    def other_code(self, is_other: bool, link: bool, commit: str = "") -> Path:
        """A directory with a copy of the package. `is_other` = another version: that of `commit`, or this one with
        another number; `link` = its links are of another version."""
        made = self.directory / f"code{'-other' if is_other else ''}{'-link' if link else ''}"
        made.mkdir()
        if is_other and commit:
            words = ["git", "archive", commit, "amq", "cli"]
            archive = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
            subprocess.run(["tar", "-x", "-C", str(made)], input=archive.stdout, check=True)
        else:
            for name in ("amq", "cli"):
                shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        if is_other and not commit:
            _change(made / "amq/__init__.py", r'__version__ = "(.*)"', r'__version__ = "\1.dev99"')
        shutil.move(made / "cli", made / "amq" / "cli")  # where it is installed, see `package_dir` in setup.cfg
        if link:
            _change(made / "amq/link/hello.py", r"VERSION: Final = \d+", "VERSION: Final = 99")
        return made


def _change(path: Path, old: str, new: str) -> None:
    text, count = re.subn(old, new, path.read_text())
    assert count == 1, f"{path} has {count} places like {old}"
    path.write_text(text)


def kill(pid: int | None) -> None:
    """kill -9, and wait until it is gone."""
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(LOOK_S / 10)


def thaw(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
