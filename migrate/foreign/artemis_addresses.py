"""The part of broker.xml about addresses: settings by pattern, declared queues, diverts.

In Artemis, as here, each setting of an address comes from the most specific pattern that has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from amq.config.diverts import Divert, diverts_text, parse_diverts
from amq.config.option import Value
from amq.config.patterns import parse_pattern
from amq.config.schema import BY_KEY
from amq_migrate.foreign.convert import boolean, covers, factor, integer, milliseconds, queue_name, size
from amq_migrate.foreign.diverting import Diverts
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import (
    CONTAINER,
    NOWHERE,
    PATTERNS_MAX,
    Concerned,
    FilePart,
    Importing,
    Rule,
    carry,
    ignored,
    natural,
    only,
    special,
    table,
    unsupported,
)
from amq_migrate.foreign.report import Status

_PAGES = "messages beyond memoryLimit wait in the journal; there are no page files"
_FORGOTTEN = "empty queues and topics are made when they are used, and forgotten when they are empty"
_PREFIXES = re.compile(r"^jms\.(?:queue|topic)\.")
_QUEUES_ONLY, _ALL, _TOPICS = range(3)  # ranks of settings: see `Addresses.look`
_FAILED_STOMP = "the first delivery is not a redelivery; JMS clients count: jms.redeliveryPolicy in their URL"
_NARROWER = "the narrower setting of that pattern, for queues alone, counts: queues and topics share their options here"
# Names of Artemis and HornetQ in filters → those of JMS.
_IDENTIFIER = re.compile(r"('[^']*')|\b(?:AMQ|HQ)(Priority|Timestamp|Expiration)\b")
_PENDING = BY_KEY["pendingMessageLimit"].default
_POLICIES = {"BLOCK": "block", "FAIL": "fail"}


@dataclass(frozen=True, slots=True)
class _None:
    """`part` says that there is none of what `key` is for: our option is then `value`."""

    part: FilePart
    key: str
    value: Value
    told: str


class Addresses:
    """Gathers the settings of addresses, because some of them depend on others."""

    def __init__(self) -> None:
        self._limits: dict[str, dict[str, FilePart]] = {}  # pattern → max-size-bytes, address-full-policy
        self._dead: dict[str, dict[str, FilePart]] = {}
        self._diverts = Diverts()
        self._kinds: dict[str, set[str]] = {}  # declared address → "queue" (anycast), "topic" (multicast)
        self._topics_have: set[tuple[str, str]] = set()  # (pattern, element) of settings for topics alone
        self._nones: list[_None] = []

    def rules(self) -> dict[str, Rule]:
        return table(
            _SETTING,
            _QUEUES,
            {
                "address-setting": special(self._setting),
                "address-setting/max-size-bytes address-setting/address-full-policy": special(self._limit),
                "address-setting/expiry-address": special(self._expiry),
                "address-setting/retroactive-message-count": self._of_topics(
                    carry("subscriptionRecoveryCount", integer)
                ),
                "address-setting/slow-consumer-policy": self._of_topics(
                    self._or_none(
                        "slowConsumerPolicy",
                        "discard-oldest",
                        "NOTIFY",
                        "the log and advisories tell of slow consumers",
                        special(_slow),
                    )
                ),
                "divert": special(self._divert, whole=True),
            },
            {
                "address-setting/default-ring-size queue@ring-size": self._or_none(
                    "ringSize", 0, "-1", "any number of messages may wait", carry("ringSize", integer)
                ),
            },
            {
                "address-setting/default-group-buckets queue@group-buckets": self._or_none(
                    "groupBuckets", 1024, "-1", "groups have buckets: see groupBuckets", carry("groupBuckets", integer)
                ),
            },
            {
                "address-setting/default-last-value-queue address-setting/last-value-queue "
                "queue@last-value": self._or_none(
                    "lastValueKey", "", "false", "all messages wait", special(_last_value)
                ),
            },
            {
                "address-setting/dead-letter-address address-setting/auto-create-dead-letter-resources "
                "address-setting/dead-letter-queue-prefix": special(self._dead_letter),
            },
        )

    # -- settings -----------------------------------------------------------------------------------------------------

    def _setting(self, part: FilePart) -> Concerned:
        match = part.importing.fill(part.element.attributes.get("match", ""), part.element, "match")
        try:
            pattern = _pattern(match)
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f'the pattern "{match}" {error}')
            return NOWHERE
        if len(self._limits) >= PATTERNS_MAX and pattern not in self._limits:
            part.tell(Status.UNSUPPORTED, f"there are more than {PATTERNS_MAX} settings: join some by patterns")
            return NOWHERE
        self._limits.setdefault(pattern, {})
        return Concerned(pattern, {_QUEUES_ONLY: "queue", _TOPICS: "topic"}.get(_rank(match), ""))

    def _limit(self, part: FilePart) -> None:
        if part.scope == NOWHERE:
            part.tell(Status.UNSUPPORTED, "it holds for no destination that amq has: see the element around it")
            return
        if self._limits[part.scope.pattern].setdefault(part.name, part) is not part:
            part.tell(Status.UNSUPPORTED, _NARROWER)
            return
        if part.name == "address-full-policy" and part.value.upper() not in (*_POLICIES, "PAGE"):
            part.tell(Status.UNSUPPORTED, "amq loses no new message silently: set queueLimit and queueLimitPolicy")
        else:
            part.tell(Status.CARRIED, "")

    def _finish_limits(self, importing: Importing) -> None:
        """queueLimit is max-size-bytes where the policy in force is not to page."""
        paging = []
        for pattern, own in self._limits.items():
            if not own:
                continue
            part = replace(next(iter(own.values())), scope=Concerned(pattern))
            policy, limit = (self._in_force(pattern, name) for name in ("address-full-policy", "max-size-bytes"))
            choice = _POLICIES.get(policy.value.upper()) if policy is not None else None
            if choice is None or limit is None:
                paging.append(part)
                continue
            try:
                most = 0 if limit.value == "-1" else size(limit.value)
            except ValueError as error:
                part.tell(Status.UNSUPPORTED, f'max-size-bytes "{limit.value}" {error}')
                continue
            importing.set(part, "queueLimit", most)
            importing.set(part, "queueLimitPolicy", choice)
        for part in paging:
            pattern = part.scope.pattern
            if any(_includes(each, pattern) and (each, "queueLimit") in importing.values for each in self._limits):
                importing.set(part, "queueLimit", 0, _PAGES)
            else:
                part.tell(Status.NATURAL, _PAGES)

    def _in_force(self, pattern: str, name: str) -> FilePart | None:
        """The setting of the most specific pattern that covers `pattern` and has it."""
        covering = [each for each in self._limits if name in self._limits[each] and _includes(each, pattern)]
        return self._limits[max(covering, key=len)][name] if covering else None

    def _or_none(self, key: str, value: Value, none: str, told: str, otherwise: Rule) -> Rule:
        """`otherwise`, unless the text is `none`. A setting that says so counts where a wider one says more."""

        def handle(part: FilePart) -> None:
            if part.value.lower() != none.lower():
                otherwise.handle(part)
            else:
                part.tell(Status.CARRIED, "")
                self._nones.append(_None(part, key, value, told))

        return Rule(handle)

    def _finish_nones(self, importing: Importing) -> None:
        said = [pattern for pattern, _ in importing.values]
        for each in self._nones:
            pattern = each.part.scope.pattern
            nowhere = each.part.scope == NOWHERE
            if nowhere or any((wide, each.key) in importing.values and covers(wide, pattern) for wide in said):
                importing.set(each.part, each.key, each.value)
            else:
                each.part.tell(Status.NATURAL, each.told)

    def _finish_defaults(self, importing: Importing) -> None:
        """Set defaults of Artemis that differ from ours and depend on what settings say."""
        values = dict(importing.values)
        for (pattern, key), carried in values.items():
            if key == "slowConsumerPolicy":
                kills = carried.value == "disconnect"
                limit = _PENDING if kills else 0
                told = "how far a slow consumer may fall back" if kills else "the consumer misses nothing"
                importing.default("pendingMessageLimit", limit, told, pattern)
            covering = (name == "maximumRedeliveryDelay" and _includes(each, pattern) for each, name in values)
            if key == "redeliveryDelay" and isinstance(carried.value, float) and carried.value and not any(covering):
                told = "Artemis waits ten times redelivery-delay at most"
                importing.default("maximumRedeliveryDelay", f"{10 * round(1000 * carried.value)}ms", told, pattern)
        importing.default("pendingMessageLimit", 0, "Artemis discards nothing that waits for a slow consumer")

    # -- dead letters -------------------------------------------------------------------------------------------------

    def _dead_letter(self, part: FilePart) -> None:
        if part.name == "dead-letter-address" and self._kind(part.value) == "topic":
            part.tell(Status.UNSUPPORTED, "amq keeps dead letters in queues: set sharedDeadLetterQueue")
        elif self._dead.setdefault(part.scope.pattern, {}).setdefault(part.name, part) is not part:
            part.tell(Status.UNSUPPORTED, _NARROWER)
        else:
            part.tell(Status.CARRIED, "")

    def _expiry(self, part: FilePart) -> None:
        if self._kind(part.value) == "topic":
            part.tell(Status.UNSUPPORTED, "amq keeps expired messages in queues: set expiryQueue")
            return
        try:
            part.importing.set(part, "expiryQueue", queue_name(part.value) if part.value else "")
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f'"{part.value}" {error}')

    def _finish_dead_letters(self, importing: Importing) -> None:
        everywhere = self._dead.get("", {})
        created = everywhere.get("auto-create-dead-letter-resources")
        individual = created is not None and created.value.lower() == "true"
        address, prefix = everywhere.get("dead-letter-address"), everywhere.get("dead-letter-queue-prefix")
        if individual and created is not None:
            importing.set(created, "deadLetterStrategy", "individual", pattern="")
            if prefix is not None:
                importing.set(prefix, "deadLetterPrefix", prefix.value, pattern="")
        elif address is not None:
            importing.set(address, "deadLetterStrategy", "shared", pattern="")
            importing.set(address, "sharedDeadLetterQueue", _PREFIXES.sub("", address.value), pattern="")
        for pattern, parts in self._dead.items():
            same = pattern == "" or all(
                name in everywhere and everywhere[name].raw == part.raw for name, part in parts.items()
            )
            if not same:
                for part in parts.values():
                    part.tell(Status.UNSUPPORTED, "amq has one deadLetterStrategy for all queues, that of the match #")

    # -- diverts ------------------------------------------------------------------------------------------------------

    def _divert(self, part: FilePart) -> None:
        element, fill = part.element, part.importing.fill
        texts = {each.name: fill(each.text, each, each.name) for each in element.children}
        extra = [name for name in ("transformer", "transformer-class-name") if element.child(name)]
        if extra:
            part.tell(
                Status.UNSUPPORTED, f"a divert of amq has no {extra[0]}: consume the address, and send on what it gives"
            )
            return
        condition = element.child("filter")
        try:
            pattern = _pattern(texts.get("address", ""))
            source = self._kind(texts.get("address", ""))
            exclusive = boolean(texts.get("exclusive", "false")) or None
            selector = "" if condition is None else _selector(fill(_filter(condition), condition, "filter"))
            kinds, told = self._targets(texts.get("forwarding-address", ""), source, texts.get("routing-type", "STRIP"))
            name = _PREFIXES.sub("", texts.get("forwarding-address", ""))
            wanted = [Divert(f"{kind}://{name}", source, exclusive, selector) for kind in kinds]
            if list(parse_diverts(diverts_text(tuple(wanted)))) != wanted:
                raise ValueError(f'is not a name: "{name}"')
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f"a name or value in it {error}")
            return
        for divert in wanted:
            self._diverts.add(part, pattern, divert, told)

    def _kind(self, address: str) -> str:
        """ "queue" or "topic" where the name or its declaration says so, else ""."""
        match = _PREFIXES.match(address)
        if match is not None:
            return "topic" if "topic" in match[0] else "queue"
        kinds = self._kinds.get(address, set())
        return next(iter(kinds)) if len(kinds) == 1 else ""

    def _targets(self, address: str, source: str, routing: str) -> tuple[list[str], str]:
        """The kinds of the destinations to which a divert leads, and what to say of that."""
        routing = routing.upper()
        if routing in ("ANYCAST", "MULTICAST"):
            return ["queue" if routing == "ANYCAST" else "topic"], ""
        kind = self._kind(address) or (source if routing == "PASS" else "")
        if kind:
            return [kind], ""
        declared = sorted(self._kinds.get(address, ()))
        return declared or ["queue"], "" if declared else "no address is declared of that name: it becomes a queue"

    def look(self, root: Element) -> None:
        """See what is in several places, before the walk: declared addresses; settings for queues or topics alone.
        The narrower of two settings for one pattern counts, so that for queues comes first, and for all before that
        for topics."""
        for element in root.below():
            if element.name == "address" and "name" in element.attributes:
                kinds = {"anycast": "queue", "multicast": "topic"}
                found = {kinds[child.name] for child in element.children if child.name in kinds}
                self._kinds.setdefault(element.attributes["name"], set()).update(found)
            if element.name == "address-settings":
                element.children.sort(key=lambda each: _rank(each.attributes.get("match", "")))
                for each in element.children:
                    match = each.attributes.get("match", "")
                    if _rank(match) == _TOPICS:
                        self._topics_have |= {(_PREFIXES.sub("", match), child.name) for child in each.children}

    def _of_topics(self, rule: Rule) -> Rule:
        """`rule` is for topics only."""

        def handle(part: FilePart) -> None:
            if part.scope.kind == "queue":
                part.tell(Status.IGNORED, "it is for topics")
            elif not part.scope.kind and (_match_text(part.scope.pattern), part.name) in self._topics_have:
                part.tell(Status.NATURAL, "the setting for topics alone counts")
            else:
                rule.handle(part)

        return Rule(handle)

    def finish(self, importing: Importing) -> None:
        self._finish_limits(importing)
        self._finish_dead_letters(importing)
        self._finish_nones(importing)
        self._finish_defaults(importing)
        self._diverts.finish(importing)


def _pattern(match: str) -> str:
    """A pattern of Artemis (`orders.#`) as ours (`orders.>`); "" = all. Raises ValueError."""
    pattern = _PREFIXES.sub("", match)
    if "#" in pattern[:-1] or (pattern.endswith("#") and pattern != "#" and not pattern.endswith(".#")):
        raise ValueError("has a # before its end, which amq does not have: write settings for narrower patterns")
    pattern = re.sub(r"#$", ">", pattern)
    parse_pattern(pattern)
    return "" if pattern == ">" else pattern


def _includes(wide: str, narrow: str) -> bool:
    """Does `wide` stand for every name for which `narrow` does?"""
    return wide == narrow or covers(wide, narrow)


def _rank(match: str) -> int:
    """Whether a setting is for queues, for all, or for topics."""
    return _QUEUES_ONLY if match.startswith("jms.queue.") else _TOPICS if match.startswith("jms.topic.") else _ALL


def _match_text(pattern: str) -> str:
    """One of our patterns as a setting writes it."""
    return re.sub(r">$", "#", pattern) or "#"


def _filter(element: Element) -> str:
    return element.attributes.get("string", element.text)


def _selector(text: str) -> str:
    """A filter, with JMS' names of what a message has. Raises ValueError."""
    return _IDENTIFIER.sub(lambda match: match[1] or f"JMS{match[2]}", text)


