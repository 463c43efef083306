"""Broker URLs: `stomp://host:port?…`, `stomp+ssl://…`, and `failover:(stomp://a:61613?…,stomp://b:61613)?…`.

    failover-url = "failover:" [ "//" ] ( "(" uris ")" | uris ) [ "?" options ]
    artemis-url  = "(" uris ")" [ "?" options ] | uri, with the option ha=true
    uris         = uri *( "," uri )
    uri          = ( "stomp" | "stomp+ssl" ) "://" [ login [ ":" passcode ] "@" ] host [ ":" port ] [ "?" options ]
    options      = name "=" value *( "&" name "=" value )

Host may be an IPv6 address in brackets; login, passcode and option values may be percent-encoded. Without the
parentheses the options belong to `failover`. `nested.NAME=VALUE` sets NAME for every URI that does not set it itself,
and for brokers that are learned of later (`member`); options of TLS mean the same without `nested.`. In an Artemis URL
each option goes where it belongs.
For any text `parse` returns a `BrokerUrl` or raises `UriError`, which never repeats a passcode.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from amq.client.errors import UriError
from amq.client.options import (
    ALIASES,
    CHOICES,
    IGNORED,
    IGNORED_IF_TRUE,
    REFUSED,
    TLS_OPTIONS,
    FailoverOptions,
    TransportOptions,
    declared,
    text,
)

DEFAULT_PORT = 61613
SCHEME = "stomp"
TLS_SCHEME = "stomp+ssl"
_PORTS = {SCHEME: DEFAULT_PORT, TLS_SCHEME: 61614}
URL_CHARACTERS_MAX = 65_536
_INTEGER_MAX = 2**31 - 1
TAKEOVER_S = 15.0  # so long a takeover may take on NFS with usual leases
_LIST_SCHEMES = ("file", "http", "https")
_OF_BROKERS = ("priorityBackup", "priorityURIs", "updateURIsURL", "knownBrokersFile", "redirect")
_TRUTH = {"true": True, "false": False}
_AUTHORITY = re.compile(
    r"(?:(?P<login>[^:@/]*)(?::(?P<passcode>[^@/]*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:@/?#\s%]+)(?::(?P<port>[0-9]{1,5}))?/?"
)
_LOGIN = re.compile(r"^((?:[a-z+]+:)?(?://)?).*@", re.DOTALL | re.IGNORECASE)
_NO_PORT = re.compile(r"^([a-z+]+:(?://)?[^\[\]:/@]*):(?![0-9]{1,5}(?:/|$)).*", re.DOTALL | re.IGNORECASE)
_SCHEME_CURES = {
    "tcp": "tcp:// means OpenWire, which this client does not speak; write stomp://HOST:61613",
    "ssl": "ssl:// means OpenWire, which this client does not speak; write stomp+ssl://HOST:61614",
    "stomp+nio+ssl": "write stomp+ssl://HOST:61614",
    "failover": "failover: cannot be inside failover:, name its URIs in one list",
}

_Options = TypeVar("_Options", TransportOptions, FailoverOptions)


@dataclass(frozen=True)
class BrokerUri:
    """Where one broker listens and how to talk to it. Its text never shows the passcode."""

    host: str
    port: int = DEFAULT_PORT
    login: str = ""
    passcode: str = field(default="", repr=False)
    options: TransportOptions = field(default_factory=TransportOptions)
    scheme: str = SCHEME

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def tls(self) -> bool:
        return self.scheme.endswith("ssl")


@dataclass(frozen=True)
class BrokerUrl:
    """The URL given to `amq.connect`. `failover` False = one broker and one attempt. `nested` = options of members that
    do not set them. `warnings` are for the log."""

    uris: tuple[BrokerUri, ...]
    options: FailoverOptions = field(default_factory=FailoverOptions)
    failover: bool = True
    nested: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        names = ",".join(str(uri) for uri in self.uris)
        return f"failover:({names})" if self.failover else names

    def limit(self, startup: bool) -> str:
        """When the client gives up, with the option that says so; "" = never. `startup`: before the first success."""
        options, name = self.options, "maxReconnectAttempts"
        rounds = options.max_reconnect_attempts
        if startup and options.startup_max_reconnect_attempts >= 0:
            rounds, name = options.startup_max_reconnect_attempts, "startupMaxReconnectAttempts"
        if rounds < 0:
            return ""
        rounds = max(1, rounds)
        return f"{rounds} round{'s' * (rounds != 1)} of attempts ({name})"

    @property
    def login(self) -> tuple[str, str]:
        """Login and passcode that all members have in common; empty where they differ."""
        found = {(uri.login, uri.passcode) for uri in self.uris}
        return found.pop() if len(found) == 1 else ("", "")

    @property
    def tls_in_common(self) -> dict[str, str]:
        """The options of TLS that all members have in common."""
        fields = declared(TransportOptions)
        common = {}
        for name in TLS_OPTIONS:
            found = {getattr(uri.options, fields[name].name) for uri in self.uris if uri.tls}
            if len(found) == 1:
                common[name] = found.pop()
        return common

    @property
    def learns(self) -> bool:
        """Does it try brokers that it does not name?"""
        return self.failover and self.options.update_uris_supported

    @property
    def priority(self) -> frozenset[tuple[str, int]]:
        """Addresses of the brokers that priorityBackup prefers; empty without it."""
        if not self.options.priority_backup:
            return frozenset()
        if not self.options.priority_uris:
            return frozenset({self.uris[0].address})
        return frozenset(_uri(name, {}).address for name in _split(self.options.priority_uris))


def parse(url: str) -> BrokerUrl:
    """Read a broker URL. Raises `UriError` on anything that is not one."""
    if len(url) > URL_CHARACTERS_MAX:
        raise UriError(f"the URL has {len(url)} characters, more than {URL_CHARACTERS_MAX}")
    url = _of_artemis(url.strip())
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise UriError(f"{_shown(url)}: no scheme; write stomp://HOST:PORT or failover:(stomp://A:PORT,stomp://B:PORT)")
    if scheme.lower() != "failover":
        return BrokerUrl((_uri(url, {}),), FailoverOptions(max_reconnect_attempts=0), failover=False)
    inner, query = failover_parts(rest.removeprefix("//"))
    values = query_values(query)
    nested = {name.removeprefix("nested."): values.pop(name) for name in list(values) if name.startswith("nested.")}
    for name in TLS_OPTIONS:
        if name in values and name in nested:
            raise UriError(f"option {name} is given twice (as nested.{name} too): keep one")
        if name in values:
            nested[name] = values.pop(name)
    warnings = _ignored(values)
    options = filled(FailoverOptions, values)
    _check_lists(options)
    warnings += _too_few_attempts(options)
    if "confirmationWindowSize" in values and options.confirmation_window_size > 0 and not options.reconnect_window_ms:
        warnings.append("confirmationWindowSize changes nothing without reconnectWindow, which is 0: set it, in ms")
    uris: dict[tuple[str, int], BrokerUri] = {}
    for name in _split(inner):
        uri = _uri(name, nested)
        uris.setdefault(uri.address, uri)
    filled(TransportOptions, nested)  # wrong ones are told now, also where each member sets them itself
    broker_url = BrokerUrl(tuple(uris.values()), options, nested=nested, warnings=tuple(warnings))
    strangers = broker_url.priority - uris.keys()
    if strangers:
        raise UriError(f"priorityURIs names {sorted(strangers)}, which is not in the list of brokers: add it there too")
    return broker_url


def redirected(url: str, uris: Iterable[BrokerUri]) -> str:
    """The text of a URL like `url` for other brokers: it has the options of `url` that do not name brokers, and those
    of single brokers only where all of them have the same option of TLS. Raises UriError."""
    before = parse(url)
    rest = _of_artemis(url.strip()).partition(":")[2]
    if before.failover:
        query = failover_parts(rest.removeprefix("//"))[1]
    else:
        query = "&".join(f"nested.{word}" for word in filter(None, rest.partition("?")[2].split("&")))
    nested = before.nested | before.tls_in_common
    words = [word for word in filter(None, query.split("&")) if word.partition("=")[0] not in _OF_BROKERS]
    given = {word.partition("=")[0].removeprefix("nested.") for word in words}
    words += [f"nested.{name}={quote(value, safe='')}" for name, value in nested.items() if name not in given and value]
    names = ",".join(f"{each.scheme}://{_login_of(each)}{str(each).partition('://')[2]}" for each in uris)
    return f"failover:({names})" + (f"?{'&'.join(words)}" if words else "")


def _login_of(uri: BrokerUri) -> str:
    if not uri.login:
        return ""
    return quote(uri.login, safe="") + (f":{quote(uri.passcode, safe='')}@" if uri.passcode else "@")


def member(name: str, url: BrokerUrl, bare: bool) -> BrokerUri:
    """The broker `name` that `url` does not name, with the nested options and the common login of `url`. `bare`: it has
    neither options nor a separate login. Raises UriError."""
    if bare and ("?" in name or "@" in name):
        raise UriError(f"{_shown(name)}: an address has no options and no login")
    uri = _uri(name, url.nested | url.tls_in_common)
    if uri.login:
        return uri
    login, passcode = url.login
    return replace(uri, login=login, passcode=passcode)


def _of_artemis(url: str) -> str:
    """A URL as Artemis writes it in the form of ActiveMQ; any other as it is."""
    inner, question, query = url.partition("?")
    if url.startswith("("):
        inner, closed, after = url[1:].rpartition(")")
        query = after.removeprefix("?")
        if not closed or (after and after == query):
            return f"failover:{url}"  # which says what is wrong with it
    elif not question or inner.lower().startswith("failover:") or "ha=true" not in query.lower().split("&"):
        return url
    words = [(word, ALIASES.get(name := word.partition("=")[0], name)) for word in filter(None, query.split("&"))]
    known = declared(TransportOptions)
    return f"failover:({inner})?" + "&".join(f"nested.{word}" if name in known else word for word, name in words)


def _check_lists(options: FailoverOptions) -> None:
    """Raises UriError where a list of brokers cannot be meant."""
    for name, value in (("updateURIsURL", options.update_uris_url), ("knownBrokersFile", options.known_brokers_file)):
        scheme, found, _ = value.partition("://")
        if value and not options.update_uris_supported:
            raise UriError(f"option {name}: updateURIsSupported=false leaves it unused: leave out one of the two")
        if found and (name == "knownBrokersFile" or scheme.lower() not in _LIST_SCHEMES):
            write = "a path" if name == "knownBrokersFile" else "a path, file://, http:// or https://"
            raise UriError(f"option {name}={_shown(value)}: write {write}")


def _ignored(values: dict[str, str]) -> list[str]:
    """Take the words that change nothing out of `values`. Returns a warning for each."""
    names = [n for n in values if n in IGNORED and (n not in IGNORED_IF_TRUE or values[n].lower() == "true")]
    for name in names:
        del values[name]
    return [f"option {name} of the broker URL is ignored: {IGNORED[name]}" for name in names]


def _too_few_attempts(options: FailoverOptions) -> list[str]:
    """A warning where the client gives up sooner than a slave may need to take over."""
    attempts = options.max_reconnect_attempts
    if attempts <= 0:
        return []
    delay_ms, span_ms = float(options.initial_reconnect_delay_ms), 0.0
    for _ in range(attempts):
        span_ms += min(delay_ms, options.max_reconnect_delay_ms)
        if span_ms >= TAKEOVER_S * 1000:
            return []
        if options.use_exponential_back_off:
            delay_ms = min(max(delay_ms, 1.0) * options.reconnect_delay_exponent, options.max_reconnect_delay_ms)
    return [
        f"maxReconnectAttempts={attempts} gives up after about {span_ms / 1000:.1f} s of waits, and a takeover may "
        f"take {TAKEOVER_S:g} s: leave it out and bound the calls by timeout, or raise it (maxReconnectDelay is "
        f"{options.max_reconnect_delay_ms} ms)"
    ]


class Authority(NamedTuple):
    """The part of a URL behind `scheme://`."""

    host: str
    port: int
    login: str
    passcode: str


def read_authority(text: str, port: int, shown: str) -> Authority | None:
    """None = it is none. `port` = where it names none. Raises UriError, which says `shown`."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"] or port)
    if not 0 < port < 65536:
        raise UriError(f"{shown}: port {port} is not between 1 and 65535")
    login, passcode = unquote(match["login"] or ""), unquote(match["passcode"] or "")
    return Authority(unquote(match["host"].strip("[]")), port, login, passcode)


