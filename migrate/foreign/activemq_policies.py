"""The part of activemq.xml about destinations: policy entries, redelivery, dead letters, virtual destinations.

ActiveMQ gives a destination the *whole* most specific policy entry and nothing of the others. Here each option comes
from the most specific pattern that sets it. So an entry that leaves out what a wider one sets gets ActiveMQ's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amq.config.destination_options import DELAY_MS_MAX
from amq.config.patterns import parse_pattern
from amq_migrate.foreign.activemq_composites import Composites
from amq_migrate.foreign.convert import boolean, covers, factor, integer, milliseconds, size
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
    minus_one,
    natural,
    only,
    special,
    table,
    unsupported,
)
from amq_migrate.foreign.report import Status

ALL = ">"
_ADVISORY = "advisories are sent while somebody subscribes to them: docs/messaging.md has the list"
_ONE_STRATEGY = 'amq has one deadLetterStrategy for all queues, that of the entry for queue ">"'
# Of options that a policy entry can set: what ActiveMQ does if the entry leaves it out.
DEFAULTS: Mapping[str, object] = {
    "expiredMessages": "dead-letter",
    "deadLetterNonPersistent": False,
    "prefetchSize": 1000,
    "groupBuckets": 1024,
    "pendingMessageLimit": 0,
    "slowConsumerPolicy": "discard-oldest",
    "subscriptionRecoveryCount": 0,
    "subscriptionRecoverySize": 0,
    "subscriptionRecoveryDuration": 0,
}
# The same for a redelivery policy, whose map has rules of its own.
REDELIVERY_DEFAULTS: Mapping[str, object] = {
    "maximumRedeliveries": 6,
    "redeliveryDelay": 1000,
    "redeliveryBackOffMultiplier": 1,
    "maximumRedeliveryDelay": DELAY_MS_MAX,
}


@dataclass(frozen=True, slots=True)
class _Strategy:
    """A dead letter strategy that waits for the one of queue ">"."""

    part: FilePart
    individual: bool
    name: str  # the prefix, or the name of the shared queue
    told: str


class PolicyEntries:
    """Gathers what entries say, because some of it depends on the others."""

    def __init__(self) -> None:
        self._entries: list[Concerned] = []
        self._redeliveries: list[Concerned] = []
        self._strategies: list[_Strategy] = []
        self._topics: list[FilePart] = []
        self._composites = Composites()

    def rules(self) -> dict[str, Rule]:
        """The table for what is in <destinationPolicy>, <destinationInterceptors> and <redeliveryPlugin>."""
        return table(
            _ENTRY,
            _TOPIC_POLICIES,
            _REDELIVERY,
            {
                "policyEntry": special(self._entry),
                "redeliveryPolicy": special(self._redelivery),
                "deadLetterStrategy": CONTAINER,
                "individualDeadLetterStrategy": special(self._individual),
                "sharedDeadLetterStrategy": special(self._shared),
                "virtualTopic": special(self._virtual_topic, whole=True),
                **self._composites.rules(),
            },
        )

    # -- entries ------------------------------------------------------------------------------------------------------

    def _entry(self, part: FilePart) -> Concerned | None:
        return self._note(_scope(part), self._entries, part)

    def _redelivery(self, part: FilePart) -> Concerned | None:
        scope = self._note(_scope(part, default=Concerned()), self._redeliveries, part)
        if scope == NOWHERE:
            return scope
        inner = replace(part, scope=scope)
        values = part.element.attributes
        exponential = part.importing.fill(values.get("useExponentialBackOff", "false"), part.element, part.name)
        delay = values.get("redeliveryDelay", "1000")
        if exponential.lower() == "true":
            multiplier = replace(inner, raw=values.get("backOffMultiplier", "5"))
            carry("redeliveryBackOffMultiplier", factor).handle(multiplier)
            delay = values.get("initialRedeliveryDelay", "1000")
        carry("redeliveryDelay", milliseconds).handle(replace(inner, raw=delay))
        told = "the plugin delivers again what a client gives up (JMS) or refuses (NACK)"
        part.importing.set(inner, "rejectedMessages", "redeliver", told)
        return scope

    def _note(self, scope: Concerned | None, entries: list[Concerned], part: FilePart) -> Concerned:
        if scope is None:
            return NOWHERE
        if len(entries) >= PATTERNS_MAX:
            part.tell(Status.UNSUPPORTED, f"there are more than {PATTERNS_MAX} entries: join some by patterns")
            return NOWHERE
        entries.append(scope)
        return scope

    # -- dead letters -------------------------------------------------------------------------------------------------

    def _individual(self, part: FilePart) -> None:
        prefix = part.element.attributes.get("queuePrefix", "ActiveMQ.DLQ.Queue.")
        self._strategies.append(_Strategy(part, True, prefix, "each queue has a separate dead-letter queue"))
        part.tell(Status.CARRIED, "")

    def _shared(self, part: FilePart) -> None:
        inner = part.element.child("deadLetterQueue")
        if inner is not None and inner.child("topic") is not None:
            part.tell(Status.UNSUPPORTED, "amq keeps dead letters in queues: set sharedDeadLetterQueue")
            return
        queue = inner.child("queue") if inner is not None else None
        name = queue.attributes.get("physicalName", "") if queue is not None else ""
        self._strategies.append(_Strategy(part, False, name or "ActiveMQ.DLQ", "one dead-letter queue for all"))
        part.tell(Status.CARRIED, "")

    def _finish_dead_letters(self, importing: Importing) -> None:
        first = next((each for each in self._strategies if each.part.scope == Concerned("", "queue")), None)
        for each in self._strategies:
            name = each.part.value if not each.name else importing.fill(each.name, each.part.element, "name")
            if first is None or (each.individual, each.name) != (first.individual, first.name):
                each.part.tell(Status.UNSUPPORTED, _ONE_STRATEGY)
                continue
            choice = "individual" if each.individual else "shared"
            importing.set(each.part, "deadLetterStrategy", choice, each.told, pattern="")
            key = "deadLetterPrefix" if each.individual else "sharedDeadLetterQueue"
            importing.set(each.part, key, name, pattern="")
        importing.default("deadLetterStrategy", "shared", "ActiveMQ has one dead-letter queue, ActiveMQ.DLQ")

    # -- virtual topics -----------------------------------------------------------------------------------------------

    def _virtual_topic(self, part: FilePart) -> None:
        attributes = part.element.attributes
        extra = [name for name in ("postfix", "selectorAware") if attributes.get(name, "false") not in ("false", "")]
        if self._topics or extra:
            why = "amq has one pattern of virtual topics: choose one that covers them all"
            part.tell(Status.UNSUPPORTED, f"amq has no {', '.join(extra)} for virtual topics" if extra else why)
            return
        self._topics.append(part)
        fill = part.importing.fill
        name = fill(attributes.get("name", "VirtualTopic.>"), part.element, "name")
        prefix = fill(attributes.get("prefix", "Consumer.*."), part.element, "prefix")
        part.importing.set(part, "virtualTopics", name, pattern="")
        part.importing.set(part, "virtualTopicConsumers", prefix, pattern="")

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, importing: Importing) -> None:
        """Set what depends on several entries, and ActiveMQ's defaults."""
        self._finish_dead_letters(importing)
        self._composites.finish(importing)
        _separate(importing, self._entries, DEFAULTS)
        _separate(importing, self._redeliveries, REDELIVERY_DEFAULTS)
        importing.default("expiredMessages", "dead-letter", "ActiveMQ moves expired messages to the dead-letter queue")
        importing.default(
            "deadLetterNonPersistent", False, "ActiveMQ drops a non-persistent message instead of dead-lettering it"
        )
        importing.default("pendingMessageLimit", 0, "ActiveMQ discards nothing without a pendingMessageLimitStrategy")


