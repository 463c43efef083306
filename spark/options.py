"""Every option of `format("amq")` and `format("amq-journal")`: one declaration gives name, type, default, bounds,
example and its row in docs/spark.md.

Invariant: what `read` returns can be used as it is; whatever else was given is refused with option, value and an
example. A secret is in no text made here, nor in the `repr` of what is returned. `python -m pyspark_amq.options` prints
the tables.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from amq.client.uri import parse as parse_url
from amq.config import units
from amq.config.destinations import ANY_REST, ANY_WORD
from amq.errors import AmqError, ConfigError, ProtocolError
from amq.protocols.stomp.destination import full_name

EXACTLY_ONCE, DEDUP, AT_LEAST_ONCE = "exactly-once", "dedup", "at-least-once"
BY_CONTENT, BY_POSITION = "content", "position"
EARLIEST, LATEST = "earliest", "latest"
JOURNAL_KINDS = MESSAGES, LEFT, CAME_BACK, MOVES = "message", "consumed", "redelivered", "moved"
SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname"})  # Spark's own, which it passes on
COUNT_MAX = (1 << 63) - 1
VALUE_CHARACTERS_MAX = 80  # of what an error repeats

Parser = Callable[[str], Any]


class OptionError(ConfigError):
    """An option of the data source that is missing, unknown or has a value that cannot be used."""

    code = "OPTION_INVALID"


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _count(text: str, least: int = 1) -> int:
    digits = text.strip()
    number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= len(str(COUNT_MAX)) else -1
    if not least <= number <= COUNT_MAX:
        raise ValueError(f"must be an integer from {least} to {COUNT_MAX}")
    return number


def _priority(text: str) -> int:
    if text.strip() not in set("0123456789"):
        raise ValueError("must be a number from 0 to 9")
    return int(text)


def _truth(text: str) -> bool:
    try:
        return units.parse_boolean(text)
    except ValueError:
        raise ValueError("must be true or false") from None


def _seconds(text: str) -> float:
    """A duration, more than 0."""
    try:
        ms = units.parse_duration_ms(text)
    except ValueError:
        ms = 0
    if not 0 < ms < 2**53:
        raise ValueError('must be a duration more than 0, such as 500ms, 60s or 1h')
    return ms / 1000


def _seconds_or_none(text: str) -> float:
    """A duration, or 0."""
    return 0.0 if text.strip() == "0" else _seconds(text)


def _one_of(*words: str) -> Parser:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return parse


def _url(text: str) -> str:
    try:
        url = parse_url(text)
    except AmqError as error:
        raise ValueError(f"is no broker URL: {error}") from error
    if any(uri.passcode for uri in url.uris):
        raise ValueError("must not hold a password, since Spark shows it in plans: use the options user and password")
    return text


def _destination(text: str) -> str:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or any(ord(character) < 32 for character in text):
        raise ValueError("must be a destination, or several with commas between")
    return ",".join(names)


def full_names(text: str) -> frozenset[str]:
    """Destinations as the journal names them."""
    try:
        return frozenset(part if "://" in part else full_name(part, "") for part in _destination(text).split(","))
    except ProtocolError as error:
        raise ValueError(f"must be a destination, or several with commas between ({error})") from error


def _kinds(text: str) -> frozenset[str]:
    kinds = frozenset(JOURNAL_KINDS if text == "all" else map(str.strip, text.split(",")))
    if not kinds <= set(JOURNAL_KINDS):
        raise ValueError(f"must be all, or some of {', '.join(JOURNAL_KINDS)}")
    return kinds


def _number(text: str) -> int:
    return _count(text, least=0)


def _offsets(text: str) -> str | Mapping[str, Any]:
    """`earliest`, `latest`, or the offsets of a JSON object."""
    if text in (EARLIEST, LATEST):
        return text
    try:
        offsets = json.loads(text)
    except ValueError:
        offsets = None
    if not isinstance(offsets, dict):
        raise ValueError("must be earliest, latest or a JSON object of offsets by destination")
    return offsets


def _option(
    name: str, parse: Parser, default: str | None, meaning: str, example: str, *, required: bool = False,
    secret: bool = False,
) -> Any:  # fmt: skip
    """A field that is set by option `name`. `default` as users write it; None = it is not set."""
    metadata = {
        "name": name, "parse": parse, "example": example, "meaning": meaning, "text": default, "required": required,
        "secret": secret,
    }  # fmt: skip
    return dataclasses.field(default=None if default is None else parse(default), metadata=metadata, repr=not secret)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """How the broker is reached: of sink and source. Durations in seconds."""

    url: str = _option(
        "url", _url, None, "any URL of the [client](failover-url.md); no password in it",
        "failover:(stomp://a:61613,stomp://b:61613)", required=True,
    )  # fmt: skip
    user: str | None = _option("user", _text, None, "login of all connections, of driver and executors", "etl")
    password: str | None = _option(
        "password", _text, None, "its password. Spark redacts options of this name", "…", secret=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions(BrokerOptions):
    """Of `df.write` and `df.writeStream`."""

    destination: str | None = _option(
        "destination", _destination, None,
        "where all rows go. Without it each row needs a column `destination`, which it overrides", "/queue/orders",
    )  # fmt: skip
    delivery: str = _option(
        "delivery", _one_of(EXACTLY_ONCE, DEDUP, AT_LEAST_ONCE), EXACTLY_ONCE,
        f"`{EXACTLY_ONCE}`, `{DEDUP}` or `{AT_LEAST_ONCE}`: see [guarantees](#guarantees)", EXACTLY_ONCE,
    )  # fmt: skip
    id_column: str | None = _option(
        "idColumn", _text, None, f"column whose text identifies a row for duplicate detection (`{DEDUP}` only)",
        "orderId",
    )  # fmt: skip
    id_strategy: str = _option(
        "idStrategy", _one_of(BY_CONTENT, BY_POSITION), BY_CONTENT,
        f"what identifies a row without `idColumn` (`{DEDUP}` only): `{BY_CONTENT}` or `{BY_POSITION}`", BY_CONTENT,
    )  # fmt: skip
    window_rows: int = _option(
        "windowRows", _count, "10000",
        "rows that a task has sent and that are not safe yet; as many are kept in its memory to be sent again. "
        f"`{EXACTLY_ONCE}`: rows of one prepared transaction", "10000",
    )  # fmt: skip
    send_timeout_s: float = _option(
        "sendTimeout", _seconds, "120s",
        "how long a task waits for the broker, takeovers included, before it fails", "120s",
    )  # fmt: skip
    tx_timeout_s: float = _option(
        "txTimeout", _seconds, "1h",
        f"after that the broker forgets what a task staged and no commit took (`{EXACTLY_ONCE}`). Must be longer than "
        "a batch takes", "1h",
    )  # fmt: skip
    persistent: bool = _option("persistent", _truth, "true", "are messages kept on disk?", "true")
    priority: int = _option("priority", _priority, "4", "of the messages, 0 to 9", "4")
    time_to_live_s: float = _option(
        "timeToLive", _seconds_or_none, "0", "after that a message expires; 0 = never", "24h"
    )
    log_metrics: bool = _option(
        "logMetrics", _truth, "false", "write a line of JSON for each batch to the driver's standard error", "true"
    )

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.delivery == EXACTLY_ONCE and not self.persistent:
            raise refusal(SinkOptions, "persistent", "false", f"must be true for delivery={EXACTLY_ONCE}")
        if self.delivery == DEDUP and not self.persistent:
            raise refusal(SinkOptions, "persistent", "false", "must be true for delivery=dedup: only those keep ids")
        if self.delivery != DEDUP and self.id_column is not None:
            raise refusal(SinkOptions, "idColumn", self.id_column, f"has a meaning for delivery={DEDUP} alone")
        if self.delivery != AT_LEAST_ONCE and self.destination and "topic" in self.destination:
            for name in self.destination.split(","):
                if name.startswith(("/topic/", "topic://")):
                    raise refusal(
                        SinkOptions, "destination", name,
                        f"must be a queue for delivery={self.delivery}: topics take delivery={AT_LEAST_ONCE}",
                    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """Of `spark.read` and `spark.readStream`."""

    destination: str = _option(
        "destination", _destination, None, "what is read; several with commas between, one topic at most",
        "/queue/orders,/queue/bills", required=True,
    )  # fmt: skip
    starting_offsets: str | Mapping[str, Any] | None = _option(
        "startingOffsets", _offsets, None,
        "where a new query begins: `earliest` (the default), `latest` (streams of topics alone) or JSON: of a stream "
        "behind this offset of another one, of a batch read behind these numbers by destination", EARLIEST,
    )  # fmt: skip
    ending_offsets: str | Mapping[str, Any] = _option(
        "endingOffsets", _offsets, LATEST, "where a batch read ends: `latest`, or JSON: with these offsets", LATEST
    )
    starting_timestamp_ms: int | None = _option(
        "startingTimestamp", _count, None, "of a batch read: only messages from this moment on, milliseconds since "
        "1970; instead of `startingOffsets`", "1767225600000",
    )  # fmt: skip
    max_offsets_per_trigger: int | None = _option(
        "maxOffsetsPerTrigger", _count, None, "most messages of one micro-batch; without it a million", "10000"
    )
    min_partitions: int | None = _option(
        "minPartitions", _count, None, "into how many partitions a micro-batch is cut; without it up to 4", "8"
    )
    subscription: str | None = _option(
        "subscription", _text, None, "name of the cursor of a stream, and of its durable subscription to a topic", "etl"
    )
    ack: str = _option(
        "ack", _one_of("onCommit", "none"), "onCommit",
        "`onCommit`: what a micro-batch read goes from the broker when the next one begins; `none`: it stays leased, "
        "and somebody else settles it", "none",
    )  # fmt: skip
    fail_on_data_loss: bool = _option(
        "failOnDataLoss", _truth, "true", "fail where messages that a query has not read are gone", "true"
    )
    include_headers: bool = _option("includeHeaders", _truth, "false", "a column `headers`", "true")
    prefetch_messages: int = _option(
        "prefetch", _count, "2000", "how many messages come to a task before it takes them, so twice as many may be in "
        "its memory: fewer where they are large", "50",
    )  # fmt: skip
    poll_interval_s: float = _option(
        "pollInterval", _seconds, "200ms", "how often an idle query asks the broker for new messages", "200ms"
    )

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.starting_timestamp_ms is not None and self.starting_offsets is not None:
            why = "must not be given beside startingOffsets: keep one"
            raise refusal(SourceOptions, "startingTimestamp", str(self.starting_timestamp_ms), why)
        if why := _read_twice(self.destination):
            raise refusal(SourceOptions, "destination", self.destination, why)


def _read_twice(destinations: str) -> str:
    """Why a source cannot read all of these; "" = it can."""
    seen: set[str] = set()
    for part in destinations.split(","):
        try:
            (name,) = full_names(part)
        except ValueError as error:
            return str(error)
        if name in seen:
            return f"names {name} twice, so each of its messages would be read twice"
        if other := next((other for other in seen if _meet(other, name)), ""):
            return f"names {other} and {name}, so what is in both would be read twice"
        seen.add(name)
    if sum(name.startswith("topic://") for name in seen) > 1:
        return (
            "names two topics, and a durable subscription is to one: give each a query of its own, or a pattern such "
            "as /topic/prices.>"
        )
    return ""


def _meet(one: str, other: str) -> bool:
    """Is there a destination for which both stand, full names or patterns?"""
    words, other_words = (name.replace("://", ".", 1).split(".") for name in (one, other))
    for word, other_word in zip(words, other_words, strict=False):
        if ANY_REST in (word, other_word):
            return True
        if word != other_word and ANY_WORD not in (word, other_word):
            return False
    rest = words[len(other_words) :] or other_words[len(words) :]
    return rest in ([], [ANY_REST])


@dataclasses.dataclass(frozen=True, kw_only=True)
class JournalOptions:
    """Of `format("amq-journal")`. Starts are inclusive, ends are not."""

    path: str = _option("path", _text, None, "directory of the store; also `.load(path)`", "/mnt/amq", required=True)
    kinds: frozenset[str] = _option(
        "kinds", _kinds, "message",
        "which rows: some of `message`, `consumed`, `redelivered`, `moved` with commas between, or `all`", "all",
    )  # fmt: skip
    destination: frozenset[str] | None = _option(
        "destination", full_names, None, "only these destinations, with commas between", "/queue/orders"
    )
    starting_offset: int | None = _option(
        "startingOffset", _number, None, "only messages from this offset on", "17592186044417"
    )
    ending_offset: int | None = _option(
        "endingOffset", _number, None, "only messages before this offset", "17592186054417"
    )
    starting_timestamp_ms: int | None = _option(
        "startingTimestamp", _number, None, "only rows from this moment on, milliseconds since 1970", "1767225600000"
    )
    ending_timestamp_ms: int | None = _option(
        "endingTimestamp", _number, None, "only rows from before this moment, milliseconds since 1970", "1767312000000"
    )
    include_value: bool = _option(
        "includeValue", _truth, "true", "a column `value`, the bodies; `bodyBytes` there always is", "false"
    )
    include_headers: bool = _option("includeHeaders", _truth, "false", "a column `headers`", "true")
    fail_on_data_loss: bool = _option(
        "failOnDataLoss", _truth, "true", "fail where a segment was trimmed between planning and reading, or go on "
        "without it", "false",
    )  # fmt: skip
    pushdown: bool = _option(
        "pushdown", _truth, "false",
        "let the reader skip what filters exclude; needs `spark.sql.python.filterPushdown.enabled=true`", "true",
    )  # fmt: skip

    def check(self) -> None:
        """Nothing contradicts itself here: a range that holds nothing is an empty answer."""


_Options = TypeVar("_Options", SinkOptions, SourceOptions, JournalOptions)
_USES: dict[type[Any], str] = {SinkOptions: "writing", SourceOptions: "reading", JournalOptions: "reading the journal"}


def read(kind: type[_Options], given: Mapping[str, str]) -> _Options:
    """`kind` of the options that Spark passes on, whose names it has made lower case. Raises OptionError."""
    fields = {name.lower(): field for name, field in declared(kind).items()}
    values: dict[str, Any] = {}
    for name, text in given.items():
        field = fields.get(name.lower())
        if field is None:
            if name.lower() not in SPARK_OPTIONS:
                raise _unknown(kind, name)
            continue
        try:
            values[field.name] = field.metadata["parse"](str(text))
        except ValueError as error:
            raise refusal(kind, field.metadata["name"], str(text), str(error)) from error
    for field in fields.values():
        if field.metadata["required"] and field.name not in values:
            name = field.metadata["name"]
            raise OptionError(f"option '{name}' is missing: write {_call(name, field.metadata['example'])}")
    options = kind(**values)
    options.check()
    return options


def declared(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Option name → field, in the order of the declaration."""
    return {field.metadata["name"]: field for field in dataclasses.fields(kind)}


