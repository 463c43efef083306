"""What all pipelines share: how one is declared, its Spark session, what is said when it fails.

Invariant: what can be refused without Spark is refused before Spark starts, which takes ten seconds; a session that was
started is stopped, however the pipeline ends. Under spark-submit master and settings are those of the submission.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from amq.client import connect
from amq.config import units
from amq.errors import AmqError
from pyspark_amq.options import AT_LEAST_ONCE, DEDUP, EXACTLY_ONCE, BrokerOptions, SinkOptions, full_names, read

LOCAL = "local[*]"
LOGIN_TIMEOUT_S = 60.0  # to find the master, also in the middle of a takeover
PROGRESS_S = 1.0  # Spark keeps the progress of the last hundred micro-batches: so often they are counted
STARTS_MAX = 10  # of a stream whose source is not up in the 10 s that Spark gives it
DEFAULT_URL = "stomp://127.0.0.1:61613"
JAVA = "Spark needs Java 17 or later, on PATH or at JAVA_HOME: install openjdk-17-jre-headless or the like"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit started the JVM, and this process in it
_TOO_SLOW = "Python worker failed to connect back"  # Spark says so of a source that is not up in time
_OURS = re.compile(r"^(?:amq|pyspark_amq)\.[\w.]+: (.+)$", re.MULTILINE)  # last lines of our tracebacks

Say = Callable[[str], None]
Options = Mapping[str, Any]
Show = Callable[[dict[str, Any], bool], None]  # prints figures: as JSON, or for people


class PipelineError(AmqError):
    """A pipeline did not get to its end, or could not begin."""

    code = "PIPELINE_FAILED"


@dataclass(frozen=True)
class Pipeline:
    """A job.

    about     what it does: the first line alone stands in lists
    options   what it takes on the command line; `check` and `run` get the values by the names of the parameters
    examples  command lines behind the name
    check     refuses options that cannot work: raises AmqError, OSError
    run       does it, tells how far it is, returns figures: names and numbers or texts
    """

    name: str
    about: str
    options: Sequence[click.Option]
    examples: Sequence[str]
    check: Callable[[Options], None]
    run: Callable[[Any, Options, Say], dict[str, Any]]

    @property
    def title(self) -> str:
        return self.about.partition("\n")[0]


def is_local(path: str) -> bool:
    """A path of this machine, and no URI of one of Spark's file systems."""
    return ":" not in path.partition("/")[0]


def moment_ms(_context: click.Context | None, _option: click.Parameter | None, text: str | None) -> int | None:
    """ISO 8601, UTC where it says nothing else, or milliseconds since 1970 → these. Raises BadParameter."""
    if text is None:
        return None
    if text.isdecimal() and len(text) != len("20260131"):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        why = f"{text!r}: write 2026-01-31T12:00:00, with +01:00 behind it where it is not UTC"
        raise click.BadParameter(why) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_s(_context: click.Context | None, _option: click.Parameter | None, text: str | None) -> float | None:
    """`10s`, `5min` → seconds. Raises BadParameter."""
    if text is None:
        return None
    try:
        ms = units.parse_duration_ms(text)
    except ValueError:
        ms = 0
    if ms <= 0:
        raise click.BadParameter(f"{text!r}: write a duration such as 500ms, 10s or 1h")
    return ms / 1000


def broker_options() -> list[click.Option]:
    """--url, --user and --password."""
    return [
        click.Option(
            ["--url"], metavar="URL", default=DEFAULT_URL, envvar="AMQ_URL", show_default=True,
            help="Of the brokers: failover:(stomp://A:PORT,stomp://B:PORT); or $AMQ_URL.",
        ),
        click.Option(["--user"], default="", envvar="AMQ_LOGIN", help="User; or $AMQ_LOGIN."),
        click.Option(["--password"], default="", envvar="AMQ_PASSCODE", help="Password; or, better, $AMQ_PASSCODE."),
    ]  # fmt: skip


