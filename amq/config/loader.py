"""Loader: defaults < file < environment < `-o KEY=VALUE` < dedicated command-line options → BrokerConfig.

Invariant: the result is valid, or one `ConfigError` lists every problem found, each with where the value came from
(`amq.toml:12`), the option, the value and the cure; no input raises anything else.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from amq.config import checks, names
from amq.config.destination_options import TABLE, DestinationOptions
from amq.config.option import SECTIONS, Option, Value, ValueKind
from amq.config.patterns import parse_pattern
from amq.config.reading import is_xml, read_bytes
from amq.config.schema import BY_KEY, OPTIONS, BrokerConfig
from amq.core.errors import ConfigError
from amq.core.toml_places import TomlPlaces
from amq.store.name import is_directory

# Time and memory of tomllib grow with the square of the length of a dotted key: bound lines and files.
LINE_CHARS_MAX = 1000
PROBLEMS_MAX = 20  # listed at a time: a file of nonsense must not take long, nor fill the screen
VARIABLE_PREFIX = "AMQ_"
_STORE_CURE = "use --store DIR, AMQ_STORE or store in section [broker]; all brokers of a group name the same directory"
_SHOWN_INTEGER_BITS_MAX = 200
_SLIP_RATIO = 0.85  # a variable this close to an option's is a slip of the finger, not somebody else's variable
_OF_CLIENTS = ("AMQ_URL", "AMQ_LOGIN", "AMQ_PASSCODE", "AMQ_CLUSTER")  # for commands that start no broker
# Kubernetes gives every container variables like these for a service that is called amq.
_KUBERNETES = re.compile(r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_.*)?)?)")
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Imported(NamedTuple):
    """The configuration of another broker, in our options.

    values        key → value and its source
    store_advice  what to give as the store, "" = the file has a directory, or nothing
    """

    values: Mapping[str, tuple[Value, str]]
    destinations: tuple[DestinationOptions, ...]
    warnings: tuple[str, ...]
    store_advice: str


# Content and path of a file, values for its placeholders, environment → its options. Raises ConfigError.
ReadForeign = Callable[[bytes, str, Mapping[str, str], Mapping[str, str]], Imported]


def load(
    path: str | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    *,
    store: str | None = None,
    name: str | None = None,
    transports: Sequence[str] = (),
    allow_unsafe_store: bool | None = None,
    require_store: bool = False,
    host_name: str | None = None,
    properties: Mapping[str, str] = NO_PROPERTIES,
    read_foreign: ReadForeign | None = None,
) -> BrokerConfig:
    """The effective configuration, each value with its source.

    path          TOML file, or with `read_foreign` the configuration of another broker, or None
    env           environment variables; None = do not look at any
    overrides     `-o` arguments, `key=value` or `section.key=value`; a later one wins
    store, name, transports, allow_unsafe_store  the dedicated command-line options, where given
    require_store True where a broker is to start: a missing store is then an error
    host_name     what a blank `name` becomes; None = ask this host
    properties    values for placeholders in the configuration of another broker
    read_foreign  reads such a configuration (package `amq_migrate`), None = it is an error
    Raises ConfigError that lists every problem.
    """
    loading = _Loading()
    if path is not None:
        loading.read_file(path, env or {}, properties, read_foreign)
    loading.read_environment(env or {})
    for override in overrides:
        loading.read_override(override)
    dedicated: tuple[tuple[str, object, str], ...] = (
        ("store", store, "--store"),
        ("name", name, "--name"),
        ("transports", list(transports) or None, "--transport"),
        ("allowUnsafeStore", allow_unsafe_store, "--allow-unsafe-store"),
    )
    for key, given, option in dedicated:
        if given is not None:
            loading.put(BY_KEY[key], given, option)
    return loading.finish(require_store, host_name)


class _Loading:
    """The values gathered so far: values and their sources by attribute, problems and warnings."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.destinations: list[DestinationOptions] = []
        self.problems: list[str] = []
        self.refused: set[str] = set()  # keys of which a value was given that cannot be used
        self.warnings: list[str] = []
        self.path = ""  # of the file
        self.imported: Imported | None = None

    def put(self, option: Option, raw: object, source: str, directory: str | None = None) -> None:
        """Take `raw` for `option`; a relative path is relative to `directory` where that is given."""
        try:
            value = option.parse(raw)
        except ValueError as error:
            self.problems.append(f"{source}: {option.key} = {_show(raw)} {error}")
            self.refused.add(option.key)
            return
        self.values[option.attribute] = _path(value, directory) if option.kind is ValueKind.PATH else value
        self.sources[option.attribute] = source

    def read_file(
        self, path: str, env: Mapping[str, str], properties: Mapping[str, str], read_foreign: ReadForeign | None
    ) -> None:
        self.path, data = path, read_bytes(path)
        directory = os.path.dirname(os.path.abspath(path))
        if is_xml(data):
            if read_foreign is None:
                raise ConfigError(f"{path}: is XML: `amq config import` makes a configuration of amq of it")
            self._take(read_foreign(data, path, properties, env), directory)
            return
        text = _text(data, path)
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise ConfigError(f"{path}: is not valid TOML: {why}") from error
        places = TomlPlaces(path, text)
        for name, content in document.items():
            if name in SECTIONS and isinstance(content, dict):
                for key, raw in content.items():
                    self._read_key(places.find(name, key), name, key, raw, directory)
            elif name == TABLE and isinstance(content, dict):
                for pattern, table in content.items():
                    self._read_destination(places, pattern, table)
            elif len(self.problems) < PROBLEMS_MAX:
                self.problems.append(f"{places.find(name)}: {_misplaced(name, content)}")

    def _take(self, imported: Imported, directory: str) -> None:
        for key, (value, source) in imported.values.items():
            option = BY_KEY[key]
            self.values[option.attribute] = _path(value, directory) if option.kind is ValueKind.PATH else value
            self.sources[option.attribute] = source
        self.destinations += imported.destinations
        self.warnings += imported.warnings
        self.imported = imported

    def _read_key(self, where: str, section: str, key: str, raw: object, directory: str) -> None:
        option = BY_KEY.get(key)
        if option is not None and option.section == section:
            self.put(option, raw, where, directory)
        elif option is not None:
            self.problems.append(f"{where}: {key} belongs in section [{option.section}], not in [{section}]")
        elif len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{where}: {names.unknown(key)}")

    def _read_destination(self, places: TomlPlaces, pattern: str, table: object) -> None:
        """One table `[destinations."PATTERN"]`."""
        where = places.find(TABLE, pattern)
        title = f'[{TABLE}."{names.shorten(pattern)}"]'
        try:
            parse_pattern(pattern)
        except ValueError as error:
            self.problems.append(f"{where}: {title} {error}")
            return
        if not isinstance(table, dict):
            self.problems.append(f"{where}: {title} must be a table: write {title} and its options below it")
            return
        values: dict[str, Value] = {}
        sources: dict[str, str] = {}
        for key, raw in table.items():
            where, option = places.find(TABLE, pattern, key), BY_KEY.get(key)
            if len(self.problems) >= PROBLEMS_MAX:
                return
            if isinstance(raw, dict):
                whole = f'"{names.shorten(f"{pattern}.{key}")}"'
                self.problems.append(f"{where}: a name with dots needs quotes: write [{TABLE}.{whole}]")
            elif option is None:
                self.problems.append(f"{where}: {title}: {names.unknown(key)}")
            elif not option.destination:
                able = ", ".join(each.key for each in OPTIONS if each.destination)
                self.problems.append(
                    f"{where}: {title}: {key} cannot be set for single destinations, only in [{option.section}]; "
                    f"here are possible: {able}"
                )
            else:
                try:
                    values[option.attribute], sources[option.attribute] = option.parse(raw), where
                except ValueError as error:
                    self.problems.append(f"{where}: {title}: {key} = {_show(raw)} {error}")
        self.destinations.append(DestinationOptions(pattern, values, sources))

    def read_environment(self, env: Mapping[str, str]) -> None:
        variables = {option.variable: option for option in OPTIONS}
        for variable in sorted(name for name in env if name.startswith(VARIABLE_PREFIX)):
            if variable in variables:
                self.put(variables[variable], env[variable], f"environment {variable}")
            elif close := difflib.get_close_matches(variable[:80], variables, n=1, cutoff=_SLIP_RATIO):
                self.problems.append(f"environment {names.shorten(variable)}: no such option; did you mean {close[0]}?")
            elif variable not in _OF_CLIENTS and not _KUBERNETES.fullmatch(variable[:1000]):
                self.warnings.append(f"environment {names.shorten(variable)}: no such option, ignored")

    def read_override(self, override: str) -> None:
        key, equals, raw = override.partition("=")
        key = key.strip()
        option = names.find(key)
        if not equals:
            self.problems.append(f"-o {names.shorten(override)}: has no value: write -o KEY=VALUE")
        elif option is None:
            self.problems.append(f"-o {names.unknown(key)}")
        else:
            self.put(option, raw.strip(), f"-o {option.key}")

    def finish(self, require_store: bool, host_name: str | None) -> BrokerConfig:
        if not str(self.values.get("name", "")).strip():
            self.values["name"] = socket.gethostname() if host_name is None else host_name
            self.sources["name"] = "host name"
        config = BrokerConfig(**self.values, destinations=tuple(self.destinations), sources=self.sources)
        config = checks.adapted(config)
        problems = list(self.problems or self._missing() or checks.contradictions(config))
        if require_store and not config.store and "store" not in self.refused:
            advice = self.imported.store_advice if self.imported is not None else ""
            problems.append("store: no store directory is given: " + (advice or _STORE_CURE))
        if problems:
            raise ConfigError("\n".join(problems))
        return dataclasses.replace(config, warnings=(*self.warnings, *checks.doubts(config)))

    def _missing(self) -> list[str]:
        """Things that the configuration of another broker lacks, and that no default may replace."""
        if self.imported is None or "transports" in self.sources:
            return []
        return [
            f"{self.path}: has no connector for STOMP or OpenWire, the protocols that amq speaks: add one, such as "
            "stomp://0.0.0.0:61613, or give --transport URL"
        ]


