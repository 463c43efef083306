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
from amq.config.security_options import SecurityOptions

DELAY_MS_MAX = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class BrokerConfig(SecurityOptions):
    """The configuration of one broker. Durations are seconds (`_s`), sizes bytes (`_bytes`).

    destinations  what single destinations have of their own, in the order of the file
    sources   attribute → where its value came from; an attribute that is absent has its default
    warnings  sentences about what is allowed but probably not meant
    """

    name: str = option(
        "broker",
        "name",
        Kind.TEXT,
        "",
        "Name of this broker in logs, `amq status` and the epoch files; blank means the host's name.",
        "Give each broker its own name if two brokers of one group run on one host.",
        elsewhere=("brokerName", "leaseHolderId"),
    )
    store: str = option(
        "broker",
        "store",
        Kind.PATH,
        "",
        "The directory on the shared file system that all brokers of a group use, or the URL of a database. Required.",
        "Always set it: every broker of a group uses the same one. postgresql://HOST/DATABASE is described in "
        "docs/postgresql.md.",
        elsewhere=("dataDirectory", "journal-directory"),
    )
    transports: tuple[str, ...] = option(
        "broker",
        "transports",
        Kind.TRANSPORTS,
        "stomp://127.0.0.1:61613",
        "URLs on which the broker serves clients while it is master.",
        "Use `stomp://0.0.0.0:61613` if clients run on other hosts, and give them logins (see usersFile).",
        elsewhere=("transportConnectors", "acceptors"),
    )

    management_socket: str = option(
        "broker",
        "managementSocket",
        Kind.TEXT,
        "auto",
        "Path of the Unix socket at which `amq queues`, the other commands of operators and the console reach this "
        "broker. Only its own user and root may connect. auto: NAME-….sock in $RUNTIME_DIRECTORY/amq, "
        "$XDG_RUNTIME_DIR/amq or /tmp/amq-UID. none: there is no such socket.",
        "Give a path if programs in other containers must reach the socket.",
    )

    probe_listen: str = option(
        "broker",
        "probeListen",
        Kind.TEXT,
        "",
        "HOST:PORT where the broker itself answers /livez, /readyz and /masterz, without a login and over plain HTTP; "
        "blank = nowhere.",
        "Set it for Kubernetes and load balancers, such as 0.0.0.0:8162: a console could be held up by others.",
    )

    locker: str = option(
        "lock",
        "locker",
        Kind.TEXT,
        "",
        "URL of a PostgreSQL database in which the lock of this store is, postgresql://HOST/DATABASE; the journal "
        "stays in the store directory. Blank means that the lock is a file of the store.",
        "Use it where the locks of the shared file system cannot be trusted, but its writes can. Give each group its "
        "own `tablePrefix`, and all brokers of a group the same database. See docs/postgresql.md.",
        elsewhere=("lease-database-locker", "database-locker"),
    )
    lock_acquire_sleep_interval_s: float = option(
        "lock",
        "lockAcquireSleepInterval",
        Kind.DURATION,
        "1s",
        "How long a slave waits between two attempts to get the lock.",
        "A shorter interval finds a dead master sooner on a network file system; a longer one asks less of the file "
        "server.",
        minimum=10,
        maximum=3_600_000,
    )
    lock_keep_alive_period_s: float = option(
        "lock",
        "lockKeepAlivePeriod",
        Kind.DURATION,
        "2s",
        "How long one successful check of the lock lets the master confirm work; it checks three times as often.",
        "Use a longer period if the file server stalls for seconds, because such a stall deposes a healthy master. "
        "Use a shorter one for a faster takeover after the loss of another host. Use one value for all brokers of a "
        "group.",
        minimum=100,
        maximum=3_600_000,
        minimum_reason="without this check a master that was paused or cut off does not notice that it lost the lock, "
        "and two masters can exist; it cannot be switched off",
    )
    fail_if_locked: bool = option(
        "lock",
        "failIfLocked",
        Kind.BOOLEAN,
        False,
        "If another broker holds the lock, end with an error instead of waiting as a slave.",
        "Set it if a supervisor, not the broker, decides which broker waits.",
    )

    priority: int = option(
        "ha",
        "priority",
        Kind.INTEGER,
        0,
        "The broker with the highest priority should be master. When it has caught up as a slave, the master hands "
        "over to it (see allowFailback). Brokers of equal priority leave the store to each other.",
        "Give the best host the highest number, if it matters which host serves.",
        minimum=-1000,
        maximum=1000,
        elsewhere=("check-for-live-server", "brokerPriority"),
    )
    allow_failback: bool = option(
        "ha",
        "allowFailback",
        Kind.BOOLEAN,
        True,
        "Whether this broker, as master, hands over to a slave of higher priority that has caught up.",
        "Use false if a person decides when the preferred broker serves again: `amq handover`.",
        reload=True,
        elsewhere=("allow-failback",),
    )
    failback_delay_s: float = option(
        "ha",
        "failbackDelay",
        Kind.DURATION,
        "5s",
        "How long a slave of higher priority must have been ready before the master hands over to it. The delay "
        "doubles with each failback of the last hour, up to one hour.",
        "Use a longer delay if the preferred host is slow to become stable after a start.",
        minimum=0,
        maximum=3_600_000,
        reload=True,
        elsewhere=("failback-delay",),
    )
    hung_master_timeout_s: float = option(
        "ha",
        "hungMasterTimeout",
        Kind.DURATION,
        "10s",
        "A slave that sees no heartbeat of the master for so long, and never sooner than five lockKeepAlivePeriods "
        "of the master, replaces the lock file and takes over. The master may be stopped, or cut off from the store.",
        "Use a longer time if the file server stalls for longer, because the master writes no heartbeat meanwhile.",
        minimum=0,
        maximum=86_400_000,
        special="0 = never: a person must end a master that hangs",
        reload=True,
    )
    failover_on_shutdown: bool = option(
        "ha",
        "failoverOnShutdown",
        Kind.BOOLEAN,
        True,
        "Whether a slave takes over when this broker, as master, is stopped in good order.",
        "Use false if a clean stop is meant to end the service: the slaves then wait for `amq handover`, or for the "
        "start of a broker. After a crash a slave takes over in any case.",
        reload=True,
        elsewhere=("failover-on-shutdown", "failover-on-server-shutdown"),
    )
    wait_for_activation: bool = option(
        "ha",
        "waitForActivation",
        Kind.BOOLEAN,
        False,
        "Whether the broker reports that it is ready only once it is master. Otherwise a slave is as ready as a "
        "master.",
        "Set it if what starts after the broker needs a master on this host (systemd: After=, Type=notify).",
        elsewhere=("wait-for-activation",),
    )
    advertised_transports: tuple[str, ...] = option(
        "ha",
        "advertisedTransports",
        Kind.ADDRESSES,
        "",
        "URLs under which clients reach this broker while it is master; the group tells them to its clients.",
        "Set it if clients do not reach the broker at the address on which it listens: behind NAT or a proxy, in a "
        "container, or under a name that the host does not have itself.",
        special="blank = transports, with the host's name in place of 0.0.0.0",
        reload=True,
        elsewhere=("publishedAddressPolicy", "connector-ref"),
    )
    update_cluster_clients: bool = option(
        "ha",
        "updateClusterClients",
        Kind.BOOLEAN,
        True,
        "Tell clients that have logged in the addresses of all brokers of the group, and each change of them.",
        "Use false if clients must know only the brokers that their URL names.",
        reload=True,
    )

    journal_segment_size_bytes: int = option(
        "store",
        "journalSegmentSize",
        Kind.SIZE,
        "32MiB",
        "Most bytes of a journal file together with the records that must be written before it can be deleted; "
        "the broker fills a file up to three quarters of this. A larger message gets a file of its own.",
        "Smaller files give space back sooner; larger ones are created less often.",
        minimum=64 << 10,
        maximum=1 << 30,
        elsewhere=("journalMaxFileLength", "journal-file-size"),
    )
    journal_batch_size_bytes: int = option(
        "store",
        "journalBatchSize",
        Kind.SIZE,
        "4MiB",
        "Most bytes that one write and sync of the journal carries.",
        "A smaller value evens out latency under load on a slow disk; a larger one helps with large messages.",
        minimum=4 << 10,
        maximum=1 << 30,
        elsewhere=("journalMaxWriteBatchSize", "journal-buffer-size"),
    )
    journal_reserve_bytes: int = option(
        "store",
        "journalReserve",
        Kind.SIZE,
        "4MiB",
        "Disk space set aside so that acknowledgements, which free space, can be stored on a full disk.",
        "Reserve more if a large number of consumers acknowledge at once.",
        minimum=64 << 10,
        maximum=1 << 40,
    )
    store_free_floor_bytes: int = option(
        "store",
        "storeFreeFloor",
        Kind.SIZE,
        "64MiB",
        "When less than this is free on the store's file system, sends are rejected until space is back.",
        "Use more if other programs fill the same file system.",
        minimum=64 << 10,
        maximum=1 << 50,
        elsewhere=("max-disk-usage", "disk_free_limit"),
    )
    checkpoint_distance_bytes: int = option(
        "store",
        "checkpointDistance",
        Kind.SIZE,
        "128MiB",
        "How far the journal grows between two checkpoints. A start reads no more than this behind the last "
        "checkpoint, or four times the checkpoint's own size.",
        "Use less if messages are tiny and a start without a slave takes too long.",
        minimum=0,
        maximum=1 << 40,
        special="0 = never: a start without a slave reads the whole journal",
    )
    slave_follow_interval_s: float = option(
        "store",
        "slaveFollowInterval",
        Kind.DURATION,
        "250ms",
        "How often a slave reads the master's new records, so that a takeover has little left to read.",
        "Use a longer interval if the file server is busy. A takeover then takes longer, too.",
        minimum=0,
        maximum=3_600_000,
        special="0 = never: a takeover begins at the last checkpoint",
    )
    allow_unsafe_store: bool = option(
        "store",
        "allowUnsafeStore",
        Kind.BOOLEAN,
        False,
        "Start even if `amq doctor` finds the store unfit; every start then logs a warning.",
        "Set it only for trials with messages that may be lost: on such a store there can be two masters, or none.",
    )

    prefetch_size: int = option(
        "queues",
        "prefetchSize",
        Kind.INTEGER,
        1000,
        "How many unacknowledged messages a consumer gets if its subscription does not say.",
        "Use 1 if messages take long to process: it shares them evenly among consumers.",
        minimum=1,
        maximum=1_000_000,
        reload=True,
        elsewhere=("queuePrefetch", "consumer-window-size", "prefetch-count"),
        destination=True,
    )
    maximum_redeliveries: int = option(
        "queues",
        "maximumRedeliveries",
        Kind.INTEGER,
        6,
        "How often a message is delivered again before it goes to the dead-letter queue.",
        "Use 0 to give up after the first attempt.",
        minimum=-1,
        maximum=1_000_000,
        special="-1 = no limit",
        reload=True,
        elsewhere=("max-delivery-attempts", "delivery-limit"),
        destination=True,
    )
    redelivery_delay_s: float = option(
        "queues",
        "redeliveryDelay",
        Kind.DURATION,
        0,
        "How long a message whose delivery failed waits before it is delivered again; messages behind it do not wait.",
        "Set it if failures pass with time, such as a service that is down or a lock that somebody holds.",
        minimum=0,
        maximum=DELAY_MS_MAX,
        special="0 = at once",
        reload=True,
        elsewhere=("initialRedeliveryDelay", "redelivery-delay"),
        destination=True,
    )
    redelivery_back_off_multiplier: float = option(
        "queues",
        "redeliveryBackOffMultiplier",
        Kind.DECIMAL,
        1,
        "Factor by which the delay grows after each further failure.",
        "Use 2 to double the delay each time, so that a service that is down for long is asked less and less often.",
        minimum=1,
        maximum=1000,
        special="1 = always redeliveryDelay",
        reload=True,
        elsewhere=("backOffMultiplier", "useExponentialBackOff", "redelivery-delay-multiplier"),
        destination=True,
    )
    maximum_redelivery_delay_s: float = option(
        "queues",
        "maximumRedeliveryDelay",
        Kind.DURATION,
        "1h",
        "Longest delay before a redelivery, whatever the multiplier says.",
        "Set it with redeliveryBackOffMultiplier to bound how late a message may come once all is well again.",
        minimum=1,
        maximum=DELAY_MS_MAX,
        reload=True,
        elsewhere=("max-redelivery-delay",),
        destination=True,
    )
    rejected_messages: str = option(
        "queues",
        "rejectedMessages",
        Kind.CHOICE,
        "dead-letter",
        "A message that a consumer rejects (NACK of STOMP, or a JMS client that gives up) becomes a dead letter at "
        "once, or is delivered again after redeliveryDelay, up to maximumRedeliveries times.",
        "Use redeliver if consumers reject messages for reasons that pass, as with the redeliveryPlugin of ActiveMQ.",
        choices=("dead-letter", "redeliver"),
        reload=True,
        elsewhere=("redeliveryPlugin",),
        destination=True,
    )
    dead_letter_strategy: str = option(
        "queues",
        "deadLetterStrategy",
        Kind.CHOICE,
        "client",
        "One dead-letter queue for each queue (individual), or one shared by all. client: as clients expect it, so "
        "messages that a JMS client gives up go to the shared one, as with ActiveMQ, all others to individual ones.",
        "Use shared to watch a single queue in a small installation, individual if your JMS clients do not look for "
        "their dead letters in one place.",
        choices=("client", "individual", "shared"),
        elsewhere=("individualDeadLetterStrategy", "sharedDeadLetterStrategy"),
    )
    dead_letter_prefix: str = option(
        "queues",
        "deadLetterPrefix",
        Kind.DESTINATION,
        "DLQ.",
        "Prefix of the name of a queue's individual dead-letter queue.",
        "Change it if existing tools look for another name.",
        elsewhere=("queuePrefix", "dead-letter-queue-prefix"),
    )
    shared_dead_letter_queue: str = option(
        "queues",
        "sharedDeadLetterQueue",
        Kind.DESTINATION,
        "ActiveMQ.DLQ",
        "Name of the dead-letter queue that several queues share.",
        "Change it if existing tools look for another name.",
        elsewhere=("deadLetterQueue", "dead-letter-address"),
    )
    expired_messages: str = option(
        "queues",
        "expiredMessages",
        Kind.CHOICE,
        "drop",
        "Drop expired messages, or move them to the dead-letter queue.",
        "Use dead-letter if expiry means that something is wrong and somebody should see the message.",
        choices=("drop", "dead-letter"),
        reload=True,
        elsewhere=("processExpired", "expiry-address"),
        destination=True,
    )
    expiry_queue: str = option(
        "queues",
        "expiryQueue",
        Kind.TEXT,
        "",
        "Name of the queue to which expired messages go; blank = see expiredMessages.",
        "Set it to keep expired messages, apart from those that no consumer could process.",
        reload=True,
        elsewhere=("expiry-queue", "expiryAddress"),
        destination=True,
    )
    dead_letter_non_persistent: bool = option(
        "queues",
        "deadLetterNonPersistent",
        Kind.BOOLEAN,
        True,
        "Move non-persistent messages to the dead-letter queue too, rather than drop them.",
        "Use false if non-persistent messages are worthless once late.",
        reload=True,
        elsewhere=("processNonPersistent",),
        destination=True,
    )
    group_buckets: int = option(
        "queues",
        "groupBuckets",
        Kind.INTEGER,
        1024,
        "Number of buckets for the message groups (JMSXGroupID) of a queue; each bucket belongs to one consumer. A "
        "change applies when groups are next used anew.",
        "Use more if many consumers share a queue and groups in one bucket must not delay each other.",
        minimum=1,
        maximum=1 << 20,
        reload=True,
        elsewhere=("bucketCount", "default-group-buckets"),
        destination=True,
    )
    group_rebalance: bool = option(
        "queues",
        "groupRebalance",
        Kind.BOOLEAN,
        False,
        "When a consumer joins, assign message groups anew, each when none of its messages is unacknowledged.",
        "Set it if groups live long and later consumers should get their share of them.",
        reload=True,
        elsewhere=("default-group-rebalance",),
        destination=True,
    )
    queue_limit_bytes: int = option(
        "queues",
        "queueLimit",
        Kind.SIZE,
        0,
        "Most bytes of messages in one queue; queueLimitPolicy decides what happens at the limit.",
        "Set it so that an absent consumer cannot fill the store for all others.",
        minimum=0,
        maximum=1 << 50,
        special="0 = no limit",
        reload=True,
        elsewhere=("max-size-bytes", "max-length-bytes", "queueMemoryLimit"),
        destination=True,
    )
    queue_limit_policy: str = option(
        "queues",
        "queueLimitPolicy",
        Kind.CHOICE,
        "block",
        "At queueLimit: block producers until there is room, reject each send with an error, or move the oldest "
        "messages to the dead-letter queue.",
        "Use fail if producers can do better than wait, and drop-oldest if new messages matter more than old ones.",
        choices=("block", "fail", "drop-oldest"),
        reload=True,
        elsewhere=("address-full-policy", "overflow", "messageEvictionStrategy"),
        destination=True,
    )
    last_value_key: str = option(
        "queues",
        "lastValueKey",
        Kind.TEXT,
        "",
        "Name of a message property; of messages with the same value of it only the newest waits, blank = all wait.",
        "Set it if only the present state counts, such as the last price of each share. Artemis calls it "
        "`_AMQ_LVQ_NAME`.",
        reload=True,
        elsewhere=("last-value-key", "default-last-value-key"),
        destination=True,
    )
    ring_size: int = option(
        "queues",
        "ringSize",
        Kind.INTEGER,
        0,
        "How many messages may wait in one queue, beside those that consumers have; the oldest goes.",
        "Set it if only the latest messages count, such as the last 1000 lines of a log.",
        minimum=0,
        maximum=1 << 40,
        special="0 = any number",
        reload=True,
        elsewhere=("ring-size", "default-ring-size"),
        destination=True,
    )
    divert: str = option(
        "queues",
        "divert",
        Kind.DIVERTS,
        "",
        "Queues and topics that also get the messages of a destination, blank = none: a name, or a list of diverts, "
        'such as "from queue to topic://news exclusive where price > 100". See divertExclusive.',
        "Set it to audit a destination, or if its messages have moved.",
        reload=True,
        elsewhere=("forwarding-address", "forwardTo"),
        destination=True,
    )
    divert_exclusive: bool = option(
        "queues",
        "divertExclusive",
        Kind.BOOLEAN,
        False,
        "Send diverted messages to what divert names only, not to the destination itself, unless a divert says "
        "`exclusive` or `copy`.",
        "Set it if the destination has moved: producers that use the old name then reach the new one.",
        reload=True,
        elsewhere=("exclusive", "forwardOnly"),
        destination=True,
    )
    scheduler_support: bool = option(
        "queues",
        "schedulerSupport",
        Kind.BOOLEAN,
        True,
        "Deliver messages later, or repeatedly, if their headers ask for it (AMQ_SCHEDULED_DELAY and others).",
        "Use false if such headers are meant for others to whom messages are passed on. Messages scheduled earlier "
        "stay scheduled.",
        reload=True,
    )
    duplicate_window: int = option(
        "queues",
        "duplicateWindow",
        Kind.INTEGER,
        20_000,
        "How many producer-given message ids each destination remembers, to store a resent message once.",
        "Use more if more than this many messages to one destination can be in flight during a failover. It costs "
        "memory for each destination.",
        minimum=0,
        maximum=10_000_000,
        special="0 = off",
        elsewhere=("id-cache-size", "maxFailoverProducersToTrack"),
    )
    outcome_window: int = option(
        "queues",
        "outcomeWindow",
        Kind.INTEGER,
        20_000,
        "How many commit outcomes of each user the broker remembers, for clients that lost the connection during a "
        "commit.",
        "Use more if more transactions than this commit while a client reconnects.",
        minimum=1,
        maximum=10_000_000,
    )

    pending_message_limit: int = option(
        "topics",
        "pendingMessageLimit",
        Kind.INTEGER,
        10_000,
        "How many messages may wait for one subscription to a topic, beside those that its consumer has. Beyond it, "
        "or beyond the subscription's share of memory, slowConsumerPolicy applies.",
        "Use 0 if consumers must see everything and producers may wait for them.",
        minimum=0,
        maximum=100_000_000,
        special="0 = any number: producers wait when memory is full",
        reload=True,
        elsewhere=("constantPendingMessageLimitStrategy", "pendingMessageLimitStrategy"),
        destination=True,
    )
    slow_consumer_policy: str = option(
        "topics",
        "slowConsumerPolicy",
        Kind.CHOICE,
        "discard-oldest",
        "At pendingMessageLimit: discard the oldest messages that wait for the slow consumer, or end its connection "
        "with an error.",
        "Use disconnect if a gap is worse than a consumer that notices the error and starts anew.",
        choices=("discard-oldest", "disconnect"),
        reload=True,
        elsewhere=("abortSlowConsumerStrategy", "slow-consumer-policy"),
        destination=True,
    )

    subscription_recovery_count: int = option(
        "topics",
        "subscriptionRecoveryCount",
        Kind.INTEGER,
        0,
        "How many of its latest messages a topic keeps in memory for later subscribers that ask for them "
        "(activemq.retroactive:true).",
        "Set it if new subscribers need the present state at once: 1, or as many messages as describe it.",
        minimum=0,
        maximum=100_000_000,
        special="0 = subscriptionRecoverySize and subscriptionRecoveryDuration say",
        reload=True,
        elsewhere=(
            "lastImageSubscriptionRecoveryPolicy",
            "fixedCountSubscriptionRecoveryPolicy",
            "retroactive-message-count",
        ),
        destination=True,
    )
    subscription_recovery_size_bytes: int = option(
        "topics",
        "subscriptionRecoverySize",
        Kind.SIZE,
        0,
        "Most memory for the latest messages that a topic keeps for later subscribers.",
        "Set it if messages differ much in size.",
        minimum=0,
        maximum=1 << 40,
        special="0 = subscriptionRecoveryCount and subscriptionRecoveryDuration say",
        reload=True,
        elsewhere=("fixedSizedSubscriptionRecoveryPolicy",),
        destination=True,
    )
    subscription_recovery_duration_s: float = option(
        "topics",
        "subscriptionRecoveryDuration",
        Kind.DURATION,
        0,
        "Greatest age of the messages that a topic keeps for later subscribers.",
        "Set it if only recent messages matter to new subscribers.",
        minimum=0,
        maximum=DELAY_MS_MAX,
        special="0 = subscriptionRecoveryCount and subscriptionRecoverySize say",
        reload=True,
        elsewhere=("timedSubscriptionRecoveryPolicy", "recoverDuration"),
        destination=True,
    )

    virtual_topics: str = option(
        "topics",
        "virtualTopics",
        Kind.TEXT,
        "VirtualTopic.>",
        "Topics whose messages also go to queues that consume them; a name or a pattern, blank = none.",
        "Use `>` for all topics, or a pattern for existing topics, if groups of consumers should share the work.",
        elsewhere=("virtualTopic",),
    )
    virtual_topic_consumers: str = option(
        "topics",
        "virtualTopicConsumers",
        Kind.TEXT,
        "Consumer.*.",
        "Prefix, before the topic's name, of a queue that consumes a virtual topic.",
        "Change it if existing clients use another name.",
    )

    memory_limit_bytes: int = option(
        "limits",
        "memoryLimit",
        Kind.SIZE,
        "1GiB",
        "Most memory that messages may take. Persistent messages beyond it wait on disk; producers of others block.",
        "Adapt it to the memory of the host. The process needs some memory beside it.",
        minimum=1 << 20,
        maximum=1 << 44,
        reload=True,
        elsewhere=("memoryUsage", "vm_memory_high_watermark", "global-max-size"),
    )
    store_limit_bytes: int = option(
        "limits",
        "storeLimit",
        Kind.SIZE,
        0,
        "Most bytes that the journal's files may take; near it producerFlowControl decides about persistent messages.",
        "Set it if others share the file system. Give twice the size of the largest backlog, and a few journal files "
        "more.",
        minimum=0,
        maximum=1 << 50,
        special="0 = what the file system gives",
        reload=True,
        elsewhere=("storeUsage",),
    )
    producer_flow_control: str = option(
        "limits",
        "producerFlowControl",
        Kind.CHOICE,
        "block",
        "At memoryLimit and storeLimit: block producers until there is room, or reject each send with an error.",
        "Use fail if producers can do better than wait.",
        choices=("block", "fail"),
        reload=True,
        elsewhere=("sendFailIfNoSpace",),
    )
    max_connections: int = option(
        "limits",
        "maxConnections",
        Kind.INTEGER,
        10_000,
        "Most client connections at a time. At the limit, the oldest connection that has not logged in within a second "
        "gives way; if there is none, the broker tells the new one so and closes it. A process that may open few files "
        "(`ulimit -n`) serves fewer.",
        "Use fewer to keep memory for those that are there.",
        minimum=1,
        maximum=1_000_000,
        reload=True,
        elsewhere=("maximumConnections", "connectionsAllowed"),
    )
    max_connections_per_address: int = option(
        "limits",
        "maxConnectionsPerAddress",
        Kind.INTEGER,
        0,
        "Most connections of one address at a time. An IPv6 address counts by its network, a /64.",
        "Set it if one host must not take the connections of all others.",
        minimum=0,
        maximum=1_000_000,
        special="0 = as many as maxConnections allows",
        reload=True,
    )
    max_connections_per_user: int = option(
        "limits",
        "maxConnectionsPerUser",
        Kind.INTEGER,
        0,
        "Most connections of one user at a time.",
        "Set it if one user must not take the connections of all others.",
        minimum=0,
        maximum=1_000_000,
        special="0 = as many as maxConnections allows",
        reload=True,
    )
    failed_logins_per_minute: int = option(
        "limits",
        "failedLoginsPerMinute",
        Kind.INTEGER,
        60,
        "So many wrong logins an address, or an IPv6 network (/64), may send within a minute; then the broker refuses "
        "all of its logins for the rest of that minute.",
        "Use fewer on a network of strangers, more if many clients share one address (NAT).",
        minimum=0,
        maximum=100_000,
        special="0 = any number",
        reload=True,
    )
    new_connections_per_minute: int = option(
        "limits",
        "newConnectionsPerMinute",
        Kind.INTEGER,
        0,
        "About so many connections an address, or an IPv6 network (/64), may open within a minute; the broker refuses "
        "further ones.",
        "Set it if a client that connects again and again must not keep the broker busy. Allow for all clients of an "
        "address (NAT), which connect at once after a takeover.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    throttle_messages: int = option(
        "limits",
        "throttleMessages",
        Kind.INTEGER,
        0,
        "Most messages that a user may send in a second, over all connections. The broker reads these connections more "
        "slowly, so that their producers wait; nothing is refused.",
        "Set it if one user must not take the rate of all others.",
        minimum=0,
        maximum=10_000_000,
        special="0 = any number",
        reload=True,
        elsewhere=("throttle",),
    )
    throttle_size_bytes: int = option(
        "limits",
        "throttleSize",
        Kind.SIZE,
        0,
        "Most bytes that the broker reads from a user in a second, over all connections. As throttleMessages.",
        "Set it if one user must not take the disk and the network of all others.",
        minimum=0,
        maximum=1 << 40,
        special="0 = any number",
        reload=True,
    )
    max_queues_per_user: int = option(
        "limits",
        "maxQueuesPerUser",
        Kind.INTEGER,
        0,
        "Most queues that a user may have made, by a send or a consumer, and that are still there. A new master counts "
        "from its start on.",
        "Set it if a mistake of one user must not fill the broker with queues.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    max_prepared_per_user: int = option(
        "limits",
        "maxPreparedPerUser",
        Kind.INTEGER,
        10_000,
        "Most prepared transactions of a user that are neither committed nor rolled back. The broker refuses a further "
        "prepare (`QUOTA_EXCEEDED`) and rolls its transaction back. Leases do not count.",
        "Use more if a batch of a pipeline has more parts than that.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    max_subscriptions_per_user: int = option(
        "limits",
        "maxSubscriptionsPerUser",
        Kind.INTEGER,
        50_000,
        "Most consumers of a user at a time, over all connections, and most durable subscriptions.",
        "Use fewer if a mistake of one user must not fill the broker with subscriptions, more if one user is all users "
        "of a large application.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    max_selector_terms: int = option(
        "limits",
        "maxSelectorTerms",
        Kind.INTEGER,
        500,
        "Most terms of one selector: its comparisons, arithmetic operators and conditions in parentheses. An IN is one "
        "term, however many values it has; docs/messaging.md says which LIKE counts for more.",
        "Raise it if a program writes long selectors that no IN can replace. A selector of 500 terms takes about 20 ms "
        "to compile, once.",
        minimum=0,
        maximum=1_000_000,
        special="0 = as many as its 10,240 characters hold",
        reload=True,
    )
    max_selector_terms_per_user: int = option(
        "limits",
        "maxSelectorTermsPerUser",
        Kind.INTEGER,
        100_000,
        "Most terms of the selectors of all subscriptions of a user, as maxSelectorTerms counts them. A term "
        "takes up to 1 KiB of memory, which memoryLimit does not count.",
        "Raise it if one user has very many subscriptions with selectors.",
        minimum=0,
        maximum=100_000_000,
        special="0 = any number",
        reload=True,
    )
    max_frame_size_bytes: int = option(
        "limits",
        "maxFrameSize",
        Kind.SIZE,
        "100MiB",
        "Largest message body.",
        "Use a lower limit to find mistakes sooner if messages are known to be small.",
        minimum=1 << 10,
        maximum=1 << 30,
        reload=True,
        elsewhere=("wireFormat.maxFrameSize", "max_message_size"),
    )
    max_header_count: int = option(
        "limits",
        "maxHeaderCount",
        Kind.INTEGER,
        1000,
        "Most headers of one message or command, and most properties of an OpenWire message.",
        "Rarely needed.",
        minimum=16,
        maximum=100_000,
        reload=True,
    )
    max_header_size_bytes: int = option(
        "limits",
        "maxHeaderSize",
        Kind.SIZE,
        "10KiB",
        "Longest header, name and value together.",
        "Use more if applications carry large tokens in headers.",
        minimum=256,
        maximum=1 << 20,
        reload=True,
    )
    max_header_block_size_bytes: int = option(
        "limits",
        "maxHeaderBlockSize",
        Kind.SIZE,
        "64KiB",
        "Most bytes that all headers of one message or command take together.",
        "Use more if applications carry much in headers.",
        minimum=256,
        maximum=16 << 20,
        reload=True,
    )
    unfinished_frame_timeout_s: float = option(
        "limits",
        "unfinishedFrameTimeout",
        Kind.DURATION,
        "30s",
        "How long a client may take from the first to the last byte of a command before it is disconnected, and a "
        "second more for each 64 KiB that came.",
        "Use more if clients pause for long in the middle of a message.",
        minimum=100,
        maximum=86_400_000,
        reload=True,
    )
    connect_timeout_s: float = option(
        "limits",
        "connectTimeout",
        Kind.DURATION,
        "10s",
        "How long a new connection may take to send its login before the broker closes it. The time that the broker "
        "takes to check the login does not count.",
        "Use more if clients are slow to log in.",
        minimum=100,
        maximum=3_600_000,
        reload=True,
        elsewhere=("handshake_timeout",),
    )
    max_handshakes: int = option(
        "limits",
        "maxHandshakes",
        Kind.INTEGER,
        64,
        "How many TLS handshakes are in progress at a time; further clients wait in the kernel. If others wait, a "
        "handshake that has taken a second gives way.",
        "Use fewer on a slow host, to keep time for the clients that are in.",
        minimum=1,
        maximum=10_000,
        reload=True,
    )
    handshake_timeout_s: float = option(
        "limits",
        "handshakeTimeout",
        Kind.DURATION,
        "10s",
        "How long a TLS handshake may take before the broker closes the connection.",
        "Use more if clients are behind a very slow network.",
        minimum=100,
        maximum=3_600_000,
        reload=True,
    )
    connection_ttl_s: float = option(
        "limits",
        "connectionTtl",
        Kind.DURATION,
        "60s",
        "How long the host of a client may leave TCP without an answer before the broker closes the connection. It "
        "finds hosts that vanish without a word behind clients that send no heart-beats.",
        "Use more if connections must survive a network that is away for longer.",
        minimum=0,
        maximum=86_400_000,
        special="0 = never",
        reload=True,
        elsewhere=("connection-ttl",),
    )
    reconnect_window_s: float = option(
        "limits",
        "reconnectWindow",
        Kind.DURATION,
        "1m",
        "How long the broker keeps, at most, what a client held whose connection broke without a word: unacknowledged "
        "messages, open transactions, temporary queues. Only a client that asks for it (`reconnectWindow` of its URL, "
        "which may be shorter) can come back to it. The broker keeps up to maxConnections such connections besides "
        "those that are there.",
        "Use less if other consumers must get the messages of a dead client sooner, whatever it asked for.",
        minimum=0,
        maximum=3_600_000,
        special="0 = never: all of it goes back at once",
        reload=True,
    )
    confirmation_window_size_bytes: int = option(
        "limits",
        "confirmationWindowSize",
        Kind.SIZE,
        "1MiB",
        "How many bytes of what it sent the broker keeps for a client that may come back (reconnectWindow) and has not "
        "confirmed them. A client that lacks more begins anew.",
        "Use more if messages are large and must not be delivered again after a network glitch.",
        minimum=0,
        maximum=1 << 30,
        special="0 = clients never come back to what they held",
        reload=True,
    )
    confirmation_window_limit_bytes: int = option(
        "limits",
        "confirmationWindowLimit",
        Kind.SIZE,
        "64MiB",
        "Most bytes that the windows of all clients take together (confirmationWindowSize). Beyond it the client that "
        "is sent to loses the oldest of its own.",
        "Adapt it to the memory of the host if thousands of clients ask for reattachment.",
        minimum=0,
        maximum=1 << 40,
        reload=True,
    )
    transaction_timeout_s: float = option(
        "limits",
        "transactionTimeout",
        Kind.DURATION,
        "5m",
        "How long an open transaction may be idle before the broker rolls it back.",
        "Use more if jobs keep a transaction open while they compute.",
        minimum=100,
        maximum=604_800_000,
        reload=True,
        elsewhere=("transaction-timeout",),
    )
    prepared_transaction_timeout_s: float = option(
        "limits",
        "preparedTransactionTimeout",
        Kind.DURATION,
        "1h",
        "How long a prepared transaction waits for its commit before the broker rolls it back, unless its prepare "
        "says otherwise.",
        "Use more, or 0, if a coordinator may be away for longer.",
        minimum=0,
        maximum=2_592_000_000,
        special="0 = forever",
        reload=True,
    )
    prepared_transaction_timeout_max_s: float = option(
        "limits",
        "preparedTransactionTimeoutMax",
        Kind.DURATION,
        0,
        "Longest time for which a prepared transaction waits, whatever its prepare or preparedTransactionTimeout says. "
        "Transactions that are prepared already keep their time; leases have none.",
        "Set it if coordinators never stay away longer. A transaction that the broker rolls back may have branches in "
        "other systems that are committed, so by default maxPreparedPerUser alone bounds what is left behind.",
        minimum=0,
        maximum=31_536_000_000,
        special="0 = without end",
        reload=True,
    )
    direct_read_time_s: float = option(
        "limits",
        "directReadTime",
        Kind.DURATION,
        "5m",
        "How long the broker keeps journal segments for a client that was told where its messages stand "
        "(`directReads`), unless its lease ends before.",
        "Use more if micro-batches take longer. A client that comes too late gets the messages from the broker.",
        minimum=0,
        maximum=86_400_000,
        special="0 = they are not kept",
        reload=True,
    )
    direct_read_segments: int = option(
        "limits",
        "directReadSegments",
        Kind.INTEGER,
        32,
        "Most journal segments that are kept for such clients. At `storeLimit` none is.",
        "Use less if the disk is small: each takes `journalSegmentSize`.",
        minimum=0,
        maximum=100_000,
        reload=True,
    )
    max_transaction_size_bytes: int = option(
        "limits",
        "maxTransactionSize",
        Kind.SIZE,
        "256MiB",
        "Most bytes that one open transaction may hold; the broker rolls back a larger one.",
        "Use more if large transactions are intended and memoryLimit has room for them.",
        minimum=1 << 10,
        maximum=1 << 31,
        reload=True,  # it is one record, which has 32 bits for its length
    )
    max_composite_destinations: int = option(
        "limits",
        "maxCompositeDestinations",
        Kind.INTEGER,
        256,
        "Most names in one composite destination (`/queue/a,/queue/b`) that a producer may send to.",
        "Use more if producers send to more destinations at once. Each name costs the broker about 30 µs a message.",
        minimum=1,
        maximum=10_000,
        reload=True,
    )
    consumer_buffer_size_bytes: int = option(
        "limits",
        "consumerBufferSize",
        Kind.SIZE,
        "1MiB",
        "Bytes that may wait for the socket of a client that reads slowly. The broker then stops delivering to it. If "
        "as many bytes of answers to its commands wait as well, the broker stops reading from it until it reads.",
        "Use less if many slow consumers take too much memory.",
        minimum=4 << 10,
        maximum=1 << 30,
        reload=True,
    )

    heart_beat_send_s: float = option(
        "stomp",
        "heartBeatSend",
        Kind.DURATION,
        "1s",
        "The shortest interval of heart-beats that the broker sends. A client that asks for a longer one gets that.",
        "Use more if thousands of clients ask for short intervals and the broker has little CPU time.",
        minimum=0,
        maximum=86_400_000,
        special="0 = none",
        reload=True,
    )
    heart_beat_receive_s: float = option(
        "stomp",
        "heartBeatReceive",
        Kind.DURATION,
        "1s",
        "The shortest interval at which the broker expects heart-beats. A client that offers a longer one is expected "
        "at that. The broker closes a connection that is silent for twice the interval.",
        "Use more if clients offer short intervals and are often busy for longer.",
        minimum=0,
        maximum=86_400_000,
        special="0 = none",
        reload=True,
    )
    stomp_default_persistent: bool = option(
        "stomp",
        "stompDefaultPersistent",
        Kind.BOOLEAN,
        True,
        "Whether a message without a `persistent` header is persistent.",
        "Use false for clients written for ActiveMQ, where it is not, if their messages may be lost: it is faster.",
        reload=True,
    )
    stomp_strict_destinations: bool = option(
        "stomp",
        "stompStrictDestinations",
        Kind.BOOLEAN,
        True,
        "Whether a destination must begin with /queue/, /topic/ or another known prefix, and what looks like a slip is "
        "rejected.",
        "Clients written for ActiveMQ or Artemis use plain names such as `orders`: false makes a queue of whatever has "
        "no known prefix.",
        reload=True,
    )

    rebalance_cluster_clients: bool = option(
        "openwire",
        "rebalanceClusterClients",
        Kind.BOOLEAN,
        False,
        "Let clients of OpenWire move to the broker that is first in the list that `updateClusterClients` tells them, "
        "the master, as soon as they hear of it.",
        "Set it if clients reach the master through another address first, such as a relay that should carry no "
        "messages.",
        reload=True,
    )

    audit_log: str = option(
        "log",
        "auditLog",
        Kind.CHOICE,
        "refusals",
        "The lines of the logger amq.audit: none, of refused logins and commands that permissions forbid, or also of "
        "each login (all).",
        "Use all if you must be able to tell who was connected when.",
        choices=("none", "refusals", "all"),
        reload=True,
    )
    log_level: str = option(
        "log",
        "logLevel",
        Kind.CHOICE,
        "info",
        "The least important lines to write.",
        "Use debug to look for a fault.",
        choices=("debug", "info", "warning", "error"),
        reload=True,
        elsewhere=("rootLogger",),
    )
    log_format: str = option(
        "log",
        "logFormat",
        Kind.CHOICE,
        "auto",
        "Lines for people or JSON for machines; auto means console on a terminal, else JSON.",
        "Use json if a collector reads the terminal's output, and console if people read a file.",
        choices=("console", "json", "auto"),
    )

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
    return tuple(sorted(found, key=lambda made: list(SECTIONS).index(made.section)))


OPTIONS: tuple[Option, ...] = _collect()
BY_KEY: Mapping[str, Option] = {made.key: made for made in OPTIONS}
assert len(BY_KEY) == len(OPTIONS), "two options share a key"
assert all(made.reload for made in OPTIONS if made.destination), "all of a destination's options change together"
