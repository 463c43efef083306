"""A stream of Spark beside the brokers: a worker in the guest of each broker, Spark's master and the driver on the
machine of the clients.

Invariant: everything here is in the namespaces of the lab, or in its guests, and ends with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import amq
from lab.errors import ExpectationError, LabError
from lab.guest import Guest
from lab.network import LAB
from lab.scenario import REPOSITORY
from lab.world import World
from tests.spark.session import JVM_OPTIONS, environment, why_no_spark

QUEUE, SUBSCRIPTION = "/queue/rows", "lab"
SHARED = f"{QUEUE},/queue/copies"  # a message of two queues has no record of its own in either: the broker sends it
PORT = 7077
START_S = 120.0  # JVMs start in that time, in guests on a machine that has a lot else to do
MEMORY = "1536M"  # of a guest that has, besides, a worker, an executor and its Python
MISSED_S = 15  # of an executor, or a worker, that Spark gives up
EXECUTOR = "CoarseGrainedExecutorBackend"
CONF = {
    "spark.driver.host": LAB,
    "spark.driver.bindAddress": LAB,
    "spark.executor.memory": "500m",
    "spark.network.timeout": f"{MISSED_S}s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
}


class Stream:
    """Reads `QUEUE` from the store that the guests have mounted, and keeps the numbers in each micro-batch.

    `start`, `wait_executors`, `send`, `wait_rows`, `end`, `rows`.
    """

    def __init__(self, world: World) -> None:
        self.sent = 0
        self._world = world
        self._logs = world.place.logs
        self._directory = world.place.work / "spark"
        if reason := why_no_spark():
            raise LabError(reason)
        self._environ = environment(self._directory)
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Spark's master, a worker in each guest of a broker, and the query. See `wait_executors`."""
        daemon = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_LAUNCHER_OPTS": JVM_OPTIONS, "SPARK_LOCAL_IP": LAB}
        options = f"{self._environ['SPARK_SUBMIT_OPTS']} -Dspark.worker.timeout={MISSED_S}"
        environ = self._environ | daemon | {"SPARK_DAEMON_JAVA_OPTS": options}
        words = ["--host", LAB, "--port", str(PORT), "--webui-port", "0"]
        self._run([*self._daemon("master.Master"), *words], "spark-master", os.environ | environ)
        for guest in self._guests():
            self._start_worker(guest, environ | {"SPARK_LOCAL_IP": guest.address})
        self._wait_master()
        reads = {
            "url": self._world.traffic.url,
            "destination": QUEUE,
            "subscription": SUBSCRIPTION,
            "store": self._world.store,
            "minPartitions": "2",
            "maxOffsetsPerTrigger": "250",
            "pollInterval": "50ms",
        }
        given = {"directory": str(self._directory), "master": f"spark://{LAB}:{PORT}", "options": reads, "conf": CONF}
        words = [sys.executable, "-m", "tests.spark.cluster_driver", json.dumps(given)]
        self._driver = self._run(words, "spark-driver", os.environ)

    def wait_executors(self) -> None:
        """Until each guest has one."""
        self._world.wait(lambda: all(_has_executor(guest) for guest in self._guests()), START_S)

    def send(self, count: int, destination: str = QUEUE) -> None:
        """Send the next `count` numbers. Returns when all are confirmed."""
        with amq.connect(self._world.traffic.url) as connection, connection.session() as session:
            producer = session.producer(destination)
            for number in range(self.sent, self.sent + count):
                producer.send(str(number), wait=False)
            producer.flush()
        self.sent += count

    def wait_rows(self, count: int) -> None:
        """Until micro-batches that are done hold so many rows."""

        def done() -> bool:
            self._check_driver()
            return self.rows().total() >= count

        self._world.wait(done, START_S)

    def rows(self) -> Counter[int]:
        """How often each number came."""
        files = (self._directory / "told").glob("*.json")
        return Counter(value for path in files for value in json.loads(path.read_text()))

    def reads(self) -> tuple[int, int]:
        """Rows that tasks read from the store, and rows that the broker had to send, since this master began."""
        with amq.connect(self._world.traffic.url) as connection:
            return connection.lease(QUEUE, SUBSCRIPTION, messages=0).reads

    def end(self) -> None:
        """Until the query has read everything. What it told is kept beside the logs."""
        assert self._driver is not None
        (self._directory / "end").touch()
        try:
            code = self._driver.wait(START_S)
        except subprocess.TimeoutExpired:
            code = -1
        shutil.copytree(self._directory / "told", self._logs / "spark-told")
        if code:
            raise ExpectationError(f"the driver does not come to its end: {code}\n{self._said()}")

    # -- processes -----------------------------------------------------------------------------------------------------

    def _guests(self) -> list[Guest]:
        return [broker.guest for broker in self._world.brokers]

    def _start_worker(self, guest: Guest, environ: Mapping[str, str]) -> None:
        file = self._logs / f"spark-worker-{guest.name}.log"

        def on_line(line: str) -> None:
            with file.open("a") as log:
                log.write(line + "\n")

        words = [
            "--host",
            guest.address,
            "--webui-port",
            "0",
            "--cores",
            "1",
            "--memory",
            "600m",
            "--work-dir",
            "/tmp/spark",
            f"spark://{LAB}:{PORT}",
        ]
        given = [f"{name}={value}" for name, value in environ.items()]
        guest.spawn(["env", *given, *self._daemon("worker.Worker"), *words], on_line, lambda _: None)

    def _wait_master(self) -> None:
        def listens() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection((LAB, PORT), 1.0).close()
                return True
            return False

        self._world.wait(listens, START_S)

    def _daemon(self, name: str) -> list[str]:
        return [f"{self._environ['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}"]

    def _run(self, words: list[str], name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                words, cwd=REPOSITORY, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _check_driver(self) -> None:
        assert self._driver is not None
        if self._driver.poll() is not None:
            raise ExpectationError(f"the driver ended with {self._driver.returncode}\n{self._said()}")

    def _said(self) -> str:
        return (self._logs / "spark-driver.log").read_text()[-3000:]


def _has_executor(guest: Guest) -> bool:
    return guest.try_run(["pgrep", "-f", EXECUTOR])[0] == 0