def delivery_option() -> click.Option:
    """--delivery."""
    return click.Option(
        ["--delivery"], type=click.Choice([EXACTLY_ONCE, DEDUP, AT_LEAST_ONCE]), default=EXACTLY_ONCE,
        show_default=True, help="See docs/spark.md.",
    )  # fmt: skip


def sink_settings(options: Options) -> dict[str, str]:
    """What these say as options of `format("amq")`."""
    names = ("url", "user", "password", "destination", "delivery")
    return {name: options[name] for name in names if options[name]}


def check_sink(options: Options) -> None:
    """Does the sink take these options, and is there a broker that lets us in? Raises AmqError."""
    log_in(read(SinkOptions, sink_settings(options)))


def log_in(given: BrokerOptions) -> None:
    """Is there a broker that lets us in? Raises AmqError."""
    connect(given.url, login=given.user or "", passcode=given.password or "", timeout=LOGIN_TIMEOUT_S).close()


def destinations_option(name: str, about: str, parameter: str = "") -> click.Option:
    """An option that may be repeated; its value are full names, as the journal has them."""

    def full(_context: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> list[str]:
        try:
            return sorted(full_names(",".join(names))) if names else []
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    words = [name, parameter] if parameter else [name]
    return click.Option(words, metavar="NAME", multiple=True, callback=full, help=about)


def range_options() -> list[click.Option]:
    """--starting-timestamp and --ending-timestamp."""
    return [
        click.Option(
            ["--starting-timestamp"], metavar="WHEN", callback=moment_ms,
            help="Only messages sent then or later, ISO 8601.",
        ),
        click.Option(["--ending-timestamp"], metavar="WHEN", callback=moment_ms, help="Only messages sent before."),
    ]  # fmt: skip


def in_range(rows: Any, column: str, options: Options) -> Any:
    """Those of `rows` whose moment in `column` lies in the range of `range_options`."""
    from pyspark.sql import functions as F

    start_ms, end_ms = options["starting_timestamp"], options["ending_timestamp"]
    if start_ms is not None:
        rows = rows.where(F.col(column) >= F.timestamp_millis(F.lit(start_ms)))
    if end_ms is not None:
        rows = rows.where(F.col(column) < F.timestamp_millis(F.lit(end_ms)))
    return rows


def pairs_option(name: str, about: str) -> click.Option:
    """An option NAME=VALUE that may be repeated; its value is a list of (name, value)."""

    def pairs(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, str]]:
        found = [text.partition("=") for text in texts]
        for text, (key, equals, _) in zip(texts, found, strict=True):
            if not (key and equals):
                raise click.BadParameter(f"{text!r}: write NAME=VALUE")
        return [(key, value) for key, _, value in found]

    return click.Option([name], metavar="NAME=VALUE", multiple=True, callback=pairs, help=f"{about} May be repeated.")


def need_spark(environ: Mapping[str, str]) -> None:
    """Raises PipelineError where it, or Java, is not installed."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineError(f"{missing[0]} is not installed here: pip install 'amq[spark]'", code="SPARK_MISSING")
    home = environ.get("JAVA_HOME")
    if _SUBMITTED not in environ and shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH")) is None:
        raise PipelineError(f"there is no Java at {home}: {JAVA}" if home else JAVA, code="SPARK_MISSING")


@contextmanager
def session(name: str, master: str, settings: Mapping[str, str], environ: MutableMapping[str, str]) -> Iterator[Any]:
    """A SparkSession while the block runs; `environ` is what its JVM gets. Raises PipelineError where none starts."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"amq {name}")
    if _SUBMITTED not in environ:
        environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).config("spark.log.level", "ERROR").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
        if master.startswith("local"):  # need not be reached from elsewhere, whatever this host is called
            environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise PipelineError(f"Spark did not start: {JAVA} ({_first_line(error)})", code="SPARK_MISSING") from error
    except Py4JError as error:  # there is a Java, which does not like --master or --conf
        raise PipelineError(f"Spark did not start: {_first_line(error)}") from error
    try:
        for package in ("pyspark_amq", "pyspark_amq_journal"):  # Spark would not look into what --py-files brings
            spark.dataSource.register(importlib.import_module(package).DefaultSource)
        yield spark
    finally:
        spark.stop()