def refusal(kind: type[Any], name: str, value: str, why: str) -> OptionError:
    """Why this value of this option is refused, with an example of a good one."""
    metadata = declared(kind)[name].metadata
    # A URL's error says what is wrong without its login: the whole would show that.
    shown = "" if metadata["secret"] or name == "url" else f", got {value[:VALUE_CHARACTERS_MAX]!r}"
    return OptionError(f"option '{name}' {why}{shown}: write for example {_call(name, metadata['example'])}")


def _unknown(kind: type[Any], name: str) -> OptionError:
    for other, use in _USES.items():
        if name.lower() in {known.lower() for known in declared(other)} and other is not kind:
            return OptionError(f"option '{name}' is for {use}, not for {_USES[kind]}: leave it out")
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in declared(kind)], n=1, cutoff=0.6)
    found = [(known, field) for known, field in declared(kind).items() if known.lower() in near]
    cure = "known are " + ", ".join(declared(kind))
    if found:
        cure = f"did you mean {_call(found[0][0], found[0][1].metadata['example'])}?"
    return OptionError(f"option '{name}' is not known for {_USES[kind]}: {cure}")


def _call(name: str, example: str) -> str:
    return f'.option("{name}", "{example}")'


_TITLES = {BrokerOptions: "Common", SinkOptions: "Sink", SourceOptions: "Source", JournalOptions: "Journal"}


def tables() -> Iterator[str]:
    """Lines of all tables of docs/spark.md."""
    common = declared(BrokerOptions)
    for kind, title in _TITLES.items():
        yield f"### {title} options"
        yield ""
        yield "| option | default | meaning |"
        yield "|---|---|---|"
        for name, field in declared(kind).items():
            if kind is BrokerOptions or name not in common:
                default = field.metadata["text"] or ("required" if field.metadata["required"] else "–")
                yield f"| `{name}` | {default} | {field.metadata['meaning']} |"
        yield ""


if __name__ == "__main__":
    sys.stdout.write("\n".join(tables()))
