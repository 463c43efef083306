"""Starts, watches, hurts and stops the brokers that are measured: ours, that of another checkout of amq, ActiveMQ
Classic as packaged by Debian, and ActiveMQ 6 and Artemis from archives that somebody unpacked.

Invariant: whatever a `BrokerGroup` started is gone when it is left, by process id, and so is its directory; a broker
dies with the benchmark even when that is killed. Nothing is waited for by time: a master is ready when it answers
CONNECT, a slave when its log says that it waits for the lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from amq.cli.demo_brokers import free_port
from amq.store.open import open_store
from amq.store.presence import read_presence
from bench import floor
from bench.wire import WireConnection, WireError
from tests.processes import naming

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 180.0  # a JVM starts in that time on a busy machine
STOP_TIMEOUT_S = 10.0
PROBE_PAUSE_S = 0.01
PROBE_TIMEOUT_S = 0.5
PR_SET_PDEATHSIG = 1
ACTIVEMQ_HOME = Path("/usr/share/activemq")

_libc = ctypes.CDLL(None, use_errno=True)


class BrokerProcessError(Exception):
    """A broker could not be started, or died when nobody had asked it to."""


def die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _memory_bytes(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_s_below(pid: int) -> float:
    """Processor time of all processes that `pid` has started, and that these have, while they run."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, below = 0.0, parents.get(pid, [])
    while below:
        with contextlib.suppress(OSError):
            found += _cpu_s(below[-1])
        below += parents.get(below.pop(), [])
    return found


