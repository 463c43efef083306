"""Every option of `format("amq")` and `format("amq-journal")`: one declaration gives name, type, default, bounds,
example and its row in the tables with which docs/spark.md ends in the site.

Invariant: `read` returns only usable options. It rejects all others with the name of the option, its value and an
example. No text made here holds a secret, nor does the `repr` of the options. `python -m pyspark_amq.options` prints
the tables.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from amq.client.uri import parse as parse_url
from amq.core import units
from amq.core.destination import REST_TEXT, WORD_TEXT
from amq.core.errors import AmqError, ConfigError, ProtocolError
from amq.protocols.stomp.destination import full_name

PAGE_PATH: Final = "docs/spark.md"
EXACTLY_ONCE, DEDUP, AT_LEAST_ONCE = "exactly-once", "dedup", "at-least-once"
BY_CONTENT, BY_POSITION = "content", "position"
EARLIEST, LATEST = "earliest", "latest"
JOURNAL_KINDS = MESSAGES, LEFT, CAME_BACK, MOVES = "message", "consumed", "redelivered", "moved"
SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname"})  # of Spark itself, which passes them on
COUNT_MAX = (1 << 63) - 1
VALUE_CHARACTERS_MAX = 80  # of a value in an error
APP_ID_CHARACTERS_MAX = 200

Parser = Callable[[str], Any]


class OptionError(ConfigError):
    """An option of the data source is missing or unknown, or its value is unusable."""

    code = "OPTION_INVALID"


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _app_id(text: str) -> str:
    if not 0 < len(text) <= APP_ID_CHARACTERS_MAX or "," in text or not text.isprintable() or text.startswith("lease:"):
        raise ValueError(f"must be up to {APP_ID_CHARACTERS_MAX} printable characters, no comma, and no lease:")
    return text


def _count(text: str, least: int = 1) -> int:
    digits = text.strip()
    number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= len(str(COUNT_MAX)) else -1
    if not least <= number <= COUNT_MAX:
        raise ValueError(f"must be an integer from {least} to {COUNT_MAX}")
    return number


def _bytes(text: str) -> int:
    """A number of bytes, at least 1."""
    try:
        size = units.parse_size_bytes(text)
    except ValueError:
        size = 0
    if not 0 < size < 2**53:
        raise ValueError("must be a size of more than 0, such as 500000, 64MiB or 1GiB")
    return size


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
    """A duration of more than 0."""
    try:
        ms = units.parse_duration_ms(text)
    except ValueError:
        ms = 0
    if not 0 < ms < 2**53:
        raise ValueError("must be a duration of more than 0, such as 500ms, 60s or 1h")
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
        raise ValueError(f"is not a broker URL: {error}") from error
    if any(uri.passcode for uri in url.uris):
        raise ValueError("must not hold a password, since Spark shows it in plans: use the options user and password")
    return text


def _destination(text: str) -> str:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or any(ord(character) < 32 for character in text):
        raise ValueError("must be a destination, or several with commas between")
    return ",".join(names)


def _target(text: str) -> str:
    """A destination that rows can be sent to."""
    names = _destination(text)
    try:
        full = full_name(names, "", strict=False)
    except ProtocolError as error:
        raise ValueError(f"must be a destination, or several with commas between ({error})") from error
    if not {WORD_TEXT, REST_TEXT}.isdisjoint(re.split(r"[.,/]", full)):
        raise ValueError("must not be a pattern: rows are sent to destinations that are named")
    return names


def full_names(text: str) -> frozenset[str]:
    """The names of the destinations in the journal."""
    try:
        parts = _destination(text).split(",")
        return frozenset(part if "://" in part else full_name(part, "", strict=False) for part in parts)
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
    parse: Parser,
    default: str | None,
    meaning: str,
    example: str,
    *,
    required: bool = False,
    secret: bool = False,
    name: str = "",
) -> Any:
    """A field that an option sets: the field's name without its unit, or `name`. `default` is text, as users write it;
    None = not set."""
    metadata = {
        "name": name,
        "parse": parse,
        "example": example,
        "meaning": meaning,
        "text": default,
        "required": required,
        "secret": secret,
    }
    return dataclasses.field(default=None if default is None else parse(default), metadata=metadata, repr=not secret)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """The way to the broker, for sink and source. Durations are in seconds."""

    url: str = _option(
        _url,
        None,
        "any URL of the [client](failover-url.md); no password in it",
        "failover:(stomp://a:61613,stomp://b:61613)",
        required=True,
    )
    redirect: bool = _option(
        _truth,
        "true",
        "with the address of a [cluster](#clusters): go to the masters of its stores, all at once. `false`: everything "
        "goes through the gateway, and a query reads from one store",
        "false",
    )
    user: str | None = _option(_text, None, "login of all connections, of driver and executors", "etl")
    password: str | None = _option(_text, None, "its password. Spark redacts options of this name", "…", secret=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions(BrokerOptions):
    """Options of `df.write` and `df.writeStream`."""

    destination: str | None = _option(
        _target,
        None,
        "destination of all rows. Without it each row needs a column `destination`, which it overrides",
        "/queue/orders",
    )
    delivery: str = _option(
        _one_of(EXACTLY_ONCE, DEDUP, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        f"`{EXACTLY_ONCE}`, `{DEDUP}` or `{AT_LEAST_ONCE}`: see [guarantees](#guarantees)",
        EXACTLY_ONCE,
    )
    id_column: str | None = _option(
        _text,
        None,
        f"column whose text identifies a row for duplicate detection (`{DEDUP}` only)",
        "orderId",
    )
    id_strategy: str = _option(
        _one_of(BY_CONTENT, BY_POSITION),
        BY_CONTENT,
        f"what identifies a row without `idColumn` (`{DEDUP}` only): `{BY_CONTENT}` or `{BY_POSITION}`",
        BY_CONTENT,
    )
    window_rows: int = _option(
        _count,
        "10000",
        "rows that a task may have sent before they are safe; it keeps them in memory to send them again, and reads as "
        "many more meanwhile. "
        f"`{EXACTLY_ONCE}`: rows of one prepared transaction",
        "10000",
    )
    send_timeout_s: float = _option(
        _seconds,
        "120s",
        "how long a task waits for the broker, takeovers included, before it fails",
        "120s",
    )
    tx_timeout_s: float = _option(
        _seconds,
        "1h",
        f"after that time the broker drops staged rows that were not committed (`{EXACTLY_ONCE}`). Must be longer than "
        "a batch takes",
        "1h",
    )
    txn_app_id: str | None = _option(
        _app_id,
        None,
        "with `txnVersion`: name of an application whose `df.write` jobs are written once "
        "each, as in `foreachBatch`. See [guarantees](#guarantees)",
        "nightly-load",
    )
    txn_version: int | None = _option(
        _number,
        None,
        "number of this job of the application, which grows, such as the number of the micro-batch",
        "7",
    )
    fail_on_data_loss: bool = _option(
        _truth,
        "true",
        "fail if a batch that was committed before comes again with other rows, or "
        f"skip these rows with a warning (`{EXACTLY_ONCE}`)",
        "false",
    )
    persistent: bool = _option(_truth, "true", "are messages kept on disk?", "true")
    priority: int = _option(_priority, "4", "of the messages, 0 to 9", "4")
    time_to_live_s: float = _option(_seconds_or_none, "0", "after that time a message expires; 0 = never", "24h")
    log_metrics: bool = _option(
        _truth, "false", "write a line of JSON for each batch to the driver's standard error", "true"
    )

    def check(self) -> None:
        """Reject options that contradict each other."""
        if self.delivery == EXACTLY_ONCE and not self.persistent:
            raise refusal(SinkOptions, "persistent", "false", f"must be true for delivery={EXACTLY_ONCE}")
        if self.delivery == DEDUP and not self.persistent:
            why = f"must be true for delivery={DEDUP}: only persistent messages keep ids"
            raise refusal(SinkOptions, "persistent", "false", why)
        if (self.txn_app_id is None) != (self.txn_version is None):
            given = ("txnAppId", "txnVersion") if self.txn_version is None else ("txnVersion", "txnAppId")
            value = str(self.txn_app_id if self.txn_version is None else self.txn_version)
            raise refusal(SinkOptions, given[0], value, f"must come with option '{given[1]}'")
        if self.txn_app_id is not None and self.delivery != EXACTLY_ONCE:
            raise refusal(SinkOptions, "txnAppId", self.txn_app_id, f"needs delivery={EXACTLY_ONCE}")
        if self.delivery != DEDUP and self.id_column is not None:
            raise refusal(SinkOptions, "idColumn", self.id_column, f"needs delivery={DEDUP}")
        if self.delivery != AT_LEAST_ONCE and self.destination and "topic" in self.destination:
            for name in self.destination.split(","):
                if name.startswith(("/topic/", "topic://")):
                    raise refusal(
                        SinkOptions,
                        "destination",
                        name,
                        f"must be a queue for delivery={self.delivery}: topics take delivery={AT_LEAST_ONCE}",
                    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """Options of `spark.read` and `spark.readStream`."""

    destination: str = _option(
        _destination,
        None,
        "destinations to read, with commas between; one topic at most",
        "/queue/orders,/queue/bills",
        required=True,
    )
    starting_offsets: str | Mapping[str, Any] | None = _option(
        _offsets,
        None,
        "where a new query begins: `earliest` (the default), `latest` (only streams of topics) or JSON: for a stream "
        "the offset of another one, for a batch read numbers by destination; the query begins after them",
        EARLIEST,
    )
    ending_offsets: str | Mapping[str, Any] = _option(
        _offsets,
        LATEST,
        "where a batch read ends: `latest`, or JSON: numbers by destination, which it includes",
        LATEST,
    )
    starting_timestamp_ms: int | None = _option(
        _count,
        None,
        "for a batch read: only messages from this time on, milliseconds since 1970; instead of `startingOffsets`",
        "1767225600000",
    )
    ending_timestamp_ms: int | None = _option(
        _count,
        None,
        "for a batch read: only messages before this time, milliseconds since 1970; instead of `endingOffsets`",
        "1767312000000",
    )
    max_offsets_per_trigger: int | None = _option(
        _count,
        None,
        "for a stream: most messages of a micro-batch; without it a million",
        "10000",
    )
    max_bytes_per_trigger: int | None = _option(
        _bytes,
        None,
        "for a stream: about this many bytes in a micro-batch, as the journal stores messages; at least one message",
        "64MiB",
    )
    min_offsets_per_trigger: int | None = _option(
        _count,
        None,
        "for a stream: a micro-batch begins when this many messages wait, or `maxTriggerDelay` after the one before",
        "1000",
    )
    max_trigger_delay_s: float = _option(
        _seconds, "15m", "for a stream with `minOffsetsPerTrigger`: no longer pause than that", "1m"
    )
    min_partitions: int | None = _option(
        _count,
        None,
        "number of partitions of a micro-batch, or of a batch read of queues; without "
        "it up to 4. A batch read has at most one for each 10,000 messages",
        "8",
    )
    store: str | None = _option(
        _text,
        None,
        "for queues: directory where executors have mounted the store of the broker. "
        "Tasks read messages from there, if `directReads` of the broker names the user; the others they get from the "
        "broker. See [direct reads](#direct-reads)",
        "/mnt/amq",
    )
    subscription: str | None = _option(
        _text, None, "name of the cursor of a stream, and of its durable subscription to a topic", "etl"
    )
    ack: str = _option(
        _one_of("onCommit", "none"),
        "onCommit",
        "`onCommit`: acknowledge the messages of a micro-batch when Spark asks for the next one; `none`: they stay "
        "leased, and another program settles them",
        "none",
    )
    fail_on_data_loss: bool = _option(_truth, "true", "fail if messages that a query has not read are gone", "true")
    include_headers: bool = _option(_truth, "false", "a column `headers`", "true")
    prefetch_messages: int = _option(
        _count,
        "2000",
        "messages that the broker sends to a task in advance. Twice as many may be in its "
        "memory: use fewer if they are large",
        "50",
        name="prefetch",
    )
    poll_interval_s: float = _option(
        _seconds, "200ms", "how often an idle query asks the broker for new messages", "200ms"
    )

    def check(self) -> None:
        """Reject options that contradict each other."""
        if self.starting_timestamp_ms is not None and self.starting_offsets is not None:
            why = "excludes startingOffsets: keep one"
            raise refusal(SourceOptions, "startingTimestamp", str(self.starting_timestamp_ms), why)
        if self.ending_timestamp_ms is not None and self.ending_offsets != LATEST:
            why = "excludes endingOffsets: keep one"
            raise refusal(SourceOptions, "endingTimestamp", str(self.ending_timestamp_ms), why)
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            why = f"must not be more than maxOffsetsPerTrigger, {most}"
            raise refusal(SourceOptions, "minOffsetsPerTrigger", str(least), why)
        if why := _read_twice(self.destination):
            raise refusal(SourceOptions, "destination", self.destination, why)


def _read_twice(destinations: str) -> str:
    """The reason why a source cannot read all of these destinations; "" = it can."""
    seen: set[str] = set()
    for part in destinations.split(","):
        try:
            (name,) = full_names(part)
        except ValueError as error:
            return str(error)
        if name in seen:
            return f"names {name} twice, so each of its messages would be read twice"
        if other := next((other for other in seen if _meet(other, name)), ""):
            return f"names {other} and {name}, so messages in both would be read twice"
        seen.add(name)
    if sum(name.startswith("topic://") for name in seen) > 1:
        return (
            "names two topics, but a durable subscription has only one: use a query for each, or a pattern such "
            "as /topic/prices.>"
        )
    return ""


def _meet(one: str, other: str) -> bool:
    """Can a destination match both? Each is a full name or a pattern."""
    words, other_words = (name.replace("://", ".", 1).split(".") for name in (one, other))
    for word, other_word in zip(words, other_words, strict=False):
        if REST_TEXT in (word, other_word):
            return True
        if word != other_word and WORD_TEXT not in (word, other_word):
            return False
    rest = words[len(other_words) :] or other_words[len(words) :]
    return rest in ([], [REST_TEXT])


@dataclasses.dataclass(frozen=True, kw_only=True)
class JournalOptions:
    """Options of `format("amq-journal")`. Starts are inclusive, ends are not."""

    path: str = _option(_text, None, "directory of the store; also `.load(path)`", "/mnt/amq", required=True)
    kinds: frozenset[str] = _option(
        _kinds,
        "message",
        "kinds of rows: some of `message`, `consumed`, `redelivered`, `moved` with commas between, or `all`",
        "all",
    )
    destination: frozenset[str] | None = _option(
        full_names, None, "only these destinations, with commas between", "/queue/orders"
    )
    starting_offset: int | None = _option(_number, None, "only messages from this offset on", "17592186044417")
    ending_offset: int | None = _option(_number, None, "only messages before this offset", "17592186054417")
    starting_timestamp_ms: int | None = _option(
        _number, None, "only rows from this time on, milliseconds since 1970", "1767225600000"
    )
    ending_timestamp_ms: int | None = _option(
        _number, None, "only rows before this time, milliseconds since 1970", "1767312000000"
    )
    include_value: bool = _option(
        _truth, "true", "a column `value`, the bodies; the column `bodyBytes` is always there", "false"
    )
    include_headers: bool = _option(_truth, "false", "a column `headers`", "true")
    fail_on_data_loss: bool = _option(
        _truth,
        "true",
        "fail if a segment was trimmed between planning and reading, or continue without it",
        "false",
    )
    pushdown: bool = _option(
        _truth,
        "false",
        "let the reader skip what filters exclude; needs `spark.sql.python.filterPushdown.enabled=true`",
        "true",
    )

    def check(self) -> None:
        """No options contradict each other; an empty range gives no rows."""


_Options = TypeVar("_Options", SinkOptions, SourceOptions, JournalOptions)
_USES: dict[type[Any], str] = {SinkOptions: "writing", SourceOptions: "reading", JournalOptions: "reading the journal"}


def read(kind: type[_Options], given: Mapping[str, str]) -> _Options:
    """The options that Spark passes on, as `kind`. Spark converts their names to lower case. Raises OptionError."""
    known = {name.lower(): name for name in declared(kind)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower not in known:
            if lower not in SPARK_OPTIONS:
                raise _unknown(kind, name)
            continue
        field = declared(kind)[known[lower]]
        try:
            values[field.name] = field.metadata["parse"](str(text))
        except ValueError as error:
            raise refusal(kind, known[lower], str(text), str(error)) from error
    for name, field in declared(kind).items():
        if field.metadata["required"] and field.name not in values:
            raise OptionError(f"option '{name}' is missing: write {_call(name, field.metadata['example'])}")
    options = kind(**values)
    options.check()
    return options


def declared(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields by the name of the option, in the order of their declaration."""
    return {field.metadata["name"] or units.option_name(field.name): field for field in dataclasses.fields(kind)}


