"""Option: everything that is known of one configuration key, and how its value is read and written; Setting: its value.

One `Option` gives the default, unit, bounds, `--help` text, line of the example file and row of the reference page.
`parse` returns a value within the bounds or raises `ValueError` with a sentence that tells the cure; nothing else.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from amq.config.diverts import diverts_text, parse_diverts
from amq.config.patterns import TEXT_CHARS_MAX
from amq.config.transport_url import parse_address, parse_transport_url
from amq.core import units

ADDRESSES_MAX = 8  # of one broker: all brokers of a group must fit into one header
SECTIONS = {
    "broker": "The name of this broker, its store and its addresses.",
    "lock": "The exclusive lock that makes one broker of the group the master.",
    "ha": "High availability: which broker should be master, when another takes its place, how clients find it.",
    "store": "The journal in the store directory.",
    "queues": "Queues: delivery, redelivery, dead letters, expiry, limits.",
    "topics": "Topics: slow consumers, retroactive subscribers, virtual topics.",
    "limits": "Resources that clients may use. One of these bounds every buffer of the broker.",
    "stomp": "The STOMP protocol.",
    "openwire": "The OpenWire protocol.",
    "security": "Users and logins. See security.md.",
    "log": "The broker's log, on standard error.",
}
DEFAULT_SOURCE = "default"
T = TypeVar("T", int, float)
Value = bool | int | float | str | tuple[str, ...]  # what a BrokerConfig attribute can be


class OptionScope(enum.Enum):
    """Where an option has one value: in the process, in each of its stores, or also for single destinations."""

    NODE = "node"
    STORE = "store"
    DESTINATION = "destination"


class ValueKind(enum.Enum):
    """The kind of a value; the second word is the unit that ends the Python attribute."""

    DURATION = ("duration", "_s")
    SIZE = ("size", "_bytes")
    INTEGER = ("number", "")
    DECIMAL = ("number, also with a fraction", "")
    BOOLEAN = ("true or false", "")
    CHOICE = ("choice", "")
    TEXT = ("text", "")
    PATH = ("path", "")
    DESTINATION = ("destination name", "")
    DIVERTS = ("list of diverts", "")
    TRANSPORTS = ("list of URLs", "")
    ADDRESSES = ("list of addresses", "")

    @property
    def words(self) -> str:
        return str(self.value[0])

    @property
    def is_bare(self) -> bool:
        """TOML writes such values without quotes."""
        return self in (ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.BOOLEAN)

    @property
    def suffix(self) -> str:
        return str(self.value[1])


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration key.

    scope           where it has one value
    key             as users write it, unique across sections (`lockKeepAlivePeriod`)
    default         as users write it
    minimum/maximum milliseconds, bytes or plain numbers, inclusive
    minimum_reason  why less is refused, where that is not obvious
    help            one sentence: what it is
    why             when one would change it
    reload          True where a changed value applies while the broker runs
    elsewhere       what ActiveMQ, Artemis or RabbitMQ call it: an error that meets such a name points here
    """

    scope: OptionScope
    section: str
    key: str
    kind: ValueKind
    default: str | int | bool
    help: str
    why: str
    minimum: int | None = None
    maximum: int | None = None
    minimum_reason: str = ""
    choices: tuple[str, ...] = ()
    special: str = ""
    reload: bool = False
    elsewhere: tuple[str, ...] = ()

    @property
    def destination(self) -> bool:
        """True where single destinations can have a separate value, in a table `[destinations."PATTERN"]`."""
        return self.scope is OptionScope.DESTINATION

    @property
    def words(self) -> str:
        """The key in lower case, words joined by `_`: `lock_keep_alive_period`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.key).lower()

    @property
    def attribute(self) -> str:
        """The attribute of BrokerConfig, unit last: `lock_keep_alive_period_s`."""
        return self.words + self.kind.suffix

    def named(self, attribute: str) -> Option:
        """This option as `attribute` of BrokerConfig declares it."""
        return dataclasses.replace(self, key=self.key or units.option_name(attribute))

    @property
    def variable(self) -> str:
        """The environment variable: `AMQ_LOCK_KEEP_ALIVE_PERIOD`."""
        return f"AMQ_{self.words.upper()}"

    def parse(self, raw: object) -> Value:
        """The attribute's value from what a user wrote: text from anywhere, or a TOML value."""
        match self.kind:
            case ValueKind.DURATION:
                return self._bounded(_number(raw, self.kind, units.parse_duration_ms)) / 1000
            case ValueKind.SIZE:
                return self._bounded(_number(raw, self.kind, units.parse_size_bytes))
            case ValueKind.INTEGER:
                return self._bounded(_number(raw, self.kind, units.parse_integer))
            case ValueKind.DECIMAL:
                return self._bounded(_decimal(raw))
            case ValueKind.BOOLEAN:
                return raw if isinstance(raw, bool) else units.parse_boolean(raw if isinstance(raw, str) else "")
            case ValueKind.CHOICE:
                return self._choice(raw)
            case ValueKind.TRANSPORTS:
                return _transports(raw)
            case ValueKind.ADDRESSES:
                return _addresses(raw)
            case ValueKind.DESTINATION:
                return _destination_name(_text(raw))
            case ValueKind.DIVERTS:
                return _diverts(raw)
            case ValueKind.TEXT | ValueKind.PATH:
                return _text(raw)

    def format(self, value: Value) -> str:
        """`value` as a user would write it; `parse(format(v)) == v`."""
        match self.kind:
            case ValueKind.DURATION:
                return units.format_duration(round(float(value) * 1000))  # type: ignore[arg-type]
            case ValueKind.SIZE:
                return units.format_size(int(value))  # type: ignore[arg-type]
            case ValueKind.BOOLEAN:
                return "true" if value else "false"
            case ValueKind.DECIMAL:
                return f"{value:f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            case ValueKind.TRANSPORTS | ValueKind.ADDRESSES:
                return ",".join(value)  # type: ignore[arg-type]
            case _:
                return str(value)

    def range_text(self) -> str:
        """The values allowed, for people: `100ms … 1h`, `"drop" or "dead-letter"`; "" where anything goes."""
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        low, high = (None if bound is None else self._bound_text(bound) for bound in (self.minimum, self.maximum))
        span = f"{low} … {high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""
        return f"{span}; {self.special}" if span and self.special else span or self.special

    def _bounded(self, number: T) -> T:
        if self.minimum is not None and number < self.minimum:
            reason = f": {self.minimum_reason}" if self.minimum_reason else ""
            raise ValueError(f"is too small, the least is {self._bound_text(self.minimum)}{reason}")
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"is too large, the most is {self._bound_text(self.maximum)}")
        return number

    def _bound_text(self, bound: int) -> str:
        if self.kind is ValueKind.DURATION:
            return units.format_duration(bound)
        return units.format_size(bound) if self.kind is ValueKind.SIZE else str(bound)

    def _choice(self, raw: object) -> str:
        if isinstance(raw, bool):  # `anonymous = true` can only mean yes
            raw = "yes" if raw else "no"
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word not in self.choices:
            raise ValueError(f"is not one of {', '.join(self.choices)}")
        return word