class BrokerProcess:
    """One broker process on `store`, listening for STOMP on `port` while it is the master, and for OpenWire on
    `openwire_port` if there is one."""

    kind = ""
    slave_line = re.compile("")
    root = ROOT  # where the process runs
    openwire_port: int | None = None

    def __init__(self, name: str, store: Path, port: int, keep_alive_ms: int, options: Mapping[str, str]) -> None:
        self.name = name
        self.store = store
        self.port = port
        self.keep_alive_ms = keep_alive_ms
        self.options = dict(options)
        self.log = store.parent / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        assert not self.alive, f"{self.name} runs already"
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.root,
                preexec_fn=die_with_parent,  # safe: this process has no threads
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def log_text(self) -> str:
        """What the broker has logged since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")

    def answers(self) -> bool:
        """Whether CONNECT is answered by CONNECTED: only a master's is."""
        try:
            WireConnection(self.port, timeout_s=PROBE_TIMEOUT_S).close()
        except (OSError, WireError):
            return False
        return True

    def check(self) -> None:
        """Raise BrokerError, with the end of the log, if the process is gone."""
        if not self.alive:
            code = None if self.process is None else self.process.returncode
            raise BrokerProcessError(
                f"{self.kind} {self.name} is gone, exit code {code}, log:\n{self.log_text()[-2000:]}"
            )

    def wait_slave(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until the broker says in its log that it waits for the lock."""
        deadline = time.monotonic() + timeout_s
        while not self.slave_line.search(self.log_text()):
            self.check()
            if time.monotonic() > deadline:
                raise BrokerProcessError(f"{self.name} is no slave after {timeout_s} s:\n{self.log_text()[-2000:]}")
            time.sleep(PROBE_PAUSE_S)

    def wait_ready(self) -> None:
        """Until this slave has caught up, where it says so."""

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until the kernel has buried it (its lock and its port are free then)."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and kill -9 for who does not listen."""
        if self.process is None or not self.alive:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def memory_bytes(self) -> int:
        """Resident memory now."""
        return _memory_bytes(self.pid)

    def cpu_s(self) -> float:
        """Processor time used since the start, all threads."""
        return _cpu_s(self.pid)


class AmqBroker(BrokerProcess):
    kind = "amq"
    url = ""  # of a store in a database, "" = the directory
    slave_line = re.compile(r"slave", re.IGNORECASE)
    python = Path(sys.executable)
    more: Sequence[str] = ()  # of the command line

    def wait_ready(self) -> None:
        """Until it says in the store that it has caught up, or that it is master."""
        store = self.url or str(self.store)
        board, deadline_s = open_store(store).board, time.monotonic() + START_TIMEOUT_S
        while not any(each.name == self.name and not each.not_ready for each in read_presence(board)):
            if time.monotonic() > deadline_s:
                raise BrokerProcessError(f"{self.name} does not catch up")
            time.sleep(0.05)

    def command(self) -> list[str]:
        openwire = [] if self.openwire_port is None else ["--transport", f"openwire://127.0.0.1:{self.openwire_port}"]
        options = {"lockKeepAlivePeriod": str(self.keep_alive_ms)} | self.options
        pairs = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [
            str(self.python),
            "-m",
            "amq.cli.main",
            "start",
            "--store",
            str(self.store),
            "--name",
            self.name,
            "--transport",
            f"stomp://127.0.0.1:{self.port}",
            *openwire,
            *self.more,
            *pairs,
        ]


class OneStoreCluster(AmqBroker):
    """A node of a cluster with one store, whose clients meet its one gateway. Its port is followed by the store's."""

    kind = "cluster"
    stores = 1
    PARTS = ("--member", "--gateway")  # words of the command lines of its processes

    def start(self) -> None:
        if not any(self.store.iterdir()):
            made = [str(self.python), "-m", "amq.cli.main", "cluster", "init", "--cluster", str(self.store)]
            subprocess.run([*made, "--stores", str(self.stores)], cwd=self.root, check=True, stdout=subprocess.DEVNULL)
        super().start()

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("--store")
        return [*words[:at], "--cluster", *words[at + 1 :], "--gateways", "1"]

    def stop(self) -> None:
        """Its processes end with it, in good order; kill -9 for those that a busy host keeps from that."""
        super().stop()
        self._end_parts()

    def kill(self) -> None:
        """kill -9 for all its processes, as when the host dies."""
        super().kill()
        self._end_parts()

    def _end_parts(self) -> None:
        for pid in [pid for part in self.PARTS for pid in self._running(part)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(map(self._running, self.PARTS)):  # they are not our children: the kernel buries them soon
            time.sleep(PROBE_PAUSE_S)

    def cpu_s(self) -> float:
        return sum(self.cpu_s_of(part) for part in ("", *self.PARTS))

    def cpu_s_of(self, part: str) -> float:
        """Processor time of the member or the gateway, one of `PARTS`; "" = of the node's own process."""
        return sum(map(_cpu_s, [self.pid] if not part else self._running(part)))

    def memory_bytes_of(self, part: str) -> int:
        return sum(map(_memory_bytes, self._running(part)))

    def _running(self, part: str) -> list[int]:
        return [pid for pid, words in naming(self.store) if part in words and self.name in words]


class FourStoreCluster(OneStoreCluster):
    """A node of a cluster with four stores."""

    kind = "stores"
    stores = 4


class TwoStoreNode(OneStoreCluster):
    """One of several nodes of a cluster of two stores."""

    kind = "amq"
    stores = 2


ACTIVEMQ_XML = """<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xmlns:amq="http://activemq.apache.org/schema/core"
       xsi:schemaLocation="
         http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
         http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <amq:broker brokerName="{name}" useJmx="false" dataDirectory="{base}"
              schedulerSupport="{scheduler}">
    {network}
    <amq:persistenceAdapter>
      <amq:kahaDB directory="{store}" lockKeepAlivePeriod="{keep_alive_ms}">
        <amq:locker><amq:shared-file-locker lockAcquireSleepInterval="1000"/></amq:locker>
      </amq:kahaDB>
    </amq:persistenceAdapter>
    <amq:systemUsage>
      <amq:systemUsage><amq:memoryUsage><amq:memoryUsage percentOfJvmHeap="50"/></amq:memoryUsage></amq:systemUsage>
    </amq:systemUsage>
    <amq:transportConnectors>
      <amq:transportConnector name="stomp" uri="stomp+nio://127.0.0.1:{port}"/>
      {openwire}
    </amq:transportConnectors>
  </amq:broker>
</beans>
"""
NETWORK_XML = (
    '<amq:networkConnectors><amq:networkConnector uri="static:(tcp://127.0.0.1:{port})"/></amq:networkConnectors>'
)
OPENWIRE_XML = '<amq:transportConnector name="openwire" uri="tcp://127.0.0.1:{port}"/>'
ACTIVEMQ_LOG = """log4j.rootLogger=WARN, out
log4j.logger.org.apache.activemq.store.SharedFileLocker=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %-5p %c{1} %m%n
log4j.logger.org.apache.activemq.store.jdbc=INFO
"""


ACTIVEMQ6_LOG = """status=ERROR
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %-5p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
logger.lock.name=org.apache.activemq.store.SharedFileLocker
logger.lock.level=INFO
"""


class ActiveMqBroker(BrokerProcess):
    """KahaDB with its defaults (every send is synced), STOMP over NIO, OpenWire over TCP, no JMX, no console."""

    kind = "activemq"
    slave_line = re.compile(r"locked", re.IGNORECASE)
    home = ACTIVEMQ_HOME
    neighbour = 0  # port for OpenWire of the other broker of a network of two
    jars: Sequence[str] = ("lib/*.jar", "lib/optional/*.jar")

    def command(self) -> list[str]:
        base = self.store.parent / f"{self.name}-base"
        base.mkdir(exist_ok=True)
        (base / "broker.xml").write_text(
            ACTIVEMQ_XML.format(
                name=self.name,
                base=base,
                store=self.store,
                port=self.port,
                keep_alive_ms=self.keep_alive_ms,
                scheduler=self.options.get("schedulerSupport", "false"),
                network="" if not self.neighbour else NETWORK_XML.format(port=self.neighbour),
                openwire="" if self.openwire_port is None else OPENWIRE_XML.format(port=self.openwire_port),
            )
        )
        (base / "log4j.properties").write_text(ACTIVEMQ_LOG)
        (base / "log4j2.properties").write_text(ACTIVEMQ6_LOG)  # for ActiveMQ 6
        jars = [jar for pattern in self.jars for jar in glob.glob(f"{self.home}/{pattern}")]
        return [
            "java",
            "-Xms512m",
            "-Xmx2g",
            "-XX:+UseG1GC",
            "-cp",
            ":".join([str(base), *sorted(jars)]),
            f"-Dactivemq.base={base}",
            f"-Dactivemq.home={self.home}",
            "org.apache.activemq.console.Main",
            "start",
            f"xbean:file:{base}/broker.xml",
        ]


class ActiveMq6Broker(ActiveMqBroker):
    """The same settings for ActiveMQ 6, from the archive that Apache publishes."""

    kind = "activemq6"
    jars = ("lib/*.jar", "lib/optional/*.jar", "bin/activemq.jar")


class ArtemisBroker(BrokerProcess):
    """An instance as `artemis create` makes it (every send is synced), without console; one port for all protocols."""

    kind = "artemis"
    home = Path()
    neighbour = 0  # port of the other broker of a cluster of two
    more: Sequence[str] = ()  # of `artemis create`

    def command(self) -> list[str]:
        instance = self.store.parent / f"{self.name}-instance"
        if not instance.exists():
            words = [
                str(self.home / "bin/artemis"),
                "create",
                str(instance),
                "--silent",
                "--user",
                "bench",
                "--password",
                "bench",
                "--allow-anonymous",
                "--no-web",
                "--data",
                str(self.store),
                "--host",
                "127.0.0.1",
                "--default-port",
                str(self.port),
                "--no-amqp-acceptor",
                "--no-hornetq-acceptor",
                "--no-mqtt-acceptor",
                "--no-stomp-acceptor",
                "--java-options=-Xms512m -Xmx2g -XX:+UseG1GC",
                *self.more,
            ]
            if self.neighbour:
                words += ["--clustered", "--cluster-user", "bench", "--cluster-password", "bench"]
                words += ["--max-hops", "1", "--static-cluster", f"tcp://127.0.0.1:{self.neighbour}"]
            made = subprocess.run(words, capture_output=True, text=True, check=False)
            if made.returncode:
                raise BrokerProcessError(f"artemis create failed:\n{made.stdout}{made.stderr}")
            # Without prefixes Artemis makes each name a topic, also `/queue/bench`: each consumer gets every message.
            configuration = instance / "etc/broker.xml"
            text = configuration.read_text()
            prefixed = text.replace("protocols=CORE,", "anycastPrefix=/queue/;multicastPrefix=/topic/;protocols=CORE,")
            if prefixed == text:
                raise BrokerProcessError(f"{configuration}: no acceptor with protocols=CORE,… to give prefixes to")
            every = '<address-setting match="#">'  # a broker gives others at once what nobody consumes at itself
            prefixed = prefixed.replace(every, f"{every}<redistribution-delay>0</redistribution-delay>")
            configuration.write_text(prefixed)
        return [str(instance / "bin/artemis"), "run"]


class FloorServer(BrokerProcess):
    """The server of `bench.floor`: what no broker can leave out, and nothing else. One port serves all protocols."""

    kind = "floor"
    more: Sequence[str] = ()  # of the command line

    def command(self) -> list[str]:
        try:
            program = floor.build()
        except floor.FloorError as error:
            raise BrokerProcessError(str(error)) from error
        return [str(program), str(self.port), str(self.store), *self.more]


class FloorGateway(FloorServer):
    """The same behind a process that passes on what clients and it say."""

    kind = "floor of a gateway"
    more = ("gateway",)

    def cpu_s(self) -> float:
        return super().cpu_s() + cpu_s_below(self.pid)


KINDS: dict[str, type[BrokerProcess]] = {
    broker.kind: broker
    for broker in (AmqBroker, OneStoreCluster, FourStoreCluster, ActiveMqBroker, FloorServer, FloorGateway)
}
ARCHIVES: dict[str, tuple[type[BrokerProcess], str, str]] = {  # by kind: class, a file of the archive, how to get it
    "activemq6": (
        ActiveMq6Broker,
        "bin/activemq.jar",
        "mvn dependency:copy -Dartifact=org.apache.activemq:apache-activemq:6.1.7:tar.gz:bin -DoutputDirectory=.",
    ),
    "artemis": (
        ArtemisBroker,
        "bin/artemis",
        "mvn dependency:copy -Dartifact=org.apache.activemq:apache-artemis:2.40.0:tar.gz:bin -DoutputDirectory=.",
    ),
}


def from_archive(kind: str, home: str) -> str:
    """Make `kind`, one of ARCHIVES, known: it is unpacked in the directory `home`. Raises BrokerError if it is not."""
    made, file, how = ARCHIVES[kind]
    if not (home and (Path(home) / file).is_file()):
        found = f"{home!r} has no {file}" if home else "its directory is missing"
        raise BrokerProcessError(
            f"peer {kind}: {found}. Nothing is downloaded here. Get the archive with `{how}`, unpack it, and name the "
            f"directory: --peer {kind}=DIRECTORY"
        )
    if not shutil.which("java"):
        raise BrokerProcessError(
            f"peer {kind} needs Java: apt-get install --no-install-recommends openjdk-17-jre-headless"
        )
    KINDS[kind] = type(made.__name__, (made,), {"home": Path(home).resolve()})
    return kind


def broker_class(kind: str) -> type[BrokerProcess]:
    """`kind` is one of KINDS, or the directory of another checkout of amq that has a `.venv`. Raises BrokerError when
    brokers of that kind cannot be started on this host."""
    if kind in ARCHIVES and kind not in KINDS:
        from_archive(kind, "")
    if kind not in KINDS:
        root = Path(kind).resolve()
        python = root / ".venv/bin/python"
        if not python.exists():
            raise BrokerProcessError(
                f"{kind!r} is no peer: name one of {', '.join(KINDS)}, or a checkout that has {python}"
            )
        return type("OtherAmqBroker", (AmqBroker,), {"kind": kind, "root": root, "python": python})
    if kind == "activemq" and not (shutil.which("java") and (ACTIVEMQ_HOME / "lib").is_dir()):
        raise BrokerProcessError("no ActiveMQ here: apt-get install --no-install-recommends activemq libactivemq-java")
    return KINDS[kind]


class BrokerGroup:
    """`count` brokers of one kind on one store in a separate directory; the first one becomes the master."""

    def __init__(
        self,
        kind: str,
        count: int = 1,
        *,
        keep_alive_ms: int = 2000,
        options: Mapping[str, str] | None = None,
        directory: str | None = None,
        openwire: bool = False,
    ) -> None:
        made = broker_class(kind)
        self.kind = kind
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{Path(kind).name}-", dir=directory))
        self.store = self.directory / "store"
        self.store.mkdir()
        self.brokers = [
            made(f"b{number}", self.store, free_port(), keep_alive_ms, options or {}) for number in range(count)
        ]
        if openwire:
            for broker in self.brokers:
                one_port = isinstance(broker, ArtemisBroker | FloorServer)
                broker.openwire_port = broker.port if one_port else free_port()

    @property
    def ports(self) -> list[int]:
        return [broker.port for broker in self.brokers]

    @property
    def openwire_ports(self) -> list[int]:
        """Of a group that was made with `openwire`."""
        return [broker.openwire_port for broker in self.brokers if broker.openwire_port is not None]

    def start(self) -> BrokerProcess:
        """Start all, one after the other, and return the master."""
        first, *others = self.brokers
        first.start()
        self.wait_master()
        for broker in others:
            broker.start()
        for broker in others:
            broker.wait_slave()
        return first

    def master(self) -> BrokerProcess | None:
        """The broker that answers CONNECT now."""
        return next((broker for broker in self.brokers if broker.alive and broker.answers()), None)

    def wait_master(self, timeout_s: float = START_TIMEOUT_S) -> BrokerProcess:
        deadline = time.monotonic() + timeout_s
        while True:
            master = self.master()
            if master is not None:
                return master
            if not any(broker.alive for broker in self.brokers):
                self.brokers[0].check()
            if time.monotonic() > deadline:
                logs = [f"{broker.name}: {broker.log_text()[-1000:]}" for broker in self.brokers if broker.process]
                raise BrokerProcessError("\n".join([f"no {self.kind} became master within {timeout_s} s", *logs]))
            time.sleep(PROBE_PAUSE_S)

    def close(self, keep: bool = False) -> None:
        """Stop every broker and remove the directory (or leave it, for whoever wants to look at the store)."""
        for broker in self.brokers:
            if broker.process is not None and broker.alive:
                broker.signal(signal.SIGCONT)
                broker.signal(signal.SIGTERM)
        for broker in self.brokers:
            broker.stop()
        if not keep:
            shutil.rmtree(self.directory)

    def __enter__(self) -> BrokerGroup:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