def failover_parts(rest: str) -> tuple[str, str]:
    """(uris, query) of what follows `failover:`."""
    if not rest.startswith("("):
        inner, _, query = rest.partition("?")
        return inner, query
    inner, closed, after = rest[1:].rpartition(")")
    if not closed:
        raise UriError(f"failover:{_shown(rest)}: the closing parenthesis is missing")
    if after and not after.startswith("?"):
        raise UriError(f"{_shown(after)}: only ?options may follow the closing parenthesis")
    return inner, after[1:]


def _split(uris: str) -> list[str]:
    names = [name.strip() for name in uris.split(",")]
    if not all(names):
        raise UriError("the list of brokers is empty or has an empty place between commas: name one broker at each")
    return names


def _uri(name: str, nested: dict[str, str]) -> BrokerUri:
    location, _, query = name.partition("?")
    scheme, separator, authority = location.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _PORTS:
        cure = _SCHEME_CURES.get(location.partition(":")[0].lower(), "write stomp://HOST:PORT")
        raise UriError(f"{_shown(location)}: not a STOMP address: {cure}")
    found = read_authority(authority, _PORTS[scheme], _shown(location))
    if found is None:
        raise UriError(f"{_shown(location)}: write stomp://HOST:PORT, an IPv6 address in [brackets]")
    own = query_values(query)
    if scheme == SCHEME and (unused := [option for option in TLS_OPTIONS if option in own]):
        raise UriError(f"{_shown(location)}: option {unused[0]} has no effect without TLS: write stomp+ssl://HOST:PORT")
    options = filled(TransportOptions, nested | own)
    return BrokerUri(*found, options, scheme)