class Section:
    """Declares the options of one section and scope: a dataclass field for each, whose default is the option's default,
    parsed. The field's name says the key; `key` is for the one that does not follow from it."""

    def __init__(self, scope: OptionScope, name: str, **common: Any) -> None:
        self._common = {"scope": scope, "section": name, "key": "", **common}
        self.duration = partial(self._field, ValueKind.DURATION)
        self.size = partial(self._field, ValueKind.SIZE)
        self.integer = partial(self._field, ValueKind.INTEGER)
        self.decimal = partial(self._field, ValueKind.DECIMAL)
        self.boolean = partial(self._field, ValueKind.BOOLEAN)
        self.choice = partial(self._field, ValueKind.CHOICE)
        self.text = partial(self._field, ValueKind.TEXT)
        self.path = partial(self._field, ValueKind.PATH)
        self.destination = partial(self._field, ValueKind.DESTINATION)
        self.diverts = partial(self._field, ValueKind.DIVERTS)
        self.transports = partial(self._field, ValueKind.TRANSPORTS)
        self.addresses = partial(self._field, ValueKind.ADDRESSES)

    def _field(self, kind: ValueKind, default: str | int | bool, help: str, why: str, **more: Any) -> Any:
        made = Option(kind=kind, default=default, help=help, why=why, **self._common | more)
        return dataclasses.field(default=made.parse(default), metadata={"option": made})