def follow(start: Callable[[], Any], say: Say) -> dict[str, Any]:
    """Let a stream run to its end, which comes with us at the latest. Returns how many messages it read, in how many
    micro-batches. Raises what it died of.

    `start` starts its query. It is called again where Python was not up in time to be the source of the stream: nothing
    was read then, and on a machine that is busy for a moment it may be the next time."""
    from pyspark.errors import PySparkException

    batches: dict[int, int] = {}
    for starts in range(1, STARTS_MAX + 1):
        try:
            _watch(start(), batches, say)
        except PySparkException as error:
            if _TOO_SLOW not in str(error) or starts == STARTS_MAX:
                raise
            say(f"Python was not up in the 10 s that Spark gives a source: start {starts + 1} of {STARTS_MAX}")
        else:
            break
    return {"messages": sum(batches.values()), "batches": len(batches)}


def _watch(query: Any, batches: dict[int, int], say: Say) -> None:
    """Until `query` ends, or we do: keep in `batches` how many messages each micro-batch had."""
    try:
        ended = False
        while not ended:
            ended = query.awaitTermination(PROGRESS_S)
            for each in query.recentProgress:
                number, messages = each["batchId"], each["numInputRows"]
                if messages and number not in batches:
                    batches[number] = messages
                    say(f"micro-batch {number}: {messages:,} messages")
    finally:
        query.stop()


def execute(
    pipeline: Pipeline, options: Options, master: str, settings: Mapping[str, str], environ: MutableMapping[str, str],
    say: Say,
) -> dict[str, Any]:  # fmt: skip
    """Run `pipeline`; its figures, with the time it took. Raises AmqError, OSError."""
    need_spark(environ)
    pipeline.check(options)
    say("starting Spark")
    with session(pipeline.name, master, settings, environ) as spark:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        started_at = time.monotonic()
        try:
            figures = pipeline.run(spark, options, say)
        except (PySparkException, Py4JError) as error:
            raise PipelineError(f"{pipeline.name}: {_reason(error)}") from error
        return {"pipeline": pipeline.name, **figures, "duration_s": round(time.monotonic() - started_at, 3)}


def _reason(error: Exception) -> str:
    """What our own code said in a task, or else the first line of what Spark says."""
    found = _OURS.findall(str(error))
    return found[-1] if found else _first_line(error)


def _first_line(error: Exception) -> str:
    """That which says something: of what PySpark has no name for, Java's own is the second."""
    first, _, rest = str(error).strip().partition("\n")
    return rest.removeprefix(": ").partition("\n")[0] if rest.startswith(": ") else first


def command(
    pipeline: Pipeline, epilog: Callable[..., str], show: Show, environ: MutableMapping[str, str]
) -> click.Command:  # fmt: skip
    """The pipeline as a command. `epilog` makes its text of examples."""

    def run(master: str, settings: tuple[str, ...], as_json: bool, **options: Any) -> None:
        pairs = dict(_setting(text) for text in settings)
        show(execute(pipeline, options, master, pairs, environ, _say), as_json)

    shared = [
        click.Option(
            ["--master"], metavar="URL", default=LOCAL, show_default=True,
            help="Where Spark runs: local[2], spark://HOST:7077, yarn, k8s://…; spark-submit has an option of its own.",
        ),
        click.Option(
            ["--conf", "settings"], metavar="KEY=VALUE", multiple=True, help="A setting of Spark. May be repeated."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Figures as JSON on stdout, for scripts."),
    ]  # fmt: skip
    return click.Command(
        pipeline.name, callback=run, params=[*pipeline.options, *shared], help=pipeline.about,
        short_help=pipeline.title,
        epilog=epilog(*(f"amq pipeline run {pipeline.name} {example}" for example in pipeline.examples)),
    )  # fmt: skip


def _say(text: str) -> None:
    click.echo(f"amq: {text}", err=True)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise click.BadParameter(f"--conf {text}: write spark.NAME=VALUE")
    return key, value