def _scope(part: FilePart, default: Concerned | None = None) -> Concerned | None:
    """The destinations that an entry is for. None = none that amq has; it is reported."""
    attributes = part.element.attributes
    kind = next((kind for kind in ("queue", "topic", "tempQueue", "tempTopic") if kind in attributes), "")
    if not kind and default is not None:
        return default
    if kind not in ("queue", "topic"):
        part.tell(Status.UNSUPPORTED, "it names no queue and no topic; temporary destinations have the options of all")
        return None
    pattern = part.importing.fill(attributes[kind], part.element, kind)
    try:
        parse_pattern(pattern)
    except ValueError as error:
        part.tell(Status.UNSUPPORTED, f'the pattern "{pattern}" {error}')
        return None
    return Concerned("" if pattern == ALL else pattern, kind)


def _separate(importing: Importing, entries: list[Concerned], defaults: Mapping[str, object]) -> None:
    """Keep narrow entries from inheriting what wider ones of their kind set."""
    for narrow in entries:
        if not narrow.pattern:
            continue
        wider = [wide for wide in entries if wide.kind == narrow.kind and covers(wide.pattern, narrow.pattern)]
        for key, default in defaults.items():
            found = [importing.values.get((wide.pattern, key)) for wide in wider]
            if any(carried is not None and carried.kind == narrow.kind for carried in found):
                told = f'ActiveMQ gives {narrow.kind} "{narrow.pattern}" nothing of wider entries'
                importing.default(key, default, told, narrow.pattern)


