"""The common parts of all pipelines: declarations, options, the Spark session, and errors.

Invariant: a pipeline makes all checks that need no Spark before Spark starts, which takes ten seconds. It stops its
session, however it ends. Under spark-submit the submission sets master and settings.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click

from amq.client import connect
from amq.core import units
from amq.core.errors import AmqError
from pyspark_amq import PYSPARK_MIN
from pyspark_amq.options import AT_LEAST_ONCE, DEDUP, EXACTLY_ONCE, BrokerOptions, SinkOptions, full_names, read
from pyspark_amq.pipelines.progress import ENDED, FAILED, Progress, Say

LOCAL = "local[*]"
LOGIN_TIMEOUT_S = 60.0  # to find the master, also during a takeover
PROGRESS_S = 1.0  # interval of counting; Spark keeps the progress of the last 100 micro-batches
STARTS_MAX = 10  # of a stream whose source does not start in the 10 s that Spark allows
DEFAULT_URL = "stomp://127.0.0.1:61613"
JAVA = "Spark needs Java 17 or later, on PATH or at JAVA_HOME: install openjdk-17-jre-headless or the like"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit started the JVM, and this process in it
_TOO_SLOW = "Python worker failed to connect back"  # the error of Spark for such a source
_OURS = re.compile(r"^(?:amq|pyspark_amq)\.[\w.]+: (.+)$", re.MULTILINE)  # last lines of our tracebacks

Options = Mapping[str, Any]
Show = Callable[[dict[str, Any], bool], None]  # prints figures, as JSON or for people


class PipelineError(AmqError):
    """A pipeline failed, or could not begin."""

    code = "PIPELINE_FAILED"


@dataclass(frozen=True)
class Pipeline:
    """A job.

    about     its description; lists show only the first line
    options   of the command line; `check` and `run` get the values by the names of the parameters
    examples  arguments of the command
    check     rejects options that cannot work: raises AmqError, OSError
    run       does the work, reports progress, returns figures: names with numbers or texts
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
    """Is it a path of this host, not a URI of one of Spark's file systems?"""
    return ":" not in path.partition("/")[0]


def moment_ms(_context: click.Context | None, _option: click.Parameter | None, text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 time, UTC by default, or of such a number. Raises BadParameter."""
    if text is None:
        return None
    if text.isdecimal() and len(text) != len("20260131"):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        why = f"{text!r}: write 2026-01-31T12:00:00, with +01:00 after it if it is not UTC"
        raise click.BadParameter(why) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_s(_context: click.Context | None, _option: click.Parameter | None, text: str | None) -> float | None:
    """Seconds of a duration such as `10s` or `5min`. Raises BadParameter."""
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
    """--url, --login and --passcode."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            default=DEFAULT_URL,
            envvar="AMQ_URL",
            show_default=True,
            help="URL of the brokers: failover:(stomp://A:PORT,stomp://B:PORT); or $AMQ_URL.",
        ),
        click.Option(["--login", "--user", "user"], default="", envvar="AMQ_LOGIN", help="User; or $AMQ_LOGIN."),
        click.Option(
            ["--passcode", "--password", "password"],
            default="",
            envvar="AMQ_PASSCODE",
            help="Password; or, better, $AMQ_PASSCODE.",
        ),
    ]


def delivery_option() -> click.Option:
    """--delivery."""
    return click.Option(
        ["--delivery"],
        type=click.Choice([EXACTLY_ONCE, DEDUP, AT_LEAST_ONCE]),
        default=EXACTLY_ONCE,
        show_default=True,
        help="See docs/spark.md.",
    )


def sink_settings(options: Options) -> dict[str, str]:
    """These options, as options of `format("amq")`."""
    names = ("url", "user", "password", "destination", "delivery")
    return {name: options[name] for name in names if options[name]}


def check_sink(options: Options) -> None:
    """Check that the sink takes these options, and that a broker accepts the login. Raises AmqError."""
    log_in(read(SinkOptions, sink_settings(options)))


def log_in(given: BrokerOptions) -> None:
    """Check that a broker accepts the login. Raises AmqError."""
    connect(given.url, login=given.user or "", passcode=given.password or "", timeout=LOGIN_TIMEOUT_S).close()