def refusal(kind: type[Any], name: str, value: str, why: str) -> OptionError:
    """The error for an unusable value, with an example of a good one."""
    metadata = declared(kind)[name].metadata
    # The error of a URL explains itself; the whole URL would show the login.
    shown = "" if metadata["secret"] or name == "url" else f", got {value[:VALUE_CHARACTERS_MAX]!r}"
    return OptionError(f"option '{name}' {why}{shown}: write for example {_call(name, metadata['example'])}")


# Options of Spark's Kafka format, in lower case, and the option that does the same here.
_KAFKA: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "destination",
    "subscribepattern": "destination",
    "assign": "destination",
    "topic": "destination",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "kafka.group.id": "subscription",
    "groupidprefix": "subscription",
    "kafka.transactional.id": "txnAppId",
}


def _unknown(kind: type[Any], name: str) -> OptionError:
    ours = _KAFKA.get(name.lower(), "")
    if ours in declared(kind):
        example = declared(kind)[ours].metadata["example"]
        return OptionError(f"option '{name}' is of Spark's Kafka format; format amq has {_call(ours, example)}")
    if name.lower().startswith("kafka."):
        return OptionError(f"option '{name}' is of Spark's Kafka format: options of the broker are in 'url'")
    for other, use in _USES.items():
        spelled = {known.lower(): known for known in declared(other)}.get(name.lower())  # Spark gives small letters
        if spelled is not None and other is not kind:
            return OptionError(f"option '{spelled}' is for {use}, not for {_USES[kind]}: leave it out")
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
    """The lines of all tables of docs/spark.md."""
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