def _prefetch(kind: str) -> Rule:
    """An entry has attributes for queues and for topics; those of the other kind mean nothing."""

    def handle(part: FilePart) -> None:
        if part.scope.kind != kind:
            part.tell(Status.IGNORED, "the entry is for others")
        elif part.value == "0":
            part.tell(Status.UNSUPPORTED, "consumers that pull ask for it: activemq.prefetchSize:0 and CREDIT")
        else:
            carry("prefetchSize", integer, "JMS clients say it: jms.prefetchPolicy in their URL").handle(part)

    return Rule(handle)


def _process_expired(part: FilePart) -> None:
    part.importing.set(part, "expiredMessages", "dead-letter" if part.value.lower() == "true" else "drop")


def _pending_limit(part: FilePart) -> None:
    limit = integer(part.value) if part.value.lstrip("-").isdigit() else None
    if limit is None:
        part.tell(Status.UNSUPPORTED, f'"{part.value}" is not a whole number')
    elif limit == 0:
        part.tell(Status.UNSUPPORTED, "amq keeps at least one message for a slow consumer: set pendingMessageLimit")
    else:
        part.importing.set(part, "pendingMessageLimit", max(limit, 0), "" if limit > 0 else "no limit")


def _first_delay(part: FilePart) -> None:
    """With back-off it is what grows, which `PolicyEntries._redelivery` has carried; without, only the first delay."""
    attributes = part.element.attributes
    if attributes.get("useExponentialBackOff", "false").lower() == "true":
        part.tell(Status.NATURAL, "it is the delay that grows")
    elif attributes.get("redeliveryDelay") == part.raw:
        part.tell(Status.NATURAL, "the first delay is like the others")
    else:
        part.tell(Status.UNSUPPORTED, "without back-off all delays are the same: set redeliveryDelay")


def _any_delay(part: FilePart) -> None:
    part.importing.set(part, "maximumRedeliveryDelay", DELAY_MS_MAX)


