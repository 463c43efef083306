"""Importing: walks the tree of another broker's configuration by a table of rules, and gathers our options.

Invariant: each element, attribute and URL option gets a line of the report; each option that is set is one that our
loader accepts, with the place that it comes from. A table says what becomes of a part:

    "kahaDB@directory": carry("store"),              an attribute of an element
    "core/journal-file-size": carry("…", size),      the text of an element in another
    "jmxServer": ignored("amq has no JMX"),          an element anywhere

`parent/name` wins over `name`, `element@name` over `@name`. A part that no rule names is unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amq.config import names
from amq.config.option import Value, ValueKind
from amq.config.schema import BY_KEY
from amq.core.errors import ConfigError
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.report import Report, Status

VALUE_CHARS_MAX = 800  # so that its line in a TOML file is not too long
PATTERNS_MAX = 500
HINTS_MAX = 20
OWN_DIRECTORY = (
    "amq does not read the files of the old broker, and refuses its directory: give another one (--store DIR), then "
    "move the messages as docs/migration.md says"
)


@dataclass(frozen=True, slots=True)
class Concerned:
    """The destinations that an element is about: their pattern ("" = all) and kind ("queue", "topic", "" = both)."""

    pattern: str = ""
    kind: str = ""


NOWHERE = Concerned("\0")  # destinations that amq does not have: each option for them says so


@dataclass(frozen=True, slots=True)
class FilePart:
    """One part of the file that a rule decides about: an element (suffix ""), an attribute of it (`@name`) or an option
    of a URL (`@uri?name`). `value` = its text, placeholders filled in.
    """

    element: Element
    suffix: str
    name: str
    raw: str
    scope: Concerned
    importing: Importing

    @property
    def line(self) -> int:
        return self.element.line

    @property
    def value(self) -> str:
        """Raises ConfigError that names the line if a placeholder has no value."""
        return self.importing.fill(self.raw, self.element, self.name)

    def tell(self, status: Status, told: str, *options: str) -> None:
        """Report what becomes of this part."""
        self.importing.report.add(self.element, self.suffix, status, told, options)

    def option(self, name: str, raw: str) -> FilePart:
        """The option `name` of the URL that this part is."""
        return replace(self, suffix=f"{self.suffix}?{names.shorten(name)}", name=name, raw=raw)

    @property
    def origin(self) -> str:
        """Where it stands, for people."""
        return f"{self.element.near}{self.suffix} in line {self.line}"


Handler = Callable[[FilePart], Concerned | None]  # the scope of what is in an element, None = as around it


@dataclass(frozen=True, slots=True)
class Rule:
    """`whole`: the handler decides about all that is in the element, too."""

    handle: Handler
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Carried:
    """A value of one of our options, and where it comes from: None = a default. `kind` = for queues or topics only."""

    value: Value
    origin: str
    part: FilePart | None = None

    @property
    def line(self) -> int:
        return self.part.line if self.part is not None else 0

    @property
    def kind(self) -> str:
        return self.part.scope.kind if self.part is not None else ""


@dataclass(frozen=True, slots=True)
class FileUser:
    """A login with its password, as the file has it."""

    name: str
    password: str = field(repr=False)
    line: int


class Importing:
    """One file on its way to our options.

    values       (pattern of destinations, key) → value; pattern "" = the option's section
    permissions  the content of a permissions file, None = the file has no rules; for each entry, by (section, pattern),
                 `permissions_origins` says where it comes from
    store_advice what to give as the store, which the file has elsewhere than in a directory
    is_cluster   the file speaks of other brokers with stores of their own: on the hosts `peers`, as far as it names
                 them; `names_all` = the host of this one is among these; `cluster_place` = where their cluster may be,
                 for people; `coordinator` = of its stores, if they are replicated ones
    """

    def __init__(self, path: str, root: Element, rules: Mapping[str, Rule], placeholders: Placeholders) -> None:
        self.path = path
        self.root = root
        self.report = Report(path)
        self.values: dict[tuple[str, str], Carried] = {}
        self.users: list[FileUser] = []
        self.permissions: dict[str, Any] | None = None
        self.permissions_origins: dict[tuple[str, str], str] = {}
        self.store_advice = ""
        self.is_cluster = False
        self.peers: dict[str, None] = {}
        self.names_all = False
        self.cluster_place = "DIR"
        self.coordinator = ""
        self._rules = rules
        self._placeholders = placeholders
        self._patterns: set[str] = set()
        self._hints = 0

    # -- the walk -----------------------------------------------------------------------------------------------------

    def visit(self, element: Element, parent: Element | None = None, scope: Concerned | None = None) -> None:
        """Decide about `element` and all that is in it."""
        scope = scope or Concerned()
        around = f"{parent.name}/{element.name}" if parent else element.name
        rule = self._rules.get(around) or self._rules.get(element.name) or UNKNOWN
        lines = self.report.lines
        before = len(lines)
        inner = rule.handle(FilePart(element, "", element.name, element.text, scope, self)) or scope
        if len(lines) == before:
            self.report.add(element, "", Status.CARRIED)
        if rule.whole:
            self._follow(element, lines[before].status)
            return
        for name, raw in element.attributes.items():
            rule = self._rules.get(f"{element.name}@{name}") or self._rules.get(f"@{name}") or UNKNOWN
            rule.handle(FilePart(element, f"@{names.shorten(name)}", name, raw, inner, self))
        for child in element.children:
            self.visit(child, element, inner)

    def _follow(self, element: Element, status: Status) -> None:
        """Lines for what is in an element that was decided about as a whole."""
        for each in (element, *element.below()):
            if each is not element:
                self.report.add(each, "", status, within=True)
            for name in each.attributes:
                self.report.add(each, f"@{names.shorten(name)}", status, within=True)

    def fill(self, raw: str, element: Element, name: str) -> str:
        """`raw` with its placeholders filled in. Raises ConfigError that names the line."""
        try:
            return self._placeholders.fill(raw).strip()
        except ValueError as error:
            raise ConfigError(f"{self.path}:{element.line}: {names.shorten(name)} {error}") from error

    # -- our options --------------------------------------------------------------------------------------------------

    def set(self, part: FilePart, key: str, raw: object, told: str = "", *, pattern: str | None = None) -> bool:
        """Set our option `key` for the destinations of the part's scope, and report it. False = it cannot be."""
        pattern = part.scope.pattern if pattern is None else pattern
        problem, value = self._judge(key, raw, pattern)
        before = self.values.get((pattern, key))
        if not problem and before is not None and before.value != value:
            problem = f"{shown(pattern, key, before.value)} already, because of line {before.line}"
        if pattern == NOWHERE.pattern:
            part.tell(Status.UNSUPPORTED, "it holds for no destination that amq has: see the element around it")
            return False
        if problem:
            part.tell(Status.UNSUPPORTED, f"{problem}; set {key} by hand if it matters")
            return False
        self.values[(pattern, key)] = before or Carried(value, part.origin, part)
        self._patterns.add(pattern)
        part.tell(Status.CARRIED, told, shown(pattern, key, value))
        return True

    def transports(self, urls: tuple[str, ...], parts: list[FilePart]) -> None:
        """Set our transports; each of `parts` has reported its own."""
        self.values[("", "transports")] = Carried(urls, ", ".join(part.origin for part in parts), parts[0])

    def default(self, key: str, raw: object, told: str, pattern: str = "") -> None:
        """The other broker's default where it differs from ours and nothing in the file sets it."""
        if (pattern, key) in self.values:
            return
        problem, value = self._judge(key, raw, pattern)
        if not problem:
            self.values[(pattern, key)] = Carried(value, told)
            self.report.add(None, "", Status.CARRIED, told, (shown(pattern, key, value),))

    def drop(self, key: str, why: str) -> None:
        """Do not set an option after all."""
        part = self.values.pop(("", key)).part
        assert part is not None, key  # no default contradicts anything
        part.tell(Status.UNSUPPORTED, why)

    def hint(self, name: str) -> str:
        """Where to look for something that no rule names. The search is slow, so only the first ones get a nearest."""
        self._hints += 1
        near = names.nearest(name[:80]) if self._hints <= HINTS_MAX else None
        if near is None:
            return "`amq config reference` prints all options of amq"
        return f"the nearest option of amq is {near.key} in [{near.section}]"

    def _judge(self, key: str, raw: object, pattern: str) -> tuple[str, Value]:
        """(what is wrong, the value)"""
        option = BY_KEY.get(key)
        if option is None:
            return f"this version of amq has no option {key}", ""
        if pattern and not option.destination:
            return f"{key} cannot be set for single destinations", ""
        if pattern not in self._patterns and len(self._patterns) >= PATTERNS_MAX:
            return f"there are more than {PATTERNS_MAX} patterns of destinations", ""
        try:
            value = option.parse(raw)
        except ValueError as error:
            return f'{key} = "{names.shorten(str(raw))}" {error}', ""
        if isinstance(value, str) and option.kind is not ValueKind.DIVERTS and len(value) > VALUE_CHARS_MAX:
            return f"{key} is longer than {VALUE_CHARS_MAX} characters", ""
        return "", value