def _attempts(part: FilePart) -> None:
    if part.value == "-1":
        part.importing.set(part, "maximumRedeliveries", -1)
    elif part.value.isdigit() and part.value != "0":
        part.importing.set(part, "maximumRedeliveries", integer(part.value) - 1, _FAILED_STOMP)
    else:
        part.tell(Status.UNSUPPORTED, f'"{part.value}" is not a number of deliveries')


def _slow(part: FilePart) -> None:
    if part.value.upper() == "KILL":
        part.importing.set(part, "slowConsumerPolicy", "disconnect", "at pendingMessageLimit, not below a rate")
    else:
        part.tell(Status.UNSUPPORTED, f'"{part.value}" is neither KILL nor NOTIFY')


def _last_value(part: FilePart) -> None:
    if part.value.lower() == "true":
        part.importing.set(part, "lastValueKey", "_AMQ_LVQ_NAME")
    else:
        part.tell(Status.UNSUPPORTED, f'"{part.value}" is neither true nor false')


def _setting_rules(rules: dict[str, Rule]) -> dict[str, Rule]:
    """Rules of settings of an address; one may be that of several settings, separated by blanks."""
    return {f"address-setting/{name}": rule for names, rule in rules.items() for name in names.split()}


_SETTING = {"address-setting@match": natural()} | _setting_rules(
    {
        "redelivery-delay": carry("redeliveryDelay", milliseconds),
        "redelivery-delay-multiplier": carry("redeliveryBackOffMultiplier", factor),
        "redelivery-collision-avoidance-factor": unsupported("delays are exact"),
        "max-redelivery-delay": carry("maximumRedeliveryDelay", milliseconds),
        "max-delivery-attempts": special(_attempts),
        "auto-create-expiry-resources": only("false", "off", "amq has one expiry queue for the pattern: expiryQueue"),
        "no-expiry": only("false", "messages expire", "a message with an expiry expires"),
        "default-last-value-key": carry("lastValueKey"),
        "default-group-rebalance": carry("groupRebalance", boolean),
        "slow-consumer-threshold": natural("see pendingMessageLimit"),
        "slow-consumer-threshold-measurement-unit": natural("see pendingMessageLimit"),
        "slow-consumer-check-period": natural("see pendingMessageLimit"),
        "id-cache-size": unsupported("duplicateWindow holds for all destinations"),
        "send-to-dla-on-no-route": only("false", "off", "a message to a queue always has a route"),
        "redistribution-delay": natural("an address has one home, where the consumers of all nodes meet"),
        "default-exclusive-queue": only(
            "false",
            "a consumer is exclusive if it asks for it",
            "let consumers subscribe with activemq.exclusive:true",
        ),
        "default-non-destructive": only("false", "off", "let readers browse: browser:true"),
        "default-max-consumers": only("-1", "no limit", "there is no limit for the number of consumers"),
        "default-purge-on-no-consumers": only("false", "messages wait", "messages wait, or expire"),
        "default-consumers-before-dispatch": only("0", "off", "delivery begins with the first consumer"),
        "default-delay-before-dispatch": only("-1", "off", "delivery begins with the first consumer"),
        "default-consumer-window-size": unsupported("set prefetchSize: amq counts messages, not bytes"),
        "default-address-routing-type": natural("/queue/ and /topic/ in the name decide"),
        "default-queue-routing-type": natural("/queue/ and /topic/ in the name decide"),
        "max-size-messages max-size-bytes-reject-threshold": unsupported("set queueLimit, which counts bytes"),
        "page-limit-bytes page-limit-messages page-full-policy": unsupported("set queueLimit and queueLimitPolicy"),
        "expiry-delay min-expiry-delay max-expiry-delay": unsupported("let producers set the expiry themselves"),
        "dead-letter-queue-suffix expiry-queue-prefix expiry-queue-suffix": unsupported(
            "the names of such queues are fixed: see deadLetterPrefix and expiryQueue"
        ),
        "page-size-bytes page-max-cache-size max-read-page-messages prefetch-page-messages max-read-page-bytes "
        "prefetch-page-bytes disk-full-policy initial-queue-buffer-size": natural(_PAGES),
        "auto-create-queues auto-delete-queues auto-create-addresses auto-delete-addresses auto-create-jms-queues "
        "auto-delete-jms-queues auto-create-jms-topics auto-delete-jms-topics auto-delete-created-queues "
        "auto-delete-queues-delay auto-delete-queues-message-count auto-delete-queues-skip-usage-check "
        "auto-delete-addresses-delay auto-delete-addresses-skip-usage-check config-delete-queues "
        "config-delete-addresses config-delete-diverts": natural(_FORGOTTEN),
        "message-counter-history-day-limit management-browse-page-size management-message-attribute-size-limit "
        "enable-metrics": ignored("see `amq status` and the log"),
        "default-group-rebalance-pause-dispatch default-group-first-key": natural(
            "groups have buckets: see groupBuckets"
        ),
        "enable-ingress-timestamp": natural("messages carry the time at which they came"),
    }
)