def destinations_option(name: str, about: str, parameter: str = "") -> click.Option:
    """An option that may be repeated. Its value is a list of full names, as in the journal."""

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
            ["--starting-timestamp"],
            metavar="WHEN",
            callback=moment_ms,
            help="Only messages sent then or later, ISO 8601.",
        ),
        click.Option(["--ending-timestamp"], metavar="WHEN", callback=moment_ms, help="Only messages sent before."),
    ]


def in_range(rows: Any, column: str, options: Options) -> Any:
    """The `rows` whose time in `column` lies in the range of `range_options`."""
    from pyspark.sql import functions as F

    start_ms, end_ms = options["starting_timestamp"], options["ending_timestamp"]
    if start_ms is not None:
        rows = rows.where(F.col(column) >= F.timestamp_millis(F.lit(start_ms)))
    if end_ms is not None:
        rows = rows.where(F.col(column) < F.timestamp_millis(F.lit(end_ms)))
    return rows


def pairs_option(name: str, about: str) -> click.Option:
    """An option NAME=VALUE that may be repeated. Its value is a list of (name, value)."""

    def pairs(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, str]]:
        found = [text.partition("=") for text in texts]
        for text, (key, equals, _) in zip(texts, found, strict=True):
            if not (key and equals):
                raise click.BadParameter(f"{text!r}: write NAME=VALUE")
        return [(key, value) for key, _, value in found]

    return click.Option([name], metavar="NAME=VALUE", multiple=True, callback=pairs, help=f"{about} May be repeated.")


def need_spark(environ: Mapping[str, str]) -> None:
    """Raises PipelineError if Spark or Java is not installed."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineError(f"{missing[0]} is not installed here: pip install 'amq[spark]'", code="SPARK_MISSING")
    import pyspark  # it may come from the archive of an executor's Spark, which has no package metadata

    installed = pyspark.__version__
    if tuple(map(int, installed.split(".")[:2])) < tuple(map(int, PYSPARK_MIN.split("."))):
        raise PipelineError(
            f"pipelines need PySpark {PYSPARK_MIN} or later, this is {installed}: pip install 'pyspark>={PYSPARK_MIN}'",
            code="SPARK_MISSING",
        )
    home = environ.get("JAVA_HOME")
    if _SUBMITTED not in environ and shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH")) is None:
        raise PipelineError(f"there is no Java at {home}: {JAVA}" if home else JAVA, code="SPARK_MISSING")


def use_compiled_modules(environ: MutableMapping[str, str]) -> None:
    """Let Spark's Python processes import the installed PySpark, which has byte code. Each of them would compile the
    archive in Spark's home anew: 1.9 s of processor time in place of 0.6. This function sets SPARK_HOME to a directory
    of links in the user's cache. A home that the user has chosen stays.
    """
    import pyspark

    spark = Path(pyspark.__file__).parent
    user = environ.get("XDG_CACHE_HOME") or environ.get("HOME", "")
    if "SPARK_HOME" in environ or not user or not (spark / "jars").is_dir():
        return
    cache = Path(user) if "XDG_CACHE_HOME" in environ else Path(user, ".cache")
    home = cache / "amq" / f"spark-{pyspark.__version__}-{blake2b(str(spark).encode(), digest_size=6).hexdigest()}"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("bin", "jars"):
            with suppress(FileExistsError):
                (home / name).symlink_to(spark / name)
    except OSError:  # a user without a home: Spark starts its processes more slowly
        return
    environ["SPARK_HOME"] = str(home)


@contextmanager
def session(name: str, master: str, settings: Mapping[str, str], environ: MutableMapping[str, str]) -> Iterator[Any]:
    """A SparkSession for the block; its JVM gets `environ`. Raises PipelineError if Spark does not start."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"amq {name}")
    if _SUBMITTED not in environ:
        environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).config("spark.log.level", "ERROR").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
        if master.startswith("local"):  # nobody else must reach it, so the host name does not matter
            environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            use_compiled_modules(environ)
            # Over TCP a task waits for delayed acknowledgements: a micro-batch costs 383 ms, and so 260 ms.
            builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise PipelineError(f"Spark did not start: {JAVA} ({_first_line(error)})", code="SPARK_MISSING") from error
    except Py4JError as error:  # Java is there, but rejects --master or --conf
        raise PipelineError(f"Spark did not start: {_first_line(error)}") from error
    try:
        for package in ("pyspark_amq", "pyspark_amq_journal"):  # Spark does not search --py-files for formats
            spark.dataSource.register(importlib.import_module(package).DefaultSource)
        yield spark
    finally:
        spark.stop()