def shown(pattern: str, key: str, value: Value) -> str:
    """How a configuration file says it, for the report."""
    text = f"{key} = {BY_KEY[key].format(value)}"
    return f'[destinations."{pattern}"] {text}' if pattern else text


# -- rules -------------------------------------------------------------------------------------------------------------

Convert = Callable[[str], object]  # raises ValueError with the rest of a sentence


def carry(key: str, convert: Convert = str, told: str = "") -> Rule:
    """Our option `key` says the same."""

    def handle(part: FilePart) -> None:
        try:
            raw = convert(part.value)
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f'"{names.shorten(part.value)}" {error}')
        else:
            part.importing.set(part, key, raw, told)

    return Rule(handle)


def natural(told: str = "", *, whole: bool = False) -> Rule:
    """amq does so without being told."""
    return Rule(lambda part: part.tell(Status.NATURAL, told), whole)


def unsupported(told: str, *, whole: bool = False) -> Rule:
    """It changes behaviour, and amq does not do it; `told` says what to do."""
    return Rule(lambda part: part.tell(Status.UNSUPPORTED, told), whole)


def ignored(told: str = "", *, whole: bool = False) -> Rule:
    """It has no meaning here."""
    return Rule(lambda part: part.tell(Status.IGNORED, told), whole)


