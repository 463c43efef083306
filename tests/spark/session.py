"""A Spark that is quiet, offline and quick to start, for the session of the tests and for drivers that are killed.

It starts in 5 s in place of 12, since its JVMs map the classes that an earlier one loaded. That archive holds for one
Java and one class path, so Spark's home and its empty `conf` have a separate place below build/, where the first
who needs it makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.brokers import ROOT
from tests.patience import DEADLINE_S

JAVA_MAJOR_MIN = 17
TWO_HOSTS = "two hosts"  # as master: a cluster of two hosts, a core each. Spark speculates on another host alone
QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex
"""
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts in two thirds of the time


def why_no_spark() -> str:
    """What is missing for these tests, "" = nothing."""
    if not any(info.name == "pyspark" for info in pkgutil.iter_modules()):
        return "no PySpark: run make .venv/.installed-test"
    if not any(info.name == "pyspark_amq" for info in pkgutil.iter_modules()):
        return "Spark would not find pyspark_amq: run make .venv/.installed-test, which links it into the environment"
    java, said = _java()
    if not java:
        return f"no java: install a JRE {JAVA_MAJOR_MIN} or later, such as openjdk-17-jre-headless, or set JAVA_HOME"
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_MAJOR_MIN:
        return f"{java} is not a Java {JAVA_MAJOR_MIN}: {said.splitlines()[:1]}"
    return ""


def _java() -> tuple[str, str]:
    """The path of java ("" = none), and what it says of its version."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or ""
    return java, java and subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def environment(directory: Path, makes_archive: bool = True, quick: bool = True) -> dict[str, str]:
    """What a Spark driver must find in its environment to be quiet, offline and ours. `directory` is made. The archive
    of classes takes four JVMs' time to make; for a single JVM it does not pay. A `quick` JVM starts soon and compiles
    little; another one is as users have it."""
    if not quick:
        return _environment(directory, "")
    if makes_archive:
        _make_classes()
    return _environment(directory, _jvm_options())


def _environment(directory: Path, jvm_options: str) -> dict[str, str]:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log4j2.properties").write_text(QUIET)
    return {
        "SPARK_HOME": str(_home()),
        "SPARK_CONF_DIR": str(_home() / "conf"),
        "SPARK_SUBMIT_OPTS": jvm_options,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "",  # as where amq is installed. Else each Python process compiles it, 0.1 s
    }


@functools.cache
def _home() -> Path:
    """Spark's home but for its zip of Python modules, which is compiled anew by each worker that starts: they find the
    same ones installed, in a third of the time. (A worker has 10 s for that, however busy the machine is.)"""
    import pyspark

    spark = Path(pyspark.__file__).parent
    which = hashlib.sha256(f"{spark} {pyspark.__version__} {_java()} {JVM_OPTIONS}".encode()).hexdigest()[:16]
    home = ROOT / "build" / f"spark-{which}"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        with contextlib.suppress(FileExistsError):
            (home / name).symlink_to(spark / name)
    return home


def _classes() -> Path:
    """The archive; empty where this Java makes none."""
    return _home() / "classes"


def _jvm_options() -> str:
    classes = _classes()
    mapped = classes.exists() and classes.stat().st_size > 0
    return f'{JVM_OPTIONS} "-XX:SharedArchiveFile={classes}"' if mapped else JVM_OPTIONS


def _make_classes() -> None:
    """Unless they are there. Processes that need them at once wait for the first, and then map what it made."""
    with contextlib.ExitStack() as stack:
        fcntl.flock(stack.enter_context((_home() / "lock").open("w")), fcntl.LOCK_EX)
        if _classes().exists():
            return
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=_home()))
        made = Path(directory, "classes")
        options = f'{JVM_OPTIONS} -Xlog:cds=off "-XX:ArchiveClassesAtExit={made}"'
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.archive", directory],
            cwd=ROOT,
            check=False,
            env=os.environ | _environment(Path(directory), options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        made.touch()
        made.rename(_classes())


def settings(directory: Path, master: str) -> dict[str, str]:
    """Configuration of such a session. `local-cluster` needs the same for its executors."""
    logs = f"-Dlog4j2.configurationFile=file:{directory}/log4j2.properties"
    return {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": logs,
        "spark.executor.extraJavaOptions": f"{logs} {_jvm_options()}",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "900m",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",  # over TCP a task waits for delayed ACKs, 30 ms
    }


def start(directory: Path, master: str, **conf: str) -> Any:
    """A SparkSession with these `settings` and `conf`. The environment must be that of `environment`."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    given = SparkConf(loadDefaults=False).setAll((settings(directory, master) | conf).items())
    if master == TWO_HOSTS:
        given.setMaster(_two_hosts(given.setMaster("local"), directory))
    return SparkSession.builder.appName("amq tests").config(conf=given).getOrCreate()


def _two_hosts(conf: Any, directory: Path) -> str:
    """A cluster in the JVM of this process, started, as `local-cluster` is one; but its two workers are hosts of their
    own. Returns its URL."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(conf=conf)
    java, gateway = SparkContext._jvm, SparkContext._gateway
    deploy, settings, option = java.org.apache.spark.deploy, java.org.apache.spark.SparkConf(), java.scala.Option
    port = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, settings)._1().address().port()
    masters = gateway.new_array(java.String, 1)
    masters[0] = f"spark://127.0.0.1:{port}"
    for number, host in enumerate(("127.0.0.2", "127.0.0.3")):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 1024, masters, str(directory / "work"), option.apply(number), settings, option.empty()
        )  # one core, 1 GiB
    return str(masters[0])


def stop_jvm() -> None:
    """End the JVM, which outlives its last session."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()  # its word to go
        process.wait(8 * DEADLINE_S)  # one that writes its classes down takes its time
        SparkContext._gateway = SparkContext._jvm = None