def _number(raw: object, kind: ValueKind, parse: units.Parser) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError(f"is not a {kind.words}")
    if isinstance(raw, float):
        raise ValueError('has a fraction: give a whole number, or a string with a unit such as "1.5s" or "1.5GiB"')
    return raw if isinstance(raw, int) else parse(raw)


def _decimal(raw: object) -> float:
    """A number of at most `units.DECIMALS_MAX` digits behind the point, so that `format` writes it exactly."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError(f"is not a {ValueKind.DECIMAL.words}")
    return units.parse_decimal(raw if isinstance(raw, str) else repr(raw))


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError('is not text: put it in quotes, "…"')
    if len(raw) > TEXT_CHARS_MAX:
        raise ValueError(f"is longer than {TEXT_CHARS_MAX} characters")
    if not raw.isprintable():
        raise ValueError("holds a control character or bytes that are not UTF-8")
    return raw


def _destination_name(text: str) -> str:
    if not text:
        raise ValueError("is empty: a destination needs a name")
    if "/" in text or any(character.isspace() for character in text):
        raise ValueError('must be a bare name such as "ActiveMQ.DLQ": no queue://, no slash, no space')
    return text


def _diverts(raw: object) -> str:
    """One text, also of a list."""
    if isinstance(raw, (list, tuple)) and not all(isinstance(each, str) and each.strip() for each in raw):
        raise ValueError("is not a list of texts")
    text = _text("; ".join(raw) if isinstance(raw, (list, tuple)) else raw)
    return diverts_text(parse_diverts(text))


def _items(raw: object) -> list[object] | tuple[object, ...]:
    """A list as a TOML file has it, or as a command line has it, with commas or blanks between."""
    return raw if isinstance(raw, (list, tuple)) else re.split(r"[,\s]+", _text(raw).strip())


def _addresses(raw: object) -> tuple[str, ...]:
    urls: list[str] = []
    items = _items(raw)
    for item in [] if items == [""] else items:
        text = _text(item)
        try:
            url = str(parse_address(text))
        except ValueError as error:
            raise ValueError(f'holds "{text}", which {error}') from error
        if url not in urls:
            urls.append(url)
    if len(urls) > ADDRESSES_MAX:
        raise ValueError(f"holds {len(urls)} URLs, and {ADDRESSES_MAX} are the most: one for each network is enough")
    return tuple(urls)


def _transports(raw: object) -> tuple[str, ...]:
    items = _items(raw)
    if not items or items == [""]:
        raise ValueError('is empty: a master needs at least one transport, for example "stomp://127.0.0.1:61613"')
    urls: list[str] = []
    for item in items:
        text = _text(item)
        try:
            url = parse_transport_url(text)
        except ValueError as error:
            raise ValueError(f'holds "{text}", which {error}') from error
        if url.port and str(url) in urls:
            raise ValueError(f'holds "{url}" twice: two sockets cannot listen on one address')
        urls.append(str(url))
    return tuple(urls)


@dataclass(frozen=True, slots=True)
class Setting:
    """One option's effective value, as a user would write it, and where it came from (`default`, `amq.toml:12`, …)."""

    option: Option
    value: str
    source: str
    destination: str = ""  # the pattern of the destinations for which this is the value