def follow(start: Callable[[], Any], say: Say, name: str = "", checkpoint: str = "") -> dict[str, Any]:
    """Let a stream run to its end; it does not outlive this process. Returns the numbers of messages and micro-batches
    that it read, and how fast. Raises the error of the stream.

    `start` starts the query. `follow` calls it again if the Python process of the source did not start in time, as
    happens on a busy host: the query has read nothing then. The progress of pipeline `name` is kept in `checkpoint`, if
    that is on a local disk."""
    from pyspark.errors import PySparkException

    progress = Progress(name, checkpoint if is_local(checkpoint) else "", say)
    try:
        for starts in range(1, STARTS_MAX + 1):
            try:
                _watch(start(), progress)
            except PySparkException as error:
                if _TOO_SLOW not in str(error) or starts == STARTS_MAX:
                    raise
                say(f"Python did not start in the 10 s that Spark allows a source: start {starts + 1} of {STARTS_MAX}")
            else:
                break
    except BaseException:
        progress.write(FAILED)
        raise
    progress.write(ENDED)
    return progress.figures()


def _watch(query: Any, progress: Progress) -> None:
    """Until `query` or this process ends, note its progress."""
    try:
        ended = False
        while not ended:
            ended = query.awaitTermination(PROGRESS_S)
            for each in query.recentProgress:
                progress.note(each)
    finally:
        query.stop()


def execute(
    pipeline: Pipeline,
    options: Options,
    master: str,
    settings: Mapping[str, str],
    environ: MutableMapping[str, str],
    say: Say,
) -> dict[str, Any]:
    """Run `pipeline`. Returns its figures and its time. Raises AmqError, OSError."""
    need_spark(environ)
    if master.startswith("sc://") or environ.get("SPARK_REMOTE"):
        raise PipelineError(
            "a pipeline runs in its own Spark session, not in that of Spark Connect: unset SPARK_REMOTE and give "
            "--master local[*], spark://HOST:7077 or the like. Your own programs may use Spark Connect"
        )
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
    """The message of our own code in a task, if there is one, or else the first line of Spark's message."""
    found = _OURS.findall(str(error))
    return found[-1] if found else _first_line(error)


def _first_line(error: Exception) -> str:
    """The first line with a meaning: the second one if PySpark has no class for an error of Java."""
    first, _, rest = str(error).strip().partition("\n")
    return rest.removeprefix(": ").partition("\n")[0] if rest.startswith(": ") else first


def command(
    pipeline: Pipeline, epilog: Callable[..., str], show: Show, environ: MutableMapping[str, str]
) -> click.Command:
    """The pipeline as a command. `epilog` formats its examples."""

    def run(master: str, settings: tuple[str, ...], as_json: bool, **options: Any) -> None:
        pairs = dict(_setting(text) for text in settings)
        show(execute(pipeline, options, master, pairs, environ, _say), as_json)

    shared = [
        click.Option(
            ["--master"],
            metavar="URL",
            default=LOCAL,
            show_default=True,
            help="Spark master: local[2], spark://HOST:7077, yarn, k8s://…; spark-submit has its own option.",
        ),
        click.Option(
            ["--conf", "settings"], metavar="KEY=VALUE", multiple=True, help="A setting of Spark. May be repeated."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print figures as JSON to stdout, for scripts."),
    ]
    return click.Command(
        pipeline.name,
        callback=run,
        params=[*pipeline.options, *shared],
        help=pipeline.about,
        short_help=pipeline.title,
        epilog=epilog(*(f"amq pipeline run {pipeline.name} {example}" for example in pipeline.examples)),
    )


def _say(text: str) -> None:
    click.echo(f"amq: {text}", err=True)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise click.BadParameter(f"--conf {text}: write spark.NAME=VALUE")
    return key, value
