"""BrokerConfig: the one table of every option, from which defaults, units, help, example file and reference page come.

Invariant: a field's default is its option's documented default, parsed by the same code as a user's value, and its name
is the option's key in snake_case with the unit last. Values made by `loader.load` are within their bounds and do not
contradict each other; whoever constructs a BrokerConfig directly (tests, embedding) answers for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from amq.config.destinations import DestinationOptions
from amq.config.option import DEFAULT_SOURCE, SECTIONS, Kind, Option, Setting, Value, option

DELAY_MS_MAX = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The configuration of one broker. Durations are seconds (`_s`), sizes bytes (`_bytes`).

    destinations  what single destinations have of their own, in the order of the file
    sources   attribute → where its value came from; an attribute that is absent has its default
    warnings  sentences about what is allowed but probably not meant
    """

    name: str = option(
        "broker", "name", Kind.TEXT, "",
        "Name of this broker in logs, `amq status` and the epoch files; blank means the host's name.",
        "Two brokers of one group run on one host: give each its own name.",
        elsewhere=("brokerName",),
    )  # fmt: skip
    store: str = option(
        "broker", "store", Kind.PATH, "",
        "Directory on the shared file system that all brokers of the group use; required to start.",
        "Always: it is the one thing that every broker of a group has in common.",
        elsewhere=("dataDirectory", "journal-directory"),
    )  # fmt: skip
    transports: tuple[str, ...] = option(
        "broker", "transports", Kind.TRANSPORTS, "stomp://127.0.0.1:61613",
        "URLs on which the broker serves clients while it is master.",
        "Clients run on other hosts: listen on `stomp://0.0.0.0:61613`, and give them logins (see usersFile).",
        elsewhere=("transportConnectors", "acceptors"),
    )  # fmt: skip

    lock_acquire_sleep_interval_s: float = option(
        "lock", "lockAcquireSleepInterval", Kind.DURATION, "1s",
        "How long a slave waits between two attempts to get the lock.",
        "Shorter finds a dead master sooner on a network file system; longer asks less of the file server.",
        minimum=10, maximum=3_600_000,
    )  # fmt: skip
    lock_keep_alive_period_s: float = option(
        "lock", "lockKeepAlivePeriod", Kind.DURATION, "2s",
        "For how long one successful check of the lock lets the master confirm work; it checks three times as often.",
        "A file server that stalls for seconds deposes a healthy master: make it longer. A takeover after the loss of "
        "another host waits this long: make it shorter. Use one value for all brokers of a group.",
        minimum=100, maximum=3_600_000,
        minimum_reason="without this check a master that was paused or cut off does not notice that it lost the lock, "
        "and two masters can exist; it cannot be switched off",
    )  # fmt: skip
    fail_if_locked: bool = option(
        "lock", "failIfLocked", Kind.BOOLEAN, False,
        "End with an error instead of waiting as a slave when another broker holds the lock.",
        "A supervisor, not the broker, decides who waits.",
    )  # fmt: skip

    journal_segment_size_bytes: int = option(
        "store", "journalSegmentSize", Kind.SIZE, "32MiB",
        "What a journal file and what is written behind it before it can go take together: a file is filled up to "
        "three quarters of it. A message that is larger gets a file of its own.",
        "Smaller files give space back sooner; larger ones are created less often.",
        minimum=64 << 10, maximum=1 << 30, elsewhere=("journalMaxFileLength", "journal-file-size"),
    )  # fmt: skip
    journal_batch_size_bytes: int = option(
        "store", "journalBatchSize", Kind.SIZE, "4MiB",
        "Most bytes that one write and sync of the journal carries.",
        "Smaller evens out latency under load on a slow disk; larger helps when messages are big.",
        minimum=4 << 10, maximum=1 << 30, elsewhere=("journalMaxWriteBatchSize", "journal-buffer-size"),
    )  # fmt: skip
    journal_reserve_bytes: int = option(
        "store", "journalReserve", Kind.SIZE, "4MiB",
        "Disk space set aside so that acknowledgements, which free space, can be stored on a full disk.",
        "Very many consumers acknowledge at once: more.",
        minimum=64 << 10, maximum=1 << 40,
    )  # fmt: skip
    store_free_floor_bytes: int = option(
        "store", "storeFreeFloor", Kind.SIZE, "64MiB",
        "When less than this is free on the store's file system, sends are refused until space is back.",
        "Other programs fill the same file system: more.",
        minimum=64 << 10, maximum=1 << 50, elsewhere=("max-disk-usage", "disk_free_limit"),
    )  # fmt: skip
    checkpoint_distance_bytes: int = option(
        "store", "checkpointDistance", Kind.SIZE, "128MiB",
        "How far the journal grows before the broker writes down what it holds, so that a start reads no more than "
        "that (and no more than four times what it then wrote).",
        "Messages are tiny, and a start without a slave takes too long: less.",
        minimum=0, maximum=1 << 40, special="0 = never: a start without a slave reads the whole journal",
    )  # fmt: skip
    slave_follow_interval_s: float = option(
        "store", "slaveFollowInterval", Kind.DURATION, "250ms",
        "How often a slave reads what the master has written since, so that little is left to read when it takes over.",
        "The file server is busy: longer. A takeover then takes longer too.",
        minimum=0, maximum=3_600_000, special="0 = never: a takeover begins at the last checkpoint",
    )  # fmt: skip
    allow_unsafe_store: bool = option(
        "store", "allowUnsafeStore", Kind.BOOLEAN, False,
        "Start also where `amq doctor` finds the store unfit; a warning at each start says so.",
        "To try something out, with messages that may be lost. Never to have peace: on such a store there can be two "
        "masters, or none.",
    )  # fmt: skip

    prefetch_size: int = option(
        "queues", "prefetchSize", Kind.INTEGER, 1000,
        "How many unacknowledged messages a consumer gets when its subscription does not say.",
        "Work items take long: 1 shares them evenly among consumers.",
        minimum=1, maximum=1_000_000, reload=True,
        elsewhere=("queuePrefetch", "consumer-window-size", "prefetch-count"), destination=True,
    )  # fmt: skip
    maximum_redeliveries: int = option(
        "queues", "maximumRedeliveries", Kind.INTEGER, 6,
        "How often a message is delivered again before it goes to the dead-letter queue.",
        "0 gives up after the first attempt.",
        minimum=-1, maximum=1_000_000, special="-1 = no limit", reload=True,
        elsewhere=("max-delivery-attempts", "delivery-limit"), destination=True,
    )  # fmt: skip
    redelivery_delay_s: float = option(
        "queues", "redeliveryDelay", Kind.DURATION, 0,
        "How long a message whose delivery failed waits before it is delivered again; those behind it do not wait.",
        "What consumers fail for passes with time: a service that is down, a lock that somebody has.",
        minimum=0, maximum=DELAY_MS_MAX, special="0 = at once", reload=True,
        elsewhere=("initialRedeliveryDelay", "redelivery-delay"), destination=True,
    )  # fmt: skip
    redelivery_back_off_multiplier: int = option(
        "queues", "redeliveryBackOffMultiplier", Kind.INTEGER, 1,
        "How many times longer than before a message waits after each further failure.",
        "What is down for long should be asked less and less often: 2 doubles the delay each time.",
        minimum=1, maximum=1000, special="1 = always redeliveryDelay", reload=True,
        elsewhere=("backOffMultiplier", "useExponentialBackOff", "redelivery-delay-multiplier"), destination=True,
    )  # fmt: skip
    maximum_redelivery_delay_s: float = option(
        "queues", "maximumRedeliveryDelay", Kind.DURATION, "1h",
        "A message whose delivery failed waits no longer than this, whatever the multiplier says.",
        "Together with redeliveryBackOffMultiplier, to say how late a message may come once all is well again.",
        minimum=1, maximum=DELAY_MS_MAX, reload=True,
        elsewhere=("max-redelivery-delay",), destination=True,
    )  # fmt: skip
    dead_letter_strategy: str = option(
        "queues", "deadLetterStrategy", Kind.CHOICE, "individual",
        "One dead-letter queue for each queue, or one shared by all.",
        "One place to watch for a small installation: shared.",
        choices=("individual", "shared"), elsewhere=("individualDeadLetterStrategy", "sharedDeadLetterStrategy"),
    )  # fmt: skip
    dead_letter_prefix: str = option(
        "queues", "deadLetterPrefix", Kind.DESTINATION, "DLQ.",
        "What the individual dead-letter queue of a queue puts before its name.",
        "Existing tools look for another name.",
        elsewhere=("queuePrefix", "dead-letter-queue-prefix"),
    )  # fmt: skip
    shared_dead_letter_queue: str = option(
        "queues", "sharedDeadLetterQueue", Kind.DESTINATION, "ActiveMQ.DLQ",
        "Name of the dead-letter queue under the strategy shared.",
        "Existing tools look for another name.",
        elsewhere=("deadLetterQueue", "dead-letter-address"),
    )  # fmt: skip
    expired_messages: str = option(
        "queues", "expiredMessages", Kind.CHOICE, "drop",
        "What happens to a message whose time ran out before it was consumed.",
        "Expiry means that something is wrong, and somebody should see the message: dead-letter.",
        choices=("drop", "dead-letter"), reload=True, elsewhere=("processExpired", "expiry-address"), destination=True,
    )  # fmt: skip
    expiry_queue: str = option(
        "queues", "expiryQueue", Kind.TEXT, "",
        "Name of a queue to which messages go whose time ran out before they were consumed; blank = see "
        "expiredMessages.",
        "What came too late shall be seen, and is not to be mixed with what nobody could use.",
        reload=True, elsewhere=("expiry-queue", "expiryAddress"), destination=True,
    )  # fmt: skip
    dead_letter_non_persistent: bool = option(
        "queues", "deadLetterNonPersistent", Kind.BOOLEAN, True,
        "Move non-persistent messages to the dead-letter queue too, rather than drop them.",
        "Non-persistent messages are worthless once late.",
        reload=True, elsewhere=("processNonPersistent",), destination=True,
    )  # fmt: skip
    group_buckets: int = option(
        "queues", "groupBuckets", Kind.INTEGER, 1024,
        "Into how many buckets the message groups (JMSXGroupID) of a queue fall, each of which belongs to one "
        "consumer; changes apply when groups are next used anew.",
        "Many consumers share a queue, and two groups in one bucket must not keep each other waiting: more.",
        minimum=1, maximum=1 << 20, reload=True, elsewhere=("bucketCount", "default-group-buckets"), destination=True,
    )  # fmt: skip
    group_rebalance: bool = option(
        "queues", "groupRebalance", Kind.BOOLEAN, False,
        "When a consumer joins, give message groups to consumers anew, each when nothing of it is unacknowledged.",
        "Groups live long, and consumers that come later shall have their share of them.",
        reload=True, elsewhere=("default-group-rebalance",), destination=True,
    )  # fmt: skip
    queue_limit_bytes: int = option(
        "queues", "queueLimit", Kind.SIZE, 0,
        "Most bytes of messages in one queue; at it queueLimitPolicy says what happens.",
        "A consumer that stays away must not fill the store for all others.",
        minimum=0, maximum=1 << 50, special="0 = no limit", reload=True,
        elsewhere=("max-size-bytes", "max-length-bytes", "queueMemoryLimit"), destination=True,
    )  # fmt: skip
    queue_limit_policy: str = option(
        "queues", "queueLimitPolicy", Kind.CHOICE, "block",
        "At queueLimit: stop reading from producers until there is room, answer each send with an error, or move the "
        "oldest messages to the dead-letter queue.",
        "Producers have something better to do than wait: fail. New messages count more than old ones: drop-oldest.",
        choices=("block", "fail", "drop-oldest"), reload=True,
        elsewhere=("address-full-policy", "overflow", "messageEvictionStrategy"), destination=True,
    )  # fmt: skip
    last_value_key: str = option(
        "queues", "lastValueKey", Kind.TEXT, "",
        "Name of a property of messages: of those with the same value of it only the newest waits, blank = all wait.",
        "Only the present state counts, such as the last price of each share. Artemis calls it `_AMQ_LVQ_NAME`.",
        reload=True, elsewhere=("last-value-key", "default-last-value-key"), destination=True,
    )  # fmt: skip
    ring_size: int = option(
        "queues", "ringSize", Kind.INTEGER, 0,
        "How many messages may wait in one queue, besides those that consumers have: the oldest goes.",
        "Only the latest messages count, such as the last 1000 lines of a log.",
        minimum=0, maximum=1 << 40, special="0 = any number", reload=True,
        elsewhere=("ring-size", "default-ring-size"), destination=True,
    )  # fmt: skip
    divert: str = option(
        "queues", "divert", Kind.TEXT, "",
        "Name of a queue to which messages for a destination go too, blank = none; see divertExclusive.",
        "Somebody audits what goes through a destination, or its messages have moved.",
        reload=True, elsewhere=("forwarding-address", "forwardTo"), destination=True,
    )  # fmt: skip
    divert_exclusive: bool = option(
        "queues", "divertExclusive", Kind.BOOLEAN, False,
        "Messages go where divert says, and not to the destination itself.",
        "The destination has moved: producers that still use the old name reach the new one.",
        reload=True, elsewhere=("exclusive", "forwardOnly"), destination=True,
    )  # fmt: skip
    scheduler_support: bool = option(
        "queues", "schedulerSupport", Kind.BOOLEAN, True,
        "Deliver messages later, or again and again, where their headers ask for it (AMQ_SCHEDULED_DELAY and others).",
        "Messages are passed on with such headers, which mean something to others only. What is scheduled stays so.",
        reload=True,
    )  # fmt: skip
    duplicate_window: int = option(
        "queues", "duplicateWindow", Kind.INTEGER, 20_000,
        "How many producer-given message ids each destination remembers, to store a resent message once.",
        "More than this many messages to one destination can be in flight while the group fails over: more. It costs "
        "memory for each destination.",
        minimum=0, maximum=10_000_000, special="0 = off", elsewhere=("id-cache-size", "maxFailoverProducersToTrack"),
    )  # fmt: skip
    outcome_window: int = option(
        "queues", "outcomeWindow", Kind.INTEGER, 20_000,
        "How many commit outcomes are remembered, for clients that lost the connection while they committed.",
        "More transactions than this commit while a client reconnects: more.",
        minimum=1, maximum=10_000_000,
    )  # fmt: skip

    pending_message_limit: int = option(
        "topics", "pendingMessageLimit", Kind.INTEGER, 10_000,
        "How many messages may wait for one subscription to a topic, besides those that its consumer has; past it, and "
        "past its share of memory, slowConsumerPolicy says what happens.",
        "Consumers must see everything, and producers may wait for them: 0.",
        minimum=0, maximum=100_000_000, special="0 = any number: producers wait when memory is full", reload=True,
        elsewhere=("constantPendingMessageLimitStrategy", "pendingMessageLimitStrategy"), destination=True,
    )  # fmt: skip
    slow_consumer_policy: str = option(
        "topics", "slowConsumerPolicy", Kind.CHOICE, "discard-oldest",
        "At pendingMessageLimit: the slow consumer misses the oldest messages that wait for it, or its connection ends "
        "with an error.",
        "A gap is worse than no consumer, which notices that and starts anew: disconnect.",
        choices=("discard-oldest", "disconnect"), reload=True,
        elsewhere=("abortSlowConsumerStrategy", "slow-consumer-policy"), destination=True,
    )  # fmt: skip

    subscription_recovery_count: int = option(
        "topics", "subscriptionRecoveryCount", Kind.INTEGER, 0,
        "How many of its latest messages a topic keeps in memory for who subscribes later and asks for them "
        "(activemq.retroactive:true).",
        "Who comes must know the present state at once: 1, or as many messages as describe it.",
        minimum=0, maximum=100_000_000, special="0 = subscriptionRecoverySize and subscriptionRecoveryDuration say",
        reload=True,
        elsewhere=(
            "lastImageSubscriptionRecoveryPolicy", "fixedCountSubscriptionRecoveryPolicy", "retroactive-message-count",
        ),
        destination=True,
    )  # fmt: skip
    subscription_recovery_size_bytes: int = option(
        "topics", "subscriptionRecoverySize", Kind.SIZE, 0,
        "How much memory the latest messages of a topic take at most, which it keeps for who asks for them.",
        "Messages are of very different sizes.",
        minimum=0, maximum=1 << 40, special="0 = subscriptionRecoveryCount and subscriptionRecoveryDuration say",
        reload=True, elsewhere=("fixedSizedSubscriptionRecoveryPolicy",), destination=True,
    )  # fmt: skip
    subscription_recovery_duration_s: float = option(
        "topics", "subscriptionRecoveryDuration", Kind.DURATION, 0,
        "How old the messages of a topic are at most which it keeps for who asks for them.",
        "Only what happened lately matters to who comes.",
        minimum=0, maximum=DELAY_MS_MAX, special="0 = subscriptionRecoveryCount and subscriptionRecoverySize say",
        reload=True, elsewhere=("timedSubscriptionRecoveryPolicy", "recoverDuration"), destination=True,
    )  # fmt: skip

    virtual_topics: str = option(
        "topics", "virtualTopics", Kind.TEXT, "VirtualTopic.>",
        "Topics whose messages also go to queues that consume them; a name or a pattern, blank = none.",
        "Existing topics shall be consumed by groups of consumers that share the work: `>` for all.",
        elsewhere=("virtualTopic",),
    )  # fmt: skip
    virtual_topic_consumers: str = option(
        "topics", "virtualTopicConsumers", Kind.TEXT, "Consumer.*.",
        "What the name of a queue that consumes a virtual topic has before that topic's name.",
        "Existing clients use another name.",
    )  # fmt: skip

    memory_limit_bytes: int = option(
        "limits", "memoryLimit", Kind.SIZE, "1GiB",
        "Most memory that messages may take; persistent ones beyond it wait on disk, producers of others wait.",
        "The host has more or less memory to give. The process needs some beside it.",
        minimum=1 << 20, maximum=1 << 44, reload=True,
        elsewhere=("memoryUsage", "vm_memory_high_watermark"),
    )  # fmt: skip
    store_limit_bytes: int = option(
        "limits", "storeLimit", Kind.SIZE, 0,
        "Most bytes that the journal's files may take; near it producerFlowControl says what happens to persistent "
        "messages.",
        "The file system is shared with others. Give twice what the messages take that wait at a time, and a few "
        "journal files more.",
        minimum=0, maximum=1 << 50, special="0 = what the file system gives", reload=True,
        elsewhere=("storeUsage", "global-max-size"),
    )  # fmt: skip
    producer_flow_control: str = option(
        "limits", "producerFlowControl", Kind.CHOICE, "block",
        "At memoryLimit and storeLimit: stop reading from producers until there is room, or answer each send with an "
        "error.",
        "Producers have something better to do than wait: fail.",
        choices=("block", "fail"), reload=True, elsewhere=("sendFailIfNoSpace",),
    )  # fmt: skip
    max_connections: int = option(
        "limits", "maxConnections", Kind.INTEGER, 10_000,
        "Most client connections at a time; one more is told so and closed.",
        "The process may open fewer files (`ulimit -n`).",
        minimum=1, maximum=1_000_000, reload=True, elsewhere=("maximumConnections", "connectionsAllowed"),
    )  # fmt: skip
    max_frame_size_bytes: int = option(
        "limits", "maxFrameSize", Kind.SIZE, "100MiB",
        "Largest message body.",
        "Messages are known to be small: a lower limit finds mistakes sooner.",
        minimum=1 << 10, maximum=1 << 30, reload=True, elsewhere=("wireFormat.maxFrameSize", "max_message_size"),
    )  # fmt: skip
    max_header_count: int = option(
        "limits", "maxHeaderCount", Kind.INTEGER, 1000,
        "Most headers of one message or command.",
        "Seldom.",
        minimum=16, maximum=100_000, reload=True,
    )  # fmt: skip
    max_header_size_bytes: int = option(
        "limits", "maxHeaderSize", Kind.SIZE, "10KiB",
        "Longest header, name and value together.",
        "Applications carry large tokens in headers.",
        minimum=256, maximum=1 << 20, reload=True,
    )  # fmt: skip
    max_header_block_size_bytes: int = option(
        "limits", "maxHeaderBlockSize", Kind.SIZE, "64KiB",
        "Most bytes that all headers of one message or command take together.",
        "Applications carry much in headers.",
        minimum=256, maximum=16 << 20, reload=True,
    )  # fmt: skip
    unfinished_frame_timeout_s: float = option(
        "limits", "unfinishedFrameTimeout", Kind.DURATION, "30s",
        "How long a client may take from the first to the last byte of a command before it is disconnected; a second "
        "more for each 64 KiB that came.",
        "Clients stop for long in the middle of a message: longer.",
        minimum=100, maximum=86_400_000, reload=True,
    )  # fmt: skip
    connect_timeout_s: float = option(
        "limits", "connectTimeout", Kind.DURATION, "10s",
        "How long a new connection may take to log in before it is closed.",
        "Clients are slow to start to talk: longer.",
        minimum=100, maximum=3_600_000, reload=True,
        elsewhere=("handshake_timeout",),
    )  # fmt: skip
    transaction_timeout_s: float = option(
        "limits", "transactionTimeout", Kind.DURATION, "5m",
        "How long an open transaction may be idle before the broker rolls it back.",
        "Jobs keep a transaction open while they compute: longer.",
        minimum=100, maximum=604_800_000, reload=True, elsewhere=("transaction-timeout",),
    )  # fmt: skip
    prepared_transaction_timeout_s: float = option(
        "limits", "preparedTransactionTimeout", Kind.DURATION, "1h",
        "How long a prepared transaction waits for its commit before the broker rolls it back, where its prepare does "
        "not say.",
        "A coordinator may be away for longer: longer, or 0.",
        minimum=0, maximum=2_592_000_000, special="0 = for ever", reload=True,
    )  # fmt: skip
    max_transaction_size_bytes: int = option(
        "limits", "maxTransactionSize", Kind.SIZE, "256MiB",
        "Most bytes that one open transaction may hold; it is rolled back if it grows past that.",
        "Large transactions are meant, and memoryLimit has room for them.",
        minimum=1 << 10, maximum=1 << 31, reload=True,  # it is one record, which has 32 bits for its length
    )  # fmt: skip
    consumer_buffer_size_bytes: int = option(
        "limits", "consumerBufferSize", Kind.SIZE, "1MiB",
        "Bytes that may wait for the socket of a slow consumer before the broker stops sending it more.",
        "Many slow consumers take too much memory: less.",
        minimum=4 << 10, maximum=1 << 30, reload=True,
    )  # fmt: skip

    heart_beat_send_s: float = option(
        "stomp", "heartBeatSend", Kind.DURATION, "10s",
        "How often the broker can send a heart-beat; the client chooses this or longer.",
        "Firewalls forget idle connections sooner: shorter.",
        minimum=0, maximum=86_400_000, special="0 = none", reload=True,
    )  # fmt: skip
    heart_beat_receive_s: float = option(
        "stomp", "heartBeatReceive", Kind.DURATION, "10s",
        "How often the broker would like a heart-beat from clients that offer one.",
        "Dead clients should be noticed sooner: shorter.",
        minimum=0, maximum=86_400_000, special="0 = none", reload=True,
    )  # fmt: skip
    stomp_default_persistent: bool = option(
        "stomp", "stompDefaultPersistent", Kind.BOOLEAN, True,
        "Whether a message without a `persistent` header is persistent.",
        "Clients written for ActiveMQ, where it is not, send what may be lost: false is faster.",
        reload=True,
    )  # fmt: skip

    anonymous: str = option(
        "security", "anonymous", Kind.CHOICE, "loopback",
        "Who may connect without a login: nobody, connections from this host, or everybody.",
        "The network is trusted: yes. Even local programs must log in: no.",
        choices=("loopback", "yes", "no"), reload=True, elsewhere=("anonymousAccessAllowed",),
    )  # fmt: skip
    allow_link_stealing: bool = option(
        "security", "allowLinkStealing", Kind.BOOLEAN, False,
        "A new connection ends an older one of the same user and client id, instead of being refused what that uses.",
        "Clients reconnect before the broker notices that they were gone (ours need it not for that).",
        reload=True,
    )  # fmt: skip
    users_file: str = option(
        "security", "usersFile", Kind.PATH, "",
        "File with the users and their salted password hashes (`amq user add` writes it); blank means no users.",
        "Clients connect from other hosts.",
        reload=True, elsewhere=("simpleAuthenticationPlugin",),
    )  # fmt: skip

    log_level: str = option(
        "log", "logLevel", Kind.CHOICE, "info",
        "The least important lines to write.",
        "While looking for a fault: debug.",
        choices=("debug", "info", "warning", "error"), reload=True, elsewhere=("rootLogger",),
    )  # fmt: skip
    log_format: str = option(
        "log", "logFormat", Kind.CHOICE, "auto",
        "Lines for people or JSON for machines; auto means console on a terminal, else JSON.",
        "A log collector reads the terminal's output, or people read a file.",
        choices=("console", "json", "auto"),
    )  # fmt: skip

    destinations: tuple[DestinationOptions, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    warnings: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def explain(self) -> list[Setting]:
        """Every option with its effective value and where that came from, in the order of the table; then what single
        destinations have of their own."""
        settings = [
            Setting(made, made.format(self.get(made)), self.sources.get(made.attribute, DEFAULT_SOURCE))
            for made in OPTIONS
        ]
        for table in self.destinations:
            settings += [
                Setting(made, made.format(table.values[made.attribute]), table.sources[made.attribute], table.pattern)
                for made in OPTIONS
                if made.attribute in table.values
            ]
        return settings

    def get(self, made: Option) -> Value:
        """The value of the option `made`."""
        value: Value = getattr(self, made.attribute)
        return value


def _collect() -> tuple[Option, ...]:
    found: list[Option] = []
    for field in dataclasses.fields(BrokerConfig):
        if "option" in field.metadata:
            made: Option = field.metadata["option"]
            assert made.attribute == field.name, f"{made.key}: call the field {made.attribute}, not {field.name}"
            assert made.section in SECTIONS, made.section
            found.append(made)
    return tuple(found)


OPTIONS: tuple[Option, ...] = _collect()
BY_KEY: Mapping[str, Option] = {made.key: made for made in OPTIONS}
assert len(BY_KEY) == len(OPTIONS), "two options share a key"
assert all(made.reload for made in OPTIONS if made.destination), "all of a destination's options change together"