def query_values(query: str) -> dict[str, str]:
    """Names and values of the options behind the `?` of a URL. Raises UriError."""
    values: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise UriError(f"option {_hidden(name)}: no value; write {_hidden(name)}=VALUE")
        if name in values:
            raise UriError(f"option {_hidden(name)} is given twice: keep one")
        values[name] = unquote(value)
    return values


def filled(kind: type[_Options], values: dict[str, str]) -> _Options:
    """`kind` filled from URL options; unknown ones are refused with the nearest known name. Raises UriError."""
    fields = declared(kind)
    given: dict[str, Any] = {}
    for alias, value in values.items():
        name = ALIASES.get(alias, alias)
        if name not in fields:
            raise UriError(f"option {_hidden(alias)}: {_cure(alias, kind)}")
        if fields[name].name in given:
            raise UriError(f"option {name} is given twice (as {alias} too): keep one")
        metadata, default = fields[name].metadata, fields[name].default
        given[fields[name].name] = _value(name, value, default, metadata["least"])
    return kind(**given)


def _cure(name: str, kind: type[TransportOptions] | type[FailoverOptions]) -> str:
    if name in REFUSED:
        return REFUSED[name]
    known = ALIASES.get(name, name)
    if kind is FailoverOptions and known in declared(TransportOptions):
        return f"belongs to a broker URI: write nested.{name}=VALUE to set it for all"
    if kind is TransportOptions and known in declared(FailoverOptions):
        return "belongs to failover: write it after the closing parenthesis, or add ha=true"
    near = difflib.get_close_matches(name, [*declared(kind), *ALIASES], n=1, cutoff=0.5)
    return f"unknown; did you mean {near[0]}?" if near else f"unknown; known are {', '.join(declared(kind))}"