_ENTRY = table(
    {
        "destinationPolicy policyMap policyEntries defaultEntry": CONTAINER,
        "policyEntry@queue policyEntry@tempQueue policyEntry@tempTopic policyEntry@topic": natural(),
        "policyEntry@memoryLimit": natural(
            "destinations share the memory of memoryLimit, and persistent messages beyond it wait on disk"
        ),
        "policyEntry@producerFlowControl": only(
            "true",
            "producers wait at memoryLimit and storeLimit",
            "producers of non-persistent messages wait at memoryLimit, because amq has no temporary store",
        ),
        "policyEntry@sendFailIfNoSpace": unsupported("set producerFlowControl, which holds for all destinations"),
        "policyEntry@sendFailIfNoSpaceAfterTimeout": unsupported("producers wait without an end, or fail at once"),
        "policyEntry@queuePrefetch": _prefetch("queue"),
        "policyEntry@topicPrefetch": _prefetch("topic"),
        "policyEntry@durableTopicPrefetch": unsupported("a subscription decides: activemq.prefetchSize in its headers"),
        "policyEntry@queueBrowserPrefetch": natural("a subscription decides: activemq.prefetchSize in its headers"),
        "policyEntry@expireMessagesPeriod": natural("expired messages go within about a second"),
        "policyEntry@gcInactiveDestinations": natural("empty queues and topics are forgotten"),
        "policyEntry@inactiveTimoutBeforeGC": natural("empty queues and topics are forgotten"),
        "policyEntry@inactiveTimeoutBeforeGC": natural("empty queues and topics are forgotten"),
        "policyEntry@gcWithNetworkConsumers": natural("empty queues and topics are forgotten"),
        "policyEntry@strictOrderDispatch": unsupported(
            "consumers get messages in turn; one exclusive consumer (activemq.exclusive:true) gets all in order"
        ),
        "policyEntry@prioritizedMessages": only(
            "true",
            "messages of higher priority come first",
            "messages of higher priority always come first: send all with one priority",
        ),
        "policyEntry@useConsumerPriority": only(
            "true", "consumers of higher priority come first", "consumers have the priority that they ask for"
        ),
        "policyEntry@allConsumersExclusiveByDefault": only(
            "false", "a consumer is exclusive if it asks for it", "let consumers subscribe with activemq.exclusive:true"
        ),
        "policyEntry@alwaysRetroactive": only(
            "false",
            "a consumer is retroactive if it asks for it",
            "let consumers subscribe with activemq.retroactive:true",
        ),
        "policyEntry@timeBeforeDispatchStarts": unsupported("delivery begins with the first consumer"),
        "policyEntry@consumersBeforeDispatchStarts": unsupported("delivery begins with the first consumer"),
        "policyEntry@maxDestinations": unsupported("set maxQueuesPerUser, which holds for all destinations"),
        "policyEntry@minimumMessageSize": natural("messages count with their true size"),
        "policyEntry@persistJMSRedelivered": natural("deliveries are counted in the journal"),
        "policyEntry@sendAdvisoryIfNoConsumers": only("false", "off", "see " + _ADVISORY),
        "policyEntry@sendDuplicateFromStoreToDLQ": natural("resent messages are stored once"),
        "policyEntry@allowTempDestinationStealing": natural("temporary destinations belong to their connection"),
        "policyEntry@lazyDispatch policyEntry@optimizedDispatch policyEntry@useCache policyEntry@maxPageSize "
        "policyEntry@maxBrowsePageSize policyEntry@maxExpirePageSize policyEntry@enableAudit policyEntry@maxAuditDepth "
        "policyEntry@maxProducersToAudit policyEntry@maxQueueAuditDepth policyEntry@cursorMemoryHighWaterMark "
        "policyEntry@storeUsageHighWaterMark policyEntry@usePrefetchExtension policyEntry@reduceMemoryFootprint "
        "policyEntry@doOptimzeMessageStorage policyEntry@optimizeMessageStoreInFlightLimit "
        "policyEntry@useTopicSubscriptionInflightStats policyEntry@blockedProducerWarningInterval "
        "policyEntry@advancedNetworkStatisticsEnabled policyEntry@advancedMessageStatisticsEnabled": natural(
            "the broker of amq decides by itself"
        ),
        "policyEntry@advisoryForSlowConsumers policyEntry@advisoryWhenFull policyEntry@advisoryForDelivery "
        "policyEntry@advisoryForConsumed policyEntry@advisoryForDispatched policyEntry@advisoryForFastProducers "
        "policyEntry@advisoryForDiscardingMessages policyEntry@includeBodyForAdvisory": natural(_ADVISORY),
        "pendingQueuePolicy pendingSubscriberPolicy pendingDurableSubscriberPolicy": natural(
            "messages beyond memoryLimit wait on disk", whole=True
        ),
        "@processExpired": special(_process_expired),
        "@processNonPersistent": carry("deadLetterNonPersistent", boolean),
        "individualDeadLetterStrategy@queuePrefix": natural(""),
        "individualDeadLetterStrategy@useQueueForQueueMessages": only(
            "true", "dead letters are in queues", "dead letters are always in queues"
        ),
        "individualDeadLetterStrategy@useQueueForTopicMessages": only(
            "true", "dead letters are in queues", "dead letters are always in queues"
        ),
        "individualDeadLetterStrategy@topicPrefix": unsupported("dead letters of topics have deadLetterPrefix, too"),
        "individualDeadLetterStrategy@queueSuffix": unsupported("the names of dead-letter queues have no suffix"),
        "individualDeadLetterStrategy@topicSuffix": unsupported("the names of dead-letter queues have no suffix"),
        "individualDeadLetterStrategy@destinationPerDurableSubscriber": only(
            "false", "off", "dead letters of durable subscriptions are in the queue of their topic"
        ),
        "@enableAudit @maxAuditDepth @maxProducersToAudit": natural("a message becomes a dead letter once"),
        "@expiration": unsupported("dead letters do not expire: empty the queue with `amq dlq purge`"),
        "deadLetterQueue": natural("", whole=True),
        "discarding discardingDeadLetterStrategy": special(lambda part: _discard(part), whole=True),
        "messageGroupMapFactory messageGroupHashBucketFactory": CONTAINER,
        "policyEntry@messageGroupMapFactoryType": natural("groups have buckets: see groupBuckets"),
        "messageGroupHashBucketFactory@bucketCount": carry("groupBuckets", integer),
        "messageGroupHashBucketFactory@cacheSize": natural("groups have buckets: see groupBuckets"),
        "simpleMessageGroupMapFactory": natural("groups have buckets: see groupBuckets", whole=True),
        "cachedMessageGroupMapFactory": natural("groups have buckets: see groupBuckets", whole=True),
        "networkBridgeFilterFactory": ignored(
            "messages of a cluster go to their home once, and nowhere else", whole=True
        ),
        "messageInterceptorStrategy": unsupported("amq changes no messages on their way", whole=True),
    },
)