_NAMED = "a queue or topic exists as soon as somebody uses it"
_QUEUES = table(
    {
        "queues": CONTAINER,
        "address": natural(_NAMED),
        "anycast": natural("a queue"),
        "multicast": natural("a topic, and a durable subscription for each of its queues"),
        "queue": special(lambda part: _queue(part)),
        "queue@name address@name queue/address": natural(),
        "queue@last-value-key": carry("lastValueKey"),
        "queue@group-rebalance": carry("groupRebalance", boolean),
        "queue@max-consumers": only("-1", "no limit", "there is no limit for the number of consumers"),
        "queue@exclusive": only(
            "false", "a consumer is exclusive if it asks for it", "let consumers subscribe with activemq.exclusive:true"
        ),
        "queue@purge-on-no-consumers": only("false", "messages wait", "messages wait, or expire"),
        "queue@non-destructive": only("false", "off", "let readers browse: browser:true"),
        "queue@consumers-before-dispatch": only("0", "off", "delivery begins with the first consumer"),
        "queue@delay-before-dispatch": only("-1", "off", "delivery begins with the first consumer"),
        "queue@enabled": only("true", "on", "queues cannot be switched off"),
        "queue/durable": only(
            "true",
            "messages are persistent unless their producers say otherwise",
            "let producers send non-persistent messages",
        ),
        "queue/filter": unsupported("let consumers subscribe with a selector", whole=True),
        "queue/user": ignored("queues have no owner"),
        "address@type": natural("/queue/ and /topic/ in the name decide"),
        "queue@group-rebalance-pause-dispatch queue@group-first-key": natural("groups have buckets"),
    },
)


def _queue(part: FilePart) -> Concerned:
    """The attributes of a declared queue hold for the destination of that name."""
    part.tell(Status.NATURAL, _NAMED)
    name = _PREFIXES.sub("", part.importing.fill(part.element.attributes.get("name", ""), part.element, "name"))
    try:
        parse_pattern(queue_name(name))
    except ValueError:
        return NOWHERE
    return Concerned(name)