def only(value: str, so: str, otherwise: str) -> Rule:
    """amq is always as `value` says; another value is unsupported."""

    def handle(part: FilePart) -> None:
        fits = part.value.lower() == value
        part.tell(Status.NATURAL if fits else Status.UNSUPPORTED, so if fits else otherwise)

    return Rule(handle)


def special(handle: Handler, *, whole: bool = False) -> Rule:
    """A function decides."""
    return Rule(handle, whole)


def minus_one(meant: Rule, otherwise: Rule) -> Rule:
    """`meant` where the value is -1, which other brokers write for "none" or "as you like"; `otherwise` elsewhere."""
    return Rule(lambda part: (meant if part.value == "-1" else otherwise).handle(part))


CONTAINER = Rule(lambda part: part.tell(Status.CARRIED, ""))  # its parts say what becomes of it


UNKNOWN = Rule(lambda part: part.tell(Status.UNSUPPORTED, f"amq does not know it; {part.importing.hint(part.name)}"))


def each_of(rule: Rule, keys: str) -> dict[str, Rule]:
    """The same rule for several keys, separated by blanks."""
    return dict.fromkeys(keys.split(), rule)


def table(*parts: Mapping[str, Rule]) -> dict[str, Rule]:
    """One table of several. A rule may be that of several keys, separated by blanks; no key is there twice."""
    found: dict[str, Rule] = {}
    for keys, rule in (item for part in parts for item in part.items()):
        each = each_of(rule, keys)
        assert not found.keys() & each.keys(), sorted(found.keys() & each.keys())
        found |= each
    return found
