"""The options of scope destination: DestinationDefaults are the values that hold for every destination,
DestinationOptions those of one table `[destinations."orders.>"]` of the configuration file.

A pattern is a destination's name in which `.` separates words, `*` stands for one word and a final `>` for all further
words, also none. `amq.config.policies` finds the options of one destination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from amq.config.option import OptionScope, Section, Value

TABLE = "destinations"

# All of them apply while the broker runs: a queue has one configuration, which changes as a whole.
QUEUES = Section(OptionScope.DESTINATION, "queues", reload=True)
TOPICS = Section(OptionScope.DESTINATION, "topics", reload=True)
DELAY_MS_MAX = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class DestinationOptions:
    """The options that one pattern sets: attribute of BrokerConfig → value, and → where that is written."""

    pattern: str
    values: Mapping[str, Value]
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class DestinationDefaults:
    """Durations are seconds (`_s`), sizes bytes (`_bytes`)."""

    __slots__ = ()

    prefetch_size: int = QUEUES.integer(
        1000,
        "How many unacknowledged messages a consumer gets if its subscription does not say.",
        "Use 1 if messages take long to process: it shares them evenly among consumers.",
        minimum=1,
        maximum=1_000_000,
        elsewhere=("queuePrefetch", "consumer-window-size", "prefetch-count"),
    )
    maximum_redeliveries: int = QUEUES.integer(
        6,
        "How often a message is delivered again before it goes to the dead-letter queue.",
        "Use 0 to give up after the first attempt.",
        minimum=-1,
        maximum=1_000_000,
        special="-1 = no limit",
        elsewhere=("max-delivery-attempts", "delivery-limit"),
    )
    redelivery_delay_s: float = QUEUES.duration(
        0,
        "How long a message whose delivery failed waits before it is delivered again; later messages do not wait.",
        "Set it if failures pass with time, such as a service that is down or a lock that somebody holds.",
        minimum=0,
        maximum=DELAY_MS_MAX,
        special="0 = at once",
        elsewhere=("initialRedeliveryDelay", "redelivery-delay"),
    )
    redelivery_back_off_multiplier: float = QUEUES.decimal(
        1,
        "Factor by which the delay grows after each further failure.",
        "Use 2 to double the delay each time, so that a service that is down for long is asked less and less often.",
        minimum=1,
        maximum=1000,
        special="1 = always redeliveryDelay",
        elsewhere=("backOffMultiplier", "useExponentialBackOff", "redelivery-delay-multiplier"),
    )
    maximum_redelivery_delay_s: float = QUEUES.duration(
        "1h",
        "Longest delay before a redelivery, whatever the multiplier says.",
        "Set it with redeliveryBackOffMultiplier to bound how late a message may come once all is well again.",
        minimum=1,
        maximum=DELAY_MS_MAX,
        elsewhere=("max-redelivery-delay",),
    )
    rejected_messages: str = QUEUES.choice(
        "dead-letter",
        "A message that a consumer rejects (NACK of STOMP, or a JMS client that gives up) becomes a dead letter at "
        "once, or is delivered again after redeliveryDelay, up to maximumRedeliveries times.",
        "Use redeliver if consumers reject messages for reasons that pass, as with the redeliveryPlugin of ActiveMQ.",
        choices=("dead-letter", "redeliver"),
        elsewhere=("redeliveryPlugin",),
    )
    expired_messages: str = QUEUES.choice(
        "drop",
        "Drop expired messages, or move them to the dead-letter queue.",
        "Use dead-letter if expiry means that something is wrong and somebody should see the message.",
        choices=("drop", "dead-letter"),
        elsewhere=("processExpired", "expiry-address"),
    )
    expiry_queue: str = QUEUES.text(
        "",
        "Name of the queue to which expired messages go; blank = see expiredMessages.",
        "Set it to keep expired messages, apart from those that no consumer could process.",
        elsewhere=("expiry-queue", "expiryAddress"),
    )
    dead_letter_non_persistent: bool = QUEUES.boolean(
        True,
        "Move non-persistent messages to the dead-letter queue too, rather than drop them.",
        "Use false if non-persistent messages are worthless once late.",
        elsewhere=("processNonPersistent",),
    )
    group_buckets: int = QUEUES.integer(
        1024,
        "Number of buckets for the message groups (JMSXGroupID) of a queue; each bucket belongs to one consumer. A "
        "change applies when groups are next used anew.",
        "Use more if many consumers share a queue and groups in one bucket must not delay each other.",
        minimum=1,
        maximum=1 << 20,
        elsewhere=("bucketCount", "default-group-buckets"),
    )
    group_rebalance: bool = QUEUES.boolean(
        False,
        "When a consumer joins, assign message groups anew, each when none of its messages is unacknowledged.",
        "Set it if groups live long and later consumers should get their share of them.",
        elsewhere=("default-group-rebalance",),
    )
    queue_limit_bytes: int = QUEUES.size(
        0,
        "Most bytes of messages in one queue; queueLimitPolicy decides what happens at the limit.",
        "Set it so that an absent consumer cannot fill the store for all others.",
        minimum=0,
        maximum=1 << 50,
        special="0 = no limit",
        elsewhere=("max-size-bytes", "max-length-bytes", "queueMemoryLimit"),
    )
    queue_limit_policy: str = QUEUES.choice(
        "block",
        "At queueLimit: block producers until there is room, reject each send with an error, or move the oldest "
        "messages to the dead-letter queue.",
        "Use fail if producers can do better than wait, and drop-oldest if new messages matter more than old ones.",
        choices=("block", "fail", "drop-oldest"),
        elsewhere=("address-full-policy", "overflow", "messageEvictionStrategy"),
    )
    last_value_key: str = QUEUES.text(
        "",
        "Name of a message property; of messages with the same value of it only the newest waits, blank = all wait.",
        "Set it if only the present state counts, such as the last price of each share. Artemis calls it "
        "`_AMQ_LVQ_NAME`.",
        elsewhere=("last-value-key", "default-last-value-key"),
    )
    ring_size: int = QUEUES.integer(
        0,
        "How many messages may wait in one queue, without those that consumers have; the oldest goes.",
        "Set it if only the latest messages count, such as the last 1000 lines of a log.",
        minimum=0,
        maximum=1 << 40,
        special="0 = any number",
        elsewhere=("ring-size", "default-ring-size"),
    )
    divert: str = QUEUES.diverts(
        "",
        "Queues and topics that also get the messages of a destination, blank = none: a name, or a list of diverts, "
        'such as "from queue to topic://news exclusive where price > 100". See divertExclusive.',
        "Set it to audit a destination, or if its messages have moved.",
        elsewhere=("forwarding-address", "forwardTo"),
    )
    divert_exclusive: bool = QUEUES.boolean(
        False,
        "Send diverted messages to what divert names only, not to the destination itself, unless a divert says "
        "`exclusive` or `copy`.",
        "Set it if the destination has moved: producers that use the old name then reach the new one.",
        elsewhere=("exclusive", "forwardOnly"),
    )

    pending_message_limit: int = TOPICS.integer(
        10_000,
        "How many messages may wait for one subscription to a topic, without those that its consumer has. Beyond it, "
        "or beyond the subscription's share of memory, slowConsumerPolicy applies.",
        "Use 0 if consumers must see everything and producers may wait for them.",
        minimum=0,
        maximum=100_000_000,
        special="0 = any number: producers wait when memory is full",
        elsewhere=("constantPendingMessageLimitStrategy", "pendingMessageLimitStrategy"),
    )
    slow_consumer_policy: str = TOPICS.choice(
        "discard-oldest",
        "At pendingMessageLimit: discard the oldest messages that wait for the slow consumer, or end its connection "
        "with an error.",
        "Use disconnect if a gap is worse than a consumer that notices the error and starts anew.",
        choices=("discard-oldest", "disconnect"),
        elsewhere=("abortSlowConsumerStrategy", "slow-consumer-policy"),
    )
    subscription_recovery_count: int = TOPICS.integer(
        0,
        "How many of its latest messages a topic keeps in memory for later subscribers that ask for them "
        "(activemq.retroactive:true).",
        "Set it if new subscribers need the present state at once: 1, or as many messages as describe it.",
        minimum=0,
        maximum=100_000_000,
        special="0 = subscriptionRecoverySize and subscriptionRecoveryDuration say",
        elsewhere=(
            "lastImageSubscriptionRecoveryPolicy",
            "fixedCountSubscriptionRecoveryPolicy",
            "retroactive-message-count",
        ),
    )
    subscription_recovery_size_bytes: int = TOPICS.size(
        0,
        "Most memory for the latest messages that a topic keeps for later subscribers.",
        "Set it if messages differ much in size.",
        minimum=0,
        maximum=1 << 40,
        special="0 = subscriptionRecoveryCount and subscriptionRecoveryDuration say",
        elsewhere=("fixedSizedSubscriptionRecoveryPolicy",),
    )
    subscription_recovery_duration_s: float = TOPICS.duration(
        0,
        "Greatest age of the messages that a topic keeps for later subscribers.",
        "Set it if only recent messages matter to new subscribers.",
        minimum=0,
        maximum=DELAY_MS_MAX,
        special="0 = subscriptionRecoveryCount and subscriptionRecoverySize say",
        elsewhere=("timedSubscriptionRecoveryPolicy", "recoverDuration"),
    )
