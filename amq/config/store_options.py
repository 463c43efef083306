"""StoreOptions: the options of scope store. They belong to one member, the broker of one store."""

from __future__ import annotations

from dataclasses import dataclass

from amq.config.destination_options import DestinationDefaults, DestinationOptions
from amq.config.option import OptionScope, Section

BROKER = Section(OptionScope.STORE, "broker")
LOCK = Section(OptionScope.STORE, "lock")
HA = Section(OptionScope.STORE, "ha")
STORE = Section(OptionScope.STORE, "store")
QUEUES = Section(OptionScope.STORE, "queues")
TOPICS = Section(OptionScope.STORE, "topics")
LIMITS = Section(OptionScope.STORE, "limits")
SECURITY = Section(OptionScope.STORE, "security")


@dataclass(frozen=True)
class StoreOptions(DestinationDefaults):
    """Durations are seconds (`_s`), sizes bytes (`_bytes`).

    destinations  the values that single destinations have for themselves, in the order of the file
    """

    __slots__ = ()

    name: str = BROKER.text(
        "",
        "Name of this broker in logs, `amq status` and the epoch files; blank means the host's name.",
        "Give each broker its own name if two brokers of one group run on one host.",
        elsewhere=("brokerName", "leaseHolderId"),
    )
    store: str = BROKER.path(
        "",
        "The directory on the shared file system that all brokers of a group use, the URL of a database, or "
        "replica:///DIR?group=NAME&coordinator=URL: a copy of this broker's own. Required.",
        "Always set it: every broker of a group uses the same one. postgresql://HOST/DATABASE is described in "
        "docs/postgresql.md, replica:// in docs/master-slave.md.",
        elsewhere=("dataDirectory", "journal-directory"),
    )

    locker: str = LOCK.text(
        "",
        "URL of a PostgreSQL database, of etcd, of ZooKeeper or of a small directory in which the lock of this store "
        "is, such as postgresql://HOST/DATABASE, etcd://HOST,HOST,HOST or file:///DIR; the journal stays in the store "
        "directory. Blank means that the lock is a file of the store.",
        "Use it where the locks of the shared file system cannot be trusted, but its writes can. Give each group its "
        "own `tablePrefix` or `namespace`, and all brokers of a group the same servers. See docs/postgresql.md and "
        "docs/coordinators.md.",
        elsewhere=("lease-database-locker", "database-locker"),
    )
    lock_acquire_sleep_interval_s: float = LOCK.duration(
        "1s",
        "How long a slave waits between two attempts to get the lock.",
        "A shorter interval finds a dead master sooner on a network file system; a longer one asks less of the file "
        "server.",
        minimum=10,
        maximum=3_600_000,
    )
    lock_keep_alive_period_s: float = LOCK.duration(
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
    fail_if_locked: bool = LOCK.boolean(
        False,
        "If another broker holds the lock, end with an error instead of waiting as a slave.",
        "Set it if a supervisor, not the broker, decides which broker waits.",
    )

    priority: int = HA.integer(
        0,
        "The broker with the highest priority should be master. When it has caught up as a slave, the master hands "
        "over to it (see allowFailback). Brokers of equal priority leave the store to each other.",
        "Give the best host the highest number, if it matters which host serves.",
        minimum=-1000,
        maximum=1000,
        reload=True,
        elsewhere=("check-for-live-server", "brokerPriority"),
    )
    allow_failback: bool = HA.boolean(
        True,
        "Whether this broker, as master, hands over to a slave of higher priority that has caught up.",
        "Use false if a person decides when the preferred broker serves again: `amq handover`.",
        reload=True,
        elsewhere=("allow-failback",),
    )
    failback_delay_s: float = HA.duration(
        "5s",
        "How long a slave of higher priority must have been ready before the master hands over to it. The delay "
        "doubles with each failback of the last hour, up to one hour.",
        "Use a longer delay if the preferred host is slow to become stable after a start.",
        minimum=0,
        maximum=3_600_000,
        reload=True,
        elsewhere=("failback-delay",),
    )
    hung_master_timeout_s: float = HA.duration(
        "10s",
        "A slave that sees no heartbeat of the master for so long, and never sooner than five lockKeepAlivePeriods "
        "of the master, replaces the lock file and takes over. The master may be stopped, or cut off from the store.",
        "Use a longer time if the file server stalls for longer, because the master writes no heartbeat meanwhile.",
        minimum=0,
        maximum=86_400_000,
        special="0 = never: a person must end a master that hangs",
        reload=True,
    )
    failover_on_shutdown: bool = HA.boolean(
        True,
        "Whether a slave takes over when this broker, as master, is stopped in good order.",
        "Use false if a clean stop is meant to end the service: the slaves then wait for `amq handover`, or for the "
        "start of a broker. After a crash a slave takes over in any case.",
        reload=True,
        elsewhere=("failover-on-shutdown", "failover-on-server-shutdown"),
    )
    update_cluster_clients: bool = HA.boolean(
        True,
        "Tell clients that have logged in the addresses of all brokers of the group, and each change of them.",
        "Use false if clients must know only the brokers that their URL names.",
        reload=True,
    )

    journal_segment_size_bytes: int = STORE.size(
        "32MiB",
        "Most bytes of a journal file together with the records that must be written before it can be deleted; "
        "the broker fills a file up to three quarters of this. A larger message gets a separate file.",
        "Smaller files give space back sooner; larger ones are created less often.",
        minimum=64 << 10,
        maximum=1 << 30,
        elsewhere=("journalMaxFileLength", "journal-file-size"),
    )
    journal_batch_size_bytes: int = STORE.size(
        "4MiB",
        "Most bytes that one write and sync of the journal carries.",
        "A smaller value evens out latency under load on a slow disk; a larger one helps with large messages.",
        minimum=4 << 10,
        maximum=1 << 30,
        elsewhere=("journalMaxWriteBatchSize", "journal-buffer-size"),
    )
    journal_reserve_bytes: int = STORE.size(
        "4MiB",
        "Disk space set aside so that acknowledgements, which free space, can be stored on a full disk.",
        "Reserve more if a large number of consumers acknowledge at once.",
        minimum=64 << 10,
        maximum=1 << 40,
    )
    store_free_floor_bytes: int = STORE.size(
        "64MiB",
        "When less than this is free on the store's file system, sends are rejected until space is back.",
        "Use more if other programs fill the same file system.",
        minimum=64 << 10,
        maximum=1 << 50,
        elsewhere=("max-disk-usage", "disk_free_limit"),
    )
    checkpoint_distance_bytes: int = STORE.size(
        "128MiB",
        "How far the journal grows between two checkpoints. A start reads no more than this after the last "
        "checkpoint, or four times the checkpoint's own size.",
        "Use less if messages are tiny and a start without a slave takes too long.",
        minimum=0,
        maximum=1 << 40,
        special="0 = never: a start without a slave reads the whole journal",
    )
    slave_follow_interval_s: float = STORE.duration(
        "250ms",
        "How often a slave reads the master's new records, so that a takeover has little left to read.",
        "Use a longer interval if the file server is busy. A takeover then takes longer, too.",
        minimum=0,
        maximum=3_600_000,
        special="0 = never: a takeover begins at the last checkpoint",
    )
    allow_unsafe_store: bool = STORE.boolean(
        False,
        "Start even if `amq doctor` finds the store unfit; every start then logs a warning.",
        "Set it only for trials with messages that may be lost: on such a store there can be two masters, or none.",
    )

    dead_letter_strategy: str = QUEUES.choice(
        "client",
        "One dead-letter queue for each queue (individual), or one shared by all. client: as clients expect it, so "
        "messages that a JMS client gives up go to the shared one, as with ActiveMQ, all others to individual ones.",
        "Use shared to watch a single queue in a small installation, individual if your JMS clients do not look for "
        "their dead letters in one place.",
        choices=("client", "individual", "shared"),
        elsewhere=("individualDeadLetterStrategy", "sharedDeadLetterStrategy"),
    )
    dead_letter_prefix: str = QUEUES.destination(
        "DLQ.",
        "Prefix of the name of a queue's individual dead-letter queue.",
        "Change it if existing tools look for another name.",
        elsewhere=("queuePrefix", "dead-letter-queue-prefix"),
    )
    shared_dead_letter_queue: str = QUEUES.destination(
        "ActiveMQ.DLQ",
        "Name of the dead-letter queue that several queues share.",
        "Change it if existing tools look for another name.",
        elsewhere=("deadLetterQueue", "dead-letter-address"),
    )
    scheduler_support: bool = QUEUES.boolean(
        True,
        "Deliver messages later, or repeatedly, if their headers ask for it (AMQ_SCHEDULED_DELAY and others).",
        "Use false if such headers are meant for others to whom messages are passed on. Messages scheduled earlier "
        "stay scheduled.",
        reload=True,
    )
    duplicate_window: int = QUEUES.integer(
        20_000,
        "How many producer-given message ids each destination remembers, to store a resent message once.",
        "Use more if more than this many messages to one destination can be in flight during a failover. It costs "
        "memory for each destination.",
        minimum=0,
        maximum=10_000_000,
        special="0 = off",
        elsewhere=("id-cache-size", "maxFailoverProducersToTrack"),
    )
    outcome_window: int = QUEUES.integer(
        20_000,
        "How many commit outcomes of each user the broker remembers, for clients that lost the connection during a "
        "commit.",
        "Use more if more transactions than this commit while a client reconnects.",
        minimum=1,
        maximum=10_000_000,
    )

    virtual_topics: str = TOPICS.text(
        "VirtualTopic.>",
        "Topics whose messages also go to queues that consume them; a name or a pattern, blank = none.",
        "Use `>` for all topics, or a pattern for existing topics, if groups of consumers should share the work.",
        elsewhere=("virtualTopic",),
    )
    virtual_topic_consumers: str = TOPICS.text(
        "Consumer.*.",
        "Prefix, before the topic's name, of a queue that consumes a virtual topic.",
        "Change it if existing clients use another name.",
    )

    memory_limit_bytes: int = LIMITS.size(
        "1GiB",
        "Most memory that messages may take. Persistent messages beyond it wait on disk; producers of others block.",
        "Adapt it to the memory of the host. The process needs some memory in addition.",
        minimum=1 << 20,
        maximum=1 << 44,
        reload=True,
        elsewhere=("memoryUsage", "vm_memory_high_watermark", "global-max-size"),
    )
    store_limit_bytes: int = LIMITS.size(
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
    producer_flow_control: str = LIMITS.choice(
        "block",
        "At memoryLimit and storeLimit: block producers until there is room, or reject each send with an error.",
        "Use fail if producers can do better than wait.",
        choices=("block", "fail"),
        reload=True,
        elsewhere=("sendFailIfNoSpace",),
    )
    max_queues_per_user: int = LIMITS.integer(
        0,
        "Most queues that a user may have made, by a send or a consumer, and that are still there. A new master counts "
        "from its start on.",
        "Set it if a mistake of one user must not fill the broker with queues.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    max_prepared_per_user: int = LIMITS.integer(
        10_000,
        "Most prepared transactions of a user that are neither committed nor rolled back. The broker refuses a further "
        "prepare (`QUOTA_EXCEEDED`) and rolls its transaction back. Leases do not count.",
        "Use more if a batch of a pipeline has more parts than that.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    max_subscriptions_per_user: int = LIMITS.integer(
        50_000,
        "Most consumers of a user at a time, over all connections, and most durable subscriptions.",
        "Use fewer if a mistake of one user must not fill the broker with subscriptions, more if one user is all users "
        "of a large application.",
        minimum=0,
        maximum=1_000_000,
        special="0 = any number",
        reload=True,
    )
    max_selector_terms: int = LIMITS.integer(
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
    max_selector_terms_per_user: int = LIMITS.integer(
        100_000,
        "Most terms of the selectors of all subscriptions of a user, as maxSelectorTerms counts them. A term "
        "takes up to 1 KiB of memory, which memoryLimit does not count.",
        "Raise it if one user has very many subscriptions with selectors.",
        minimum=0,
        maximum=100_000_000,
        special="0 = any number",
        reload=True,
    )
    transaction_timeout_s: float = LIMITS.duration(
        "5m",
        "How long an open transaction may be idle before the broker rolls it back.",
        "Use more if jobs keep a transaction open while they compute.",
        minimum=100,
        maximum=604_800_000,
        reload=True,
        elsewhere=("transaction-timeout",),
    )
    prepared_transaction_timeout_s: float = LIMITS.duration(
        "1h",
        "How long a prepared transaction waits for its commit before the broker rolls it back, unless its prepare "
        "says otherwise.",
        "Use more, or 0, if a coordinator may be away for longer.",
        minimum=0,
        maximum=2_592_000_000,
        special="0 = forever",
        reload=True,
    )
    prepared_transaction_timeout_max_s: float = LIMITS.duration(
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
    direct_read_time_s: float = LIMITS.duration(
        "5m",
        "How long the broker keeps journal segments for a client that knows where its messages are "
        "(`directReads`), unless its lease ends before.",
        "Use more if micro-batches take longer. A client that comes too late gets the messages from the broker.",
        minimum=0,
        maximum=86_400_000,
        special="0 = they are not kept",
        reload=True,
    )
    direct_read_segments: int = LIMITS.integer(
        32,
        "Most journal segments that are kept for such clients. At `storeLimit` none is.",
        "Use less if the disk is small: each takes `journalSegmentSize`.",
        minimum=0,
        maximum=100_000,
        reload=True,
    )
    max_transaction_size_bytes: int = LIMITS.size(
        "256MiB",
        "Most bytes that one open transaction may hold; the broker rolls back a larger one.",
        "Use more if large transactions are intended and memoryLimit has room for them.",
        minimum=1 << 10,
        maximum=1 << 31,
        reload=True,  # it is one record, which has 32 bits for its length
    )
    max_composite_destinations: int = LIMITS.integer(
        256,
        "Most names in one composite destination (`/queue/a,/queue/b`) that a producer may send to.",
        "Use more if producers send to more destinations at once. Each name costs the broker about 30 µs a message.",
        minimum=1,
        maximum=10_000,
        reload=True,
    )

    populate_jmsxuser_id: bool = SECURITY.boolean(
        False,
        "Set the property JMSXUserID of each message to the user who sent it, `anonymous` without a login, whatever "
        "the producer says.",
        "Set it if consumers must know for certain who sent a message. It costs the broker 70 µs for each message that "
        "a JMS client sends and another one gets.",
        reload=True,
        key="populateJMSXUserID",
    )
    allow_link_stealing: bool = SECURITY.boolean(
        False,
        "A new connection ends an older one of the same user and client id, instead of being refused the resources "
        "that the older one uses.",
        "Set it if other clients reconnect before the broker notices that they were gone. Our client does not need it.",
        reload=True,
    )
    direct_reads: str = SECURITY.text(
        "",
        "Users, with commas between, who learn where in the files of the store leased or browsed messages are; "
        "blank = none, `*` = all who may log in, `anonymous` = clients without a login.",
        "Set it for jobs of Spark on hosts that mount the store (option `store`). Such a host can read all of the "
        "store whatever the broker says: the file system must say who may.",
        reload=True,
    )

    destinations: tuple[DestinationOptions, ...] = ()