_TOPIC_POLICIES = table(
    {
        "pendingMessageLimitStrategy messageEvictionStrategy": special(lambda part: _for_topics(part)),
        "constantPendingMessageLimitStrategy slowConsumerStrategy fixedCountSubscriptionRecoveryPolicy": CONTAINER,
        "constantPendingMessageLimitStrategy@limit": special(_pending_limit),
        "prefetchRatePendingMessageLimitStrategy": unsupported("set pendingMessageLimit, a number", whole=True),
        "oldestMessageEvictionStrategy": natural("the oldest message goes first", whole=True),
        "oldestMessageWithLowestPriorityEvictionStrategy": unsupported("the oldest message goes first", whole=True),
        "uniquePropertyMessageEvictionStrategy": unsupported("the oldest message goes first", whole=True),
        "abortSlowConsumerStrategy abortSlowAckConsumerStrategy": special(lambda part: _abort(part), whole=True),
        "subscriptionRecoveryPolicy": special(lambda part: _for_topics(part)),
        "lastImageSubscriptionRecoveryPolicy": special(
            lambda part: _keep(part, "subscriptionRecoveryCount", 1), whole=True
        ),
        "fixedCountSubscriptionRecoveryPolicy@maximumSize": carry("subscriptionRecoveryCount", integer),
        "fixedSizedSubscriptionRecoveryPolicy timedSubscriptionRecoveryPolicy dispatchPolicy": CONTAINER,
        "fixedSizedSubscriptionRecoveryPolicy@maximumSize": carry("subscriptionRecoverySize", size),
        "fixedSizedSubscriptionRecoveryPolicy@useSharedBuffer": natural("each topic keeps its own messages"),
        "timedSubscriptionRecoveryPolicy@recoverDuration": carry("subscriptionRecoveryDuration", milliseconds),
        "noSubscriptionRecoveryPolicy": natural("a topic keeps no messages for later subscribers", whole=True),
        "queryBasedSubscriptionRecoveryPolicy": unsupported("amq has no such policy", whole=True),
        "retainedMessageSubscriptionRecoveryPolicy": unsupported(
            "set subscriptionRecoveryCount = 1: the latest message counts as the retained one", whole=True
        ),
        "roundRobinDispatchPolicy simpleDispatchPolicy": natural("consumers get messages in turn", whole=True),
        "strictOrderDispatchPolicy": natural("each subscriber gets a topic's messages in one order", whole=True),
        "priorityNetworkDispatchPolicy": natural("consumers of higher priority come first", whole=True),
        "priorityDispatchPolicy": natural("consumers of higher priority come first", whole=True),
        "clientIdFilterDispatchPolicy": unsupported("use selectors", whole=True),
        "destinationInterceptors virtualDestinationInterceptor virtualDestinations": CONTAINER,
        "mirroredQueue": unsupported("set divert for the queues that are to be mirrored", whole=True),
    },
)

