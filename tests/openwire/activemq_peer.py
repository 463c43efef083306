"""ActiveMQ Classic, as Debian ships it, run as a child process: the peer to compare with.

Invariant: a broker that was started is gone when its block is left, and dies with the test run even when that is
killed; all that it writes lies in the directory that it was given.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.processes import LEASH

HOME = Path("/usr/share/activemq")
PACKAGES = "activemq libactivemq-java"

XML = """\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="peer" dataDirectory="{base}/data"
    schedulerSupport="true">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry topic="jms.Topics.retroactive.>">
        <subscriptionRecoveryPolicy>
          <fixedCountSubscriptionRecoveryPolicy maximumSize="10"/>
        </subscriptionRecoveryPolicy>
      </policyEntry>
      <policyEntry queue="jms.Queues.priority.>" prioritizedMessages="true"/>
    </policyEntries></policyMap></destinationPolicy>
    <persistenceAdapter><kahaDB directory="{base}/data/kahadb"/></persistenceAdapter>
    <systemUsage><systemUsage><memoryUsage><memoryUsage limit="256 mb"/></memoryUsage></systemUsage></systemUsage>
    <transportConnectors>
      <transportConnector name="openwire" uri="tcp://127.0.0.1:{port}"/>
    </transportConnectors>
  </broker>
</beans>
"""
LOG4J = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n
"""


def missing() -> str:
    """Why the peer cannot run here; empty where it can."""
    if shutil.which("java") is None:
        return "java is missing: install openjdk-17-jre-headless"
    if not (HOME / "lib" / "activemq-broker.jar").exists():
        return f"ActiveMQ is missing: install {PACKAGES}"
    return ""


class ActiveMQ:
    """One broker with a separate store. `url` is its OpenWire address. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"tcp://127.0.0.1:{self.port}"
        self.base = directory
        self.log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ActiveMQ:
        conf = self.base / "conf"
        conf.mkdir(parents=True)
        (conf / "activemq.xml").write_text(XML.format(base=self.base, port=self.port))
        (conf / "log4j.properties").write_text(LOG4J)
        jars = sorted([*(HOME / "lib").glob("*.jar"), *(HOME / "lib" / "optional").glob("*.jar")])
        words = [
            "-Xmx1g",
            "-XX:+UseSerialGC",
            "-cp",
            os.pathsep.join([str(conf), *map(str, jars)]),
            f"-Dactivemq.base={self.base}",
            f"-Dactivemq.home={HOME}",
            "org.apache.activemq.console.Main",
            "start",
            f"xbean:file:{conf}/activemq.xml",
        ]
        java = shutil.which("java")
        assert java is not None, missing()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-SEc", LEASH, java, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.base,
            )
        try:
            self._wait_listening()
        except BaseException:
            self.kill()
            raise
        return self

    def _wait_listening(self) -> None:
        assert self._process is not None
        until = time.monotonic() + 2 * DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), DEADLINE_S).close()
                return
            except ConnectionRefusedError:
                said = f"\n{self.log.read_text(errors='replace')[-4000:]}"
                assert self._process.poll() is None, f"ActiveMQ has ended:{said}"
                assert time.monotonic() < until, f"ActiveMQ does not listen on port {self.port}:{said}"
                time.sleep(0.1)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