def _value(name: str, value: str, default: object, least: int) -> object:
    """`value` in the type of `default`."""
    if isinstance(default, bool):
        if value.lower() not in _TRUTH:
            raise UriError(f"option {name}={_shown(value)}: write true or false")
        return _TRUTH[value.lower()]
    if isinstance(default, str):
        if name in CHOICES and value not in CHOICES[name]:
            raise UriError(f"option {name}={_shown(value)}: write {' or '.join(CHOICES[name])}")
        return value
    pattern, convert = (r"-?[0-9]{1,10}", int) if isinstance(default, int) else (r"[0-9]{1,9}(\.[0-9]{1,9})?", float)
    number = convert(value) if re.fullmatch(pattern, value, re.ASCII) else None
    if number is None or not least <= number <= _INTEGER_MAX:
        what = "whole number" if convert is int else "number"
        bounds = f"from {least} to {_INTEGER_MAX}, like {text(default)}"
        raise UriError(f"option {name}={_shown(value)}: write a {what} {bounds}")
    return number


def _shown(part: str) -> str:
    """`part` for an error message: short, and without login and passcode."""
    return repr(_hidden(part))


def _hidden(part: str) -> str:
    """`part` without login and passcode, also where a character that should have been percent-encoded cut them."""
    part = _NO_PORT.sub(r"\1:…", _LOGIN.sub(r"\1…@", part))
    return part if len(part) <= 80 else part[:80] + "…"