def _misplaced(name: str, content: object) -> str:
    """The error of the top-level key `name` of a TOML file, which is no section."""
    if name in SECTIONS:
        return f"{name} must be a section: write [{name}] and its options below it"
    option = BY_KEY.get(name)
    if option is not None and not isinstance(content, dict):
        return f"{name} belongs in section [{option.section}]: move it there"
    return names.unknown_section(name) if isinstance(content, (dict, list)) else names.unknown(name)


def _text(data: bytes, path: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LINE_CHARS_MAX:
            raise ConfigError(f"{path}:{number}: is longer than {LINE_CHARS_MAX} characters: break the line")
    return text


def _path(value: Value, directory: str | None) -> str:
    assert isinstance(value, str)
    if not value or not is_directory(value):  # a store need not be one
        return value
    expanded = os.path.expanduser(value)
    return expanded if directory is None else os.path.join(directory, expanded)


def _show(raw: object) -> str:
    """A value in an error message, in one short line."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int) and raw.bit_length() > _SHOWN_INTEGER_BITS_MAX:
        return f"a number of {raw.bit_length()} bits"
    if isinstance(raw, str):
        return f'"{names.shorten(raw)}"'
    if isinstance(raw, dict):
        return "a table"
    if isinstance(raw, (list, tuple)):
        shown = [_show(item) for item in raw[:3] if not isinstance(item, (list, dict))]
        return f"[{', '.join(shown if len(shown) == len(raw) else [*shown, '…'])}]"
    return names.shorten(str(raw))