_REDELIVERY = {
    "redeliveryPlugin": CONTAINER,
    "redeliveryPlugin@fallbackToDeadLetter": only(
        "true",
        "a message that no policy covers becomes a dead letter",
        "a message that no policy covers becomes a dead letter: empty the queue with `amq dlq purge`",
    ),
    "redeliveryPlugin@sendToDlqIfMaxRetriesExceeded": only(
        "true",
        "a message that fails too often becomes a dead letter",
        "a message that fails too often becomes a dead letter: empty the queue with `amq dlq purge`",
    ),
    "redeliveryPolicyMap": CONTAINER,
    "redeliveryPolicyEntries": CONTAINER,
    "redeliveryPolicy@queue": natural(),
    "redeliveryPolicy@topic": natural(),
    "redeliveryPolicy@maximumRedeliveries": carry("maximumRedeliveries", integer),
    "redeliveryPolicy@redeliveryDelay": natural(),
    "redeliveryPolicy@initialRedeliveryDelay": special(_first_delay),
    "redeliveryPolicy@useExponentialBackOff": natural("see redeliveryBackOffMultiplier"),
    "redeliveryPolicy@backOffMultiplier": natural(),
    "redeliveryPolicy@maximumRedeliveryDelay": minus_one(
        special(_any_delay),
        carry("maximumRedeliveryDelay", milliseconds),
    ),
    "redeliveryPolicy@useCollisionAvoidance": only("false", "off", "delays are exact"),
    "redeliveryPolicy@collisionAvoidancePercent": ignored("delays are exact"),
    "redeliveryPolicy@preDispatchCheck": natural("the broker counts deliveries"),
}


def _discard(part: FilePart) -> None:
    """Expired messages are dropped, too. The dead-letter queue keeps rejected ones."""
    part.tell(Status.UNSUPPORTED, "what consumers reject is kept: empty the dead-letter queue with `amq dlq purge`")
    part.importing.set(part, "expiredMessages", "drop", "expired messages")


def _for_topics(part: FilePart) -> Concerned | None:
    """A container of policies that mean nothing in an entry for queues."""
    if part.scope.kind == "topic":
        part.tell(Status.CARRIED, "")
        return None
    part.tell(Status.IGNORED, "it is for topics")
    return NOWHERE


def _keep(part: FilePart, key: str, value: int) -> None:
    part.importing.set(part, key, value)


def _abort(part: FilePart) -> None:
    if part.scope.kind != "topic":
        part.tell(
            Status.UNSUPPORTED,
            "a slow consumer of a queue stays: others get what it has no room for; set a smaller prefetchSize",
        )
        return
    part.importing.set(part, "slowConsumerPolicy", "disconnect", "at pendingMessageLimit, not after a time")
